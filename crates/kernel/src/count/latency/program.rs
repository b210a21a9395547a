//! The programs that tell how long requests take.
//!
//! What they leave, and find, is in `tables`.
//!
//! A frame was not in the ring before the last poll ended, for that left the ring empty or was followed
//! by the next at once. Nor was it before whoever polls now was woken, for the first frame does that; but
//! only where the interrupt was on: while the instance's timer is armed in its place nobody is woken, and
//! neither where it stayed owned after its last poll. An application that busy polls owns it so, and sends
//! its answers meanwhile, which asks for the receive softirq of its CPU on behalf of others.
//!
//! What a poll took is mostly delivered within it, but not always. After a busy poll, and one that used its
//! budget, some is delivered once the trace point was passed; with RPS all is, by another softirq. Then the
//! last poll that found anything stands for the one that took a frame, and when that may have begun to wait
//! is kept with the instance. What waits at the other CPU while further polls come is told too short by that.
//!
//! A socket's address is told from others by its distance to a fixed address, for the verifier lets
//! nobody calculate with a pointer to a structure.
//!
//! Data that is left after a read came later than what was taken; how much later is not known, and the
//! time of the last arrival is taken. So waits of requests that queue within one socket are told too
//! short rather than too long.

use super::Part;
use super::histogram::BUCKETS;
use super::layout::{Layout, Stand, Wake};
use super::tables::{CPUS, HISTOGRAM, INSTANCES, Maps, SOCKETS, THREADS};
use super::tables::{choice, cpu, instance, socket, thread};
use napkin_bpf::assemble::Register::{FP, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9};
use napkin_bpf::assemble::Width::{Byte, Double, Half, Word};
use napkin_bpf::assemble::{AssembleError, Assembler, Helper, Label, When};

/// An instance's place belongs to another that comes once it was not polled for so long.
const STALE_NS: i32 = 1_000_000_000;

/// `MSG_PEEK`: what was looked at is still to be read.
const PEEK: i32 = libc::MSG_PEEK;

/// The fraction of the golden ratio, with which neighbouring addresses fall far apart.
const SPREAD: i32 = 0x61c8_8647;

/// Whose sockets count; an empty list is all of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whose<'a> {
    /// Processes that read and write.
    pub(super) processes: &'a [i32],
    /// Local ports.
    pub(super) ports: &'a [u16],
}

/// Where the index into a table is on the stack.
const INDEX: i16 = -4;
/// Where a thread's id is.
const THREAD: i16 = -16;
/// Where the time of now is.
const NOW: i16 = -24;

/// Where a socket gets data: `(struct sock *sk)`.
pub(super) fn ready(layout: &Layout, maps: Maps) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R6, R1, 0);
    find_socket(&mut program, maps, end);
    // R7 is the socket's number, R8 the epoch.
    skip_unless_same(&mut program, end);
    program.call(Helper::KtimeGetNs);
    program.copy(R8, R0);
    program.store(Double, FP, NOW, R0);

    let (unknown, told) = (program.label(), program.label());
    program.set(R7, 0);
    match layout.sk_napi_id {
        Some(napi_id) => program.load(Word, R7, R6, napi_id),
        None => program.jump(unknown),
    }
    program.copy(R1, R7);
    find_instance(&mut program, maps, unknown);
    program.load(Word, R1, FP, INDEX);
    program.store(Double, R9, socket::INSTANCE, R1);
    program.load(Double, R1, R0, instance::ID);
    program.jump_if_registers(R1, When::NotEqual, R7, unknown);
    let since = program.label();
    program.load(Double, R7, R0, instance::TAKEN);
    program.jump_if(R7, When::NotEqual, 0, since);
    earliest(&mut program, maps, since);
    program.place(since);
    program.copy(R1, R7);
    program.copy(R7, R8);
    program.subtract(R7, R1);
    // Two CPUs' clocks may differ by a little.
    program.jump_if(R7, When::GreaterOrEqual, 0, told);
    program.set(R7, 0);
    program.jump(told);
    program.place(unknown);
    program.set(R7, -1);
    program.place(told);

    program.store(Double, R9, socket::LAST, R8);
    program.store(Double, R9, socket::LAST_RING, R7);
    program.load(Double, R1, R9, socket::READY);
    program.jump_if(R1, When::NotEqual, 0, end);
    program.store(Double, R9, socket::RING, R7);
    program.store(Double, R9, socket::READY, R8);
    finish(program, end)
}

