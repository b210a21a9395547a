//! Receive softirqs from the kernel's own trace: which interrupted the init process, and which started late.
//!
//! On the machine where this was written, tracing programs do not run while process 1 is current: the trace points
//! write their lines, but their programs neither run nor count as missed. Linux itself has no such rule; it is
//! specific to that kernel. So no program sees what a softirq does that interrupts that process.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use napkin_kernel::count::btf::Btf;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::time::{ClockId, clock_gettime};

/// A private trace buffer.
pub(crate) struct Softirqs {
    place: PathBuf,
    lines: File,
    /// By CPU, when its pending receive softirq was raised, in seconds.
    raised: BTreeMap<String, f64>,
    /// Keeps the detached tracefs mount alive.
    _tracefs: OwnedFd,
}

/// The softirqs between two calls of [`Softirqs::look`].
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Whether a receive softirq was raised or started while a thread of process 1 was current.
    pub(crate) in_first_process: bool,
    /// The times at which each receive softirq was raised and started, in seconds.
    waits: Vec<[f64; 2]>,
}

impl Softirqs {
    pub(crate) fn new() -> Softirqs {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let tracefs = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC).expect("tracefs");
        fsconfig_create(&tracefs).expect("tracefs");
        let none = MountAttrFlags::empty();
        let tracefs = fsmount(&tracefs, FsMountFlags::FSMOUNT_CLOEXEC, none).expect("tracefs");
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("instances/nk-softirqs-{}-{number}", std::process::id());
        let place = PathBuf::from(format!("/proc/self/fd/{}", tracefs.as_raw_fd())).join(name);
        fs::create_dir(&place).expect("a trace buffer");
        let put = |file: &str, text: &str| {
            fs::write(place.join(file), text).unwrap_or_else(|error| panic!("{file}: {error}"));
        };
        let vector = Btf::kernel().expect("BTF").enumerator("NET_RX_SOFTIRQ").expect("a vector");
        put("trace_clock", "mono");
        for event in ["softirq_raise", "softirq_entry"] {
            put(&format!("events/irq/{event}/filter"), &format!("vec == {vector}"));
            put(&format!("events/irq/{event}/enable"), "1");
        }
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        let lines = options.open(place.join("trace_pipe")).expect("the trace");
        Softirqs { place, lines, raised: BTreeMap::new(), _tracefs: tracefs }
    }

    /// Returns the current time of the trace's clock in seconds.
    pub(crate) fn now() -> f64 {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    }

    /// Reads the softirqs since the last call.
    pub(crate) fn look(&mut self) -> Seen {
        let mut text = Vec::new();
        match self.lines.read_to_end(&mut text) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => panic!("the trace has an end: {other:?}"),
        }
        let text = String::from_utf8_lossy(&text);
        assert!(!text.contains("LOST"), "the trace buffer was too small: {text}");
        let threads = fs::read_dir("/proc/1/task").expect("procfs").flatten();
        let threads: Vec<String> =
            threads.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
        let mut seen = Seen::default();
        // `  kworker/0:1-812     [001] d.h1.   12.345678: softirq_raise: vec=3 [action=NET_RX]`
        for line in text.lines() {
            let (head, asked) = match line.split_once(": softirq_raise: ") {
                Some((head, _)) => (head, true),
                None => (line.split_once(": softirq_entry: ").expect(line).0, false),
            };
            let (task, rest) = head.rsplit_once(" [").expect(line);
            let (cpu, rest) = rest.split_once("] ").expect(line);
            let time: f64 =
                rest.split_whitespace().last().and_then(|it| it.parse().ok()).expect(line);
            let thread = task.trim_end().rsplit_once('-').expect(line).1;
            seen.in_first_process |= threads.iter().any(|it| it == thread);
            if asked {
                self.raised.entry(cpu.to_owned()).or_insert(time);
            } else if let Some(raised) = self.raised.remove(cpu) {
                seen.waits.push([raised, time]);
            }
        }
        // Pending softirqs: the time of their start is unknown.
        seen.waits.extend(self.raised.values().map(|raised| [*raised, f64::INFINITY]));
        seen
    }
}

impl Seen {
    /// Whether a receive softirq was raised before that time but started after it.
    pub(crate) fn late_at(&self, time: f64) -> bool {
        // The trace has a resolution of microseconds.
        self.waits.iter().any(|[raised, began]| *raised <= time && time <= began + 1e-6)
    }
}

impl Drop for Softirqs {
    fn drop(&mut self) {
        // A buffer that is open for reading cannot be removed.
        if let Ok(null) = File::open("/dev/null") {
            self.lines = null;
        }
        let _ = fs::remove_dir(&self.place);
    }
}
