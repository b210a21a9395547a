//! `napkin completions` and `napkin man`.

mod common;

use std::fs;
use std::process::Command;

use common::{TempDir, napkin, text};

#[test]
fn each_shell_has_a_script_that_knows_the_commands_and_their_options() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = napkin(["completions", shell]);
        assert!(output.status.success(), "{shell}");
        let script = text(&output.stdout);
        for word in ["reproduce", "xsk-rr", "repetitions", "completions"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let output = napkin(["completions", "tcl"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn bash_understands_its_script_where_there_is_one() {
    let place = TempDir::new("completions");
    let script = place.0.join("napkin");
    fs::write(&script, napkin(["completions", "bash"]).stdout).expect("a file");
    // Checked only if bash is installed.
    if let Ok(output) = Command::new("bash").arg("-n").arg(&script).output() {
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

#[test]
fn every_command_has_a_page() {
    let place = TempDir::new("man");
    let directory = place.0.join("share/man1");
    let output = napkin(["man", &directory.display().to_string()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = |name: &str| fs::read_to_string(directory.join(name)).expect(name);
    let main = page("napkin.1");
    for line in text(&napkin(["help"]).stdout).lines() {
        // "  bench        Measure ...", up to the options.
        let Some(command) = line.strip_prefix("  ").and_then(|line| line.split(' ').next()) else {
            continue;
        };
        if command.is_empty() || command.starts_with('-') || command == "help" {
            continue;
        }
        if command == "napkin" {
            break;
        }
        assert!(page(&format!("napkin-{command}.1")).contains(".SH SYNOPSIS"), "{command}");
        assert!(
            main.contains(&format!("napkin\\-{}(1)", command.replace('-', "\\-"))),
            "{command}"
        );
    }
    let bench = page("napkin-bench-udp-sink.1");
    assert!(page("napkin-top.1").contains("\n.SH EXAMPLES\n.nf\n"), "lines stay as they are");
    assert!(bench.contains("\\-\\-offered") && bench.contains("\\-\\-repetitions"), "{bench}");
    for (name, alias) in [
        ("napkin-bench-udp-sink.1", "seeds"),
        ("napkin-reproduce.1", "virtual"),
        ("napkin-compare.1", "policies"),
        ("napkin-load.1", "connections"),
    ] {
        assert!(page(name).contains(&format!("[alias: \\-\\-{alias}]")), "{name}: {alias}");
    }
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let output = napkin(["man", "/proc/self/no/such"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write to /proc/self/no/such"));
}