/// Where a socket was read: `(struct sock *sk, ..., int flags, ...)`, and how many bytes.
pub(super) fn read(
    layout: &Layout,
    stand: &Stand,
    whose: Whose<'_>,
    maps: Maps,
) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    begin(&mut program, layout, stand, whose, end);
    find_socket(&mut program, maps, end);

    let (other, same, first, rest) =
        (program.label(), program.label(), program.label(), program.label());
    program.load(Double, R1, R9, socket::ID);
    program.jump_if_registers(R1, When::NotEqual, R7, other);
    program.load(Double, R1, R9, socket::EPOCH);
    program.jump_if_registers(R1, When::Equal, R8, same);
    program.place(other);
    // From here on; when this one's data came was not seen.
    for place in [socket::READY, socket::LAST, socket::BEGAN, socket::INSTANCE] {
        program.store_constant(Double, R9, place, 0);
    }
    program.call(Helper::KtimeGetNs);
    program.store(Double, R9, socket::READ, R0);
    program.store(Double, R9, socket::EPOCH, R8);
    program.store(Double, R9, socket::ID, R7);
    program.jump(end);

    program.place(same);
    program.call(Helper::KtimeGetNs);
    program.copy(R8, R0);
    program.load(Double, R1, R9, socket::INSTANCE);
    program.store(Word, FP, INDEX, R1);
    look_up(&mut program, maps.instances);
    program.jump_if(R0, When::Equal, 0, end);
    program.copy(R7, R0);
    program.load(Double, R1, R9, socket::READY);
    program.jump_if(R1, When::Equal, 0, first);
    program.store_constant(Double, R9, socket::READY, 0);
    let known = program.label();
    program.copy(R5, R1);
    program.load(Double, R1, R9, socket::RING);
    program.jump_if(R1, When::GreaterOrEqual, 0, known);
    program.set(R1, 0);
    program.place(known);
    // When it may have entered the ring, if nothing is being answered yet.
    let answering = program.label();
    program.load(Double, R2, R9, socket::READ);
    program.jump_if(R2, When::NotEqual, 0, answering);
    program.copy(R2, R5);
    program.subtract(R2, R1);
    program.store(Double, R9, socket::BEGAN, R2);
    program.place(answering);
    program.copy(R1, R8);
    program.subtract(R1, R5);
    record(&mut program, Part::Socket);
    program.load(Double, R1, R9, socket::RING);
    let no_ring = program.label();
    program.jump_if(R1, When::LessOrEqual, -1, no_ring);
    record(&mut program, Part::Ring);
    program.place(no_ring);

    program.place(first);
    program.load(Double, R1, R9, socket::READ);
    program.jump_if(R1, When::NotEqual, 0, rest);
    program.store(Double, R9, socket::READ, R8);
    program.place(rest);
    // Whether more has come than was read.
    program.copy(R1, R6);
    program.call(Helper::SkcToTcpSock);
    program.jump_if(R0, When::Equal, 0, end);
    let [copied, came] = layout.sequence;
    program.load(Word, R1, R0, copied);
    program.load(Word, R2, R0, came);
    program.jump_if_registers(R1, When::Equal, R2, end);
    program.load(Double, R1, R9, socket::READY);
    program.jump_if(R1, When::NotEqual, 0, end);
    program.load(Double, R1, R9, socket::LAST_RING);
    program.store(Double, R9, socket::RING, R1);
    program.load(Double, R1, R9, socket::LAST);
    program.store(Double, R9, socket::READY, R1);
    finish(program, end)
}

/// Where a socket was written to: `(struct sock *sk, ..., int flags, ...)`, and how many bytes.
pub(super) fn sent(
    layout: &Layout,
    stand: &Stand,
    whose: Whose<'_>,
    maps: Maps,
) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    begin(&mut program, layout, &Stand { flags: -1, ..*stand }, whose, end);
    program.set_map_value(R2, maps.choice);
    program.load(Double, R2, R2, choice::MASK);
    program.jump_if(R2, When::Equal, choice::NOTHING.cast_signed() as i32, end);
    count_send(&mut program, maps, cpu::SENDS, end);
    find_socket(&mut program, maps, end);
    skip_unless_same(&mut program, end);
    count_send(&mut program, maps, cpu::SEEN, end);
    program.load(Double, R1, R9, socket::READ);
    program.jump_if(R1, When::Equal, 0, end);
    program.call(Helper::KtimeGetNs);
    program.copy(R8, R0);
    program.load(Double, R1, R9, socket::INSTANCE);
    program.store(Word, FP, INDEX, R1);
    look_up(&mut program, maps.instances);
    program.jump_if(R0, When::Equal, 0, end);
    program.copy(R7, R0);
    program.load(Double, R2, R9, socket::READ);
    program.store_constant(Double, R9, socket::READ, 0);
    program.copy(R1, R8);
    program.subtract(R1, R2);
    record(&mut program, Part::Service);
    program.load(Double, R2, R9, socket::BEGAN);
    program.jump_if(R2, When::Equal, 0, end);
    program.store_constant(Double, R9, socket::BEGAN, 0);
    program.copy(R1, R8);
    program.subtract(R1, R2);
    record(&mut program, Part::Whole);
    finish(program, end)
}

