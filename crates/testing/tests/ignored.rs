//! Tests the harness from outside: runs this program's own tests again in a child process.

use std::process::{Command, Output};

use napkin_testing::{needs, needs_cpus, needs_program, test};

/// Set in the child process, whose tests of [`looked_at`] are observed.
const LOOKED_AT: &str = "NAPKIN_TEST_LOOKED_AT";

/// The tests that are run in the child process. In the parent they do nothing.
mod looked_at {
    use super::{LOOKED_AT, needs, needs_cpus, needs_program, test};

    fn watched() -> bool {
        std::env::var_os(LOOKED_AT).is_some()
    }

    #[test]
    fn passes() {
        needs_cpus(1);
        needs_program("sh");
    }

    #[test]
    fn lacks_a_right() {
        needs(!watched(), "CAP_NOTHING");
    }

    #[test]
    fn lacks_a_program() {
        if watched() {
            needs_program("no-such-program");
        }
    }

    #[test]
    fn lacks_cpus() {
        if watched() {
            needs_cpus(1 << 20);
        }
    }

    #[test]
    fn fails() {
        assert!(!watched(), "because it is watched");
    }
}

/// Runs this program again. Not allowed in the child: if a broken harness ran all tests instead of the selected
/// one, the recursion would not end.
fn run(arguments: &[&str]) -> (String, Output) {
    run_where(None, arguments)
}

/// The same with `NAPKIN_MAY_LACK`.
fn run_where(may_lack: Option<&str>, arguments: &[&str]) -> (String, Output) {
    const MAY_LACK: &str = "NAPKIN_MAY_LACK";
    assert!(std::env::var_os(LOOKED_AT).is_none(), "it runs this very program again");
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    // It may be set in the environment.
    command.args(arguments).env(LOOKED_AT, "1").env_remove(MAY_LACK);
    if let Some(may_lack) = may_lack {
        command.env(MAY_LACK, may_lack);
    }
    let output = command.output().expect("it starts");
    (String::from_utf8_lossy(&output.stdout).into_owned(), output)
}

#[test]
fn a_test_that_cannot_run_is_shown_as_ignored_with_its_reason() {
    let (said, output) = run(&["looked_at::lacks"]);
    for (name, reason) in [
        ("lacks_a_right", "ignored (needs CAP_NOTHING)"),
        ("lacks_a_program", "ignored (needs no-such-program)"),
        ("lacks_cpus", "ignored (needs 1048576 CPUs)"),
    ] {
        let line = said.lines().find(|line| line.contains(&format!("::{name} "))).expect(&said);
        assert!(line.ends_with(reason), "{line}");
    }
    assert!(said.contains("0 passed; 0 failed; 3 ignored"), "{said}");
    assert!(output.status.success(), "{said}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn what_a_machine_is_not_allowed_to_lack_is_a_failure() {
    let (said, output) = run_where(Some("CAP_;;CPUs"), &["looked_at::lacks"]);
    assert!(said.contains("0 passed; 1 failed; 2 ignored"), "{said}");
    assert!(said.contains("not allowed to lack: no-such-program"), "{said}");
    assert_eq!(output.status.code(), Some(101));
    let (said, _) = run_where(Some(""), &["looked_at::lacks"]);
    assert!(said.contains("0 passed; 3 failed; 0 ignored"), "{said}");
}

#[test]
fn a_test_that_fails_says_why_and_so_does_the_program() {
    let (said, output) = run(&["looked_at::fails", "--exact", "--nocapture"]);
    assert!(said.contains("test looked_at::fails ... FAILED"), "{said}");
    assert!(said.contains("because it is watched"), "{said}");
    assert_eq!(output.status.code(), Some(101));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("thread 'looked_at::fails'"), "{told}");
}

#[test]
fn tests_are_listed_and_chosen_by_name() {
    let (said, _) = run(&["--list"]);
    let names: Vec<&str> = said.lines().filter(|it| it.starts_with("looked_at")).collect();
    let expected = ["fails", "lacks_a_program", "lacks_a_right", "lacks_cpus", "passes"];
    assert_eq!(names, expected.map(|name| format!("looked_at::{name}: test")));
    let (said, output) = run(&["passes", "--test-threads=1"]);
    assert!(said.contains("1 passed; 0 failed; 0 ignored"), "{said}");
    assert!(output.status.success());
    let (said, _) = run(&["--ignored"]);
    assert!(said.contains("running 0 tests"), "{said}");
}

napkin_testing::main!();
