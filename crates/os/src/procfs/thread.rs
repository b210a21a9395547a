//! Threads by id: CPU time, last CPU and name; and the system threads that affect packet delivery: `napi/*`,
//! `ksoftirqd/*`, and irqbalance.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use rustix::time::{ClockId, Timespec, clock_gettime};

use super::{read_text, stat};

/// Limit of a file's size: a name has at most 64 bytes, a line of numbers some 400.
const LIMIT: usize = 4_096;

/// `PF_EXITING` in the flags of `stat`.
const PF_EXITING: u64 = 4;

/// `PF_KTHREAD` in the same flags.
const PF_KTHREAD: u64 = 0x0020_0000;

/// The fields of `/proc/PID/task/TID/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadStat {
    /// The thread ID: a name in `/proc/PID/task`.
    pub tid: i32,
    /// The thread's name. A kernel thread's name is complete since Linux 5.17; earlier it is cut after 15 bytes.
    pub comm: String,
    /// The state: `R` runnable, `S` asleep, `D`, `Z`, `T` ...
    pub state: char,
    /// The parent process of its process.
    pub ppid: i32,
    /// Whether it is a kernel thread.
    pub kernel: bool,
    /// Whether it is exiting or has exited: then its files in procfs belong to root, no longer to its user.
    pub exiting: bool,
    /// User and system time in nanoseconds, at a resolution of 10 ms.
    pub cpu_ns: u64,
    /// The part of `cpu_ns` in user space.
    pub user_ns: u64,
    /// The start time in ticks since boot. With the id it identifies a thread even after the id is reused.
    pub start_ticks: u64,
    /// The CPU on which it ran last.
    pub cpu: usize,
    /// The address range of its arguments; empty where the kernel hides it, as for another user's process.
    pub arguments: Range<usize>,
}

impl ThreadStat {
    /// Reads a thread's `stat`; `None` if the thread has ended.
    pub fn read(pid: i32, tid: i32) -> Option<ThreadStat> {
        ThreadStat::of_text(&read_text(format!("/proc/{pid}/task/{tid}/stat"), LIMIT).ok()?)
    }

    /// Reads a process's `stat`, in which times include all threads, ended ones too; `None` if the process has ended.
    pub fn of_process(pid: i32) -> Option<ThreadStat> {
        ThreadStat::of_text(&read_text(format!("/proc/{pid}/stat"), LIMIT).ok()?)
    }

    /// Parses the text of a `stat` file of this host.
    pub fn of_text(text: &str) -> Option<ThreadStat> {
        ThreadStat::parse(text, stat::ticks_per_second())
    }

    /// Parses the file's text. The name is in brackets and may itself contain brackets and blanks.
    pub fn parse(text: &str, ticks_per_second: u64) -> Option<ThreadStat> {
        let (tid, rest) = text.split_once('(')?;
        let (comm, rest) = rest.rsplit_once(')')?;
        // The fields after the name; proc(5) numbers the first of them 3.
        let fields: Vec<&str> = rest.split_ascii_whitespace().take(64).collect();
        let field = |number: usize| fields.get(number - 3).copied();
        let number = |at: usize| field(at)?.parse::<u64>().ok();
        let tick_ns = 1_000_000_000 / ticks_per_second.max(1);
        let ticks = number(14)?.checked_add(number(15)?)?;
        let flags = number(9)?;
        let address = |at: usize| number(at).and_then(|it| usize::try_from(it).ok());
        let arguments = match (address(48), address(49)) {
            (Some(start), Some(end)) if start != 0 => start..end,
            _ => 0..0,
        };
        Some(ThreadStat {
            tid: tid.trim().parse().ok()?,
            comm: comm.to_owned(),
            state: field(3)?.chars().next()?,
            ppid: field(4)?.parse().ok()?,
            kernel: flags & PF_KTHREAD != 0,
            exiting: flags & PF_EXITING != 0,
            cpu_ns: ticks.checked_mul(tick_ns)?,
            user_ns: number(14)?.checked_mul(tick_ns)?,
            start_ticks: number(22)?,
            cpu: number(39)?.try_into().ok()?,
            arguments,
        })
    }

    /// Whether it is a kernel thread that polls a NAPI instance. The name alone is no proof: a program can choose any.
    pub fn is_napi(&self) -> bool {
        self.kernel && napi_name(&self.comm).is_some()
    }
}

/// Returns the current time in the unit of [`ThreadStat::start_ticks`].
pub fn ticks_now() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
    // The time since boot is never negative.
    let since_boot = tv_sec as u64 * 1_000_000_000 + tv_nsec as u64;
    since_boot / (1_000_000_000 / stat::ticks_per_second().max(1))
}

/// The scheduler's counters of a thread: `/proc/PID/task/TID/schedstat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    /// Nanoseconds on a CPU.
    pub run_ns: u64,
    /// Nanoseconds runnable, waiting for a CPU.
    pub wait_ns: u64,
    /// Times that it was scheduled onto a CPU.
    pub slices: u64,
}

