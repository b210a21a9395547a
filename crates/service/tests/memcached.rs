//! memcached's dialogues, and what holds for any: how the bytes are cut changes nothing, nothing panics,
//! and the store does what a map would.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use napkin_service::memcached::{LimitError, Limits, Memcached};
use napkin_service::{Served, StreamService};
use napkin_stack::Flow;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
/// A Unix time at which the clock showed 0.
const EPOCH: i64 = 1_700_000_000;

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const FLOW: Flow = Flow::new(SocketAddr::new(HOST, 11_211), SocketAddr::new(HOST, 40_000));

/// A client's connection, and the clock.
struct Client {
    memcached: Memcached,
    now: u64,
    closed: bool,
}

impl Client {
    fn new() -> Client {
        Client::with(Limits { item: 1_000, ..Limits::default() })
    }

    fn with(limits: Limits) -> Client {
        let memcached = Memcached::new(limits, EPOCH).expect("limits that agree");
        Client { memcached, now: 5 * SECOND, closed: false }
    }

    /// Sends bytes in pieces of these sizes, and returns what is answered.
    fn send(&mut self, bytes: &[u8], pieces: &[usize]) -> Vec<u8> {
        let (mut state, mut output) = (self.memcached.open(FLOW), Vec::new());
        let (mut input, mut rest) = (Vec::new(), bytes);
        let mut sizes = pieces.iter().copied().cycle();
        while !rest.is_empty() && !self.closed {
            let piece = sizes.next().unwrap_or(rest.len()).clamp(1, rest.len());
            input.extend_from_slice(&rest[..piece]);
            rest = &rest[piece..];
            while !input.is_empty() {
                match self.memcached.serve(&mut state, &input, &mut output, self.now) {
                    Served::Took(taken) | Served::Part(taken) => {
                        assert!((1..=input.len()).contains(&taken), "{taken} of {}", input.len());
                        input.drain(..taken);
                    }
                    Served::More => {
                        assert!(input.len() < self.memcached.longest_request(), "waits for ever");
                        break;
                    }
                    Served::Wait => panic!("nothing of memcached's is under way"),
                    Served::Close => {
                        self.closed = true;
                        break;
                    }
                }
            }
        }
        output
    }

    /// Says lines, separated by `|`, and hears lines in the same form.
    fn say(&mut self, lines: &str) -> String {
        let bytes = lines.split('|').map(|line| format!("{line}\r\n")).collect::<String>();
        let answer = String::from_utf8(self.send(bytes.as_bytes(), &[])).expect("text");
        answer.strip_suffix("\r\n").unwrap_or(&answer).replace("\r\n", "|")
    }
}

#[track_caller]
fn dialogue(lines: &[(&str, &str)]) {
    let mut client = Client::new();
    for (said, heard) in lines {
        assert_eq!(client.say(said), *heard, "to {said}");
    }
}

#[test]
fn what_is_stored_is_got() {
    dialogue(&[
        ("get a", "END"),
        ("set a 7 0 5|hello", "STORED"),
        ("get a", "VALUE a 7 5|hello|END"),
        ("get b a b", "VALUE a 7 5|hello|END"),
        ("set a 0 0 0|", "STORED"),
        ("get a", "VALUE a 0 0||END"),
        ("set b 1 0 1 noreply|x", ""),
        ("get a b", "VALUE a 0 0||VALUE b 1 1|x|END"),
    ]);
}

