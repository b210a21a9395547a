//! The HTTP server for scrapes: one thread, which sleeps between requests.
//!
//! The number of concurrent connections is limited. Further ones wait in the kernel's backlog, where they
//! cost nothing, until one has ended, which takes at most five seconds.

use std::io;
use std::os::fd::AsFd;

use napkin_os::clock;
use napkin_os::signals::{ReceivedSignal, Signals};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use thiserror::Error;

use crate::client::Client;
use crate::exporter::Exporter;
use crate::listener::Listener;
use crate::request::{Request, answer};

/// The maximum number of concurrent connections.
const MOST_CLIENTS: usize = 16;

const SECOND_NS: u64 = 1_000_000_000;

/// The pause in nanoseconds after a failed `accept` (for lack of descriptors, for example).
const AFTER_FAILURE: u64 = SECOND_NS;

/// Why the server ended by itself.
#[derive(Debug, Error)]
#[error("cannot wait for scrapes: {0}")]
pub struct ServerError(#[from] io::Error);

/// A listener, its connections, and the exporter that answers them.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    exporter: Exporter,
    clients: Vec<Client>,
    /// The time, in nanoseconds of the monotonic clock, from which connections are accepted again.
    accepts_ns: u64,
}

impl Server {
    /// Creates a server. It answers only while it [runs](Server::run).
    pub fn new(listener: Listener, exporter: Exporter) -> Server {
        Server { listener, exporter, clients: Vec::new(), accepts_ns: 0 }
    }

    /// Answers requests until one of `signals` arrives.
    ///
    /// # Errors
    /// If `poll` or the signal descriptor fails.
    pub fn run(&mut self, signals: &Signals) -> Result<ReceivedSignal, ServerError> {
        let signal = signals.readable()?;
        loop {
            if let Some(received) = signals.wait(std::time::Duration::ZERO) {
                return Ok(received);
            }
            self.wait(signal.as_fd())?;
            self.step(clock::now());
        }
    }

