//! Timestamps of the kernel's trace points on each CPU, in nanoseconds of `CLOCK_MONOTONIC`.
//!
//! It measures what a step of the kernel costs: a program at each point writes the time, the point and one number
//! into a table with room for [`ROOM`] records per CPU, which is read after the load. It is no general tracer:
//! records beyond the room are dropped, and nothing is written outside of a measurement.
//!
//! A record itself takes time, some tens of nanoseconds, all of it between two neighbouring records.
//! [`Point::NapiPollAgain`] is a second record at the same point: the interval between the two is that cost, to be
//! subtracted from every interval.

use std::io;
use std::num::NonZeroU32;

use super::attached::Attached;
use super::btf::{Btf, Kind};
use super::error::{CountError, may_count, read_error, table_error};
use super::layout::{Absent, Layout};
use napkin_bpf::assemble::Register::{FP, R0, R1, R2, R6, R7, R8};
use napkin_bpf::assemble::Width::{Double, Word};
use napkin_bpf::assemble::{AssembleError, Assembler, Condition, Helper};
use napkin_bpf::{Map, MapKind};

/// Records per CPU: a power of two.
pub const ROOM: u32 = 1 << ROOM_BITS;
const ROOM_BITS: i32 = 14;

/// Limit of recorded CPUs; the memory of the table is allocated at once, 256 KiB for each.
const MAX_CPUS: u32 = 64;

/// A trace point that can be recorded, and the number that is recorded with the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i32)]
pub enum Point {
    /// Before a softirq; the number is its vector.
    SoftirqEntry,
    /// After a softirq; the number is its vector.
    SoftirqExit,
    /// After an instance's poll; the packets taken, and the lower 16 bits of the instance's id above these.
    NapiPoll,
    /// The same point once more, to measure the cost of a record.
    NapiPollAgain,
    /// Before a frame goes through GRO.
    GroReceive,
    /// Before a frame goes up the stack.
    ReceiveSkb,
    /// At the beginning of the local timer interrupt's handler (x86).
    TimerInterrupt,
    /// At the end of that handler.
    TimerInterruptExit,
    /// Before a high-resolution timer's callback: 1 for an instance's, 2 for the scheduler's tick, 0 for others.
    TimerExpire,
    /// Before a high-resolution timer is armed: 1 for an instance's, 2 for the scheduler's tick, 0 for others.
    TimerStart,
    /// A CPU enters an idle state, whose number it is, or leaves it (4294967295).
    Idle,
    /// The scheduler has picked another thread: its id, 0 for the idle thread.
    Switch,
    /// A thread is about to be woken: its id.
    Waking,
    /// A thread has become runnable: its id.
    Wakeup,
}

impl Point {
    /// The kernel's name of the trace point.
    pub const fn name(self) -> &'static str {
        match self {
            Point::SoftirqEntry => "softirq_entry",
            Point::SoftirqExit => "softirq_exit",
            Point::NapiPoll | Point::NapiPollAgain => "napi_poll",
            Point::GroReceive => "napi_gro_receive_entry",
            Point::ReceiveSkb => "netif_receive_skb",
            Point::TimerInterrupt => "local_timer_entry",
            Point::TimerInterruptExit => "local_timer_exit",
            Point::TimerExpire => "hrtimer_expire_entry",
            Point::TimerStart => "hrtimer_start",
            Point::Idle => "cpu_idle",
            Point::Switch => "sched_switch",
            Point::Waking => "sched_waking",
            Point::Wakeup => "sched_wakeup",
        }
    }

    const ALL: [Point; 14] = [
        Point::SoftirqEntry,
        Point::SoftirqExit,
        Point::NapiPoll,
        Point::NapiPollAgain,
        Point::GroReceive,
        Point::ReceiveSkb,
        Point::TimerInterrupt,
        Point::TimerInterruptExit,
        Point::TimerExpire,
        Point::TimerStart,
        Point::Idle,
        Point::Switch,
        Point::Waking,
        Point::Wakeup,
    ];
}

/// One record: a trace point and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The time in nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The trace point.
    pub point: Point,
    /// The number that belongs to the point, see [`Point`].
    pub value: u32,
}

