//! Dialogues with memcached, and properties of any dialogue.

mod client;
mod meta;
mod property;

use napkin_service::memcached::{LimitError, Limits, Memcached};
use napkin_service::{Served, StreamService};

use crate::client::{Client, EPOCH, FLOW, SECOND, dialogue};

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
        let (Served::Request(taken) | Served::Continued(taken)) = served else {
            panic!("{served:?}")
        };
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
fn a_flush_takes_the_place_of_one_that_has_not_come_and_of_no_other() {
    let mut client = Client::new();
    assert_eq!(client.say("set a 0 0 1|x|flush_all 10"), "STORED|OK");
    client.now += 10 * SECOND;
    assert_eq!(client.say("flush_all 100|get a"), "OK|END", "what has gone does not come back");
    assert_eq!(client.say("flush_all|set a 0 0 1|y"), "OK|STORED");
    client.now += 200 * SECOND;
    assert_eq!(client.say("get a"), "VALUE a 0 1|y|END", "the later one does not come any more");
    // As a Unix time.
    let at = EPOCH + 1_000;
    assert_eq!(client.say(&format!("flush_all {at}|get a")), "OK|VALUE a 0 1|y|END");
    client.now = 1_000 * SECOND;
    assert_eq!(client.say("get a"), "END");
}

#[test]
fn statistics_are_of_this_server_and_of_what_was_stored_and_begin_anew() {
    let mut client = Client::new();
    client.memcached = client.memcached.clone().started_at(3 * SECOND);
    client.say("set n 0 0 1|1|incr n 1|touch n 10|gat 10 n|md n I|ms m 1|x|append m 0 0 1|x");
    let reply = client.say("stats");
    for line in ["uptime 2", "curr_items 2", "total_items 3", "cmd_set 3", "cmd_touch 2"] {
        assert!(reply.contains(&format!("STAT {line}|")), "{line}: {reply}");
    }
    assert_eq!(client.say("stats reset"), "RESET");
    let reply = client.say("stats");
    for line in ["uptime 2", "curr_items 2", "total_items 0", "cmd_set 0", "cmd_touch 0"] {
        assert!(reply.contains(&format!("STAT {line}|")), "{line}: {reply}");
    }
}

#[test]
fn a_line_of_many_keys_may_be_long_and_no_other() {
    let keys = |bytes: usize| " a".repeat(bytes / 2);
    let mut client = Client::new();
    client.say("set a 0 0 1|x");
    let reply = client.say(&format!("gets{}", keys(200_000)));
    assert_eq!(reply.matches("VALUE a 0 1 1|x|").count(), 100_000);
    for line in [format!("gat 0{}", keys(70_000)), format!("get{}", keys(1 << 20))] {
        let mut client = Client::new();
        assert_eq!(client.say(&line), "CLIENT_ERROR line too long");
        assert!(client.closed);
    }
}

#[test]
fn a_mistake_is_answered_and_the_connection_lives() {
    let long = "k".repeat(251);
    let too_large = "x".repeat(1_001);
    let mut client = Client::new();
    for (line, heard) in [
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
        (&format!("set a 0 0 1001|{too_large}"), "SERVER_ERROR object too large for cache"),
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
        assert_eq!(client.say(line), heard, "to {line}");
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
fn another_protocol_closes_the_connection() {
    for (line, heard) in [
        (
            &[0x80, 0x0a, 0, 0, 0, 0, 0, 0][..],
            "CLIENT_ERROR the binary protocol is not spoken here\r\n",
        ),
        (b"POST / HTTP/1.1\r\nHost: a\r\n\r\nset a 0 0 1\r\nx\r\n", ""),
    ] {
        let mut client = Client::new();
        assert_eq!(client.send(line, &[]), heard.as_bytes());
        assert!(client.closed);
        client.closed = false;
        assert_eq!(client.say("get a"), "END");
    }
}

#[test]
fn noreply_gets_no_answer_and_a_refused_command_changes_nothing() {
    let mut client = Client::with(Limits { memory: 100_000, item: 1_000 });
    let large = "x".repeat(1_001);
    assert_eq!(client.say("set k 0 0 1|x"), "STORED");
    assert_eq!(client.say(&format!("append k 0 0 1001 noreply|{large}|mn")), "MN");
    assert_eq!(client.say("incr k 1 noreply|mn"), "MN");
    assert_eq!(client.say("touch k x noreply|mn"), "MN");
    assert_eq!(client.say("add k 0 0 1 noreply|xyz|mn"), "ERROR|MN");
    assert_eq!(client.say("get k"), "VALUE k 0 1|x|END");
    // The client of a `set` believes that the old value was replaced.
    assert_eq!(client.say(&format!("set k 0 0 1001 noreply|{large}|get k")), "END");
    assert_eq!(client.memcached.silent(), 5);
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