/// At the trace point after a poll: `(struct napi_struct *napi, int work, int budget)`. A budget of 0
/// looks into no receive ring.
pub(super) fn polled(layout: &Layout, maps: Maps) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let (end, own, told) = (program.label(), program.label(), program.label());
    program.load(Double, R6, R1, 0);
    program.load(Double, R2, R1, 16);
    program.copy_word(R2, R2);
    program.jump_if(R2, When::Equal, 0, end);
    program.load(Double, R8, R1, 8);
    program.load(Word, R7, R6, layout.napi_id);
    program.jump_if(R7, When::Equal, 0, end);
    program.copy(R1, R7);
    find_instance(&mut program, maps, end);
    program.copy(R9, R0);
    program.call(Helper::KtimeGetNs);
    program.store(Double, FP, NOW, R0);
    program.load(Double, R1, R9, instance::ID);
    program.jump_if_registers(R1, When::Equal, R7, own);
    program.load(Double, R2, R9, instance::POLLED);
    program.copy(R3, R0);
    program.subtract(R3, R2);
    program.jump_if(R3, When::LessOrEqual, STALE_NS, end);
    program.store(Double, R9, instance::ID, R7);
    program.store_constant(Double, R9, instance::TAKEN, 0);
    program.jump(told);
    program.place(own);
    program.copy_word(R8, R8);
    let (empty, later, since) = (program.label(), program.label(), program.label());
    program.jump_if(R8, When::Equal, 0, empty);
    program.load(Double, R1, R6, layout.state);
    program.jump_if(R1, When::AnyBit, layout.owned, later);
    let delivered = program.label();
    skip_unless_handed(&mut program, maps, delivered);
    program.place(later);
    program.copy(R0, R9);
    earliest(&mut program, maps, since);
    program.place(since);
    program.store(Double, R9, instance::TAKEN, R7);
    program.jump(told);
    program.place(empty);
    // What was handed over may be under way still.
    skip_unless_handed(&mut program, maps, delivered);
    program.jump(told);
    program.place(delivered);
    program.store_constant(Double, R9, instance::TAKEN, 0);
    program.place(told);
    program.load(Double, R1, FP, NOW);
    program.store(Double, R9, instance::POLLED, R1);
    let (owned, armed) = (program.label(), program.label());
    program.load(Double, R1, R6, layout.state);
    program.jump_if(R1, When::AnyBit, layout.owned, owned);
    program.load(Double, R1, R6, layout.expires);
    program.jump(armed);
    program.place(owned);
    // Later than any time.
    program.set(R1, -1);
    program.shift_right(R1, 1);
    program.place(armed);
    program.store(Double, R9, instance::EXPIRES, R1);
    finish(program, end)
}

/// Where a softirq is asked for, and before one runs: `(unsigned int vector)`. The first of several
/// calls for one counts.
pub(super) fn softirq(wake: &Wake, maps: Maps, runs: bool) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R1, R1, 0);
    program.copy_word(R1, R1);
    program.jump_if(R1, When::NotEqual, wake.net_rx, end);
    find_cpu(&mut program, maps, end);
    program.copy(R9, R0);
    program.load(Double, R1, R9, cpu::RAISED);
    if runs {
        program.store(Double, R9, cpu::RUNNING, R1);
        program.store_constant(Double, R9, cpu::RAISED, 0);
    } else {
        program.jump_if(R1, When::NotEqual, 0, end);
        program.call(Helper::KtimeGetNs);
        program.store(Double, R9, cpu::RAISED, R0);
    }
    finish(program, end)
}

/// Before a thread is woken: `(struct task_struct *task)`. Instances' threads are known by their name.
pub(super) fn waking(wake: &Wake, maps: Maps) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R6, R1, 0);
    program.load(Word, R1, R6, wake.comm);
    program.jump_if(R1, When::NotEqual, i32::from_ne_bytes(*b"napi"), end);
    program.load(Word, R7, R6, wake.pid);
    program.copy(R1, R7);
    find_thread(&mut program, maps, end);
    program.copy(R9, R0);
    program.call(Helper::KtimeGetNs);
    program.store(Double, R9, thread::ID, R7);
    program.store(Double, R9, thread::WOKEN, R0);
    finish(program, end)
}

