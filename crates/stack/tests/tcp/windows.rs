//! Peers with windows, or with data for our windows, that no well-behaved TCP has.

use super::*;

/// Answers the first request with 30 bytes, and closes.
struct Answers;

impl TcpApplication for Answers {
    type State = bool;

    fn opened(&mut self, _: Flow) -> bool {
        false
    }

    fn ready(&mut self, answered: &mut bool, stream: &mut impl ByteStream, _: Ns) {
        if !*answered && stream.receive(&mut Vec::new(), 100) > 0 {
            *answered = true;
            stream.send(&[7; 30]);
            stream.close();
        }
    }
}

/// Never reads.
struct Idle;

impl TcpApplication for Idle {
    type State = ();

    fn opened(&mut self, _: Flow) {}

    fn ready(&mut self, (): &mut (), _: &mut impl ByteStream, _: Ns) {}
}

fn server<A: TcpApplication>(limits: TcpLimits, application: A) -> Host<A> {
    let mut server = Host::new(SERVER, limits, application);
    server.worker.listen(PORT).expect("a free port");
    server
}

/// Drains the server's frames: returns the last segment's sequence number and the number of frames.
fn sent<A: TcpApplication>(server: &Host<A>) -> (i32, usize) {
    let frames: Vec<_> = server.out.0.lock().unwrap().drain(..).collect();
    let last = frames.last().map_or(0, |it| i32::from_be_bytes(it[38..42].try_into().unwrap()));
    (last, frames.len())
}

#[test]
fn a_peer_who_acknowledges_all_with_a_window_of_zero_holds_nobody_for_ever() {
    let mut server = server(TcpLimits::default(), Answers);
    let closed = |control| TcpRepr { window_len: 0, ..bare(9, control) };
    server.deliver(&[segment_to(OURS, &closed(TcpControl::Syn))], 1);
    let (first, _) = sent(&server);
    let ack = |of: i32, number, payload| TcpRepr {
        seq_number: TcpSeqNumber(number),
        ack_number: Some(TcpSeqNumber(first) + of as usize),
        payload,
        ..closed(TcpControl::Psh)
    };
    server.deliver(&[segment_to(OURS, &ack(1, 2, b"quit"))], 1_000);
    // Acknowledges the whole answer and the FIN, of which nothing has been sent.
    server.deliver(&[segment_to(OURS, &ack(32, 6, b""))], 2_000);
    sent(&server);
    let (mut now, mut frames) = (2_000, 0);
    for _ in 0..100 {
        now = server.worker.next_deadline().max(now);
        if now == NEVER {
            break;
        }
        server.deliver(&[], now);
        frames += sent(&server).1;
    }
    assert!(frames < 20, "{frames} frames to a peer who says nothing");
    assert_eq!(server.worker.connections(), 0);
}

#[test]
fn a_burst_behind_the_handshake_fills_the_buffer_and_no_more() {
    let limits = TcpLimits { receive_buffer: 64 * 1_024, ..TcpLimits::default() };
    let mut server = server(limits, Idle);
    let opens =
        TcpRepr { window_scale: Some(7), max_seg_size: Some(1_460), ..bare(9, TcpControl::Syn) };
    server.deliver(&[segment_to(OURS, &opens)], 1);
    let (first, _) = sent(&server);
    let payload = [1; 1_460];
    let burst: Vec<_> = (0..60)
        .map(|at| {
            segment_to(
                OURS,
                &TcpRepr {
                    seq_number: TcpSeqNumber(2 + at * 1_460),
                    ack_number: Some(TcpSeqNumber(first) + 1),
                    payload: &payload,
                    ..bare(9, TcpControl::Psh)
                },
            )
        })
        .collect();
    server.deliver(&burst, 2);
    assert_eq!(server.worker.connections(), 1);
}
