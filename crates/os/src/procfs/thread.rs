//! A thread's CPU time, CPU and name by its id, and the threads that delivery depends on: `napi/*`,
//! `ksoftirqd/*`, and irqbalance.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use rustix::time::{ClockId, Timespec, clock_gettime};

use super::{read_text, stat};

/// A name has at most 64 bytes, and a line of numbers some 400.
const LIMIT: usize = 4_096;

/// `PF_EXITING` of the flags in `stat`.
const EXITING: u64 = 4;

/// `PF_KTHREAD` of the same.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// What `/proc/PID/task/TID/stat` says of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadStat {
    /// Thread ID: a name in `/proc/PID/task`.
    pub tid: i32,
    /// Its name. A kernel thread's is whole since 5.17, and cut after 15 bytes before.
    pub comm: String,
    /// `R` runnable, `S` asleep, `D`, `Z`, `T` ...
    pub state: char,
    /// Its process's parent.
    pub ppid: i32,
    /// Whether it is the kernel's.
    pub kernel: bool,
    /// Whether it has begun to end, or has ended: its files in procfs are root's then, no longer its user's.
    pub ending: bool,
    /// User and system time in nanoseconds, in ticks of 10 ms.
    pub cpu_ns: u64,
    /// Of this, the time in user space.
    pub user_ns: u64,
    /// When it was started, in ticks since the boot: with the id it names a thread for good.
    pub start_ticks: u64,
    /// The CPU on which it ran last.
    pub cpu: usize,
    /// Where in its memory its arguments are; empty where the kernel does not say, as of another user's.
    pub arguments: Range<usize>,
}

impl ThreadStat {
    /// Reads a thread's line; `None` if it has ended.
    pub fn read(pid: i32, tid: i32) -> Option<ThreadStat> {
        ThreadStat::of_text(&read_text(format!("/proc/{pid}/task/{tid}/stat"), LIMIT).ok()?)
    }

    /// Reads a process's line, in which times are those of all its threads, ended ones included; `None`
    /// if it has ended.
    pub fn of_process(pid: i32) -> Option<ThreadStat> {
        ThreadStat::of_text(&read_text(format!("/proc/{pid}/stat"), LIMIT).ok()?)
    }

    /// Reads the text of such a file of this host's.
    pub fn of_text(text: &str) -> Option<ThreadStat> {
        ThreadStat::parse(text, stat::ticks_per_second())
    }

    /// Reads the file's text. The name stands in brackets and may hold brackets and blanks itself.
    pub fn parse(text: &str, ticks_per_second: u64) -> Option<ThreadStat> {
        let (tid, rest) = text.split_once('(')?;
        let (comm, rest) = rest.rsplit_once(')')?;
        // The fields behind the name; proc(5) numbers the first of them 3.
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
            kernel: flags & KERNEL_THREAD != 0,
            ending: flags & EXITING != 0,
            cpu_ns: ticks.checked_mul(tick_ns)?,
            user_ns: number(14)?.checked_mul(tick_ns)?,
            start_ticks: number(22)?,
            cpu: number(39)?.try_into().ok()?,
            arguments,
        })
    }

    /// Whether it is a thread of the kernel's that polls an instance: a program may call itself as it
    /// likes.
    pub fn is_napi(&self) -> bool {
        self.kernel && napi_name(&self.comm).is_some()
    }
}

/// The present, as [`ThreadStat::start_ticks`] counts.
pub fn ticks_now() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
    // The time since the boot is never negative.
    let since_boot = tv_sec as u64 * 1_000_000_000 + tv_nsec as u64;
    since_boot / (1_000_000_000 / stat::ticks_per_second().max(1))
}

/// What the scheduler counted of a thread: `/proc/PID/task/TID/schedstat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    /// Nanoseconds that it ran.
    pub run_ns: u64,
    /// Nanoseconds that it could have run and waited for a CPU.
    pub wait_ns: u64,
    /// Times that it was given a CPU.
    pub slices: u64,
}