/// The socket goes to R6. Goes to `end` unless something was read or sent, on a socket that counts.
fn begin(program: &mut Assembler, layout: &Layout, stand: &Stand, whose: Whose<'_>, end: Label) {
    program.load(Double, R6, R1, 0);
    program.load(Double, R2, R1, stand.answer);
    // An `int`: its sign is that of 32 bits.
    program.shift_left(R2, 32);
    program.jump_if(R2, When::LessOrEqual, 0, end);
    if stand.flags >= 0 {
        program.load(Double, R2, R1, stand.flags);
        program.jump_if(R2, When::AnyBit, PEEK, end);
    }
    if !whose.ports.is_empty() {
        program.load(Half, R1, R6, layout.port);
        skip_unless_listed(program, whose.ports.iter().map(|port| i32::from(*port)), end);
    }
    if !whose.processes.is_empty() {
        program.call(Helper::GetCurrentPidTgid);
        program.copy(R1, R0);
        program.shift_right(R1, 32);
        skip_unless_listed(program, whose.processes.iter().copied(), end);
    }
}

/// Goes to `end` unless R1 is one of these.
fn skip_unless_listed(program: &mut Assembler, list: impl Iterator<Item = i32>, end: Label) {
    let found = program.label();
    for one in list {
        program.jump_if(R1, When::Equal, one, found);
    }
    program.jump(end);
    program.place(found);
}

/// Goes to `end` unless the socket in R6 is looked at now; its number goes to R7, the epoch to R8, and
/// its row, whosever it is, to R9.
fn find_socket(program: &mut Assembler, maps: Maps, end: Label) {
    program.set_map_value(R2, maps.choice);
    program.copy(R7, R6);
    program.subtract(R7, R2);
    program.load(Double, R8, R2, choice::EPOCH);
    program.load(Double, R4, R2, choice::MASK);
    program.copy(R1, R7);
    // No two sockets lie within 64 bytes.
    program.shift_right(R1, 6);
    program.multiply(R1, SPREAD);
    program.shift_right(R1, 20);
    program.copy(R5, R1);
    program.add_register(R5, R8);
    program.and_register(R5, R4);
    program.jump_if(R5, When::NotEqual, 0, end);
    program.shift_right(R1, 8);
    program.and(R1, SOCKETS.cast_signed() - 1);
    program.store(Word, FP, INDEX, R1);
    look_up(program, maps.sockets);
    program.jump_if(R0, When::Equal, 0, end);
    program.copy(R9, R0);
}

/// Goes to `end` unless the row in R9 is that of the socket in R7, in the epoch of R8.
fn skip_unless_same(program: &mut Assembler, end: Label) {
    program.load(Double, R1, R9, socket::ID);
    program.jump_if_registers(R1, When::NotEqual, R7, end);
    program.load(Double, R1, R9, socket::EPOCH);
    program.jump_if_registers(R1, When::NotEqual, R8, end);
}

/// The row at the place of the instance with the id in R1 goes to R0; without one it goes to `none`.
fn find_instance(program: &mut Assembler, maps: Maps, none: Label) {
    let zero = program.label();
    program.jump_if(R1, When::Equal, 0, zero);
    program.and(R1, INSTANCES.cast_signed() - 1);
    program.add(R1, 1);
    program.place(zero);
    program.store(Word, FP, INDEX, R1);
    look_up(program, maps.instances);
    program.jump_if(R0, When::Equal, 0, none);
}

/// Adds 1 to a count of this CPU.
fn count_send(program: &mut Assembler, maps: Maps, place: i16, end: Label) {
    find_cpu(program, maps, end);
    program.set(R1, 1);
    program.atomic_add(R0, place, R1);
}

/// This CPU's row goes to R0.
fn find_cpu(program: &mut Assembler, maps: Maps, end: Label) {
    program.call(Helper::GetSmpProcessorId);
    program.and(R0, CPUS.cast_signed() - 1);
    program.store(Word, FP, INDEX, R0);
    look_up(program, maps.cpus);
    program.jump_if(R0, When::Equal, 0, end);
}

/// The row at the place of the thread with the id in R1 goes to R0; without one it goes to `none`.
fn find_thread(program: &mut Assembler, maps: Maps, none: Label) {
    program.and(R1, THREADS.cast_signed() - 1);
    program.store(Word, FP, INDEX, R1);
    look_up(program, maps.threads);
    program.jump_if(R0, When::Equal, 0, none);
}