#[test]
fn a_get_of_many_keys_is_answered_as_it_is_sent() {
    let mut client = Client::with(Limits::default());
    client.say(&format!("set a 0 0 100000|{}", "x".repeat(100_000)));
    let line = format!("get{}\r\n", " a".repeat(300));
    let (mut state, mut output) = (client.memcached.open(FLOW), Vec::new());
    let (mut input, mut answered) = (line.as_bytes(), 0);
    while !input.is_empty() {
        let served = client.memcached.serve(&mut state, input, &mut output, client.now);
        let (Served::Took(taken) | Served::Part(taken)) = served else { panic!("{served:?}") };
        assert!(output.len() < 200_000, "{} bytes at once", output.len());
        input = &input[taken..];
        assert_eq!(output.ends_with(b"END\r\n"), input.is_empty());
        answered += output.len();
        output.clear();
    }
    assert_eq!(answered, 300 * ("VALUE a 0 100000\r\n".len() + 100_002) + "END\r\n".len());
    assert_eq!(client.say("gat 0 a b"), client.say("get a"));
    let long = "k".repeat(251);
    assert_eq!(client.say(&format!("get a {long}")), "CLIENT_ERROR bad command line format");
}

#[test]
fn each_storage_command_has_its_condition() {
    dialogue(&[
        ("replace a 0 0 1|1", "NOT_STORED"),
        ("append a 0 0 1|1", "NOT_STORED"),
        ("add a 3 0 1|1", "STORED"),
        ("add a 0 0 1|2", "NOT_STORED"),
        ("replace a 4 0 1|2", "STORED"),
        ("append a 9 0 1|3", "STORED"),
        ("prepend a 9 0 1|1", "STORED"),
        ("get a", "VALUE a 4 3|123|END"),
        ("delete a", "DELETED"),
        ("delete a", "NOT_FOUND"),
        ("delete a 0", "NOT_FOUND"),
        ("delete a 5", "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"),
    ]);
}

#[test]
fn a_value_that_somebody_changed_is_not_swapped() {
    dialogue(&[
        ("cas a 0 0 1 1|x", "NOT_FOUND"),
        ("set a 0 0 1|x", "STORED"),
        ("gets a", "VALUE a 0 1 1|x|END"),
        ("cas a 0 0 1 9|y", "EXISTS"),
        ("cas a 0 0 1 1|y", "STORED"),
        ("cas a 0 0 1 1|z", "EXISTS"),
        ("gets a", "VALUE a 0 1 2|y|END"),
    ]);
}

#[test]
fn numbers_are_counted_up_and_down() {
    dialogue(&[
        ("incr n 1", "NOT_FOUND"),
        ("set n 0 0 2|99", "STORED"),
        ("incr n 1", "100"),
        ("decr n 1", "99"),
        ("get n", "VALUE n 0 3|99 |END"),
        ("incr n 1", "100"),
        ("decr n 1000", "0"),
        ("incr n 18446744073709551615", "18446744073709551615"),
        ("incr n 2", "1"),
        ("incr n x", "CLIENT_ERROR invalid numeric delta argument"),
        ("set n 0 0 1|a", "STORED"),
        ("incr n 1", "CLIENT_ERROR cannot increment or decrement non-numeric value"),
    ]);
}

#[test]
fn times_are_lengths_points_and_never() {
    let mut client = Client::new();
    let at = EPOCH + 5 + 4_000_000;
    client.say(&format!("set a 0 10 1|x|set b 0 0 1|x|set c 0 {at} 1|x|set d 0 -1 1|x"));
    assert_eq!(client.say("get a b c d"), "VALUE a 0 1|x|VALUE b 0 1|x|VALUE c 0 1|x|END");
    client.now += 10 * SECOND;
    assert_eq!(client.say("get a b"), "VALUE b 0 1|x|END");
    assert_eq!(client.say("add a 0 0 1|y"), "STORED", "it makes room for another");
    assert_eq!(client.say("touch b 10|touch e 10"), "TOUCHED|NOT_FOUND");
    assert_eq!(client.say("gat 100 b"), "VALUE b 0 1|x|END");
    client.now += 99 * SECOND;
    assert_eq!(client.say("get b"), "VALUE b 0 1|x|END");
    client.now = 4_000_005 * SECOND;
    assert_eq!(client.say("get b c"), "END");
}

