//! Tells the program from which commit it is built, for the pages that it writes. Where that cannot be
//! found out (no checkout, no git) it is not said.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A checkout around this source that does not hold it is somebody else's.
    if git(&["ls-files", "--error-unmatch", "build.rs"]).is_none() {
        return;
    }
    // Any crate's: a commit alone says nothing of sources that differ from it. Not all that is beside them, for
    // tests run there, and a file that comes and goes would have all of this built again.
    let crates = std::fs::read_dir("..").into_iter().flatten().flatten();
    for source in crates.map(|it| it.path().join("src")).filter(|it| it.is_dir()) {
        println!("cargo::rerun-if-changed={}", source.display());
    }
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    let changed = changed.is_none_or(|changed| !changed.is_empty());
    let changed = if changed { " with changes" } else { "" };
    println!("cargo::rustc-env=NAPKIN_COMMIT={commit}{changed}");
}

/// What git says; `None` if it fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
