//! Instructions of a program, counted by valgrind's callgrind: the same number on every run of one build.

use std::process::Command;

/// Runs this very program once more, under callgrind: the instructions it took, or those of the functions
/// that an option (`--toggle-collect=`) names, and what it printed.
///
/// # Errors
/// Valgrind is not installed, the program failed under it, or nothing was counted: with what it said.
pub fn callgrind(options: &[&str], arguments: &[String]) -> Result<(f64, String), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(options)
        .arg(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let number = said.lines().find_map(|line| line.split_once("Collected :"));
    match number.and_then(|(_, number)| number.trim().parse().ok()) {
        Some(number) if output.status.success() => {
            Ok((number, String::from_utf8_lossy(&output.stdout).into_owned()))
        }
        _ => Err(format!("valgrind failed ({}):\n{said}", output.status)),
    }
}

/// Whether valgrind is installed.
pub fn has_valgrind() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok()
}
