//! Programs at sockets: where one receives data, is read, and is written to.
//!
//! A socket is identified by the distance of its address from a fixed address, because the verifier allows no other
//! arithmetic on a pointer to a structure. The ports of both ends are part of the identity, since a connection may
//! reuse the address of one that has ended.
//!
//! Data that is left after a read arrived later than the data that was read. How much later is unknown, so the time
//! of the last arrival is used. Waits of requests that queue in one socket are therefore underestimated rather than
//! overestimated.

use super::super::Part;
use super::super::histogram::BUCKETS;
use super::super::layout::{HookPoint, Layout};
use super::super::tables::{HISTOGRAM, Maps, SOCKETS, choice, cpu, instance, socket};
use super::polls::arrival;
use super::rows::{INDEX, NOW, find_cpu, find_instance, finish, look_up};
use napkin_bpf::assemble::Register::{FP, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9};
use napkin_bpf::assemble::Width::{Double, Half, Word};
use napkin_bpf::assemble::{AssembleError, Assembler, Condition, Helper, Label};

/// `MSG_PEEK`: the data stays in the socket.
const PEEK: i32 = libc::MSG_PEEK;

/// Multiplier of Fibonacci hashing, derived from the golden ratio: it spreads neighbouring addresses.
const SPREAD: i32 = 0x61c8_8647;

/// The selection of sockets; an empty list selects all.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Selection<'a> {
    /// The ids of processes that read and write.
    pub(in super::super) processes: &'a [i32],
    /// The local ports.
    pub(in super::super) ports: &'a [u16],
    /// The inode of the network namespace; `None` for all namespaces.
    pub(in super::super) namespace: Option<u32>,
}

/// Program where a socket receives data: `(struct sock *sk)`.
pub(in super::super) fn ready(layout: &Layout, maps: Maps) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    program.load(Double, R6, R1, 0);
    find_socket(&mut program, layout, maps, end);
    // R7 is the socket's identity, R8 the epoch.
    skip_unless_own_row(&mut program, end);
    program.call(Helper::KtimeGetNs);
    program.copy(R8, R0);
    program.store(Double, FP, NOW, R0);

    let (unknown, store_arrival) = (program.label(), program.label());
    program.set(R7, 0);
    if let Some(napi_id) = layout.sk_napi_id {
        program.load(Word, R7, R6, napi_id);
    }
    program.jump_if(R7, Condition::Equal, 0, unknown);
    program.copy(R1, R7);
    find_instance(&mut program, maps, unknown);
    // The place may belong to another instance; or the field is no id: for packets that came through no instance
    // (loopback) it may hold the number of the sender's CPU.
    program.load(Double, R1, R0, instance::ID);
    program.jump_if_registers(R1, Condition::NotEqual, R7, unknown);
    program.load(Word, R1, FP, INDEX);
    program.store(Double, R9, socket::INSTANCE, R1);
    let since = program.label();
    program.load(Double, R7, R0, instance::ARRIVAL);
    program.jump_if(R7, Condition::NotEqual, 0, since);
    arrival(&mut program, maps, since);
    program.place(since);
    program.copy(R1, R7);
    program.copy(R7, R8);
    program.subtract(R7, R1);
    // The clocks of two CPUs may differ slightly.
    program.jump_if(R7, Condition::GreaterOrEqual, 0, store_arrival);
    program.set(R7, 0);
    program.jump(store_arrival);
    program.place(unknown);
    program.store_constant(Double, R9, socket::INSTANCE, 0);
    program.set(R7, -1);
    program.place(store_arrival);

    program.store(Double, R9, socket::LAST, R8);
    program.store(Double, R9, socket::LAST_RING, R7);
    program.load(Double, R1, R9, socket::READY);
    program.jump_if(R1, Condition::NotEqual, 0, end);
    program.store(Double, R9, socket::RING, R7);
    program.store(Double, R9, socket::READY, R8);
    finish(program, end)
}

