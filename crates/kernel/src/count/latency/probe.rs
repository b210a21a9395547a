//! The running latency probe: loads and attaches the programs, and reads their tables.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::super::attached::{Attached, ProgramStats};
use super::super::btf::Btf;
use super::super::error::{CountError, may_count, read_error, table_error};
use super::super::layout::Absent;
use super::Part;
use super::histogram::{BUCKETS, Histogram, Parts};
use super::layout::{HookPoint, Layout};
use super::owners::Owners;
use super::program::{self, Selection};
use super::tables::{CPUS, INSTANCES, Maps, SOCKETS, THREADS, choice, cpu};
use super::tables::{instance, place_of, socket, thread};
use napkin_bpf::assemble::AssembleError;
use napkin_bpf::{Map, MapKind, SharedWords};

/// The selection of requests that are timed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The ids of the serving processes in the initial PID namespace; empty for all of the machine. Only the first
    /// [`Options::MOST`] are timed.
    pub processes: Vec<i32>,
    /// The local ports of the served connections; empty for all, including connections that the processes opened
    /// themselves. Only the first [`Options::MOST`] are timed.
    pub ports: Vec<u16>,
    /// The network namespace whose sockets are timed, by the inode of its file in `/proc/PID/ns`; `None` for all
    /// namespaces.
    pub namespace: Option<u32>,
    /// The sampling rate: one of this many connections, from 1 to 256, rounded up to the next power of two.
    pub one_in: u32,
}

impl Options {
    /// Limit of processes, and of ports: each costs an instruction at each read and send.
    pub const MOST: usize = 128;
}

impl Default for Options {
    fn default() -> Options {
        Options { processes: Vec::new(), ports: Vec::new(), namespace: None, one_in: 16 }
    }
}

type Choice = Map<4, { choice::LEN }>;
type Sockets = Map<4, { socket::LEN }>;
type Instances = Map<4, { instance::LEN }>;
type Threads = Map<4, { thread::LEN }>;

/// A running measurement of the whole machine. It ends when this is dropped, or the process ends.
#[derive(Debug)]
pub struct Probe {
    // Declared first: programs must be detached before their maps are closed.
    programs: Vec<Attached>,
    choice: Choice,
    _sockets: Sockets,
    instances: Instances,
    owners: Mutex<Owners>,
    /// Whether the instance through which a request came is known.
    instances_known: bool,
    cpus: SharedWords,
    _threads: Threads,
    /// The sampling rate ([`Options::one_in`]) minus 1.
    mask: u64,
    /// The places of the instances whose frames are steered to other CPUs.
    steered: Vec<usize>,
    notes: Vec<String>,
}

/// 64-bit words in a CPU's row.
const CPU_WORDS: usize = cpu::LEN / 8;

/// Delay between attaching the programs and timing. Attaching stops all CPUs repeatedly, and requests that waited
/// meanwhile must have passed.
const SETTLE: Duration = Duration::from_millis(2);

/// The measurements since the start. They cover the sampled connections, except for [`Reading::sends`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reading {
    /// Sends on all connections of the selected processes and ports.
    pub sends: u64,
    /// Sends on the sampled connections.
    pub sends_seen: u64,
    /// Durations by the id of the instance through which the requests came; 0 for requests that came through none,
    /// or through an unknown one. Of instances whose ids have the same lower 8 bits, only the one that holds their
    /// place in the table is included.
    pub instances: BTreeMap<u32, Parts>,
    /// Number of requested instances that are missing because another instance holds their place.
    pub sharing: usize,
}

impl Reading {
    /// Returns the increase since an earlier reading.
    pub fn since(&self, earlier: &Reading) -> Reading {
        let none = Parts::default();
        let parts = |(id, parts): (&u32, &Parts)| {
            (*id, parts.since(earlier.instances.get(id).unwrap_or(&none)))
        };
        Reading {
            sends: self.sends.saturating_sub(earlier.sends),
            sends_seen: self.sends_seen.saturating_sub(earlier.sends_seen),
            instances: self.instances.iter().map(parts).collect(),
            sharing: self.sharing,
        }
    }

    /// Sums all instances.
    pub fn all(&self) -> Parts {
        let mut all = Parts::default();
        self.instances.values().for_each(|parts| all.add(parts));
        all
    }

    /// Estimates the answers on all connections: the sends, scaled by the share of sampled sends that followed a
    /// read. `None` if no send was sampled.
    pub fn answers(&self) -> Option<f64> {
        let seen = self.all().of(Part::Service).count();
        (self.sends_seen > 0).then(|| self.sends as f64 * seen as f64 / self.sends_seen as f64)
    }
}

impl Probe {
    /// Loads the programs and attaches them; this takes some tens of milliseconds.
    ///
    /// # Errors
    /// Without `CAP_BPF` and `CAP_PERFMON`, or if this kernel lacks what the parts other than the ring need. If the
    /// ring cannot be measured, [`Probe::notes`] says why.
    pub fn start(options: &Options) -> Result<Probe, CountError> {
        Probe::start_at(options, true)
    }

