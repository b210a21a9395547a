//! The request logic without sockets.

use super::*;
use crate::Load;
use crate::session::Request;

fn generator(config: Config) -> Generator {
    let streams = Streams::of(config.seed, config.connections);
    Generator::new(Arc::new(Common::new(config)), streams)
}

fn config() -> Config {
    Config { connections: 3, records: 1_000, ..Config::new(([127, 0, 0, 1], 1).into()) }
}

#[test]
fn a_connection_s_requests_are_its_own_and_the_seed_s() {
    let asked = |seed, number: usize| {
        let mut generator = generator(Config { seed, ..config() });
        let mut ask = || {
            generator.ask(number, 5);
            let Request { record, set, intended, .. } = generator.sessions[number].request;
            (record, set, intended)
        };
        (0..20_000).map(|_| ask()).collect::<Vec<_>>()
    };
    let first = asked(1, 0);
    assert_eq!(first, asked(1, 0));
    assert!(first != asked(1, 1) && first != asked(2, 0));
    let sets = first.iter().filter(|(_, set, _)| *set).count();
    assert!((500..700).contains(&sets), "3 % of 20000: {sets}");
    assert!(first.iter().all(|(record, _, intended)| *record < 1_000 && *intended == 5));
}

#[test]
fn without_a_schedule_an_answer_is_followed_by_the_next_request() {
    let mut generator = generator(Config { asks: RequestKind::Echo(3), ..config() });
    generator.begin(0);
    let mut request = Vec::new();
    assert!(generator.put(1, &mut request));
    assert_eq!((request.len(), generator.phase(1)), (3, Phase::Sending(0)));
    assert_eq!(generator.read(1, b"abc"), Err(Trouble::NotAsked), "it is not sent yet");
    assert!(generator.sent(1, 2, 3), "the socket is full");
    assert_eq!(generator.phase(1), Phase::Sending(2));
    assert!(generator.put(1, &mut request) && request.len() == 1);
    assert!(!generator.sent(1, 1, 1) && generator.phase(1) == Phase::Waiting);
    assert_eq!(generator.read(1, b"ab"), Ok(false), "it comes in two pieces");
    assert_eq!(generator.read(1, b"c"), Ok(true));
    assert_eq!((generator.tally.latency.count(), generator.phase(1)), (1, Phase::Sending(0)));
    generator.sent(1, 3, 3);
    assert_eq!(generator.read(1, b"abcd"), Err(Trouble::NotAsked), "more than was asked for");
}

#[test]
fn a_fill_sets_each_record_once_whichever_connection_is_slow() {
    let config = Config { asks: RequestKind::Fill, connections: 2, records: 5, ..config() };
    let mut generator = generator(config);
    generator.begin(0);
    let (mut request, mut asked) = (Vec::new(), Vec::new());
    for place in [1, 0] {
        while generator.put(place, &mut request) {
            assert!(request.starts_with(b"set "));
            asked.push(generator.sessions[place].request.record);
            generator.sent(place, request.len(), request.len());
            let more = generator.read(place, b"STORED\r\n").expect("an answer");
            assert_eq!(more, generator.phase(place) == Phase::Sending(0));
        }
    }
    assert_eq!(asked, [1, 2, 3, 4, 0]);
    assert_eq!(
        (generator.tally.counts.sets, generator.busy, generator.silence_deadline()),
        (5, 0, u64::MAX)
    );
}

#[test]
fn what_is_on_its_way_where_a_window_begins_is_told() {
    let mut generator = generator(Config { asks: RequestKind::Echo(1), ..config() });
    generator.begin(0);
    generator.begin_window(|_| {});
    for place in 0..2 {
        generator.sent(place, 1, 1);
        assert_eq!(generator.read(place, b"."), Ok(true));
    }
    let counts = generator.end_window(|_| {}).counts;
    assert_eq!((counts.carried, counts.outstanding), (3, 3));
}