/// Program where a socket has been read: `(struct sock *sk, ..., int flags, ...)`, and the number of bytes.
pub(in super::super) fn read(
    layout: &Layout,
    at: &HookPoint,
    selection: Selection<'_>,
    maps: Maps,
) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    load_selected_socket(&mut program, layout, at, selection, end);
    find_socket(&mut program, layout, maps, end);

    let (new_row, same, first, rest) =
        (program.label(), program.label(), program.label(), program.label());
    program.load(Double, R1, R9, socket::ID);
    program.jump_if_registers(R1, Condition::NotEqual, R7, new_row);
    program.load(Double, R1, R9, socket::EPOCH);
    program.jump_if_registers(R1, Condition::Equal, R8, same);
    program.place(new_row);
    // Start a new row; the arrival of the data that was read is unknown.
    for place in [socket::READY, socket::LAST, socket::ARRIVED, socket::INSTANCE] {
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
    program.jump_if(R0, Condition::Equal, 0, end);
    program.copy(R7, R0);
    program.load(Double, R1, R9, socket::READY);
    program.jump_if(R1, Condition::Equal, 0, first);
    program.store_constant(Double, R9, socket::READY, 0);
    let known = program.label();
    program.copy(R5, R1);
    program.load(Double, R1, R9, socket::RING);
    program.jump_if(R1, Condition::GreaterOrEqual, 0, known);
    program.set(R1, 0);
    program.place(known);
    // The arrival in the ring, unless another request is being answered.
    let answering = program.label();
    program.load(Double, R2, R9, socket::READ);
    program.jump_if(R2, Condition::NotEqual, 0, answering);
    program.copy(R2, R5);
    program.subtract(R2, R1);
    program.store(Double, R9, socket::ARRIVED, R2);
    program.place(answering);
    program.copy(R1, R8);
    program.subtract(R1, R5);
    record(&mut program, Part::Socket);
    program.load(Double, R1, R9, socket::RING);
    let no_ring = program.label();
    program.jump_if(R1, Condition::LessOrEqual, -1, no_ring);
    record(&mut program, Part::Ring);
    program.place(no_ring);

    program.place(first);
    program.load(Double, R1, R9, socket::READ);
    program.jump_if(R1, Condition::NotEqual, 0, rest);
    program.store(Double, R9, socket::READ, R8);
    program.place(rest);
    // Checks whether more data has arrived than was read.
    program.copy(R1, R6);
    program.call(Helper::SkcToTcpSock);
    program.jump_if(R0, Condition::Equal, 0, end);
    let [copied, received] = layout.sequence;
    program.load(Word, R1, R0, copied);
    program.load(Word, R2, R0, received);
    program.jump_if_registers(R1, Condition::Equal, R2, end);
    program.load(Double, R1, R9, socket::READY);
    program.jump_if(R1, Condition::NotEqual, 0, end);
    program.load(Double, R1, R9, socket::LAST_RING);
    program.store(Double, R9, socket::RING, R1);
    program.load(Double, R1, R9, socket::LAST);
    program.store(Double, R9, socket::READY, R1);
    finish(program, end)
}

/// Program where a socket has been written to: `(struct sock *sk, ..., int flags, ...)`, and the number of bytes.
pub(in super::super) fn sent(
    layout: &Layout,
    at: &HookPoint,
    selection: Selection<'_>,
    maps: Maps,
) -> Result<Vec<u8>, AssembleError> {
    let mut program = Assembler::new();
    let end = program.label();
    load_selected_socket(&mut program, layout, &HookPoint { flags_at: -1, ..*at }, selection, end);
    program.set_map_value(R2, maps.choice);
    program.load(Double, R2, R2, choice::MASK);
    program.jump_if(R2, Condition::Equal, choice::SAMPLE_NONE.cast_signed() as i32, end);
    count_send(&mut program, maps, cpu::SENDS);
    find_socket(&mut program, layout, maps, end);
    skip_unless_own_row(&mut program, end);
    count_send(&mut program, maps, cpu::SEEN);
    program.load(Double, R1, R9, socket::READ);
    program.jump_if(R1, Condition::Equal, 0, end);
    program.call(Helper::KtimeGetNs);
    program.copy(R8, R0);
    program.load(Double, R1, R9, socket::INSTANCE);
    program.store(Word, FP, INDEX, R1);
    look_up(&mut program, maps.instances);
    program.jump_if(R0, Condition::Equal, 0, end);
    program.copy(R7, R0);
    program.load(Double, R2, R9, socket::READ);
    program.store_constant(Double, R9, socket::READ, 0);
    program.copy(R1, R8);
    program.subtract(R1, R2);
    record(&mut program, Part::Service);
    program.load(Double, R2, R9, socket::ARRIVED);
    program.jump_if(R2, Condition::Equal, 0, end);
    program.store_constant(Double, R9, socket::ARRIVED, 0);
    program.copy(R1, R8);
    program.subtract(R1, R2);
    record(&mut program, Part::Whole);
    finish(program, end)
}

