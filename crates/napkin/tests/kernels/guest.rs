//! The tests' interface to a guest: runs napkin, and reads the kernel's state by a reader of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::vm::{Answer, Vm};

/// The directory of napkin's journal in a guest: a file system of its own, so that tests can fill it.
pub(crate) const STATE: &str = "/run/state";

/// The cards of a guest: names and drivers.
pub(crate) const CARDS: [(&str, &str); 4] =
    [("eth0", "virtio_net"), ("eth2", "e1000e"), ("eth3", "igb"), ("va", "veth")];

/// Python without site packages, which an emulated CPU takes long to find.
pub(crate) const READS: &str = "python3 -BIS";

/// A client with eight requests in flight, which it sends again when none is answered.
const LOAD: &str = r#"
import select, socket, time
def run(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((address, 5000))
    end, answers = time.monotonic() + 2, 0
    while time.monotonic() < end:
        for _ in range(8): s.send(b"x" * 64)
        for _ in range(8):
            if not select.select([s], [], [], 0.3)[0]: break
            s.recv(2048); answers += 1
    print(answers)
"#;

/// A guest and its cards.
pub(crate) struct Guest {
    pub vm: Vm,
    reader: String,
}

/// The settings of a device, without ids and processes, which differ each time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Set {
    /// The three files of the device in sysfs.
    pub device: BTreeMap<String, Value>,
    /// The settings of each instance, by the queues that it polls, as in `rx0 tx0`.
    pub instances: BTreeMap<String, BTreeMap<String, u64>>,
    /// The CPUs of each interrupt, by name.
    pub interrupts: BTreeMap<String, String>,
    /// Threads with a real-time class or a restricted CPU mask: class, priority and CPUs.
    pub threads: Vec<String>,
}

impl Guest {
    /// Boots a guest.
    pub(crate) fn boot(version: &str) -> Guest {
        let mut guest = Guest::of(Vm::boot(version));
        guest
            .vm
            .ok(&format!("mkdir -p {STATE} && mount -t tmpfs -o size=256k,mode=700 state {STATE}"));
        guest.veth(None);
        guest
    }

    /// A guest on a machine that is up.
    pub(crate) fn of(vm: Vm) -> Guest {
        let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/reader.py");
        Guest { vm, reader: reader.display().to_string() }
    }

    /// Creates `va`, a veth with four queues and NAPI instances, with its peer in a namespace.
    pub(crate) fn veth(&mut self, index: Option<u64>) {
        let index = index.map(|it| format!("index {it}")).unwrap_or_default();
        self.vm.ok(&format!(
            "ip netns list | grep -q peer || ip netns add peer
             ip link add va {index} numtxqueues 4 numrxqueues 4 type veth \
               peer name vb numtxqueues 4 numrxqueues 4 netns peer
             ethtool -K va gro on
             ip addr add 10.9.9.1/24 dev va; ip link set va up
             ip -n peer addr add 10.9.9.100/24 dev vb; ip -n peer link set vb up"
        ));
    }

    /// Runs napkin with these arguments.
    pub(crate) fn napkin(&mut self, arguments: &str) -> Answer {
        let napkin = env!("CARGO_BIN_EXE_napkin");
        self.vm.sh(&format!("NAPKIN_STATE={STATE} {napkin} {arguments}"))
    }

    /// The kernel's complete state of a device.
    pub(crate) fn device_state(&mut self, dev: &str) -> Value {
        let text = self.vm.ok(&format!("{READS} {} {dev}", self.reader));
        let state: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        state[dev].clone()
    }

    /// The busy poll parameters of an epoll instance: usecs, budget, whether preferred.
    pub(crate) fn epoll(&mut self, pid: u64, descriptor: u64) -> [u64; 3] {
        let text = self.vm.ok(&format!("{READS} {} --epoll {pid} {descriptor}", self.reader));
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
    }

    /// Sends requests to the guest's server on a card for two seconds, eight at a time. Returns the number of answers.
    pub(crate) fn load(&mut self, dev: &str) -> u64 {
        let card = dev.trim_start_matches("eth");
        let load = format!("{LOAD}\nrun('10.9.{card}.1')");
        let output = self.vm.peers.run(|| Command::new("python3").args(["-c", &load]).output());
        let output = output.expect("a thread").expect("it is installed");
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim().parse().unwrap_or_else(|_| panic!("{output:?}"))
    }

    /// The settings of a device.
    pub(crate) fn set(&mut self, dev: &str) -> Set {
        let state = self.device_state(dev);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let files = ["threaded", "napi_defer_hard_irqs", "gro_flush_timeout"];
        let device = files.map(|name| (name.to_owned(), state[name].clone())).into();
        let mut instances = BTreeMap::new();
        for napi in state["napis"].as_object().into_iter().flatten().map(|(_, napi)| napi) {
            let polls: Vec<String> =
                napi["polls"].as_array().expect("a list").iter().map(text).collect();
            let numbers = napi.as_object().expect("settings").iter();
            let settings =
                numbers.filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect();
            let settings: BTreeMap<String, u64> = settings;
            // A veth does not report the queues of its instances: name them by the order of their ids.
            let nth = format!("{} of the device", instances.len());
            instances.insert(if polls.is_empty() { nth } else { polls.join(" ") }, settings);
        }
        let interrupts = state["interrupts"].as_object().into_iter().flatten();
        let interrupts = interrupts.map(|(name, cpus)| (name.clone(), text(cpus))).collect();
        let threads = state["threads"].as_object().into_iter().flatten();
        let threads = threads
            .filter(|(_, it)| !it.is_null() && (it["policy"] != "0" || it["cpus"] != "0-3"))
            .map(|(_, it)| format!("{} {} {}", it["policy"], it["rt"], it["cpus"]))
            .collect();
        Set { device, instances, interrupts, threads }
    }

    /// The names of the remaining journals.
    pub(crate) fn journals(&mut self) -> String {
        self.vm.ok(&format!("find {STATE} -name '*.journal' -printf '%f '"))
    }

    /// Fails if the settings differ from `before`, or a journal is left.
    pub(crate) fn left(&mut self, dev: &str, before: &Set) -> Result<(), String> {
        let (after, journals) = (self.set(dev), self.journals());
        if after != *before {
            return Err(format!("left behind: {after:?}, and it was {before:?}"));
        }
        if !journals.is_empty() {
            return Err(format!("journals are left: {journals}"));
        }
        Ok(())
    }
}