/// A running recording. Dropping it detaches the programs.
#[derive(Debug)]
pub struct Stopwatch {
    // Declared first: programs must be detached before their maps are closed.
    _programs: Vec<Attached>,
    missing: Vec<Point>,
    records: Map<4, 16>,
    used: Map<4, 8>,
    cpus: u32,
}

/// The kernel's BTF, read once for several stopwatches.
#[derive(Debug)]
pub struct KernelTypes {
    btf: Btf,
    layout: Layout,
    cpus: NonZeroU32,
}

impl KernelTypes {
    /// Reads the BTF; the stopwatches record the CPUs numbered below `cpus`.
    ///
    /// # Errors
    /// Without `CAP_BPF` and `CAP_PERFMON`, and as [`super::Counter::start`].
    pub fn new(cpus: NonZeroU32) -> Result<KernelTypes, CountError> {
        may_count()?;
        let btf = Btf::kernel()?;
        let layout = Layout::read(&btf).map_err(|Absent(what)| CountError::Absent(what))?;
        Ok(KernelTypes { btf, layout, cpus: cpus.min(NonZeroU32::new(MAX_CPUS).unwrap_or(cpus)) })
    }

    /// Records these points from now on. Points that this kernel lacks are in [`Stopwatch::missing`].
    ///
    /// # Errors
    /// If the kernel refuses a program or the tables.
    pub fn start(&self, points: &[Point]) -> Result<Stopwatch, CountError> {
        let cpus = self.cpus.get();
        let used = Map::create(MapKind::Array, cpus, "napkin_used").map_err(table_error)?;
        let records =
            Map::create(MapKind::Array, cpus << ROOM_BITS, "napkin_times").map_err(table_error)?;
        let mut watch =
            Stopwatch { _programs: Vec::new(), missing: Vec::new(), records, used, cpus };
        // Mark the tables as full, so that nothing is recorded before all programs are attached.
        watch.fill(u64::from(ROOM))?;
        for &point in points {
            let name = format!("btf_trace_{}", point.name());
            let Some(to) = self.btf.find(Kind::Typedef, &name) else {
                watch.missing.push(point);
                continue;
            };
            let maps = [watch.used.descriptor(), watch.records.descriptor()];
            let program = self.program(point, maps);
            watch._programs.push(Attached::new("napkin_time", program, to)?);
        }
        watch.clear()?;
        Ok(watch)
    }

    /// Sets R7 to the point's number.
    fn load_number(&self, program: &mut Assembler, point: Point) {
        match point {
            Point::SoftirqEntry | Point::SoftirqExit | Point::Idle => {
                program.load(Double, R7, R6, 0);
            }
            Point::NapiPoll | Point::NapiPollAgain => {
                program.load(Double, R1, R6, 0);
                program.load(Word, R7, R1, self.layout.napi.napi_id);
                program.shift_left(R7, 16);
                program.load(Double, R2, R6, 8);
                program.add_register(R7, R2);
            }
            Point::Switch | Point::Waking | Point::Wakeup => {
                let task = if point == Point::Switch { 16 } else { 0 };
                program.load(Double, R1, R6, task);
                program.load(Word, R7, R1, self.layout.pid);
            }
            Point::TimerExpire | Point::TimerStart => self.load_timer_owner(program),
            Point::GroReceive
            | Point::ReceiveSkb
            | Point::TimerInterrupt
            | Point::TimerInterruptExit => program.set(R7, 0),
        }
        program.copy_word(R7, R7);
    }

    fn load_timer_owner(&self, program: &mut Assembler) {
        program.set(R7, 0);
        let Ok(timer) = &self.layout.timer else { return };
        let end = program.label();
        program.load(Double, R1, R6, 0);
        program.load(Double, R8, R1, timer.function);
        // The tick's callback, since Linux 6.8 and before.
        let ticks = ["tick_nohz_handler", "tick_sched_timer"];
        let ticks = ticks.iter().filter_map(|name| self.btf.find(Kind::Func, name));
        let functions = ticks.map(|id| (id, 2)).chain([(timer.napi_watchdog, 1)]);
        for (id, number) in functions {
            let other = program.label();
            program.set_address(R2, id);
            program.jump_if_registers(R8, Condition::NotEqual, R2, other);
            program.set(R7, number);
            program.jump(end);
            program.place(other);
        }
        program.place(end);
    }