/// Sets R6 to the socket. Jumps to `end` unless bytes were read or sent, and the socket is selected.
fn load_selected_socket(
    program: &mut Assembler,
    layout: &Layout,
    at: &HookPoint,
    selection: Selection<'_>,
    end: Label,
) {
    program.load(Double, R6, R1, 0);
    program.load(Double, R2, R1, at.result_at);
    // The result is an `int`: move its sign bit to bit 63.
    program.shift_left(R2, 32);
    program.jump_if(R2, Condition::LessOrEqual, 0, end);
    if at.flags_at >= 0 {
        program.load(Double, R2, R1, at.flags_at);
        program.jump_if(R2, Condition::AnyBit, PEEK, end);
    }
    if !selection.ports.is_empty() {
        program.load(Half, R1, R6, layout.port);
        skip_unless_listed(program, selection.ports.iter().map(|port| i32::from(*port)), end);
    }
    if let Some((namespace, [net, inode])) = selection.namespace.zip(layout.namespace) {
        program.load(Double, R1, R6, net);
        // The verifier treats this pointer as possibly null.
        program.jump_if(R1, Condition::Equal, 0, end);
        program.load(Word, R1, R1, inode);
        program.set(R2, namespace.cast_signed());
        program.copy_word(R2, R2);
        program.jump_if_registers(R1, Condition::NotEqual, R2, end);
    }
    if !selection.processes.is_empty() {
        program.call(Helper::GetCurrentPidTgid);
        program.copy(R1, R0);
        program.shift_right(R1, 32);
        skip_unless_listed(program, selection.processes.iter().copied(), end);
    }
}

/// Jumps to `end` unless R1 is in the list.
fn skip_unless_listed(program: &mut Assembler, list: impl Iterator<Item = i32>, end: Label) {
    let found = program.label();
    for one in list {
        program.jump_if(R1, Condition::Equal, one, found);
    }
    program.jump(end);
    program.place(found);
}

/// Jumps to `end` unless the socket in R6 is sampled now. Sets R7 to its identity, R8 to the epoch, and R9 to the
/// row at its place, which may belong to another socket.
fn find_socket(program: &mut Assembler, layout: &Layout, maps: Maps, end: Label) {
    program.set_map_value(R2, maps.choice);
    program.copy(R7, R6);
    program.subtract(R7, R2);
    program.load(Double, R8, R2, choice::EPOCH);
    program.load(Double, R4, R2, choice::MASK);
    program.copy(R1, R7);
    // Sockets are at least 64 bytes apart.
    program.shift_right(R1, 6);
    program.multiply(R1, SPREAD);
    program.shift_right(R1, 20);
    program.copy(R5, R1);
    program.add_register(R5, R8);
    program.and_register(R5, R4);
    program.jump_if(R5, Condition::NotEqual, 0, end);
    program.shift_right(R1, 8);
    program.and(R1, SOCKETS.cast_signed() - 1);
    program.store(Word, FP, INDEX, R1);
    program.load(Word, R1, R6, layout.ports);
    // Above the address bits in which neighbours differ.
    program.shift_left(R1, 32);
    program.add_register(R7, R1);
    look_up(program, maps.sockets);
    program.jump_if(R0, Condition::Equal, 0, end);
    program.copy(R9, R0);
}

/// Jumps to `end` unless the row in R9 belongs to the socket in R7 and to the epoch in R8.
fn skip_unless_own_row(program: &mut Assembler, end: Label) {
    program.load(Double, R1, R9, socket::ID);
    program.jump_if_registers(R1, Condition::NotEqual, R7, end);
    program.load(Double, R1, R9, socket::EPOCH);
    program.jump_if_registers(R1, Condition::NotEqual, R8, end);
}

/// Adds 1 to a counter of this CPU.
fn count_send(program: &mut Assembler, maps: Maps, place: i16) {
    find_cpu(program, maps);
    program.set(R1, 1);
    program.atomic_add(R0, place, R1);
}

/// Adds the duration in R1, which is not negative, to the histogram of a part in the instance's row in R7; see
/// [`Histogram`](super::super::Histogram) for the buckets.
fn record(program: &mut Assembler, part: Part) {
    let (fits, beyond) = (program.label(), program.label());
    program.copy(R3, R1);
    program.shift_right(R3, 36);
    program.jump_if(R3, Condition::Equal, 0, fits);
    program.set(R1, -1);
    program.shift_right(R1, 28);
    program.place(fits);
    program.set(R2, 0);
    for shift in [16, 8, 4, 2, 1] {
        let small = program.label();
        program.copy(R3, R1);
        program.shift_right(R3, shift + 4);
        program.jump_if(R3, Condition::Equal, 0, small);
        program.shift_right(R1, shift);
        program.add(R2, shift * 16);
        program.place(small);
    }
    program.add_register(R2, R1);
    program.jump_if(R2, Condition::Above, BUCKETS as i32 - 1, beyond);
    program.shift_left(R2, 3);
    program.copy(R3, R7);
    program.add_register(R3, R2);
    program.set(R1, 1);
    program.atomic_add(R3, instance::HISTOGRAMS + part as i16 * HISTOGRAM, R1);
    program.place(beyond);
}