impl Time {
    /// Reads a thread's counters; `None` if it has ended, or the kernel was built without them.
    pub fn read(pid: i32, tid: i32) -> Option<Time> {
        Time::parse(&read_text(format!("/proc/{pid}/task/{tid}/schedstat"), LIMIT).ok()?)
    }

    /// Parses the file's text.
    pub fn parse(text: &str) -> Option<Time> {
        let mut words = text.split_ascii_whitespace();
        let mut next = || words.next()?.parse().ok();
        Some(Time { run_ns: next()?, wait_ns: next()?, slices: next()? })
    }
}

/// Returns a process's name; `None` if it has ended.
pub fn comm(pid: i32) -> Option<String> {
    let text = read_text(format!("/proc/{pid}/comm"), LIMIT).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

/// A `napi/*` thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NapiThread {
    /// The process ID in this PID namespace.
    pub pid: i32,
    /// The device, by its name when the thread was created; cut before Linux 5.17.
    pub ifname: String,
    /// The instance's NAPI id; `None` if the name was cut.
    pub napi_id: Option<u32>,
}

/// The system threads that affect packet delivery, found in one walk of `/proc`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Threads {
    /// The threads of NAPI instances, of every network namespace.
    pub napi: Vec<NapiThread>,
    /// The thread id of each CPU's `ksoftirqd`.
    pub ksoftirqd: BTreeMap<usize, i32>,
    /// The process id of irqbalance, if it runs as root; otherwise it could not move interrupts.
    pub irqbalance: Option<i32>,
}

impl Threads {
    /// Searches the names of all processes. In a container only its own processes are visible.
    pub fn find() -> Threads {
        let mut found = Threads::default();
        let Ok(entries) = fs::read_dir("/proc") else { return found };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        for pid in pids {
            if let Some(comm) = comm(pid) {
                let kernel = || ThreadStat::read(pid, pid).is_some_and(|it| it.kernel);
                found.classify(pid, &comm, kernel, || is_root(pid));
            }
        }
        found.napi.sort_by_key(|thread| thread.pid);
        found
    }

    /// Records a process by its name. A program can choose any name, so `kernel` is called to confirm a kernel
    /// thread's name, and `root` to confirm irqbalance's.
    fn classify(
        &mut self,
        pid: i32,
        comm: &str,
        kernel: impl FnOnce() -> bool,
        root: impl FnOnce() -> bool,
    ) {
        if let Some((ifname, napi_id)) = napi_name(comm) {
            if kernel() {
                self.napi.push(NapiThread { pid, ifname: ifname.to_owned(), napi_id });
            }
        } else if let Some(cpu) = comm.strip_prefix("ksoftirqd/").and_then(|cpu| cpu.parse().ok()) {
            if kernel() {
                self.ksoftirqd.insert(cpu, pid);
            }
        } else if comm == "irqbalance" && root() {
            self.irqbalance = Some(pid);
        }
    }
}

/// Whether a process runs as root. The owner of `/proc/PID` does not tell: it is root for every process that is not
/// dumpable.
fn is_root(pid: i32) -> bool {
    let status = read_text(format!("/proc/{pid}/status"), LIMIT).unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    // The real and the effective user id.
    let mut users = users.split_ascii_whitespace();
    users.next() == Some("0") && users.next() == Some("0")
}

