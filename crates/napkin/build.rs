//! Sets `NAPKIN_COMMIT` to the commit that the program is built from, for the pages that it writes. Without a
//! checkout or git the variable stays unset.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A checkout that does not track this source belongs to another project.
    if git(&["ls-files", "--error-unmatch", "build.rs"]).is_none() {
        return;
    }
    // Watch the sources of every crate, as uncommitted changes are part of the version. Watch nothing beside `src`:
    // tests create and remove files there, each of which would cause a rebuild.
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

/// The output of git; `None` if it fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
