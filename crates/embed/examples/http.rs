//! HTTP/1.1 on a TAP device: serves the files of a folder, and echoes the body of a `POST`. Ctrl-C ends it.
//!
//! ```text
//! cargo run --release -p napkin-embed --example http -- . suspend20
//! wrk -t1 -c100 -d5s http://10.99.0.1/README.md
//! ```

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use napkin_embed::{
    Address, ApplicationWait, CpuId, DeviceConfig, Engine, EngineConfig, Flow, Ns, Policy, Pool,
    Pump, Served, StreamService, Tap, TapConfig, TcpLimits, now, sched,
};

/// The maximum length of a request, in bytes.
const MAX_REQUEST: usize = 64 * 1_024;

struct Http(PathBuf);

impl Http {
    /// Reads the file of a path that has no `..` component.
    fn file(&self, path: &str) -> Option<Vec<u8>> {
        let path = Path::new(path.trim_start_matches('/'));
        let below = path.components().all(|part| matches!(part, Component::Normal(_)));
        below.then(|| std::fs::read(self.0.join(path)).ok()).flatten()
    }
}

/// Appends a response, which announces whether the connection is closed after it.
fn answer(output: &mut Vec<u8>, status: &str, body: &[u8], close: bool) {
    let (length, next) = (body.len(), if close { "close" } else { "keep-alive" });
    // Writing to a vector cannot fail.
    let _ = write!(output, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n");
    let _ = write!(output, "Connection: {next}\r\n\r\n");
    output.extend_from_slice(body);
}

/// Parses a body length that consists of digits only. A number too large to represent is above any limit.
fn length(value: &[u8]) -> Option<usize> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| digits)?;
    Some(text.parse().unwrap_or(usize::MAX))
}

impl StreamService for Http {
    type Connection = ();

    fn open(&mut self, _: Flow) {}

    fn serve(&mut self, (): &mut (), input: &[u8], output: &mut Vec<u8>, _: Ns) -> Served {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        let head = match request.parse(input) {
            Ok(httparse::Status::Complete(head)) => head,
            Ok(httparse::Status::Partial) => return Served::More,
            Err(_) => {
                answer(output, "400 Bad Request", b"", true);
                return Served::Close;
            }
        };
        let values = |name: &'static str| {
            let headers = request.headers.iter();
            let named = headers.filter(move |it| it.name.eq_ignore_ascii_case(name));
            named.map(|header| header.value.trim_ascii())
        };
        // If two lengths differ, the start of the next request is ambiguous.
        let lengths: Vec<_> = values("content-length").map(length).collect();
        let first = lengths.first().copied().unwrap_or(Some(0));
        let Some(length) = first.filter(|_| lengths.iter().all(|it| *it == first)) else {
            answer(output, "400 Bad Request", b"", true);
            return Served::Close;
        };
        if length > MAX_REQUEST - head || values("transfer-encoding").next().is_some() {
            answer(output, "413 Content Too Large", b"", true);
            return Served::Close;
        }
        let Some(body) = input.get(head..head + length) else { return Served::More };
        let asks = |what: &str| {
            let mut lists = values("connection").flat_map(|list| list.split(|it| *it == b','));
            lists.any(|it| it.trim_ascii().eq_ignore_ascii_case(what.as_bytes()))
        };
        let close = asks("close") || (request.version == Some(0) && !asks("keep-alive"));
        match (request.method, self.file(request.path.unwrap_or("/"))) {
            (Some("POST"), _) => answer(output, "200 OK", body, close),
            (Some("GET"), Some(file)) => answer(output, "200 OK", &file, close),
            (Some("GET"), None) => answer(output, "404 Not Found", b"", close),
            _ => answer(output, "405 Method Not Allowed", b"", close),
        }
        if close { Served::Close } else { Served::Request(head + length) }
    }

    fn longest_request(&self) -> usize {
        MAX_REQUEST
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().unwrap_or_else(|| ".".into()).into();
    let policy: Policy = args.next().unwrap_or_else(|| "base".into()).parse()?;
    let us = Address::v4([2, 0, 0, 0, 0, 1], [10, 99, 0, 1], 24);
    let kernel = Some((Ipv4Addr::new(10, 99, 0, 2), 24));
    let config = TapConfig { name: "nk0".into(), address: kernel, ..TapConfig::default() };
    let queue = Tap::open(&config, &Pool::new(4_096))?.queues.remove(0);
    let device = DeviceConfig::new("nk0", us, vec![(Box::new(queue), 0)], policy.instance);
    let cpus = sched::usable_cpus().into_iter().take(1).collect();
    let config = EngineConfig { cpu_policy: policy.cpu, ..EngineConfig::new(cpus, vec![device]) };
    let engine = Engine::start(config)?;
    let mut worker = engine.stack("nk0")?.open_tcp(None, TcpLimits::default())?;
    worker.listen(80)?;
    let mut wait = ApplicationWait::new(&engine, CpuId(0), &worker.segments(), &policy)?;
    if let Some(poller) = wait.poller(CpuId(0)) {
        // The policy has another thread poll (`busypoll-separate`).
        std::thread::spawn(move || while poller.poll().is_ok() {});
    }
    let mut pump = Pump::new(Http(folder));
    loop {
        wait.wait(Some(Duration::from_nanos(worker.next_deadline().saturating_sub(now()))))?;
        worker.step(now(), 64, &mut pump);
    }
}
