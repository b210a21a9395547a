//! Parses a request's head and builds an answer: bytes in, bytes out.
//!
//! Each connection serves one request, and the answer closes it: a scraper's next request comes seconds later.

use crate::format::Format;

/// The maximum size of a request in bytes. Prometheus' own have about 300.
pub(crate) const LONGEST: usize = 8 * 1_024;

/// A parsed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// The head is incomplete.
    More,
    /// The metrics in this format; without `body`, only the head of the answer.
    Metrics { format: Format, body: bool },
    /// Anything else, with the status to answer.
    Refused(Refusal),
}

/// A status other than 200, with its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    BadRequest,
    NotFound,
    MethodNotAllowed,
    TooLarge,
    TooSlow,
}

impl Refusal {
    pub(crate) const fn status(self) -> &'static str {
        match self {
            Refusal::BadRequest => "400 Bad Request",
            Refusal::NotFound => "404 Not Found",
            Refusal::MethodNotAllowed => "405 Method Not Allowed\r\nAllow: GET, HEAD",
            Refusal::TooSlow => "408 Request Timeout",
            Refusal::TooLarge => "431 Request Header Fields Too Large",
        }
    }

    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Refusal::BadRequest => "this is no HTTP request\n",
            Refusal::NotFound => "there is /metrics, and nothing else\n",
            Refusal::MethodNotAllowed => "/metrics is for GET and HEAD\n",
            Refusal::TooSlow => "the request did not come whole in time\n",
            Refusal::TooLarge => "a request may have 8 KiB\n",
        }
    }
}

/// Parses a request from the bytes received so far.
pub(crate) fn parse(input: &[u8]) -> Request {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(input) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if input.len() < LONGEST => return Request::More,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Request::Refused(Refusal::TooLarge);
        }
        Err(_) => return Request::Refused(Refusal::BadRequest),
    }
    let path = request.path.unwrap_or_default();
    if path.split('?').next() != Some("/metrics") {
        return Request::Refused(Refusal::NotFound);
    }
    let body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return Request::Refused(Refusal::MethodNotAllowed),
    };
    let accept = request.headers.iter().find(|it| it.name.eq_ignore_ascii_case("accept"));
    let format = accept.map_or(Format::Prometheus, |it| Format::accepted(it.value));
    Request::Metrics { format, body }
}

/// Builds an answer: its head, and its body if that was requested.
pub(crate) fn answer(status: &str, content_type: &str, text: &str, body: bool) -> Vec<u8> {
    let length = text.len();
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    )
    .into_bytes();
    if body {
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn metrics_are_given_in_the_form_that_was_asked_for() {
        let plain = Request::Metrics { format: Format::Prometheus, body: true };
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), plain);
        assert_eq!(parse(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n"), plain);
        let open = b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text\r\n\r\n";
        assert_eq!(parse(open), Request::Metrics { format: Format::OpenMetrics, body: true });
        let head = Request::Metrics { format: Format::Prometheus, body: false };
        assert_eq!(parse(b"HEAD /metrics HTTP/1.1\r\n\r\n"), head);
    }

    #[test]
    fn anything_else_is_refused() {
        let refused = |input: &[u8]| match parse(input) {
            Request::Refused(refusal) => Some(refusal),
            _ => None,
        };
        assert_eq!(refused(b"GET / HTTP/1.1\r\n\r\n"), Some(Refusal::NotFound));
        assert_eq!(refused(b"GET /metrics/../etc HTTP/1.1\r\n\r\n"), Some(Refusal::NotFound));
        assert_eq!(refused(b"POST /metrics HTTP/1.1\r\n\r\n"), Some(Refusal::MethodNotAllowed));
        assert_eq!(refused(b"\x16\x03\x01\x02\x00"), Some(Refusal::BadRequest));
        assert_eq!(refused(&[b'G'; LONGEST]), Some(Refusal::TooLarge));
        let many = [b"GET /metrics HTTP/1.1\r\n".as_slice(), &b"a: b\r\n".repeat(100)].concat();
        assert_eq!(refused(&many), Some(Refusal::TooLarge));
    }

    #[test]
    fn an_answer_to_head_says_how_long_it_would_be() {
        let whole = answer("200 OK", "text/plain", "abc", true);
        let head = answer("200 OK", "text/plain", "abc", false);
        assert!(whole.ends_with(b"\r\n\r\nabc") && head.ends_with(b"\r\n\r\n"));
        assert!(head.windows(17).any(|it| it == b"Content-Length: 3"));
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_much(input in proptest::collection::vec(any::<u8>(), 0..2 * LONGEST)) {
            let _ = parse(&input);
        }

        #[test]
        fn a_request_is_whole_at_its_end_alone(cut in 0_usize..36) {
            let whole = b"GET /metrics HTTP/1.1\r\nHost: a.b\r\n\r\n";
            prop_assert_eq!(parse(&whole[..cut]), Request::More);
        }
    }
}
