//! `napkin attach` to a running process, and the ways in which its settings are restored.

use napkin_testing::test;

use super::*;

#[test]
fn attach_holds_until_it_is_interrupted_and_puts_back() {
    let (mut child, mut output) = python();
    let scratch = Scratch::new("attach");
    let pid = child.id().to_string();
    for (end, arguments) in [
        (Some(libc::SIGINT), &[][..]),
        (Some(libc::SIGTERM), &[]),
        (Some(libc::SIGQUIT), &[]),
        (None, &["--for", "200ms"]),
    ] {
        let attach = [&["attach", &pid, "--policy", "suspend20"], arguments].concat();
        let napkin = Running::start(scratch.napkin(&attach));
        if let Some(signal) = end {
            within("set", || (params(&mut child, &mut output) == SET).then_some(()));
            assert_eq!(scratch.journals(), 1);
            // It ignores SIGTSTP: stopped, it would leave a policy in force without a guard.
            for _ in 0..2 {
                napkin.signal(libc::SIGTSTP);
                within("taken", || (!napkin.has_pending(libc::SIGTSTP)).then_some(()));
            }
            napkin.signal(signal);
        }
        let (status, stderr) = napkin.end();
        let stop_notices = stderr.matches("a stop (Ctrl-Z) is ignored").count();
        assert_eq!(stop_notices, usize::from(end.is_some()), "{stderr}");
        assert_eq!(status.code(), Some(0), "{stderr}");
        assert!(stderr.contains("busy poll 0 us, budget 64, prefer; set"), "{stderr}");
        assert!(stderr.contains("put back: 1"), "{stderr}");
        assert_eq!(params(&mut child, &mut output), OFF);
        assert_eq!(scratch.journals(), 0);
    }
    child.kill().expect("a child");
    child.wait().expect("it ends");
}

#[test]
fn what_a_killed_napkin_leaves_is_put_back_by_restore() {
    let (mut child, mut output) = python();
    let scratch = Scratch::new("killed");
    let pid = child.id().to_string();
    let attach = ["attach", &pid, "--policy", "suspend20"];
    let mut napkin = Running::start(scratch.napkin(&attach));
    within("set", || (params(&mut child, &mut output) == SET).then_some(()));
    // A second attach has nothing to do with the same policy; with another one it is refused, and the holder named.
    let second = scratch.napkin(&attach).arg("--once").output().expect("napkin");
    let stderr = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.success() && stderr.contains("nothing was to be set"), "{stderr}");
    let other = ["attach", &pid, "--policy", "napibusy", "--once"];
    let second = scratch.napkin(&other).output().expect("napkin");
    let stderr = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&napkin.pid().to_string()), "{stderr}");
    napkin.0.kill().expect("a child");
    napkin.0.wait().expect("it ends");
    drop(napkin);
    assert_eq!(params(&mut child, &mut output), SET);
    assert_eq!(scratch.journals(), 1);
    let restored = scratch.napkin(&["restore"]).output().expect("napkin");
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    assert_eq!(params(&mut child, &mut output), OFF);
    assert_eq!(scratch.journals(), 0);
    // Settings of --once are restored in the same way.
    let once = scratch.napkin(&attach).arg("--once").output().expect("napkin");
    assert!(once.status.success(), "{}", String::from_utf8_lossy(&once.stderr));
    assert_eq!(params(&mut child, &mut output), SET);
    let restored = scratch.napkin(&["restore"]).output().expect("napkin");
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    assert_eq!(params(&mut child, &mut output), OFF);
    child.kill().expect("a child");
    child.wait().expect("it ends");
}

#[test]
fn a_state_directory_may_be_named_from_here() {
    let (mut child, mut output) = python();
    let scratch = Scratch::new("relative");
    let pid = child.id().to_string();
    let napkin = |arguments: &[&str]| {
        let mut command = scratch.napkin(arguments);
        command.env("NAPKIN_STATE", "not-there-yet").current_dir(&scratch.0);
        command.output().expect("napkin")
    };
    let once = napkin(&["attach", &pid, "--policy", "suspend20", "--once"]);
    assert!(once.status.success(), "{}", String::from_utf8_lossy(&once.stderr));
    assert_eq!(params(&mut child, &mut output), SET);
    assert!(napkin(&["restore"]).status.success());
    assert_eq!(params(&mut child, &mut output), OFF);
    child.kill().and_then(|()| child.wait()).expect("a child");
}

#[test]
fn a_process_that_is_not_there_is_said_so() {
    let scratch = Scratch::new("absent");
    let output = scratch
        .napkin(&["attach", "2147483647", "--policy", "suspend20"])
        .output()
        .expect("napkin");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("there is no process 2147483647"), "{stderr}");
}
