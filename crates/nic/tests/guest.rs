//! Tests with a driver as in a virtual machine: each frame in a table of descriptors, TCP packets that are left to
//! be segmented, and a monitor that records no in-flight chains, so that only the ring tells the next backend where
//! to continue. Backends are killed while it runs.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::time::{Duration, Instant};

use napkin_nic::vhost::Vhost;
use napkin_nic::{PacketQueue, Pool};
use napkin_testing::KillOnDrop;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Far longer than anything that works.
const HANGS: Duration = Duration::from_secs(60);

/// Entries of a ring; there are as many buffers for it.
const SIZE: u16 = 64;
/// Address of the memory, in descriptors and messages alike.
const START: u64 = 1 << 20;
const LEN: usize = 0xb_0000;
/// Offsets of the second ring, and of the tables, packets and buffers.
const RING: usize = 0x3000;
const TABLES: usize = 0x8000;
const PACKETS: usize = 0x1_0000;
const BUFFERS: usize = 0x9_0000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// Memory that is shared with the backend.
struct Shared {
    at: NonNull<u8>,
    file: OwnedFd,
}

impl Shared {
    fn new() -> Shared {
        let file = memfd_create("napkin-guest", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&file, LEN as u64).expect("it grows");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; it stays until the process ends.
        let at = unsafe { mmap(std::ptr::null_mut(), LEN, access, MapFlags::SHARED, &file, 0) };
        let at = NonNull::new(at.expect("a mapping").cast()).expect("not at 0");
        Shared { at, file }
    }

    fn word(&self, at: usize) -> &AtomicU16 {
        assert!(at.is_multiple_of(2) && at + 2 <= LEN);
        // SAFETY: within the mapping, and aligned, since the mapping is page-aligned.
        let word = unsafe { self.at.add(at).cast::<AtomicU16>() };
        // SAFETY: the mapping stays, and is accessed only by atomics and by copies.
        unsafe { word.as_ref() }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= LEN);
        // SAFETY: within the mapping.
        let to = unsafe { self.at.add(at) };
        // SAFETY: the driver owns it until it makes it available, and no reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= LEN);
        let mut bytes = vec![0; len];
        // SAFETY: within the mapping.
        let from = unsafe { self.at.add(at) };
        // SAFETY: returned by the device; if the device still wrote there, a wrong byte would fail the test.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), len) };
        bytes
    }

    fn number(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.read(at, 4).try_into().expect("four bytes"))
    }

    fn descriptor(&self, at: usize, address: usize, len: usize, first: u16, second: u16) {
        self.write(at, &(START + address as u64).to_le_bytes());
        self.write(at + 8, &(len as u32).to_le_bytes());
        self.write(at + 12, &first.to_le_bytes());
        self.word(at + 14).store(second, Release);
    }
}

/// A ring of the driver, split or packed.
struct Ring<'a> {
    memory: &'a Shared,
    at: usize,
    packed: bool,
    /// Numbers of descriptors so far: made available, and returned.
    given: u64,
    back: u64,
    /// For each buffer, whether the device has it.
    out: Vec<bool>,
}

