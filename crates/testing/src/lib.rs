//! A test harness that shows a test which cannot run on this machine, or without a right, as ignored, with the
//! reason. The standard harness can only ignore tests at compile time.
//!
//! Filters by name, `--exact`, `--skip`, `--list`, `--test-threads` and `RUST_TEST_THREADS` work as in the
//! standard harness, by libtest-mimic; output is never captured. A test program has `harness = false` in its
//! `Cargo.toml`, and:
//!
//! ```text
//! use napkin_testing::{needs_cpus, test};
//!
//! #[test]
//! fn two_threads_run_at_once() {
//!     needs_cpus(2);
//!     // ...
//! }
//!
//! napkin_testing::main!();
//! ```
//!
//! `NAPKIN_MAY_LACK` is for a machine that should have what the tests need. It is a list of parts of reasons,
//! separated by `;`: a test that lacks anything else fails. Without it a test that lacks something is ignored.
//!
//! Needs of tests that concern napkin's own crates are not handled here; none of these crates is a dependency.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod callgrind;
mod folder;
mod killed;

use std::any::Any;
use std::fmt;
use std::panic;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

pub use callgrind::{callgrind, has_valgrind};
pub use folder::Folder;
#[doc(hidden)]
pub use inventory;
pub use killed::KillOnDrop;
pub use napkin_testing_macros::test;

/// A function with `#[test]`.
#[derive(Debug)]
#[doc(hidden)]
pub struct Test {
    /// Includes the crate: `apply::lab::a_name`.
    pub path: &'static str,
    pub run: fn(),
}

inventory::collect!(Test);

/// The unwind payload of a test that cannot run here. Not a panic: no hook is called.
struct Ignored(String);

/// Ends the running test, which is then shown as ignored for this reason. Must be called on the test's own
/// thread, or on one whose panics are resumed there.
pub fn ignore(reason: impl fmt::Display) -> ! {
    panic::resume_unwind(Box::new(Ignored(reason.to_string())))
}

/// Whether an unwind payload is from [`ignore`], not from a panic: for a test with threads of its own.
pub fn is_ignored(why: &(dyn Any + Send)) -> bool {
    why.is::<Ignored>()
}

/// Ignores the running test unless a requirement is met, such as a right or a program.
///
/// # Panics
/// If `NAPKIN_MAY_LACK` is set and does not name the requirement: the test has failed.
pub fn needs(has: bool, what: impl fmt::Display) {
    if has {
        return;
    }
    let what = what.to_string();
    let allowed = std::env::var("NAPKIN_MAY_LACK").ok();
    assert!(may_lack(&what, allowed.as_deref()), "not allowed to lack: {what}");
    ignore(format_args!("needs {what}"));
}

/// Whether a test may lack `what`, given the value of `NAPKIN_MAY_LACK`; without a value it may lack anything.
fn may_lack(what: &str, allowed: Option<&str>) -> bool {
    allowed.is_none_or(|it| it.split(';').any(|part| !part.is_empty() && what.contains(part)))
}

/// Ignores the running test unless a program is installed.
pub fn needs_program(name: &str) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    needs(std::env::split_paths(&path).any(|it| it.join(name).is_file()), name);
}

/// Ignores the running test unless this process may use this many CPUs.
pub fn needs_cpus(cpus: usize) {
    needs(
        thread::available_parallelism().is_ok_and(|it| it.get() >= cpus),
        format_args!("{cpus} CPUs"),
    );
}

/// Waits for a condition that another thread brings about; panics after ten seconds.
#[track_caller]
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a test in a thread of its own, so that changes to the thread end with it.
fn run(name: &str, run: fn()) -> Result<Completion, Failed> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
    match thread.join().map_err(|payload| payload.downcast::<Ignored>()) {
        Ok(()) => Ok(Completion::Completed),
        Err(Ok(ignored)) => Ok(Completion::ignored_with(ignored.0)),
        Err(Err(panic)) => panic::resume_unwind(panic),
    }
}

/// Runs the tests that the command line selects. For [`main!`](crate::main).
#[doc(hidden)]
pub fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let threads = std::env::var("RUST_TEST_THREADS").ok().and_then(|it| it.parse().ok());
    arguments.test_threads = arguments.test_threads.or(threads);
    let tests = inventory::iter::<Test>.into_iter().map(|test| {
        let name = test.path.split_once("::").map_or(test.path, |(_, name)| name);
        Trial::ignorable_test(name, || run(name, test.run))
    });
    let mut tests: Vec<Trial> = tests.collect();
    tests.sort_by(|one, other| one.name().cmp(other.name()));
    libtest_mimic::run(&arguments, tests).exit_code()
}

/// The main function of a test program. `main!(child)` is for a program that a test starts again as a child:
/// `fn child() -> bool` is called first, checks the environment whether this process is the child, and if so
/// acts as the child and returns true. No test runs then, so that no test can start the program again.
#[macro_export]
macro_rules! main {
    () => {
        $crate::main!(|| false);
    };
    ($child:expr) => {
        fn main() -> std::process::ExitCode {
            let child: fn() -> bool = $child;
            if child() { std::process::ExitCode::SUCCESS } else { $crate::main() }
        }

        // Without `harness = false` the standard harness runs this test, and finds no other.
        #[::core::prelude::v1::test]
        fn harness_is_false_in_cargo_toml() {
            panic!("this test program needs `harness = false` in Cargo.toml");
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! register {
    ($name:ident) => {
        $crate::inventory::submit! {
            $crate::Test { path: concat!(module_path!(), "::", stringify!($name)), run: $name }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::may_lack;

    #[test]
    fn a_machine_may_lack_what_is_named_and_without_a_list_anything() {
        assert!(may_lack("fio", None));
        assert!(may_lack("a kernel with VLANs (8021q)", Some("io_uring;8021q")));
        assert!(!may_lack("fio", Some("io_uring;8021q")));
        assert!(!may_lack("fio", Some("")) && !may_lack("fio", Some(";;")));
    }
}
