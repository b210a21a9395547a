//! A child process that is killed when its test ends, even if the test fails.

use std::process::Child;

/// A child process that is killed, and waited for, when this is dropped.
#[derive(Debug)]
pub struct KillOnDrop(
    /// The process, which may have ended, and been waited for, earlier.
    pub Child,
);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::process::{Command, Stdio};

    use super::KillOnDrop;

    #[test]
    fn one_that_is_left_by_a_panic_ends() {
        let child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().expect("started");
        let process = format!("/proc/{}", child.id());
        let child = KillOnDrop(child);
        assert!(std::fs::exists(&process).expect("proc"));
        let failed = catch_unwind(move || assert_eq!(child.0.id(), 0, "a test that fails"));
        assert!(failed.is_err());
        assert!(!std::fs::exists(&process).expect("proc"));
    }
}