impl Time {
    /// Reads a thread's; `None` if it has ended, or the kernel was built without.
    pub fn read(pid: i32, tid: i32) -> Option<Time> {
        Time::parse(&read_text(format!("/proc/{pid}/task/{tid}/schedstat"), LIMIT).ok()?)
    }

    /// Reads the file's text.
    pub fn parse(text: &str) -> Option<Time> {
        let mut words = text.split_ascii_whitespace();
        let mut next = || words.next()?.parse().ok();
        Some(Time { run_ns: next()?, wait_ns: next()?, slices: next()? })
    }
}

/// A process's name; `None` if it has ended.
pub fn comm(pid: i32) -> Option<String> {
    let text = read_text(format!("/proc/{pid}/comm"), LIMIT).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

/// A `napi/*` thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NapiThread {
    /// Process ID, as this PID namespace has it.
    pub pid: i32,
    /// Its device, as it was named when the thread was made; cut before Linux 5.17.
    pub ifname: String,
    /// Its instance's id, if the name was not cut.
    pub napi_id: Option<u32>,
}

/// Every thread that delivery depends on, found in one walk of `/proc`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Threads {
    /// Of NAPI instances, of every namespace.
    pub napi: Vec<NapiThread>,
    /// `ksoftirqd`'s ids by CPU.
    pub ksoftirqd: BTreeMap<usize, i32>,
    /// irqbalance's id, if it runs: as root, since nobody else can move interrupts.
    pub irqbalance: Option<i32>,
}

impl Threads {
    /// Looks at every process's name. In a container only its own processes are there.
    pub fn find() -> Threads {
        let mut found = Threads::default();
        let Ok(entries) = fs::read_dir("/proc") else { return found };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        for pid in pids {
            if let Some(comm) = comm(pid) {
                let kernel = || ThreadStat::read(pid, pid).is_some_and(|it| it.kernel);
                found.sort_in(pid, &comm, kernel, || is_root(pid));
            }
        }
        found.napi.sort_by_key(|thread| thread.pid);
        found
    }

    /// A program may call itself as it likes: `kernel` is asked where the name is the kernel's, and
    /// `root` where it is that of a program of root's.
    fn sort_in(
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

/// Whether a process is root's. The owner of `/proc/PID` does not say: of one that may not be dumped that
/// is root, whoever runs it.
fn is_root(pid: i32) -> bool {
    let status = read_text(format!("/proc/{pid}/status"), LIMIT).unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    // The real and the effective one.
    let mut users = users.split_ascii_whitespace();
    users.next() == Some("0") && users.next() == Some("0")
}

/// The device and the id in a `napi/*` thread's name.
pub fn napi_name(comm: &str) -> Option<(&str, Option<u32>)> {
    let name = comm.strip_prefix("napi/")?;
    let Some((ifname, id)) = name.rsplit_once('-') else { return Some((name, None)) };
    match id.parse() {
        // Cut after 15 bytes, the number is not the whole one.
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
        assert!(!cat.kernel && !cat.ending);
        assert_eq!(cat.arguments, 140_730_088_106_669..140_730_088_106_710);
        let ends = ThreadStat::parse(&CAT.replace("4194304", "4194308"), 100).expect("a line");
        assert!(!ends.kernel && ends.ending);
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
        // The scheduler counts when a thread leaves its CPU.
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(Time::read(pid, tid).is_none_or(|time| time.run_ns > 0));
        let ended = std::thread::spawn(rustix::thread::gettid).join().expect("no panic");
        let ended = ended.as_raw_nonzero().get();
        // The kernel tells who joins shortly before the thread is gone.
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
        found.sort_in(7, "napi/eth0-1", || false, || true);
        found.sort_in(8, "napi/eth0-2", || true, || true);
        found.sort_in(9, "ksoftirqd/3", || true, || true);
        found.sort_in(10, "irqbalance", || false, || true);
        found.sort_in(11, "irqbalance", || false, || false);
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
