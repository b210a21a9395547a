//! `bpf(2)`: the few commands that counting and AF_XDP need. Maps, programs and links are descriptors. Nothing is
//! pinned, so the kernel frees each with the last process that holds it, however that process ends.

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Commands, with their numbers in `linux/bpf.h`.
#[derive(Debug, Clone, Copy)]
#[repr(i32)]
enum Command {
    MapCreate = 0,
    MapLookupElem = 1,
    MapUpdateElem = 2,
    ProgLoad = 5,
    ObjGetInfoByFd = 15,
    RawTracepointOpen = 17,
    LinkCreate = 28,
}

/// Kinds of maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// Values by index, shared by all CPUs.
    Array = 2,
    /// Values by index, one per CPU.
    PercpuArray = 6,
    /// AF_XDP sockets by index.
    Xsk = 17,
}

/// `BPF_F_MMAPABLE`
const MAPPABLE: u32 = 1 << 10;
/// `BPF_PROG_TYPE_TRACING` of linux/bpf.h.
const TRACING: u32 = 26;
/// `BPF_PROG_TYPE_XDP`, a program type; `BPF_XDP`, an attach type, is next.
const XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;

/// The kind of attach point of a tracing program. The verifier knows the types of its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Hook {
    /// `BPF_TRACE_RAW_TP`: a trace point.
    TracePoint = 23,
    /// `BPF_TRACE_FENTRY`: a function, before it runs.
    Entry = 24,
    /// `BPF_TRACE_FEXIT`: a function, after it has run; the return value follows the arguments.
    Exit = 25,
}

/// The licence decides which helpers a program may use; this one includes the GPL.
const LICENSE: &CStr = c"Dual MIT/GPL";
/// `BPF_LOG_LEVEL1` of linux/bpf_verifier.h.
const LOG: u32 = 1;
const LOG_BYTES: usize = 64 << 10;

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct Element {
    map_fd: u32,
    pad: u32,
    key: u64,
    /// The value, or the next key.
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    attach_btf_id: u32,
}

