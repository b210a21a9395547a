use std::fs;

use super::*;
use crate::interrupt::Interrupt;
use crate::sweep::Sweep;
use crate::sweep::run::tests::{Folder, VARY, sweep};

/// Runs each shard of a sweep into its own file.
fn shards(folder: &Folder, sweep: &Sweep<'_>, count: u64) -> Vec<PathBuf> {
    let shard = |number: u64| {
        let path = folder.0.join(format!("{number}.csv"));
        let shard = format!("{number}/{count}").parse().ok();
        let part = Sweep { shard, ..sweep.clone() };
        part.run(&path, false, &Interrupt::default(), |_| ()).unwrap();
        path
    };
    (1..=count).map(shard).collect()
}

fn refused(files: &[PathBuf], folder: &Folder) -> String {
    let out = folder.0.join("all.csv");
    let error = merge(files, &out).unwrap_err();
    assert!(error.is_usage() && !out.exists());
    error.to_string()
}

#[test]
fn the_shards_of_a_sweep_make_the_bytes_of_one_run() {
    let folder = Folder::new("merge");
    let sweep = sweep(VARY);
    sweep.run(&folder.file(), false, &Interrupt::default(), |_| ()).unwrap();
    // Including more shards than points, so that some are empty.
    for count in [1, 4, 40] {
        let mut files = shards(&folder, &sweep, count);
        files.reverse();
        let out = folder.0.join("all.csv");
        let merged = merge(&files, &out).unwrap();
        assert_eq!(merged, Merged { points: 32, failed: 0 });
        assert_eq!(fs::read(&out).unwrap(), fs::read(folder.file()).unwrap(), "{count} shards");
        let refusal = merge(&files, &out).unwrap_err().to_string();
        assert!(refusal.contains("is there already"), "{refusal}");
        // The file of the whole sweep and that of a shard agree.
        fs::remove_file(&out).unwrap();
        merge(&[folder.file(), files[0].clone()], &out).unwrap();
        fs::remove_file(&out).unwrap();
        files.iter().for_each(|file| fs::remove_file(file).unwrap());
    }
}

#[test]
fn points_that_fail_are_merged_as_they_are() {
    let folder = Folder::new("merge-failed");
    let sweep = sweep(&["nic.queues=2,4", "processor.cpus=2,4"]);
    sweep.run(&folder.file(), false, &Interrupt::default(), |_| ()).unwrap();
    let out = folder.0.join("all.csv");
    let merged = merge(&shards(&folder, &sweep, 4), &out).unwrap();
    assert_eq!(merged, Merged { points: 4, failed: 1 });
    assert_eq!(fs::read(&out).unwrap(), fs::read(folder.file()).unwrap());
}

#[test]
fn what_is_missing_is_named_with_its_shard() {
    let folder = Folder::new("merge-missing");
    let files = shards(&folder, &sweep(VARY), 4);
    let text = refused(&files[..3], &folder);
    assert!(text.contains(" of 32 points are missing ("), "{text}");
    assert!(text.contains("no file has a point of shard 4/4;"), "{text}");
    // A run that was killed: between two lines, and in the middle of one.
    let whole = fs::read_to_string(&files[1]).unwrap();
    let last = whole.trim_end().rfind('\n').unwrap() + 1;
    fs::write(&files[1], &whole[..last]).unwrap();
    let text = refused(&files, &folder);
    assert!(text.starts_with("1 of 32 points are missing"), "{text}");
    assert!(text.contains("has not finished; go on with it with --resume"), "{text}");
    fs::write(&files[1], &whole[..last + 9]).unwrap();
    let text = refused(&files, &folder);
    assert!(text.contains("2.csv was not finished"), "{text}");
    fs::write(&files[1], "").unwrap();
    assert!(refused(&files, &folder).contains("2.csv:1: this is no line of a sweep"));
    assert!(refused(&[], &folder).contains("nothing to merge"));
}

#[test]
fn what_does_not_fit_together_is_refused_with_what_differs() {
    let folder = Folder::new("merge-other");
    let own = sweep(VARY);
    let first = shards(&folder, &own, 2).swap_remove(0);
    let set = |text: &str| {
        let mut profile = own.profile.clone();
        profile.set_text(text).unwrap();
        profile
    };
    let revaried = |vary: &[&str]| Sweep { axes: sweep(vary).axes, ..own.clone() };
    let grown = [&VARY[..4], &["seed=1..3"]].concat();
    let more = [VARY, &["nic.ring=512"]].concat();
    for (other, message) in [
        (Sweep { version: "napkin 2".into(), ..own.clone() }, "version is napkin 1"),
        (Sweep { window: 11_000_000, ..own.clone() }, "the window, the warm-up or a constant"),
        (Sweep { warm_up: 2_000_000, ..own.clone() }, "the window, the warm-up or a constant"),
        (Sweep { profile: set("cost.poll=3us"), ..own.clone() }, "or a constant of the profile"),
        (Sweep { seed: 9, ..revaried(&VARY[..4]) }, "sweep is "),
        (revaried(&grown), "what is varied differs"),
        (revaried(&more), "only the second has the columns nic.ring"),
    ] {
        let path = folder.0.join("other.csv");
        let _ = fs::remove_file(&path);
        let other = Sweep { shard: "2/2".parse().ok(), ..other };
        other.run(&path, false, &Interrupt::default(), |_| ()).unwrap();
        let text = refused(&[first.clone(), path], &folder);
        assert!(
            text.contains("do not fit together") && text.contains(message),
            "{message}: {text}"
        );
    }
}

#[test]
fn a_point_that_is_there_twice_has_to_be_the_same() {
    let folder = Folder::new("merge-twice");
    let mut files = shards(&folder, &sweep(VARY), 2);
    let changed = folder.0.join("changed.csv");
    fs::write(&changed, fs::read_to_string(&files[0]).unwrap().replace(",10000000,", ",10000001,"))
        .unwrap();
    files.push(changed);
    let text = refused(&files, &folder);
    assert!(text.contains("1.csv and ") && text.contains("both have point "), "{text}");
    assert!(text.contains("window_ns is 10000000 in the first and 10000001 in the"), "{text}");
}