    fn wait(&self, signal: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
        let now = clock::now();
        let room = self.clients.len() < MOST_CLIENTS;
        let accepts = room && now >= self.accepts_ns;
        let mut due: Vec<u64> = self.clients.iter().map(Client::due_ns).collect();
        if room && !accepts {
            due.push(self.accepts_ns);
        }
        let timeout = due.into_iter().min().map(|due| clock::timespec(due.saturating_sub(now)));
        let mut fds = vec![PollFd::from_borrowed_fd(signal, PollFlags::IN)];
        fds.extend(self.clients.iter().map(|it| PollFd::from_borrowed_fd(it.fd(), it.interest())));
        if accepts {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn step(&mut self, now: u64) {
        while self.clients.len() < MOST_CLIENTS && now >= self.accepts_ns {
            match self.listener.accept() {
                Ok(Some(stream)) => self.clients.push(Client::new(stream, now)),
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => self.accepts_ns = now + AFTER_FAILURE,
            }
        }
        let exporter = &mut self.exporter;
        for client in &mut self.clients {
            client.advance(now, &mut |request| respond(exporter, request, now));
        }
        self.clients.retain(|client| !client.closed());
    }
}

fn respond(exporter: &mut Exporter, request: Request, now: u64) -> Vec<u8> {
    let Request::Metrics { format, body } = request else { return Vec::new() };
    match exporter.text(format, now) {
        Ok(text) => answer("200 OK", format.content_type(), &text, body),
        Err(error) => {
            let reason = format!("{error}\n");
            answer("503 Service Unavailable", "text/plain; charset=utf-8", &reason, body)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use napkin_watch::{Sample, Source, SourceError};

    use super::*;
    use crate::listener::Address;

    #[derive(Debug, Default)]
    struct Counted {
        samples: u64,
        gone: bool,
    }

    impl Source for Counted {
        fn title(&self) -> String {
            "a test".into()
        }

        fn sample(&mut self) -> Result<Sample, SourceError> {
            if self.gone {
                return Err(SourceError("it has gone".into()));
            }
            self.samples += 1;
            let napi = napkin_watch::NapiSample {
                ifname: "eth0".into(),
                packets: Some(self.samples),
                ..Default::default()
            };
            Ok(Sample { napis: vec![napi], ..Sample::default() })
        }
    }

    fn server(source: Counted) -> (Server, std::net::SocketAddr) {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let &Address::Tcp(address) = listener.address() else { unreachable!() };
        (Server::new(listener, Exporter::new(Box::new(source), None)), address)
    }

    /// Advances virtual time by a second at each step, so that no test has to wait.
    fn serve(server: &mut Server, looks: u64, from: u64) {
        for look in 0..looks {
            server.step(from + look * SECOND_NS);
        }
    }

    fn connect(address: std::net::SocketAddr, request: &[u8]) -> TcpStream {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        client.write_all(request).unwrap();
        client
    }

    fn answered(mut client: TcpStream) -> String {
        let mut text = String::new();
        let _ = client.read_to_string(&mut text);
        text
    }

    const GET: &[u8] = b"GET /metrics HTTP/1.1\r\n\r\n";

    /// Steps until `done`, as the kernel accepts a connection first.
    fn until(server: &mut Server, now: u64, done: impl Fn(&Server) -> bool) {
        for _ in 0..10_000 {
            server.step(now);
            if done(server) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("nobody came");
    }

    #[test]
    fn a_scrape_is_answered_and_its_connection_ends() {
        let (mut server, address) = server(Counted::default());
        let client = connect(address, GET);
        until(&mut server, 0, |it| it.clients.iter().any(|it| it.due_ns() == 5 * SECOND_NS));
        let text = answered(client);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("napkin_packets_total{device=\"eth0\",napi=\"0\"} 1\n"), "{text}");
        until(&mut server, 0, |it| it.clients.is_empty());
    }

    #[test]
    fn one_that_says_nothing_is_told_so_and_given_up() {
        let (mut server, address) = server(Counted::default());
        let silent = connect(address, b"GET /met");
        until(&mut server, 0, |it| it.clients.len() == 1);
        serve(&mut server, 6, 0);
        assert!(server.clients.is_empty());
        assert!(answered(silent).starts_with("HTTP/1.1 408 "));
    }

    #[test]
    fn there_is_room_for_so_many_and_the_next_one_waits() {
        let (mut server, address) = server(Counted::default());
        let silent: Vec<_> = (0..MOST_CLIENTS).map(|_| connect(address, b"G")).collect();
        until(&mut server, 0, |it| it.clients.len() == MOST_CLIENTS);
        let next = connect(address, GET);
        server.step(0);
        assert_eq!(server.clients.len(), MOST_CLIENTS);
        serve(&mut server, 6, 0);
        until(&mut server, 6 * SECOND_NS, |it| it.clients.len() == 1);
        assert!(answered(next).starts_with("HTTP/1.1 200 OK\r\n"));
        drop(silent);
    }

    #[test]
    fn what_has_gone_is_said_with_a_status_that_a_scraper_takes_for_down() {
        let (mut server, address) = server(Counted { samples: 0, gone: true });
        let client = connect(address, GET);
        until(&mut server, 0, |it| it.clients.iter().any(|it| it.due_ns() == 5 * SECOND_NS));
        let text = answered(client);
        assert!(text.starts_with("HTTP/1.1 503 ") && text.ends_with("it has gone\n"), "{text}");
    }

    #[test]
    fn scrapes_that_come_close_together_get_the_same_sample() {
        let (mut server, _) = server(Counted::default());
        let exporter = &mut server.exporter;
        let text =
            |exporter: &mut Exporter, now| exporter.text(crate::Format::Prometheus, now).unwrap();
        let first = text(exporter, 1);
        assert_eq!(text(exporter, 2), first);
        assert_ne!(text(exporter, SECOND_NS + 1), first);
    }
}