/// Goes to `other` unless the frames of the instance whose place is on the stack are handed to other CPUs.
/// R0 is kept.
fn skip_unless_handed(program: &mut Assembler, maps: Maps, other: Label) {
    program.set_map_value(R2, maps.choice);
    program.load(Word, R1, FP, INDEX);
    program.and(R1, choice::HANDED_LEN as i32 - 1);
    program.add_register(R2, R1);
    program.load(Byte, R1, R2, choice::HANDED);
    program.jump_if(R1, When::Equal, 0, other);
}

/// When a frame that is taken now, at the time on the stack, from the ring of the instance in R0 entered it goes to
/// R7. Then, or before, it goes to `end`. Where nobody was woken for it, that was at any time since the last poll:
/// one of these is drawn, each as likely as any other. Else it is the earliest.
fn earliest(program: &mut Assembler, maps: Maps, end: Label) {
    let nobody_woken = program.label();
    program.load(Double, R7, R0, instance::POLLED);
    program.load(Double, R2, R0, instance::EXPIRES);
    program.jump_if_registers(R2, When::Greater, R7, nobody_woken);
    later_of_wake(program, maps, end);
    program.jump(end);
    program.place(nobody_woken);
    program.call(Helper::GetPrandomU32);
    program.copy_word(R0, R0);
    program.load(Double, R1, FP, NOW);
    program.subtract(R1, R7);
    // Nor of a gap that no 32 bits hold, nor of two clocks that differ.
    program.copy(R2, R1);
    program.shift_right(R2, 32);
    program.jump_if(R2, When::NotEqual, 0, end);
    program.multiply_register(R1, R0);
    program.shift_right(R1, 32);
    program.add_register(R7, R1);
}

/// In R7 the later of that and of when whoever runs here was woken: an instance's thread, or else the
/// softirq. Then, or if there is none, it goes to `end`.
fn later_of_wake(program: &mut Assembler, maps: Maps, end: Label) {
    let (no_thread, woken) = (program.label(), program.label());
    program.call(Helper::GetCurrentPidTgid);
    program.copy_word(R0, R0);
    program.copy(R1, R0);
    // R0 is lost by the look-up.
    program.store(Double, FP, THREAD, R0);
    find_thread(program, maps, no_thread);
    program.load(Double, R1, R0, thread::ID);
    program.load(Double, R2, FP, THREAD);
    program.jump_if_registers(R1, When::NotEqual, R2, no_thread);
    program.load(Double, R1, R0, thread::WOKEN);
    program.jump(woken);
    program.place(no_thread);
    find_cpu(program, maps, end);
    program.load(Double, R1, R0, cpu::RUNNING);
    program.place(woken);
    program.jump_if_registers(R7, When::GreaterOrEqual, R1, end);
    program.copy(R7, R1);
}

/// The value at the index on the stack goes to R0.
fn look_up(program: &mut Assembler, map: i32) {
    program.set_map(R1, map);
    program.copy(R2, FP);
    program.add(R2, INDEX.into());
    program.call(Helper::MapLookupElem);
}

/// Adds the time in R1, which is not negative, to the histogram of a part in the instance's row in R7;
/// see [`Histogram`](super::Histogram) for the buckets.
fn record(program: &mut Assembler, part: Part) {
    let (fits, beyond) = (program.label(), program.label());
    program.copy(R3, R1);
    program.shift_right(R3, 36);
    program.jump_if(R3, When::Equal, 0, fits);
    program.set(R1, -1);
    program.shift_right(R1, 28);
    program.place(fits);
    program.set(R2, 0);
    for shift in [16, 8, 4, 2, 1] {
        let small = program.label();
        program.copy(R3, R1);
        program.shift_right(R3, shift + 4);
        program.jump_if(R3, When::Equal, 0, small);
        program.shift_right(R1, shift);
        program.add(R2, shift * 16);
        program.place(small);
    }
    program.add_register(R2, R1);
    program.jump_if(R2, When::Above, BUCKETS as i32 - 1, beyond);
    program.shift_left(R2, 3);
    program.copy(R3, R7);
    program.add_register(R3, R2);
    program.set(R1, 1);
    program.atomic_add(R3, instance::HISTOGRAMS + part as i16 * HISTOGRAM, R1);
    program.place(beyond);
}

fn finish(mut program: Assembler, end: Label) -> Result<Vec<u8>, AssembleError> {
    program.place(end);
    program.set(R0, 0);
    program.exit();
    program.finish()
}