/// Splits the name of a `napi/*` thread into the device and the NAPI id.
pub fn napi_name(comm: &str) -> Option<(&str, Option<u32>)> {
    let name = comm.strip_prefix("napi/")?;
    let Some((ifname, id)) = name.rsplit_once('-') else { return Some((name, None)) };
    match id.parse() {
        // A name of 15 bytes may have been cut in the middle of the number.
        Ok(id) if comm.len() != 15 => Some((ifname, Some(id))),
        Ok(_) => Some((ifname, None)),
        Err(_) => Some((name, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAT: &str = "18463 (cat) R 18429 18429 15485 0 -1 4194304 97 0 0 0 3 4 0 0 20 0 1 0 2349410 3133440 357 18446744073709551615 94524753489920 94524753509801 140730088102800 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 94524753525808 94524753527424 94525060272128 140730088106669 140730088106710 140730088106710 140730088108011 0\n";

    #[test]
    fn a_line_is_read() {
        let cat = ThreadStat::parse(CAT, 100).expect("a line");
        assert_eq!((cat.tid, cat.comm.as_str(), cat.state, cat.ppid), (18_463, "cat", 'R', 18_429));
        assert_eq!((cat.cpu, cat.cpu_ns, cat.start_ticks), (1, 70_000_000, 2_349_410));
        assert!(cat.user_ns <= cat.cpu_ns, "{cat:?}");
        assert!(!cat.kernel && !cat.exiting);
        assert_eq!(cat.arguments, 140_730_088_106_669..140_730_088_106_710);
        let ends = ThreadStat::parse(&CAT.replace("4194304", "4194308"), 100).expect("a line");
        assert!(!ends.kernel && ends.exiting);
        let hidden = CAT.replace("140730088106669 140730088106710", "0 0");
        assert_eq!(ThreadStat::parse(&hidden, 100).expect("a line").arguments, 0..0);
    }

    #[test]
    fn a_name_may_hold_anything_and_shifts_no_field() {
        for name in ["a) b (c) R 1", "a b) S 1 (c", ") R 2", ""] {
            let odd = ThreadStat::parse(&CAT.replace("(cat)", &format!("({name})")), 100);
            let odd = odd.expect("a line");
            assert_eq!((odd.comm.as_str(), odd.ppid, odd.start_ticks), (name, 18_429, 2_349_410));
        }
    }

    #[test]
    fn what_is_no_line_is_none() {
        for wrong in ["", "9", "9 (cat", "9 (cat) S", "9 (cat) S x 7", "9 (cat) S 7 7 7"] {
            assert_eq!(ThreadStat::parse(wrong, 100), None, "{wrong}");
        }
    }

    #[test]
    fn this_thread_is_found_and_one_that_has_ended_is_not() {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let read = ThreadStat::read(pid, tid).expect("it lives");
        assert_eq!((read.tid, read.state), (tid, 'R'));
        // The scheduler updates the counters when a thread leaves its CPU.
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(Time::read(pid, tid).is_none_or(|time| time.run_ns > 0));
        let ended = std::thread::spawn(rustix::thread::gettid).join().expect("no panic");
        let ended = ended.as_raw_nonzero().get();
        // `join` returns shortly before the kernel removes the thread.
        while std::fs::exists(format!("/proc/self/task/{ended}")).expect("readable") {
            std::thread::yield_now();
        }
        assert_eq!(ThreadStat::read(pid, ended), None);
    }

    #[test]
    fn a_thread_is_no_older_than_the_moment_before_it_was_started() {
        let before = ticks_now();
        let started = std::thread::spawn(|| {
            let pid = rustix::process::getpid().as_raw_nonzero().get();
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            ThreadStat::read(pid, tid).expect("it lives").start_ticks
        });
        let started = started.join().expect("no panic");
        assert!((before..=ticks_now()).contains(&started), "{before} and then {started}");
    }

    #[test]
    fn the_scheduler_s_numbers_are_read() {
        let expected = Time { run_ns: 1_184_811, wait_ns: 57_657, slices: 1 };
        assert_eq!(Time::parse("1184811 57657 1\n"), Some(expected));
        assert_eq!(Time::parse("1184811 57657\n"), None);
    }

    #[test]
    fn a_napi_thread_s_name_tells_its_device_and_id() {
        assert_eq!(napi_name("napi/eth0-513"), Some(("eth0", Some(513))));
        assert_eq!(napi_name("napi/wan-side-8193"), Some(("wan-side", Some(8_193))));
        assert_eq!(napi_name("napi/enp129s0f0"), Some(("enp129s0f0", None)));
        assert_eq!(napi_name("napi/enp1s0f0-8"), Some(("enp1s0f0", None)), "may be cut");
        assert_eq!(napi_name("memcached"), None);
    }

    #[test]
    fn whose_a_process_is_is_what_the_kernel_says() {
        let own = rustix::process::getuid().is_root() && rustix::process::geteuid().is_root();
        assert_eq!(is_root(std::process::id().cast_signed()), own);
        assert!(!is_root(i32::MAX), "there is none");
    }

    #[test]
    fn a_program_that_calls_itself_napi_is_none() {
        let mut found = Threads::default();
        found.classify(7, "napi/eth0-1", || false, || true);
        found.classify(8, "napi/eth0-2", || true, || true);
        found.classify(9, "ksoftirqd/3", || true, || true);
        found.classify(10, "irqbalance", || false, || true);
        found.classify(11, "irqbalance", || false, || false);
        assert_eq!(found.napi.iter().map(|it| it.pid).collect::<Vec<_>>(), [8]);
        assert_eq!(found.ksoftirqd, BTreeMap::from([(3, 9)]));
        assert_eq!(found.irqbalance, Some(10));
        let is_napi = |comm: &str, kernel| {
            let cat = ThreadStat::parse(CAT, 100).expect("a line");
            ThreadStat { comm: comm.into(), kernel, ..cat }.is_napi()
        };
        assert!(is_napi("napi/eth0-1", true));
        assert!(!is_napi("napi/eth0-1", false) && !is_napi("kthreadd", true));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "([0-9]{0,25}|[()]| |\n|\\PC){0,80}", ticks: u64) {
            let _ = (ThreadStat::parse(&text, ticks), Time::parse(&text), napi_name(&text));
        }

        #[test]
        fn a_line_that_is_cut_is_none_or_whole_numbers(end in 0..CAT.len()) {
            if let Some(cat) = ThreadStat::parse(&CAT[..end], 100) {
                prop_assert_eq!(cat.cpu, 1);
            }
        }
    }
}
