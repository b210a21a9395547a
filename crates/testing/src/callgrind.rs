//! Counts the instructions of a program with valgrind's callgrind: the count is the same on every run of one
//! build.

use std::process::Command;

/// Runs the current program again under callgrind. Returns the number of instructions that it took, or that the
/// functions named by an option (`--toggle-collect=`) took, and its output.
///
/// # Errors
/// If valgrind is not installed, the program failed under it, or nothing was counted: valgrind's output.
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