impl Ring<'_> {
    /// The flags of the `count`th descriptor overall: `first` in even laps, `other` in odd ones.
    fn lap(count: u64, first: u16, other: u16) -> u16 {
        if (count / u64::from(SIZE)).is_multiple_of(2) { first } else { other }
    }

    fn free(&self) -> Option<u16> {
        (0..).zip(&self.out).find(|(_, out)| !**out).map(|(buffer, _)| buffer)
    }

    /// Makes a buffer available.
    fn give(&mut self, buffer: u16, address: usize, len: usize, flags: u16) {
        assert!(!std::mem::replace(&mut self.out[usize::from(buffer)], true));
        let place = (self.given % u64::from(SIZE)) as usize;
        if self.packed {
            let lap = Self::lap(self.given, AVAILABLE, USED);
            self.memory.descriptor(self.at + 16 * place, address, len, buffer, flags | lap);
        } else {
            self.memory.descriptor(self.at + 16 * usize::from(buffer), address, len, flags, 0);
            self.memory.word(self.at + 0x1004 + 2 * place).store(buffer, Release);
            self.memory.word(self.at + 0x1002).store((self.given + 1) as u16, SeqCst);
        }
        self.given += 1;
    }

    /// Takes back the next returned buffer, with the number of bytes written into it.
    fn take(&mut self) -> Option<(u16, usize)> {
        let place = (self.back % u64::from(SIZE)) as usize;
        let (buffer, len) = if self.packed {
            let at = self.at + 16 * place;
            let flags = self.memory.word(at + 14).load(Acquire) & (AVAILABLE | USED);
            if flags != Self::lap(self.back, AVAILABLE | USED, 0) || self.back == self.given {
                return None;
            }
            (self.memory.word(at + 12).load(Acquire), self.memory.number(at + 8))
        } else {
            if self.memory.word(self.at + 0x2002).load(Acquire) == self.back as u16 {
                return None;
            }
            let at = self.at + 0x2004 + 8 * place;
            (self.memory.number(at) as u16, self.memory.number(at + 4))
        };
        let out = std::mem::replace(&mut self.out[usize::from(buffer)], false);
        assert!(out, "{buffer} comes back, and was not given");
        self.back += 1;
        Some((buffer, len as usize))
    }
}

/// A driver, and counts of the frames that came back to it.
struct Guest<'a> {
    memory: &'a Shared,
    send: Ring<'a>,
    receive: Ring<'a>,
    kick: Option<OwnedFd>,
    sent: u32,
    /// The last frame that came: its number, and the offset of a segment in its packet.
    last: Option<(u32, usize)>,
    frames: u32,
    segments: u32,
    /// Number of buffers that were returned empty.
    empty: u32,
}

/// Payload of a packet to be segmented, and of its segments, in bytes.
const PAYLOAD: usize = 2_200;
const PART: usize = 500;

fn byte(number: u32, at: usize) -> u8 {
    (number as usize ^ at) as u8
}

