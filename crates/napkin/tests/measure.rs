//! `napkin profile measure` from the command line: it writes a file that `profile check` accepts and the machine runs.

mod common;

use common::{TempDir, napkin, text};
use napkin_os::rights::Right;
use napkin_testing::{needs, test};

#[test]
fn a_measured_host_is_checked_and_modelled() {
    for right in [Right::SysAdmin, Right::NetAdmin, Right::Bpf, Right::Perfmon] {
        needs(right.held(), right);
    }
    let place = TempDir::new("measure");
    let file = place.0.join("mine.toml");
    let file = file.to_str().expect("a name");
    let output = napkin(["profile", "measure", "--seconds", "3", "--out", file]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("round 1 of"), "{stderr}");
    assert!(stdout.contains("cost.poll ") && stdout.contains("not measured here"), "{stdout}");
    let check = napkin(["profile", "check", file]);
    let stdout = text(&check.stdout);
    assert!(check.status.success() && stdout.contains("mine: nothing is wrong"), "{stdout}");
    assert!(stdout.contains("merely inherited"), "{stdout}");
    let run = [
        "bench",
        "memcached",
        "--world",
        "machine",
        "--profile",
        file,
        "--policy",
        "base",
        "--load",
        "2k",
        "--window",
        "50ms",
        "--seeds",
        "1",
    ];
    let run = napkin(run);
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(text(&run.stdout).contains("base"), "{}", text(&run.stdout));
}

#[test]
fn without_a_file_the_profile_goes_to_standard_output_and_the_words_beside_it() {
    let output = napkin(["profile", "measure", "--seconds", "2", "--quiet"]);
    let (profile, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert!(profile.contains("name = \"measured\"\n") && profile.contains("[cost]"), "{profile}");
    assert!(stderr.contains("not measured here") && !stderr.contains("round 1"), "{stderr}");
}

#[test]
fn help_teaches_and_a_wrong_profile_below_is_a_wrong_command() {
    let help = napkin(["profile", "measure", "--help"]);
    let stdout = text(&help.stdout);
    for word in ["--seconds", "--dev", "--out", "--based-on", "Examples", "As root"] {
        assert!(stdout.contains(word), "{word}: {stdout}");
    }
    let wrong = napkin(["profile", "measure", "--based-on", "epyc"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
    assert!(text(&wrong.stderr).contains("epyc-7662"), "{}", text(&wrong.stderr));
}

napkin_testing::main!();