#[test]
fn everything_is_flushed_now_or_later() {
    let mut client = Client::new();
    assert_eq!(client.say("set a 0 0 1|x|flush_all|get a|set a 0 0 1|y"), "STORED|OK|END|STORED");
    assert_eq!(client.say("flush_all 10|get a"), "OK|VALUE a 0 1|y|END");
    client.now += 10 * SECOND;
    assert_eq!(client.say("get a|set a 0 0 1|z|get a"), "END|STORED|VALUE a 0 1|z|END");
}

#[test]
fn a_mistake_is_answered_and_the_connection_lives() {
    let long = "k".repeat(251);
    let tooth = "x".repeat(1_001);
    let mut client = Client::new();
    for (said, heard) in [
        ("nonsense", "ERROR"),
        ("", "ERROR"),
        ("get", "ERROR"),
        (&format!("get {long}"), "CLIENT_ERROR bad command line format"),
        ("set a 0 0", "ERROR"),
        ("set a b c d", "CLIENT_ERROR bad command line format"),
        ("set a 0 0 x", "CLIENT_ERROR bad command line format"),
        ("set a 0 0 4294967295|mn", "CLIENT_ERROR bad command line format|MN"),
        ("cas a 0 0 1", "ERROR"),
        ("set a 0 0 2|xyz", "CLIENT_ERROR bad data chunk|ERROR"),
        (&format!("set a 0 0 1001|{tooth}"), "SERVER_ERROR object too large for cache"),
        (&format!("set {long} 0 0 1|x"), "CLIENT_ERROR bad command line format"),
        ("touch a x", "CLIENT_ERROR invalid exptime argument"),
        ("flush_all x", "CLIENT_ERROR invalid exptime argument"),
        ("flush_all 9223372036854775807", "OK"),
        ("set f 0 9223372036854775807 1|x", "STORED"),
        ("touch f -9223372036854775808", "TOUCHED"),
        ("verbosity", "ERROR"),
        ("verbosity 1", "OK"),
        ("verbosity 1 noreply", ""),
        ("get a", "END"),
    ] {
        assert_eq!(client.say(said), heard, "to {said}");
        assert!(!client.closed);
    }
    assert!(client.say("version").starts_with("VERSION "));
    assert!(client.say("stats").contains("STAT cmd_get 1|"));
    assert_eq!(client.say("quit"), "");
    assert!(client.closed);
    let mut client = Client::new();
    assert_eq!(client.say(&"x".repeat(70_000)), "CLIENT_ERROR line too long");
    assert!(client.closed, "it never ends a line");
}

#[test]
fn who_speaks_another_protocol_is_left() {
    for (said, heard) in [
        (
            &[0x80, 0x0a, 0, 0, 0, 0, 0, 0][..],
            "CLIENT_ERROR the binary protocol is not spoken here\r\n",
        ),
        (b"POST / HTTP/1.1\r\nHost: a\r\n\r\nset a 0 0 1\r\nx\r\n", ""),
    ] {
        let mut client = Client::new();
        assert_eq!(client.send(said, &[]), heard.as_bytes());
        assert!(client.closed);
        client.closed = false;
        assert_eq!(client.say("get a"), "END");
    }
}