#[repr(C)]
#[derive(Default)]
struct RawTracepointOpen {
    name: u64,
    prog_fd: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog_fd: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct Info {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// Run statistics of a program since it was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunStats {
    /// Number of runs, while the kernel counted them (`BPF_ENABLE_STATS`, `kernel.bpf_stats_enabled`).
    pub runs: u64,
    /// Total duration of those runs in nanoseconds.
    pub run_ns: u64,
    /// Runs that were skipped because the program was already running on that CPU.
    pub missed: u64,
    /// Size of the JIT-compiled code in bytes.
    pub machine_code: u32,
}

/// A program that the kernel refused.
#[derive(Debug)]
pub struct Refused {
    /// The operating system's answer.
    pub error: io::Error,
    /// The end of the verifier's log; empty if the program did not get that far.
    pub log: String,
}

/// # Safety
/// `attributes` is what the command expects, and every address in it points to memory that is valid for the reads
/// and writes of the command.
unsafe fn bpf<T>(command: Command, attributes: &mut T) -> io::Result<i32> {
    let size = size_of::<T>();
    // SAFETY: `attributes` is alive and has that size; the caller vouches for the addresses in it.
    let answer = unsafe {
        libc::syscall(libc::SYS_bpf, command as i32, std::ptr::from_mut(attributes), size)
    };
    match i32::try_from(answer) {
        Ok(answer) if answer >= 0 => Ok(answer),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs a command that returns a new descriptor.
///
/// # Safety
/// As for [`bpf`], and the command must be one of those.
unsafe fn bpf_opens<T>(command: Command, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: required of the caller.
    let descriptor: RawFd = unsafe { bpf(command, attributes) }?;
    // SAFETY: the command succeeded, so this is a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn address<T: ?Sized>(of: &T) -> u64 {
    // The kernel dereferences the address, so its provenance is exposed.
    std::ptr::from_ref(of).cast::<u8>().expose_provenance() as u64
}

fn address_mut<T: ?Sized>(of: &mut T) -> u64 {
    std::ptr::from_mut(of).cast::<u8>().expose_provenance() as u64
}

fn number(descriptor: BorrowedFd<'_>) -> u32 {
    // A borrowed descriptor is never negative.
    descriptor.as_raw_fd().cast_unsigned()
}

/// Truncates a name to the kernel's 15 bytes; the kernel accepts only `[A-Za-z0-9_.]`.
fn name(of: &str) -> [u8; 16] {
    let mut name = [0; 16];
    for (to, from) in name.iter_mut().zip(of.bytes().take(15)) {
        *to = from;
    }
    name
}

/// A map from `K` to `V`, both plain bytes of fixed size.
#[derive(Debug)]
pub struct Map<const K: usize, const V: usize> {
    descriptor: OwnedFd,
    kind: MapKind,
}

impl<const K: usize, const V: usize> Map<K, V> {
    /// Creates a map of at most `entries` values. Its name is cut after 15 bytes.
    ///
    /// # Errors
    /// If the kernel refuses, as without `CAP_BPF`.
    pub fn create(kind: MapKind, entries: u32, named: &str) -> io::Result<Map<K, V>> {
        let mut attributes = MapCreate {
            map_type: kind as u32,
            key_size: u32::try_from(K).unwrap_or(u32::MAX),
            value_size: u32::try_from(V).unwrap_or(u32::MAX),
            max_entries: entries,
            map_name: name(named),
            ..MapCreate::default()
        };
        // SAFETY: MAP_CREATE dereferences no address and returns a descriptor.
        let descriptor = unsafe { bpf_opens(Command::MapCreate, &mut attributes) }?;
        Ok(Map { descriptor, kind })
    }

    /// The map's descriptor, for the programs that use it.
    pub fn descriptor(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    /// Returns the value at a key; `None` if there is none, or if the map has one value per CPU.
    pub fn get(&self, key: &[u8; K]) -> io::Result<Option<[u8; V]>> {
        // For a per-CPU map, the kernel would write one value per CPU into the buffer.
        if self.kind == MapKind::PercpuArray {
            return Ok(None);
        }
        let mut value = [0; V];
        let mut attributes = Element {
            map_fd: number(self.descriptor.as_fd()),
            key: address(key),
            value: address_mut(&mut value),
            ..Element::default()
        };
        // SAFETY: the map was created with keys of K bytes and values of V, and it is not per CPU, so the kernel
        // reads K bytes of `key` and writes V bytes of `value`.
        exists(unsafe { bpf(Command::MapLookupElem, &mut attributes) })
            .map(|exists| exists.then_some(value))
    }

    /// Writes the value at a key.
    pub fn set(&self, key: &[u8; K], value: &[u8; V]) -> io::Result<()> {
        // For a per-CPU map, the kernel would read one value per CPU from the buffer.
        if self.kind == MapKind::PercpuArray {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut attributes = Element {
            map_fd: number(self.descriptor.as_fd()),
            key: address(key),
            value: address(value),
            ..Element::default()
        };
        // SAFETY: the map was created with keys of K bytes and values of V, and it is not per CPU, so the kernel
        // reads K bytes of `key` and V bytes of `value`.
        unsafe { bpf(Command::MapUpdateElem, &mut attributes) }.map(drop)
    }
}

/// Creates an array map with one value of `bytes` bytes, whose memory can be mapped.
pub(crate) fn create_mappable(bytes: u32, named: &str) -> io::Result<OwnedFd> {
    let mut attributes = MapCreate {
        map_type: MapKind::Array as u32,
        key_size: 4,
        value_size: bytes,
        max_entries: 1,
        map_flags: MAPPABLE,
        map_name: name(named),
        ..MapCreate::default()
    };
    // SAFETY: MAP_CREATE dereferences no address and returns a descriptor.
    unsafe { bpf_opens(Command::MapCreate, &mut attributes) }
}

/// AF_XDP sockets by index, to which a program redirects frames (`BPF_MAP_TYPE_XSKMAP`). The kernel removes a
/// socket when it is closed.
#[derive(Debug)]
pub struct SocketMap(Map<4, 4>);

impl SocketMap {
    /// Creates a map with room for `entries` sockets.
    ///
    /// # Errors
    /// If the kernel refuses: `CAP_BPF` is missing, or the kernel has no AF_XDP.
    pub fn create(entries: u32, named: &str) -> io::Result<SocketMap> {
        Map::create(MapKind::Xsk, entries, named).map(SocketMap)
    }

    /// The map's descriptor, for [`Assembler::set_map`](crate::assemble::Assembler::set_map).
    pub fn descriptor(&self) -> i32 {
        self.0.descriptor()
    }

    /// Stores a bound socket at an index.
    ///
    /// # Errors
    /// If it is not an AF_XDP socket, or the index is out of range.
    pub fn set(&self, place: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.0.set(&place.to_ne_bytes(), &number(socket).to_ne_bytes())
    }
}

/// An attachment of a program, which ends when this is dropped.
#[derive(Debug)]
pub struct Link(#[expect(dead_code, reason = "held for as long as it is attached")] OwnedFd);

/// Maps `ENOENT` to `false`: the element does not exist.
fn exists(answer: io::Result<i32>) -> io::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A loaded program.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Loads a program for one trace point or function, identified by its id in the kernel's BTF.
    ///
    /// # Errors
    /// If the kernel refuses the program; the error has the verifier's log.
    pub fn load(named: &str, instructions: &[u8], hook: Hook, to: u32) -> Result<Program, Refused> {
        let kind = ProgLoad {
            prog_type: TRACING,
            expected_attach_type: hook as u32,
            attach_btf_id: to,
            ..ProgLoad::default()
        };
        Program::load_as(named, instructions, || ProgLoad { ..kind })
    }

    /// Loads an XDP program, which decides about each received frame.
    ///
    /// # Errors
    /// If the kernel refuses the program; the error has the verifier's log.
    pub fn load_xdp(named: &str, instructions: &[u8]) -> Result<Program, Refused> {
        Program::load_as(named, instructions, || ProgLoad {
            prog_type: XDP,
            expected_attach_type: ATTACH_XDP,
            ..ProgLoad::default()
        })
    }

    fn load_as(
        named: &str,
        instructions: &[u8],
        kind: impl Fn() -> ProgLoad,
    ) -> Result<Program, Refused> {
        let load = |log: &mut [u8]| {
            let mut attributes = ProgLoad {
                insn_cnt: u32::try_from(instructions.len() / 8).unwrap_or(u32::MAX),
                insns: address(instructions),
                license: address(LICENSE.to_bytes_with_nul()),
                log_level: if log.is_empty() { 0 } else { LOG },
                log_size: u32::try_from(log.len()).unwrap_or(0),
                log_buf: if log.is_empty() { 0 } else { address_mut(log) },
                prog_name: name(named),
                ..kind()
            };
            // SAFETY: the kernel reads the instructions and the licence (up to its final 0), and writes the log, if
            // there is one, within the lengths given.
            unsafe { bpf_opens(Command::ProgLoad, &mut attributes) }
        };
        match load(&mut []) {
            Ok(descriptor) => Ok(Program(descriptor)),
            Err(error) => {
                // Load once more, with a log, to learn the reason. This may even succeed.
                let mut log = vec![0; LOG_BYTES];
                match load(&mut log) {
                    Ok(descriptor) => Ok(Program(descriptor)),
                    Err(_) => Err(Refused { error, log: log_tail(&log) }),
                }
            }
        }
    }

    /// Attaches an XDP program to an interface, until the link is dropped or this process ends.
    /// `generic` attaches it in the network stack, which works with any driver; otherwise it runs in the driver.
    ///
    /// # Errors
    /// `EOPNOTSUPP` from a driver without XDP, `EBUSY` where another program is attached, `EPERM`
    /// without `CAP_NET_ADMIN`, `EINVAL` from a kernel before 5.9.
    pub fn attach_xdp(&self, ifindex: u32, generic: bool) -> io::Result<Link> {
        const GENERIC: u32 = 1 << 1;
        const DRIVER: u32 = 1 << 2;
        let mut attributes = LinkCreate {
            prog_fd: number(self.0.as_fd()),
            target: ifindex,
            attach_type: ATTACH_XDP,
            flags: if generic { GENERIC } else { DRIVER },
        };
        // SAFETY: LINK_CREATE of this kind dereferences no address and returns a descriptor.
        unsafe { bpf_opens(Command::LinkCreate, &mut attributes) }.map(Link)
    }

    /// Attaches it to the hook for which it was loaded, until the returned descriptor is dropped.
    pub fn attach(&self) -> io::Result<OwnedFd> {
        let mut attributes =
            RawTracepointOpen { prog_fd: number(self.0.as_fd()), ..RawTracepointOpen::default() };
        // SAFETY: without a name no address is dereferenced; the command returns a descriptor.
        unsafe { bpf_opens(Command::RawTracepointOpen, &mut attributes) }
    }

    /// Returns the run statistics.
    pub fn stats(&self) -> io::Result<RunStats> {
        // `struct bpf_prog_info`; the kernel fills in at most `info_len` bytes.
        let mut info = [0_u64; 29];
        let mut attributes = Info {
            bpf_fd: number(self.0.as_fd()),
            info_len: u32::try_from(size_of_val(&info)).unwrap_or(0),
            info: address_mut(&mut info),
        };
        // SAFETY: the kernel writes at most `info_len` bytes of `info`, whose zeros request no arrays.
        unsafe { bpf(Command::ObjGetInfoByFd, &mut attributes) }?;
        // Offsets 16 (jited_prog_len, 32 bits), 192, 200 and 208 of the structure.
        let code = info[2].to_ne_bytes();
        Ok(RunStats {
            runs: info[25],
            run_ns: info[24],
            missed: info[26],
            machine_code: u32::from_ne_bytes([code[0], code[1], code[2], code[3]]),
        })
    }
}

/// Returns the last lines of a verifier's log, without its statistics line.
fn log_tail(log: &[u8]) -> String {
    let text = log.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let mut last: Vec<&str> =
        text.lines().filter(|line| !line.starts_with("processed ")).rev().take(4).collect();
    last.reverse();
    last.join("; ")
}
