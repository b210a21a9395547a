//! A test harness in which a test that cannot run on this machine, or with these rights, is shown as
//! ignored, with its reason. The standard harness can ignore only what was known when it was built.
//!
//! Names as filters, `--exact`, `--skip`, `--list`, `--test-threads` and `RUST_TEST_THREADS` are the
//! standard harness's, by libtest-mimic; output is never captured. A test program says
//! `harness = false` in its `Cargo.toml`, and:
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
//! `NAPKIN_MAY_LACK` is for a machine that ought to have what tests need: a test that lacks anything but this, a
//! list of parts of reasons with `;` between them, fails. Without it nothing that is missing is a failure.
//!
//! Not here: what a test needs of napkin's own crates; none of them is a dependency.
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
pub use killed::Killed;
pub use napkin_testing_macros::test;

/// A function with `#[test]`.
#[derive(Debug)]
#[doc(hidden)]
pub struct Test {
    /// With the crate in front: `apply::lab::a_name`.
    pub path: &'static str,
    pub run: fn(),
}

inventory::collect!(Test);

/// What a test unwinds with that cannot run here. Never seen as a panic: no hook is called.
struct Ignored(String);

/// Ends the running test, which is then shown as ignored for this reason. On the test's own thread
/// only, or on one whose panics go on there.
pub fn ignore(reason: impl fmt::Display) -> ! {
    panic::resume_unwind(Box::new(Ignored(reason.to_string())))
}

/// Whether what a thread unwound with was [`ignore`], and no panic: for a test that has threads of its own.
pub fn is_ignored(why: &(dyn Any + Send)) -> bool {
    why.is::<Ignored>()
}

/// Ignores the running test unless it has what it needs, such as a right or a program.
///
/// # Panics
/// It lacks something that `NAPKIN_MAY_LACK`, where it is set, does not name: the test has failed.
pub fn needs(has: bool, what: impl fmt::Display) {
    if has {
        return;
    }
    let what = what.to_string();
    let allowed = std::env::var("NAPKIN_MAY_LACK").ok();
    assert!(may_lack(&what, allowed.as_deref()), "not allowed to lack: {what}");
    ignore(format_args!("needs {what}"));
}

/// Whether a machine of which this may be missing may lack `what`; one of which nothing is said may lack all.
fn may_lack(what: &str, allowed: Option<&str>) -> bool {
    allowed.is_none_or(|it| it.split(';').any(|part| !part.is_empty() && what.contains(part)))
}

/// Ignores the running test unless a program is installed.
pub fn needs_program(name: &str) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    needs(std::env::split_paths(&path).any(|it| it.join(name).is_file()), name);
}

/// Ignores the running test unless this process may use so many CPUs.
pub fn needs_cpus(cpus: usize) {
    needs(
        thread::available_parallelism().is_ok_and(|it| it.get() >= cpus),
        format_args!("{cpus} CPUs"),
    );
}

/// Waits for what another thread does; who has to wait ten seconds waits for ever.
#[track_caller]
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a test on a thread of its own, so that what it does to its thread ends with it.
fn run(name: &str, run: fn()) -> Result<Completion, Failed> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
    match thread.join().map_err(|payload| payload.downcast::<Ignored>()) {
        Ok(()) => Ok(Completion::Completed),
        Err(Ok(ignored)) => Ok(Completion::ignored_with(ignored.0)),
        Err(Err(panic)) => panic::resume_unwind(panic),
    }
}

/// Runs the tests that the command line names. For [`main!`](crate::main).
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

/// The main function of a test program. `main!(child)` is that of one which a test starts again as
/// something else: `fn child() -> bool` is called first, finds out by the environment whether that is
/// so, and if it is does that and returns true. Then no test runs, so that none can start it again.
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

        // The standard harness, which would find no test, runs this one; without it it is not there.
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