#[test]
fn meta_commands_answer_what_was_asked() {
    dialogue(&[
        ("mn", "MN"),
        ("mg a v", "EN"),
        ("mg a v q", ""),
        ("ms a 2 F5 T60 c|hi", "HD c1"),
        ("mg a", "HD"),
        ("mg a s v f t c k Oq1", "VA 2 s2 f5 t60 c1 ka Oq1|hi"),
        ("mg YQ== b v k", "VA 2 b kYQ==|hi"),
        ("ms a 1 ME|x", "NS"),
        ("ms a 1 MA|!", "HD"),
        ("ms a 1 MP|>", "HD"),
        ("mg a v", "VA 4|>hi!"),
        ("ms a 1 C99|x", "EX"),
        ("ms a 1 MA C99|x", "EX"),
        ("ms a 1 ME C3|x", "NS"),
        ("mg a v", "VA 4|>hi!"),
        ("ms b 1 MR|x", "NS"),
        ("ms b 1 C1|x", "NF"),
        ("ms b 1 MA N0|x", "HD"),
        ("md b q", ""),
        ("md b", "NF"),
        ("md b q", ""),
        ("ma n", "NF"),
        ("ma n N0 J10 v", "VA 2|10"),
        ("ma n D5 v", "VA 2|15"),
        ("ma n MD D20 v t", "VA 1 t-1|0"),
        // It expires at once, and is told all the same.
        ("ma n D7 T-1 v k", "VA 1 kn|7"),
        ("ma n N-1", "HD"),
        ("mg n", "EN"),
        ("me a", "ME a exp=60 la=0 cas=3 fetch=yes cls=1 size=4"),
        ("me nobody", "EN"),
        ("mz a", "ERROR"),
        ("mg", "CLIENT_ERROR bad command line format"),
        ("mg a v v", "CLIENT_ERROR duplicate flag"),
        ("mg a !", "CLIENT_ERROR invalid flag"),
        (&format!("mg a O{}", "o".repeat(33)), "CLIENT_ERROR opaque token too long"),
        ("ms a 4294967295|mn", "CLIENT_ERROR bad data chunk|MN"),
        ("ms a x|", "CLIENT_ERROR bad data chunk|ERROR"),
        ("ms a 1 MX|x", "CLIENT_ERROR invalid mode for ms"),
        ("mg !!!! b v", "CLIENT_ERROR bad command line format"),
    ]);
}

#[test]
fn who_wants_no_answer_gets_none_and_what_is_refused_leaves_what_was_there() {
    let mut client = Client::with(Limits { memory: 100_000, item: 1_000 });
    let large = "x".repeat(1_001);
    assert_eq!(client.say("set k 0 0 1|x"), "STORED");
    assert_eq!(client.say(&format!("append k 0 0 1001 noreply|{large}|mn")), "MN");
    assert_eq!(client.say("incr k 1 noreply|mn"), "MN");
    assert_eq!(client.say("touch k x noreply|mn"), "MN");
    assert_eq!(client.say("add k 0 0 1 noreply|xyz|mn"), "ERROR|MN");
    assert_eq!(client.say("get k"), "VALUE k 0 1|x|END");
    // Who sets believes that it was replaced.
    assert_eq!(client.say(&format!("set k 0 0 1001 noreply|{large}|get k")), "END");
}

#[test]
fn one_of_several_stores_it_anew() {
    dialogue(&[
        // Nobody has it: the first is to make it.
        ("mg a v N30 t", "VA 0 t30 W|"),
        ("mg a v N30 t", "VA 0 t30 Z|"),
        ("touch a 30", "TOUCHED"),
        ("mg a v T30 t", "VA 0 t30 Z|"),
        ("ms a 1 T30|x", "HD"),
        ("mg a v N30 t", "VA 1 t30|x"),
        // It is about to expire.
        ("mg a v R60", "VA 1 W|x"),
        ("mg a v R60", "VA 1 Z|x"),
        ("ms a 1|y", "HD"),
        // It is invalid, and better than nothing.
        ("md a I T30", "HD"),
        ("mg a v", "VA 1 W X|y"),
        ("mg a v", "VA 1 Z X|y"),
        ("ms a 1|z", "HD"),
        ("mg a v", "VA 1|z"),
    ]);
}

#[test]
fn memory_is_bounded_and_limits_that_contradict_are_refused() {
    let limits = Limits { memory: 100_000, item: 1_000 };
    let mut client = Client::with(limits);
    for key in 0..1_000 {
        client.say(&format!("set key{key} 0 0 900|{}", "x".repeat(900)));
        assert!(client.memcached.store().bytes() <= limits.memory);
    }
    assert!(client.memcached.store().evictions() > 800);
    assert!(client.say("get key999").starts_with("VALUE key999"));
    let refused = Memcached::new(Limits { memory: 100, item: 1_000 }, 0).err();
    assert_eq!(refused, Some(LimitError::Memory { memory: 100, item: 1_000 }));
    assert_eq!(Memcached::new(Limits { memory: 9, item: 0 }, 0).err(), Some(LimitError::Item(0)));
}