#[test]
fn what_falls_due_on_a_busy_connection_waits_there_and_is_charged() {
    let load = Load::Open { per_second: 1e6 };
    let mut generator =
        generator(Config { asks: RequestKind::Echo(1), connections: 1, load, ..config() });
    generator.begin(0);
    // A time after which some 20 requests are due.
    let time = 20_000;
    assert_eq!(generator.take_due(time), Due::Send(0));
    while generator.take_due(time) == Due::Late {}
    assert!(generator.next_due() > time);
    let late = generator.tally.counts.late;
    assert!(late > 0 && generator.tally.counts.due == late + 1);
    for left in (0..late).rev() {
        generator.sent(0, 1, 1);
        assert_eq!(generator.read(0, b"."), Ok(true));
        assert_eq!(generator.backlog.len(), left);
    }
    generator.sent(0, 1, 1);
    assert_eq!(generator.read(0, b"."), Ok(false), "nothing is owed any more");
    assert_eq!(generator.tally.latency.count(), late + 1);
}

#[test]
fn what_a_window_s_end_finds_due_long_before_was_late_on_this_side() {
    let load = Load::Open { per_second: 1e6 };
    let config = Config { asks: RequestKind::Echo(1), connections: 1, load, ..config() };
    let caught_up = |time: u64| {
        let mut generator = generator(config.clone());
        generator.begin(0);
        assert!(generator.catch_up(time, |_| {}));
        let counts = generator.tally.counts;
        assert!(counts.late_here <= generator.backlog.len() + counts.abandoned, "{counts:?}");
        (counts.late, counts.late_here)
    };
    let (late, due) = caught_up(20 * LAG);
    assert!(due > late / 2 && due < late, "{due} of {late}");
    let (late, due) = caught_up(LAG / 2);
    assert!(late > 0 && due == 0, "from one look to the next: {due} of {late}");
}

#[test]
fn a_disk_is_greeted_first_and_again_on_a_connection_that_was_made_again() {
    let disk = crate::Disk { bytes: 100_000, within: 1_000_000 };
    let config = Config { asks: RequestKind::Disk(disk), connections: 1, update: 1.0, ..config() };
    let mut generator = generator(config);
    let send = |generator: &mut Generator| {
        let (mut all, mut piece) = (0, Vec::new());
        while generator.put(0, &mut piece) {
            all += piece.len();
            assert!(!generator.sent(0, piece.len(), piece.len()));
        }
        all
    };
    let greeting = [&b"NBDMAGICIHAVEOPT\0\x03"[..], &1_000_000u64.to_be_bytes(), &[0, 3]];
    let greeting = greeting.concat();
    // The server may speak first.
    assert_eq!(generator.read(0, &greeting[..18]), Ok(false));
    assert_eq!((send(&mut generator), generator.phase(0)), (20, Phase::Waiting));
    assert_eq!(generator.read(0, &greeting[18..]), Ok(false), "nothing is asked yet");
    assert_eq!(generator.phase(0), Phase::Free);
    generator.begin(0);
    assert_eq!(send(&mut generator), 28 + 100_000, "in pieces");
    let reply = b"\x67\x44\x66\x98\0\0\0\0napkin..";
    assert_eq!(generator.read(0, reply), Ok(true));
    generator.lost(0, Trouble::Closed);
    assert!(generator.reconnected(0));
    assert_eq!(send(&mut generator), 20);
    let tally = generator.end_window(|_| {});
    assert_eq!((tally.latency.count(), tally.counts.sets, tally.counts.gets), (1, 1, 0));
}

#[test]
fn a_lost_connection_takes_its_request_along_and_goes_on_when_it_is_made_again() {
    let mut generator =
        generator(Config { asks: RequestKind::Echo(1), connections: 1, ..config() });
    generator.begin(0);
    generator.sent(0, 1, 1);
    generator.lost(0, Trouble::Closed);
    assert_eq!(generator.phase(0), Phase::Connecting);
    assert_eq!(generator.read(0, b"."), Err(Trouble::NotAsked));
    assert!(generator.reconnected(0), "it asks again");
    let tally = generator.end_window(|_| {});
    assert_eq!((tally.counts.reconnects, tally.counts.outstanding), (1, 1));
    assert_eq!(tally.latency.count(), 0);
}