    /// Starts with programs at functions only, as on a kernel without the socket trace points.
    ///
    /// # Errors
    /// As [`Probe::start`].
    #[doc(hidden)]
    pub fn start_at_functions(options: &Options) -> Result<Probe, CountError> {
        Probe::start_at(options, false)
    }

    fn start_at(options: &Options, trace_points: bool) -> Result<Probe, CountError> {
        may_count()?;
        let layout = Layout::read(&Btf::kernel()?, trace_points)
            .map_err(|Absent(what)| CountError::Absent(what))?;
        let array = MapKind::Array;
        let choice = Choice::create(array, 1, "napkin_choice").map_err(table_error)?;
        let sockets = Sockets::create(array, SOCKETS, "napkin_sockets").map_err(table_error)?;
        let instances =
            Instances::create(array, INSTANCES + 1, "napkin_napis").map_err(table_error)?;
        let words = CPUS as usize * CPU_WORDS;
        let cpus = SharedWords::create(words, "napkin_cpus").map_err(table_error)?;
        let threads = Threads::create(array, THREADS, "napkin_threads").map_err(table_error)?;
        let maps = Maps {
            choice: choice.descriptor(),
            sockets: sockets.descriptor(),
            instances: instances.descriptor(),
            cpus: cpus.descriptor(),
            threads: threads.descriptor(),
        };
        let (programs, notes) = (Vec::new(), Vec::new());
        let mut probe = Probe {
            programs,
            choice,
            _sockets: sockets,
            instances,
            owners: Mutex::default(),
            instances_known: false,
            cpus,
            _threads: threads,
            mask: mask_of(options.one_in),
            steered: Vec::new(),
            notes,
        };
        probe.choose(1, choice::SAMPLE_NONE)?;
        probe.watch_rings(&layout, maps);
        let selection = Selection {
            processes: limited(&options.processes),
            ports: limited(&options.ports),
            namespace: options.namespace,
        };
        for at in &layout.ready {
            probe.attach("napkin_ready", program::ready(&layout, maps), at)?;
        }
        for at in &layout.sent {
            probe.attach("napkin_sent", program::sent(&layout, at, selection, maps), at)?;
        }
        for at in &layout.read {
            probe.attach("napkin_read", program::read(&layout, at, selection, maps), at)?;
        }
        probe.start_timing()?;
        Ok(probe)
    }

    fn attach(
        &mut self,
        name: &'static str,
        program: Result<Vec<u8>, AssembleError>,
        at: &HookPoint,
    ) -> Result<(), CountError> {
        self.programs.push(Attached::at(name, program, at.hook, at.btf_id)?);
        Ok(())
    }

    /// Attaches the programs at polls and wake-ups. Without both, the arrival in the ring has no bound; without
    /// polls, no instance gets a place.
    fn watch_rings(&mut self, layout: &Layout, maps: Maps) {
        let watched = (|| {
            let wake = layout.wake.as_ref();
            let wake = wake.map_err(|Absent(what)| CountError::Absent(what.clone()))?;
            let softirq = |runs| program::softirq(wake, maps, runs);
            Ok::<_, CountError>([
                Attached::new("napkin_raised", softirq(false), wake.raise)?,
                Attached::new("napkin_softirq", softirq(true), wake.entry)?,
                Attached::new("napkin_waking", program::waking(wake, maps), wake.waking)?,
                Attached::new("napkin_polled", program::polled(layout, maps), layout.napi_poll)?,
            ])
        })();
        let why = match watched {
            Ok(programs) if layout.sk_napi_id.is_some() => {
                self.programs.extend(programs);
                self.instances_known = true;
                return;
            }
            Ok(_) => "this kernel was built without busy polling (`sock.sk_napi_id`)".into(),
            Err(why) => why.to_string(),
        };
        self.notes.push(format!(
            "the time in the ring is not known, nor through which instance a request came: {why}"
        ));
    }

    /// What is not measured, and why.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Samples other connections from now on, one of `one_in` (see [`Options::one_in`]). Requests in progress on
    /// the former ones are lost, so call this rarely compared to a request's duration: twice a second. If all
    /// connections are sampled and `one_in` is 1, nothing changes.
    ///
    /// # Errors
    /// If the kernel's answer is unexpected.
    pub fn rotate(&mut self, one_in: u32) -> Result<(), CountError> {
        if one_in <= 1 && self.mask == 0 {
            return Ok(());
        }
        self.mask = mask_of(one_in);
        self.choose(self.epoch()?.wrapping_add(1), self.mask)
    }

    /// Sets the instances whose frames are steered to other CPUs (RPS); none until it is called. For these, the
    /// time in the ring includes the way from the poll that took the frame to the socket.
    ///
    /// # Errors
    /// If the kernel's answer is unexpected.
    pub fn set_steered(&mut self, napi_ids: &[u32]) -> Result<(), CountError> {
        let places = napi_ids.iter().filter_map(|id| usize::try_from(place_of(*id)).ok());
        let steered: Vec<usize> = places.collect();
        if steered == self.steered {
            return Ok(());
        }
        self.steered = steered;
        let value = self.chosen()?;
        self.choose(number(&value, choice::EPOCH), number(&value, choice::MASK))
    }