/// A line that a client could send, or nearly.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just("get"),
        Just("gets"),
        Just("set"),
        Just("cas"),
        Just("append"),
        Just("incr"),
        Just("touch"),
        Just("delete"),
        Just("mg"),
        Just("ms"),
        Just("md"),
        Just("ma"),
        Just("me"),
        Just("a"),
        Just("b"),
        Just("0"),
        Just("1"),
        Just("3"),
        Just("-1"),
        Just("noreply"),
        Just("v"),
        Just("q"),
        Just("N5"),
        Just("MA"),
        Just("T0"),
        Just("C1"),
        Just("I"),
        Just("\r\n"),
        Just("\n"),
        Just("xyz\r\n"),
        Just("99999999999999999999"),
    ];
    prop_oneof![
        8 => prop::collection::vec(word, 0..40)
            .prop_map(|words| words.join(" ").replace("\n ", "\n").into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..100),
    ]
}

/// One thing that a client of the model does.
#[derive(Debug, Clone)]
enum Act {
    Set(u8, Vec<u8>),
    Add(u8, Vec<u8>),
    Append(u8, Vec<u8>),
    Delete(u8),
    Get(u8),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let (key, value) = (0u8..8, prop::collection::vec(any::<u8>(), 0..40));
    prop::collection::vec(
        prop_oneof![
            (key.clone(), value.clone()).prop_map(|(key, value)| Act::Set(key, value)),
            (key.clone(), value.clone()).prop_map(|(key, value)| Act::Add(key, value)),
            (key.clone(), value).prop_map(|(key, value)| Act::Append(key, value)),
            key.clone().prop_map(Act::Delete),
            key.prop_map(Act::Get),
        ],
        0..100,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn how_the_bytes_are_cut_changes_nothing(
        bytes in lines(), pieces in prop::collection::vec(1usize..20, 1..10),
    ) {
        let whole = Client::new().send(&bytes, &[]);
        prop_assert_eq!(Client::new().send(&bytes, &pieces), whole);
    }

    #[test]
    fn it_does_what_a_map_does(acts in acts()) {
        let (mut client, mut model) = (Client::new(), BTreeMap::<u8, Vec<u8>>::new());
        for act in acts {
            let mut send = |command: &str, key: u8, value: &[u8]| {
                let line = format!("{command} k{key} 0 0 {}\r\n", value.len());
                client.send(&[line.as_bytes(), value, b"\r\n"].concat(), &[])
            };
            match act {
                Act::Set(key, value) => {
                    prop_assert_eq!(send("set", key, &value), b"STORED\r\n");
                    model.insert(key, value);
                }
                Act::Add(key, value) => {
                    let heard = send("add", key, &value);
                    prop_assert_eq!(heard == b"STORED\r\n", !model.contains_key(&key));
                    model.entry(key).or_insert(value);
                }
                Act::Append(key, value) => {
                    let heard = send("append", key, &value);
                    let had = model.get_mut(&key).map(|old| old.extend(&value)).is_some();
                    prop_assert_eq!(heard == b"STORED\r\n", had);
                }
                Act::Delete(key) => {
                    let heard = client.say(&format!("delete k{key}"));
                    prop_assert_eq!(heard == "DELETED", model.remove(&key).is_some());
                }
                Act::Get(key) => {
                    let heard = client.send(format!("get k{key}\r\n").as_bytes(), &[]);
                    let expected = model.get(&key).map_or(b"END\r\n".to_vec(), |value| {
                        let head = format!("VALUE k{key} 0 {}\r\n", value.len());
                        [head.as_bytes(), value, b"\r\nEND\r\n"].concat()
                    });
                    prop_assert_eq!(heard, expected);
                }
            }
        }
        prop_assert_eq!(client.memcached.store().len(), model.len());
    }
}
