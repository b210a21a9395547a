//! `napkin keep` of wishes that cannot be held here: nothing is written, and no other wish is lost. Options that would
//! have no effect are refused.

mod common;

use std::fs;

use common::lab::Lab;
use common::namespace::fresh;
use common::{add_veth, text};
use napkin_testing::test;

/// A lab without a keeper.
impl Lab {
    /// The standard error of a command, which must exit with this code.
    fn stderr_of(&self, args: &str, code: i32) -> String {
        let output = self.napkin(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args}: {stderr}");
        stderr
    }

    /// The files of the wishes.
    fn wishes(&self) -> Vec<String> {
        let files = fs::read_dir(self.0.0.join("etc")).expect("a directory").flatten();
        let mut names: Vec<String> =
            files.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

#[test]
fn what_cannot_be_held_here_takes_a_yes_and_other_wishes_that_it_would_cost_are_named() {
    fresh()
        .run(|| {
            let lab = Lab::new("wishes-refused");
            add_veth(2);
            lab.stderr_of("keep defer20 --dev va --name b", 0);
            let refused = |args: &str, why: &str| {
                let stderr = lab.stderr_of(&format!("keep {args}"), 1);
                assert!(stderr.contains("nothing was written"), "{args}: {stderr}");
                assert!(stderr.contains(why), "{args}: {stderr}");
                assert_eq!(lab.wishes(), ["b.toml"], "{args}");
            };
            refused("defer20 --dev va --name b --rt 5", "--rt is for NAPI threads");
            refused("threaded --dev va --name b --cpus 1023", "CPU 1023 is offline");
            refused("defer20 --dev va --name b --queues 7", "no receive queue 7");
            refused("suspend20 --dev va --name c", "is held by the wish b (");
            refused("suspend20 --dev va --name a --queues 0", "the wish b (");
            let kept = fs::read_to_string(lab.0.0.join("etc/b.toml")).expect("it is there");
            assert!(kept.contains("defer20") && !kept.contains("queues ="), "{kept}");

            let stderr = lab.stderr_of("keep suspend20 --dev va --name a --queues 0 --yes", 0);
            assert!(stderr.contains("warning: the wish b ("), "{stderr}");
            let stderr = lab.stderr_of("keep defer20 --dev va --name d --queues 7 --yes", 1);
            assert!(stderr.contains("refused: va has no receive queue 7"), "{stderr}");
            assert_eq!(lab.wishes(), ["a.toml", "b.toml", "d.toml"]);
            // Nothing is checked for a device that does not exist.
            lab.stderr_of("keep defer20 --dev nowhere --queues 7", 0);
            lab.stderr_of("keep --check", 1);
        })
        .expect("entered");
}

#[test]
fn a_wish_of_which_a_part_is_refused_does_not_lose_the_rest_unsaid() {
    fresh()
        .run(|| {
            let lab = Lab::new("wishes-part");
            add_veth(2);
            let stderr = lab.stderr_of("keep defer20 --dev va --name b --queues 0,7 --yes", 1);
            assert!(stderr.contains("no receive queue 7"), "{stderr}");
            let stderr = lab.stderr_of("keep suspend20 --dev va --name a --queues 0", 1);
            assert!(stderr.contains("the wish b (") && stderr.contains("wish a ("), "{stderr}");
            assert!(!stderr.contains("no receive queue 7"), "it was so before: {stderr}");
            assert_eq!(lab.wishes(), ["b.toml"]);
            lab.stderr_of("keep suspend20 --dev va --name a --queues 1", 0);
        })
        .expect("entered");
}

#[test]
fn what_a_look_at_wishes_would_not_mind_is_refused() {
    let lab = Lab::new("wishes-usage");
    for option in ["--dev va", "--driver igb", "--queues 0", "--cpus 0", "--rt 5", "--name v"] {
        for look in ["--list", "--check"] {
            let stderr = lab.stderr_of(&format!("keep {option} {look}"), 2);
            assert!(stderr.contains("cannot be used with"), "{option} {look}: {stderr}");
        }
    }
    let stderr = lab.stderr_of("keep --json defer20 --dev va", 2);
    assert!(stderr.contains("--json is for --list and --check"), "{stderr}");
    assert_eq!(lab.wishes(), [""; 0]);
}

napkin_testing::main!();