/// A frame after its virtio header: every fourth is a TCP packet to be segmented.
fn packet(number: u32) -> Vec<u8> {
    let payload = |len: usize| (0..len).map(move |at| byte(number, at));
    if !number.is_multiple_of(4) {
        let mut bytes = vec![0; 12];
        bytes.extend([[2; 12].as_slice(), &[0x88, 0xb5], &number.to_be_bytes()].concat());
        bytes.extend(payload(60 + number as usize % 1_400));
        return bytes;
    }
    let mut bytes = vec![1, 1, 54, 0, PART as u8, (PART >> 8) as u8, 34, 0, 16, 0, 0, 0];
    bytes.extend([[2; 12].as_slice(), &[8, 0, 0x45, 0, 0, 0, 0, 9, 0x40, 0, 64, 6, 0, 0]].concat());
    bytes.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 0, 80]);
    bytes.extend((number << 12).to_be_bytes());
    bytes.extend([0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    bytes.extend(payload(PAYLOAD));
    bytes
}

impl<'a> Guest<'a> {
    fn new(memory: &'a Shared, packed: bool) -> Guest<'a> {
        let ring = |at| {
            let out = vec![false; SIZE.into()];
            Ring { memory, at, packed, given: 0, back: 0, out }
        };
        let mut guest = Guest {
            memory,
            send: ring(0),
            receive: ring(RING),
            kick: None,
            sent: 0,
            last: None,
            frames: 0,
            segments: 0,
            empty: 0,
        };
        (0..SIZE).for_each(|buffer| guest.offer(buffer));
        guest
    }

    /// Makes a buffer available to receive into.
    fn offer(&mut self, buffer: u16) {
        self.receive.give(buffer, BUFFERS + 0x800 * usize::from(buffer), 0x800, WRITE);
    }

    /// Sends up to `most` packets, as far as there is room.
    fn sends(&mut self, most: u32) {
        while self.send.take().is_some() {}
        for _ in 0..most {
            let Some(slot) = self.send.free() else { break };
            let (table, at) =
                (TABLES + 0x80 * usize::from(slot), PACKETS + 0x2000 * usize::from(slot));
            let bytes = packet(self.sent);
            self.memory.write(at, &bytes);
            // The header, and the frame in two parts.
            let parts = [(at, 12), (at + 12, 30), (at + 42, bytes.len() - 42)];
            for (place, (at, len)) in parts.into_iter().enumerate() {
                let (flags, next) = if place < 2 { (NEXT, place as u16 + 1) } else { (0, 0) };
                // In a packed ring, tables are not linked.
                let (first, second) = if self.send.packed { (0, 0) } else { (flags, next) };
                self.memory.descriptor(table + 16 * place, at, len, first, second);
            }
            self.send.give(slot, table, 48, INDIRECT);
            self.sent += 1;
        }
        if let Some(kick) = &self.kick {
            rustix::io::write(kick, &1u64.to_ne_bytes()).expect("it is ours");
        }
    }

    /// Takes received frames, and checks that each is a sent one, or a segment of one, and that none comes twice.
    fn receives(&mut self) {
        while let Some((buffer, len)) = self.receive.take() {
            let bytes = self.memory.read(BUFFERS + 0x800 * usize::from(buffer), len);
            self.offer(buffer);
            if len == 0 {
                self.empty += 1;
                continue;
            }
            let frame = &bytes[12..];
            let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().expect("four"));
            let (number, from, payload) = match &frame[12..14] {
                [0x88, 0xb5] => (word(14), 0, &frame[18..]),
                _ => (word(38) >> 12, word(38) as usize & 0xfff, &frame[54..]),
            };
            let whole = payload.iter().enumerate().all(|(at, it)| *it == byte(number, from + at));
            assert!(whole && !payload.is_empty(), "frame {number} from {from} has changed");
            let before = self.last.replace((number, from));
            assert!(before < self.last, "{:?} comes after {before:?}", self.last);
            self.frames += 1;
            self.segments += u32::from(number.is_multiple_of(4));
        }
    }

    /// Sets up a new backend, as a monitor does.
    fn meets(&mut self, path: &Path) -> UnixStream {
        let start = Instant::now();
        let socket = loop {
            if let Ok(socket) = UnixStream::connect(path) {
                break socket;
            }
            assert!(start.elapsed() < HANGS, "nobody listens");
            std::thread::sleep(Duration::from_millis(1));
        };
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("one");
        let packed = self.send.packed;
        // VERSION_1, INDIRECT_DESC, CSUM, HOST_TSO4, RING_PACKED.
        let taken = 1u64 << 32 | 1 << 28 | 1 | 1 << 11 | u64::from(packed) << 34;
        send_request(&socket, 2, &taken.to_ne_bytes(), None);
        let region = [1, START, LEN as u64, START, 0].map(u64::to_ne_bytes).concat();
        send_request(&socket, 5, &region, Some(self.memory.file.as_fd()));
        let pair = |one: u32, other: u32| [one.to_ne_bytes(), other.to_ne_bytes()].concat();
        for index in 0..2u32 {
            let at = START + if index == 1 { 0 } else { RING as u64 };
            send_request(&socket, 8, &pair(index, SIZE.into()), None);
            send_request(&socket, 10, &pair(index, u32::from(packed) << 15), None);
            let parts = [at, at + 0x2000, at + 0x1000, 0].map(u64::to_ne_bytes).concat();
            send_request(&socket, 9, &[pair(index, 0), parts].concat(), None);
            let number = u64::from(index).to_ne_bytes();
            send_request(&socket, 13, &number, Some(event().as_fd()));
            let kick = event();
            send_request(&socket, 12, &number, Some(kick.as_fd()));
            self.kick = Some(kick);
        }
        // An answer means that no earlier request was refused.
        send_request(&socket, 1, &[], None);
        (&socket).read_exact(&mut [0; 20]).expect("an answer");
        socket
    }
}

fn send_request(socket: &UnixStream, request: u32, payload: &[u8], file: Option<BorrowedFd<'_>>) {
    let header = [request, 1, payload.len() as u32].map(u32::to_ne_bytes).concat();
    let message = [&header[..], payload].concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = SendAncillaryBuffer::new(&mut space);
    let list = file.as_slice();
    assert!(list.is_empty() || files.push(SendAncillaryMessage::ScmRights(list)));
    sendmsg(socket, &[IoSlice::new(&message)], &mut files, SendFlags::NOSIGNAL).expect("told");
}

const CHILD: &str = "NAPKIN_TEST_VHOST_GUEST";
const NAME: &str = "backends_are_killed_under_a_guest_and_the_rings_tell_the_next_where_to_go_on";

/// In a process of its own: a backend that echoes all frames, until it is killed.
fn echo(path: &Path) -> ! {
    let mut device = Vhost::backend(path, 1, &Pool::new(2_048)).expect("a free path");
    let mut queue = device.queues.remove(0);
    let (wire, mut frames) = (queue.transmitter(), Vec::with_capacity(64));
    loop {
        queue.mask();
        while queue.poll(64, 0, &mut frames).rx > 0 {
            frames.drain(..).for_each(|frame| _ = wire.send(&frame, 0));
        }
        if !queue.unmask(0) {
            let mut watched = [PollFd::from_borrowed_fd(queue.interrupt(), PollFlags::IN)];
            let _ = poll(&mut watched, None);
            queue.acknowledge();
        }
    }
}

fn backend(path: &Path) -> KillOnDrop {
    let child = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", NAME])
        .env(CHILD, path)
        .stdout(Stdio::null())
        .spawn();
    KillOnDrop(child.expect("it starts"))
}

/// A path for a socket, removed at the end.
struct TempPath(PathBuf);

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// `NAPKIN_VHOST_LIVES=300` runs that many.
#[test]
fn backends_are_killed_under_a_guest_and_the_rings_tell_the_next_where_to_go_on() {
    if let Some(path) = std::env::var_os(CHILD) {
        echo(Path::new(&path));
    }
    let lives =
        std::env::var("NAPKIN_VHOST_LIVES").ok().and_then(|it| it.parse().ok()).unwrap_or(15);
    for packed in [false, true] {
        let name = format!("napkin-guest-{}-{packed}", std::process::id());
        // Declared before the backends, so that it is dropped after them.
        let place = TempPath(std::env::temp_dir().join(name));
        let path = &place.0;
        let memory = Shared::new();
        let mut guest = Guest::new(&memory, packed);
        for life in 0..lives {
            let child = backend(path);
            let socket = guest.meets(path);
            // Killed at another position each time, and under traffic.
            let (until, start) = (guest.frames + 50 + 37 * (life % 20), Instant::now());
            while guest.frames < until {
                guest.sends(16);
                guest.receives();
                std::thread::yield_now();
                assert!(start.elapsed() < HANGS, "nothing comes in life {life}, packed: {packed}");
            }
            drop(child);
            drop(socket);
        }

        // Nothing is stuck: all sent packets are taken, and then each place of both rings is used.
        let _child = backend(path);
        let _socket = guest.meets(path);
        let start = Instant::now();
        while guest.send.out.contains(&true) {
            guest.sends(0);
            guest.receives();
            assert!(start.elapsed() < HANGS, "some were not taken, packed: {packed}");
        }
        for _ in 0..2 * SIZE {
            let (number, start) = (guest.sent, Instant::now());
            let end = if number.is_multiple_of(4) { PAYLOAD / PART * PART } else { 0 };
            guest.sends(1);
            while guest.last != Some((number, end)) {
                guest.receives();
                assert!(start.elapsed() < HANGS, "frame {number} is lost, packed: {packed}");
            }
        }
        println!(
            "packed: {packed}: {lives} lives, {} packets sent, {} frames came, {} of them parts of one; {} buffers \
             came back empty",
            guest.sent, guest.frames, guest.segments, guest.empty
        );
    }
}