    /// Detaches the programs, so that they cost nothing, until [`Probe::resume`].
    ///
    /// # Errors
    /// If the kernel's answer is unexpected; the programs are detached nevertheless.
    pub fn pause(&mut self) -> Result<(), CountError> {
        let stopped = self.epoch().and_then(|epoch| self.choose(epoch, choice::SAMPLE_NONE));
        // Detach those of sockets first: they read what the ring programs write.
        self.programs.iter_mut().rev().for_each(Attached::detach);
        stopped
    }

    /// Attaches the programs again, which takes some milliseconds. Requests that were in progress at the pause are
    /// lost.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn resume(&mut self) -> Result<(), CountError> {
        self.choose(self.epoch()?, choice::SAMPLE_NONE)?;
        self.programs.iter_mut().try_for_each(Attached::attach)?;
        self.start_timing()
    }

    /// Starts timing, once the programs are attached.
    fn start_timing(&self) -> Result<(), CountError> {
        std::thread::sleep(SETTLE);
        self.choose(self.epoch()?.wrapping_add(1), self.mask)
    }

    fn chosen(&self) -> Result<[u8; choice::LEN], CountError> {
        Ok(self.choice.get(&[0; 4]).map_err(read_error)?.unwrap_or([0; choice::LEN]))
    }

    fn epoch(&self) -> Result<u64, CountError> {
        Ok(number(&self.chosen()?, choice::EPOCH))
    }

    fn choose(&self, epoch: u64, mask: u64) -> Result<(), CountError> {
        let mut value = [0; choice::LEN];
        let (first, rest) = value.split_at_mut(8);
        let (second, steered) = rest.split_at_mut(8);
        first.copy_from_slice(&epoch.to_ne_bytes());
        second.copy_from_slice(&mask.to_ne_bytes());
        for place in &self.steered {
            steered.get_mut(*place).into_iter().for_each(|it| *it = 1);
        }
        self.choice.set(&[0; 4], &value).map_err(read_error)
    }

    /// Whether the instance through which a request came is known; if not, [`Probe::notes`] says why.
    pub fn knows_instances(&self) -> bool {
        self.instances_known
    }

    /// Reads the durations of requests that came through these instances, and of those that came through none.
    ///
    /// # Errors
    /// If the kernel's answer is unexpected.
    pub fn read(&self, napi_ids: &[u32]) -> Result<Reading, CountError> {
        let mut reading = Reading::default();
        for row in self.cpus.words().chunks_exact(CPU_WORDS) {
            let at = |place: i16| row.get(place as usize / 8).map_or(0, |it| it.load(Relaxed));
            reading.sends = reading.sends.wrapping_add(at(cpu::SENDS));
            reading.sends_seen = reading.sends_seen.wrapping_add(at(cpu::SEEN));
        }
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let napi_ids = if self.instances_known { napi_ids } else { &[] };
        for id in napi_ids.iter().copied().chain([0]) {
            let place = place_of(id);
            let row = self.instances.get(&place.to_ne_bytes()).map_err(read_error)?;
            let Some(row) = row else { continue };
            let owner = u32::try_from(number(&row, instance::ID)).unwrap_or(0);
            // Owner 0: place 0, for requests through no instance, or a place without counts yet.
            let own = match owner {
                0 => parts(&row),
                owner => owners.own(place, owner, parts(&row)),
            };
            if owner == 0 || owner == id {
                reading.instances.insert(id, own);
            } else {
                reading.sharing += 1;
            }
        }
        Ok(reading)
    }

    /// Returns the programs with their run statistics.
    ///
    /// # Errors
    /// If the kernel's answer is unexpected.
    pub fn programs(&self) -> Result<Vec<ProgramStats>, CountError> {
        self.programs.iter().map(Attached::stats).collect()
    }
}

fn mask_of(one_in: u32) -> u64 {
    u64::from(one_in.clamp(1, 256).next_power_of_two() - 1)
}

fn limited<T>(list: &[T]) -> &[T] {
    list.get(..Options::MOST).unwrap_or(list)
}

fn number(row: &[u8], place: i16) -> u64 {
    let start = usize::try_from(place).unwrap_or(usize::MAX);
    let bytes = start.checked_add(8).and_then(|end| row.get(start..end)?.try_into().ok());
    bytes.map_or(0, u64::from_ne_bytes)
}

fn parts(row: &[u8]) -> Parts {
    let first = usize::try_from(instance::HISTOGRAMS).unwrap_or(0);
    let numbers = row.get(first..).unwrap_or_default().chunks_exact(8);
    let mut numbers = numbers.map(|bytes| bytes.try_into().map_or(0, u64::from_ne_bytes));
    Parts { histograms: Part::ALL.map(|_| Histogram::of(numbers.by_ref().take(BUCKETS))) }
}
