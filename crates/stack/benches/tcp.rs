//! The server's cost of a request over TCP, by the number of connections: instructions, counted by callgrind and
//! therefore reproducible, and time, which is not.
//!
//! `cargo bench -p napkin-stack --bench tcp` runs itself under valgrind and collects in the server alone, from the
//! frames of a poll to the last byte of their answers. Requests and answers have 64 bytes; the connections take
//! turns, with up to 32 requests per poll. The client is a script that only keeps sequence numbers.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use napkin_nic::{Frame, Pool, SendError, Transmitter};
use napkin_policy::Ns;
use napkin_stack::{Address, ByteStream, Flow, Input, Stack, TcpApplication, TcpLimits, TcpWorker};
use napkin_testing::{callgrind, has_valgrind};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv4Repr, TcpControl,
    TcpPacket, TcpRepr, TcpSeqNumber,
};

const US: Address = Address::v4([2; 6], [10, 0, 0, 1], 8);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 7;
const REQUEST: usize = 64;
const BATCH: usize = 32;
const CHILD: &str = "--child";

/// Keeps the last frame that the server sent.
#[derive(Default)]
struct Sink(Mutex<Vec<u8>>);

impl Transmitter for Sink {
    fn send(&self, frame: &[u8], _: Ns) -> Result<(), SendError> {
        let mut last = self.0.lock().expect("one thread");
        last.clear();
        last.extend_from_slice(frame);
        Ok(())
    }
}

/// An echo service.
struct Echo(Vec<u8>);

impl TcpApplication for Echo {
    type State = ();

    fn opened(&mut self, _: Flow) {}

    fn ready(&mut self, (): &mut (), stream: &mut impl ByteStream, _: Ns) {
        self.0.clear();
        stream.receive(&mut self.0, 4_096);
        stream.send(&self.0);
    }
}

/// A client's end of a connection.
#[derive(Clone, Copy)]
struct Peer {
    address: Ipv4Addr,
    port: u16,
    /// The next sequence number of either side.
    local_seq: i32,
    remote_seq: i32,
}

impl Peer {
    fn segment(&self, control: TcpControl, ack: bool, payload: &[u8]) -> Vec<u8> {
        let tcp = TcpRepr {
            src_port: self.port,
            dst_port: PORT,
            control,
            seq_number: TcpSeqNumber(self.local_seq),
            ack_number: ack.then_some(TcpSeqNumber(self.remote_seq)),
            window_len: 60_000,
            window_scale: None,
            max_seg_size: (control == TcpControl::Syn).then_some(1_460),
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload,
        };
        let ip = Ipv4Repr {
            src_addr: self.address,
            dst_addr: OURS,
            next_header: IpProtocol::Tcp,
            payload_len: tcp.buffer_len(),
            hop_limit: 64,
        };
        let checksums = ChecksumCapabilities::default();
        let mut bytes = vec![0; 34 + tcp.buffer_len()];
        let mut frame = EthernetFrame::new_unchecked(&mut bytes);
        frame.set_src_addr(EthernetAddress([4; 6]));
        frame.set_dst_addr(EthernetAddress(US.mac));
        frame.set_ethertype(EthernetProtocol::Ipv4);
        let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
        ip.emit(&mut packet, &checksums);
        let mut segment = TcpPacket::new_unchecked(packet.payload_mut());
        tcp.emit(&mut segment, &self.address.into(), &OURS.into(), &checksums);
        bytes
    }
}

struct Server {
    input: Input,
    worker: TcpWorker<()>,
    echo: Echo,
    sink: Arc<Sink>,
    pool: Pool,
}

/// The server's part, in which callgrind collects.
#[unsafe(no_mangle)]
#[inline(never)]
fn serve_batch(server: &mut Server, batch: &mut Vec<Frame>, now: Ns) {
    server.input.deliver(batch, now);
    black_box(server.worker.step(now, BATCH, &mut server.echo));
}

impl Server {
    fn receive(&mut self, frames: &[Vec<u8>], now: Ns) -> Duration {
        let mut batch: Vec<Frame> = frames
            .iter()
            .map(|bytes| {
                let mut frame = self.pool.take().expect("as many as a batch has");
                frame.buffer()[..bytes.len()].copy_from_slice(bytes);
                frame.set_len(bytes.len());
                frame
            })
            .collect();
        let begun = Instant::now();
        serve_batch(self, &mut batch, now);
        begun.elapsed()
    }
}

