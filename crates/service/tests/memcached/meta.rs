//! The meta commands: of one client, and of several clients on the same item.

use std::thread;

use crate::client::{Client, SECOND, dialogue};

#[test]
fn meta_commands_answer_what_was_asked() {
    dialogue(&[
        ("mn", "MN"),
        ("mg a v", "EN"),
        ("mg a v q", ""),
        ("mg a v k O7 c", "EN ka O7"),
        ("mg YQ== k b O7", "EN kYQ== b O7"),
        ("mg YQ== b", "EN"),
        ("ms a 2 F5 T60 c|hi", "HD c1"),
        ("mg a", "HD"),
        ("mg a s v f t c k Oq1", "VA 2 s2 f5 t60 c1 ka Oq1|hi"),
        ("mg YQ== b v k", "VA 2 b kYQ==|hi"),
        ("mg YQ== b v", "VA 2|hi"),
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
        // It expires at once, and is still in the answer.
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
fn one_of_several_stores_it_anew() {
    dialogue(&[
        // A miss: the first client is told to store a value.
        ("mg a v N30 t", "VA 0 t30 W|"),
        ("mg a v N30 t", "VA 0 t30 Z|"),
        ("touch a 30", "TOUCHED"),
        ("mg a v T30 t", "VA 0 t30 Z|"),
        ("ms a 1 T30|x", "HD"),
        ("mg a v N30 t", "VA 1 t30|x"),
        // The item is about to expire.
        ("mg a v R60", "VA 1 W|x"),
        ("mg a v R60", "VA 1 Z|x"),
        ("ms a 1|y", "HD"),
        // The item is stale, and is still returned.
        ("md a I T30", "HD"),
        ("mg a v", "VA 1 W X|y"),
        ("mg a v", "VA 1 Z X|y"),
        ("ms a 1|z", "HD"),
        ("mg a v", "VA 1|z"),
    ]);
}

#[test]
fn a_read_without_a_bump_leaves_no_trace() {
    dialogue(&[
        ("ms a 1|x", "HD"),
        ("mg a u h v", "VA 1 h0|x"),
        ("mg a h", "HD h0"),
        ("mg a u h", "HD h1"),
    ]);
}

#[test]
fn what_is_stored_over_an_item_has_not_been_read() {
    let mut client = Client::new();
    assert_eq!(client.say("ms a 1|x|mg a"), "HD|HD");
    client.now += 10 * SECOND;
    assert_eq!(client.say("mg a u h l|touch a 0|mg a u h l"), "HD h1 l10|TOUCHED|HD h1 l10");
    assert_eq!(client.say("set a 0 0 1|y|mg a u h l"), "STORED|HD h0 l0");
    assert_eq!(client.say("me a"), "ME a exp=-1 la=0 cas=2 fetch=no cls=1 size=1");
}

/// Runs the same lines in four threads at once; returns the answers of each, by turn.
fn at_once(line: impl Fn(usize) -> String + Sync) -> Vec<Vec<String>> {
    let client = Client::new();
    let (client, line) = (&client, &line);
    let ask_all = move || {
        let mut own = client.another();
        (0..2_000).map(|turn| own.say(&line(turn))).collect::<Vec<String>>()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask_all)).collect();
        threads.into_iter().map(|thread| thread.join().expect("it ends well")).collect()
    })
}

#[test]
fn each_client_gets_its_own_cas_number() {
    for line in ["ms k 1 c|x", "ma n N0 c"] {
        let mut answers = at_once(|_| line.to_owned()).concat();
        let all = answers.len();
        answers.sort();
        answers.dedup();
        assert_eq!(answers.len(), all, "{line}: two were told the same");
    }
}

#[test]
fn of_several_misses_one_wins() {
    let answers = at_once(|turn| format!("mg k{turn} N0"));
    for turn in 0..answers[0].len() {
        let mut heard: Vec<&str> = answers.iter().map(|it| it[turn].as_str()).collect();
        heard.sort_unstable();
        assert_eq!(heard, ["HD W", "HD Z", "HD Z", "HD Z"], "k{turn}");
    }
}
