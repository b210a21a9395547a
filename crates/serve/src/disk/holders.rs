//! Finds other processes that have a block device open. Only an exclusive claim (a mount, or a device stacked on
//! it) keeps others out. Any other program may write to the device while it is served, and neither side notices.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use napkin_os::procfs::thread::comm;

/// The other processes that have the block device `device` open, as `812 (fio)`, as far as this process may see.
pub(super) fn holders(device: &Path) -> Vec<String> {
    let Some(number) = block_device(device) else { return Vec::new() };
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = processes.filter_map(|entry| entry.file_name().into_string().ok());
    let others = names.filter(|name| *name != own && name.bytes().all(|it| it.is_ascii_digit()));
    let named = |process: String| {
        let name = process.parse().ok().and_then(comm).unwrap_or_default();
        format!("{process} ({})", napkin_policy::text::escaped(name.trim_end()))
    };
    others.filter(|process| has_open(process, number)).map(named).collect()
}

fn has_open(process: &str, number: u64) -> bool {
    let open = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    // Only follow links into /dev: on other file systems, a stat may block for ever.
    let in_dev = |link: &Path| fs::read_link(link).is_ok_and(|it| it.starts_with("/dev"));
    open.map(|entry| entry.path()).any(|link| in_dev(&link) && block_device(&link) == Some(number))
}

fn block_device(path: &Path) -> Option<u64> {
    let metadata = path.metadata().ok()?;
    metadata.file_type().is_block_device().then(|| metadata.rdev())
}