    fn program(&self, point: Point, [used, records]: [i32; 2]) -> Result<Vec<u8>, AssembleError> {
        const CPU: i16 = -4;
        const PLACE: i16 = -8;
        let mut program = Assembler::new();
        let end = program.label();
        program.copy(R6, R1);
        self.load_number(&mut program, point);
        program.call(Helper::GetSmpProcessorId);
        program.store(Word, FP, CPU, R0);
        program.set_map(R1, used);
        program.copy(R2, FP);
        program.add(R2, CPU.into());
        program.call(Helper::MapLookupElem);
        program.jump_if(R0, Condition::Equal, 0, end);
        // Atomic, because an interrupt in between takes the next place.
        program.set(R1, 1);
        program.atomic_fetch_add(R0, 0, R1);
        program.jump_if(R1, Condition::GreaterOrEqual, ROOM.cast_signed(), end);
        program.load(Word, R2, FP, CPU);
        program.shift_left(R2, ROOM_BITS);
        program.add_register(R2, R1);
        program.store(Word, FP, PLACE, R2);
        program.set_map(R1, records);
        program.copy(R2, FP);
        program.add(R2, PLACE.into());
        program.call(Helper::MapLookupElem);
        program.jump_if(R0, Condition::Equal, 0, end);
        program.copy(R8, R0);
        program.store_constant(Word, R8, 8, point as i32);
        program.store(Word, R8, 12, R7);
        program.call(Helper::KtimeGetNs);
        program.store(Double, R8, 0, R0);
        program.place(end);
        program.set(R0, 0);
        program.exit();
        program.finish()
    }
}

impl Stopwatch {
    /// The points that this kernel lacks.
    pub fn missing(&self) -> &[Point] {
        &self.missing
    }

    fn fill(&self, used: u64) -> Result<(), CountError> {
        for cpu in 0..self.cpus {
            self.used.set(&cpu.to_ne_bytes(), &used.to_ne_bytes()).map_err(read_error)?;
        }
        Ok(())
    }

    /// Discards all records and starts again.
    ///
    /// # Errors
    /// If the kernel's answer is unexpected.
    pub fn clear(&self) -> Result<(), CountError> {
        self.fill(0)
    }

    /// Stops recording on a CPU, and returns its records since the last [`Stopwatch::clear`], in their order.
    ///
    /// # Errors
    /// If the kernel's answer is unexpected.
    pub fn take(&self, cpu: u32) -> Result<Vec<Record>, CountError> {
        if cpu >= self.cpus {
            return Ok(Vec::new());
        }
        let key = cpu.to_ne_bytes();
        let used = self.used.get(&key).map_err(read_error)?.map_or(0, u64::from_ne_bytes);
        self.used.set(&key, &u64::from(ROOM).to_ne_bytes()).map_err(read_error)?;
        let used = u32::try_from(used).unwrap_or(ROOM).min(ROOM);
        let first = cpu << ROOM_BITS;
        (first..first + used).filter_map(|place| self.record(place).transpose()).collect()
    }

    fn record(&self, place: u32) -> Result<Option<Record>, CountError> {
        let Some(bytes) = self.records.get(&place.to_ne_bytes()).map_err(read_error)? else {
            return Ok(None);
        };
        let [at @ .., _, _, _, _, _, _, _, _] = bytes;
        let [_, _, _, _, _, _, _, _, p0, p1, p2, p3, v0, v1, v2, v3] = bytes;
        let number = u32::from_ne_bytes([p0, p1, p2, p3]) as usize;
        let point =
            *Point::ALL.get(number).ok_or_else(|| read_error(io::ErrorKind::InvalidData.into()))?;
        let value = u32::from_ne_bytes([v0, v1, v2, v3]);
        Ok(Some(Record { at: u64::from_ne_bytes(at), point, value }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_read_back_by_the_number_that_its_program_writes() {
        for (number, point) in Point::ALL.iter().enumerate() {
            assert_eq!(*point as usize, number, "{point:?}");
        }
    }
}