/// A client's address and port. If `alike`, every client's address and port have the same sum, for which a hash
/// without a key would put them all into one bucket.
fn end(place: usize, alike: bool) -> (Ipv4Addr, u16) {
    let first = OURS.to_bits() + 1;
    match alike {
        false => {
            (Ipv4Addr::from_bits(first + (place / 50_000) as u32), 1_000 + (place % 50_000) as u16)
        }
        true => (
            Ipv4Addr::from_bits((first & 0xffff_0000) + 20_000 + place as u32),
            40_000 - place as u16,
        ),
    }
}

/// Opens `connections` and sends `requests` over them; returns the time that the requests took.
fn run(connections: usize, requests: usize, alike: bool) -> Duration {
    let (stack, sink) = (Stack::new(US), Arc::<Sink>::default());
    let transmitter: Arc<dyn Transmitter> = sink.clone();
    let input = Input::new(Arc::clone(&stack), 1, transmitter);
    let limits = TcpLimits { receive_buffer: 2_048, send_buffer: 2_048, ..TcpLimits::default() };
    let mut worker = stack.open_tcp(None, limits).expect("the first");
    worker.listen(PORT).expect("a free port");
    let mut server = Server { input, worker, echo: Echo(Vec::new()), sink, pool: Pool::new(BATCH) };
    let mut now = 1_000_000;
    let mut peers: Vec<Peer> = (0..connections)
        .map(|place| {
            let (address, port) = end(place, alike);
            let mut peer = Peer { address, port, local_seq: 100, remote_seq: 0 };
            server.receive(&[peer.segment(TcpControl::Syn, false, &[])], now);
            let answer = server.sink.0.lock().expect("one thread").clone();
            let answered = TcpPacket::new_checked(&answer[34..]).expect("a SYN and its ACK");
            (peer.local_seq, peer.remote_seq) = (101, answered.seq_number().0.wrapping_add(1));
            server.receive(&[peer.segment(TcpControl::None, true, &[])], now);
            peer
        })
        .collect();
    assert_eq!(server.worker.counters().opened, connections as u64);
    let before = server.worker.counters().sent;
    let (mut took, mut next) = (Duration::ZERO, 0);
    // No client has two requests outstanding.
    let size = BATCH.min(connections);
    for _ in 0..requests / size {
        let batch: Vec<Vec<u8>> = (0..size)
            .map(|_| {
                let peer = &mut peers[next % connections];
                next += 1;
                let segment = peer.segment(TcpControl::Psh, true, &[7; REQUEST]);
                peer.local_seq = peer.local_seq.wrapping_add(REQUEST as i32);
                peer.remote_seq = peer.remote_seq.wrapping_add(REQUEST as i32);
                segment
            })
            .collect();
        now += 10_000;
        took += server.receive(&batch, now);
    }
    let answers = server.worker.counters().sent - before;
    assert_eq!(answers, (requests / size * size) as u64, "one answer a request");
    took
}

/// Instructions of the server for `requests` over `connections`, including the opening of the connections.
fn collected(connections: usize, requests: usize, alike: bool) -> Result<f64, String> {
    let alike = u8::from(alike);
    let arguments =
        [CHILD.into(), connections.to_string(), requests.to_string(), alike.to_string()];
    Ok(callgrind(&["--toggle-collect=serve_batch"], &arguments)?.0)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|it| it == CHILD) {
        let [Ok(connections), Ok(requests), Ok(alike)] =
            [1, 2, 3].map(|place| arguments.get(at + place).map_or("", String::as_str).parse())
        else {
            return ExitCode::FAILURE;
        };
        run(connections, requests, alike == 1);
        return ExitCode::SUCCESS;
    }
    // Without `--bench` cargo is listing or running tests.
    if !arguments.iter().any(|it| it == "--bench") {
        return ExitCode::SUCCESS;
    }
    let valgrind = has_valgrind();
    println!("{:>12}{:>14}{:>14}", "connections", "instructions", "ns");
    for (connections, alike) in
        [(1, false), (10, false), (100, false), (1_000, false), (10_000, false), (10_000, true)]
    {
        const REQUESTS: usize = 32_000;
        let time =
            run(connections, 10 * REQUESTS, alike).as_nanos() as f64 / (10 * REQUESTS) as f64;
        let counted = match valgrind {
            true => collected(connections, REQUESTS, alike)
                .and_then(|all| Ok((all - collected(connections, 0, alike)?) / REQUESTS as f64)),
            false => Err("valgrind is not installed".into()),
        };
        let note = if alike { "  whose flows a hash without a key would put together" } else { "" };
        match counted {
            Ok(count) => println!("{connections:>12}{count:>14.0}{time:>14.0}{note}"),
            Err(error) => {
                println!("{connections:>12}{:>14}{time:>14.0}{note}", "-");
                eprintln!("{error}");
            }
        }
    }
    ExitCode::SUCCESS
}
