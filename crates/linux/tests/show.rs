//! `show` against the running kernel: a veth with two queues in a namespace of its own, a memcached on it, and
//! an independent netlink client whose output must agree.

#[path = "../../kernel/tests/harness/namespace.rs"]
mod namespace;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use namespace::fresh;
use napkin_kernel::device::{self, DeviceError};
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Ethtool, GSO, Netdev, Route, TSO, VethConfig};
use napkin_kernel::process::{Params, Process, socket};
use napkin_kernel::{Setting, Settings};
use napkin_linux::show::{self, NapiReport, Report};
use napkin_os::procfs::cpus;
use napkin_policy::Policy;
use napkin_testing::{needs, needs_cpus, needs_program, test};
use rustix::thread::{CapabilitySet, CapabilitySets, LinkNameSpaceType};
use serde_json::Value;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 83, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 83, 0, 2);

/// Long enough for a machine that is busy with other tests: exceeding it is a failure, not a measurement.
const LONG: Duration = Duration::from_secs(30);

/// Two namespaces with a veth between them: `va` (two queues, GRO on) in the first.
struct Lab {
    server: Namespace,
    client: Namespace,
}

impl Lab {
    fn new() -> Lab {
        let (server, client) = (fresh(), fresh());
        let made = server.run(|| {
            let mut route = Route::open().expect("a socket");
            let veth = VethConfig {
                name: "va",
                peer: "vb",
                peer_namespace: Some(client.as_fd()),
                rx_queues: 2,
                tx_queues: 2,
            };
            let va = route.add_veth(&veth).expect("a veth");
            route.add_address(va, SERVER, 24).expect("an address");
            route.set_up(va).expect("a link");
        });
        made.expect("the namespace is ours");
        let made = client.run(|| {
            let mut route = Route::open().expect("a socket");
            let vb = route.link("vb").expect("the other end").ifindex;
            route.add_address(vb, CLIENT, 24).expect("an address");
            route.set_up(vb).expect("a link");
            // With offloads a sender's packets bypass the receiver's NAPI.
            let off: Vec<(&str, bool)> = TSO.iter().chain(GSO).map(|name| (*name, false)).collect();
            Ethtool::open().expect("the family").set_features("vb", &off).expect("features");
        });
        made.expect("the namespace is ours");
        Lab { server, client }
    }

    fn gro_on(&self) {
        let done = self.server.run(|| {
            let mut ethtool = Ethtool::open().expect("the family");
            ethtool.set_features("va", &[("rx-gro", true)]).expect("a feature");
        });
        done.expect("the namespace is ours");
    }

    fn show(&self) -> Report {
        let report = self.server.run(|| show::gather(Some("va")));
        report.expect("the namespace is ours").expect("the device is there")
    }

    /// Sets a policy's instance part on the instance of a receive queue.
    fn set(&self, queue: u32, policy: &str) {
        let policy: Policy = policy.parse().expect(policy);
        let wanted = Settings::of(&policy.instance);
        let done = self.server.run(|| {
            let mut netdev = Netdev::open().expect("the family");
            let device = device::read(&mut netdev, "va").expect("it is there");
            let id = device.of_rx_queue(queue).expect("the queue has an instance").id;
            for setting in Setting::ALL {
                let value = wanted.get(setting).expect("a policy has them all");
                netdev.set_napi(id, setting, value).expect("the kernel takes it");
            }
        });
        done.expect("the namespace is ours");
    }

    /// Returns the output of the independent client.
    fn independent(&self) -> Value {
        needs_program("python3");
        let script =
            self.server.run(|| Command::new("python3").args(["-c", CLIENT_SCRIPT]).output());
        let output = script.expect("the namespace is ours").expect("it is installed");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

/// A generic-netlink client that shares no code with ours: resolves the family `netdev` and dumps its
/// instances.
const CLIENT_SCRIPT: &str = r#"
import json, socket, struct

sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
sock.bind((0, 0))
sock.settimeout(10)

def attributes(data):
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        found[kind & 0x3fff] = data[4:length]
        data = data[(length + 3) & ~3:]
    return found

def number(data):
    return int.from_bytes(data, "little")

def ask(family, command, flags, payload=b""):
    body = struct.pack("=BBH", command, 1, 0) + payload
    sock.send(struct.pack("=IHHII", 16 + len(body), family, flags | 1, 7, 0) + body)
    answers = []
    while True:
        data = sock.recv(1 << 18)
        while data:
            length, kind, _, _, _ = struct.unpack_from("=IHHII", data)
            body, data = data[16:length], data[(length + 3) & ~3:]
            if kind == 2:
                assert struct.unpack_from("=i", body)[0] == 0, body
                return answers
            if kind == 3:
                return answers
            answers.append(attributes(body[4:]))

name = b"netdev\0"
name = struct.pack("=HH", 4 + len(name), 2) + name + b"\0" * (-len(name) % 4)
family = number(ask(16, 3, 4, name)[0][1])
names = {1: "ifindex", 2: "id", 3: "irq", 4: "pid", 5: "defer-hard-irqs",
         6: "gro-flush-timeout", 7: "irq-suspend-timeout", 8: "threaded"}
napis = [{names[kind]: number(data) for kind, data in napi.items() if kind in names}
         for napi in ask(family, 11, 0x300)]
queues = [{"id": number(queue[1]), "ifindex": number(queue[2]), "type": number(queue[3]),
           "napi-id": number(queue[4]) if 4 in queue else None}
          for queue in ask(family, 10, 0x300)]
print(json.dumps({"napis": napis, "queues": queues}))
"#;

/// Asserts that the report agrees with the independent client, instance by instance.
fn agree(lab: &Lab, report: &Report) {
    let read = lab.independent();
    let napis = read["napis"].as_array().expect("a list");
    let shown = &report.devices[0].napis;
    assert_eq!(napis.len(), shown.len(), "{read}");
    for NapiReport { napi, .. } in shown {
        let other = napis.iter().find(|it| it["id"] == napi.id).expect("the same ids");
        assert_eq!(other["ifindex"], report.devices[0].ifindex);
        assert_eq!(other.get("pid").and_then(Value::as_i64), napi.pid.map(i64::from));
        for setting in Setting::ALL {
            let reported = other.get(setting.name()).and_then(Value::as_u64);
            assert_eq!(reported, napi.settings.get(setting), "{setting}");
        }
    }
    // A veth's queues do not report their instance, but their number must agree.
    let queues = read["queues"].as_array().expect("a list").iter();
    let mut rx: Vec<u64> = queues
        .filter(|queue| queue["ifindex"] == report.devices[0].ifindex && queue["type"] == 0)
        .filter_map(|queue| queue["id"].as_u64())
        .collect();
    rx.sort_unstable();
    let polled: Vec<u64> =
        shown.iter().flat_map(|it| it.napi.rx_queues.iter().copied().map(u64::from)).collect();
    assert_eq!(rx, polled);
}

fn policies(report: &Report) -> Vec<String> {
    report.devices[0].napis.iter().map(|napi| napi.policy.to_string()).collect()
}

/// A memcached in the lab's first namespace, with connections that either queue may serve.
struct Memcached {
    child: Child,
    _connections: Vec<TcpStream>,
}

impl Memcached {
    fn start(lab: &Lab) -> Memcached {
        needs_program("memcached");
        let child = lab.server.run(|| {
            Command::new("memcached")
                .args(["-u", "root", "-U", "0", "-t", "2", "-m", "8", "-l", &SERVER.to_string()])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
        });
        let child = child.expect("the namespace is ours").expect("it is installed");
        let connections = lab.client.run(|| (0..4).map(|_| connection()).collect());
        let connections = connections.expect("the namespace is ours");
        Memcached { child, _connections: connections }
    }

    fn pid(&self) -> i32 {
        self.child.id().try_into().expect("a process's id")
    }

    /// Sets the parameters of all its epoll contexts.
    fn set(&self, params: Params) {
        let process = Process::open(self.pid()).expect("it runs");
        let descriptors = process.descriptors(1_000).expect("it is ours");
        let mut count = 0;
        for epoll in descriptors.epolls() {
            let taken = process.take(&epoll).expect("it is ours").expect("it is open");
            assert_eq!(params.set(&taken), Ok(true));
            count += 1;
        }
        assert!(count >= 3, "one for each of two workers and for the listener: {count}");
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens a connection, on which one request has been answered.
fn connection() -> TcpStream {
    let start = Instant::now();
    let mut stream = loop {
        match TcpStream::connect((SERVER, 11_211)) {
            Ok(stream) => break stream,
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    stream.write_all(b"version\r\n").expect("it listens");
    let mut answer = [0; 64];
    let length = stream.read(&mut answer).expect("it answers");
    assert!(answer[..length].starts_with(b"VERSION"));
    stream
}

#[test]
fn what_is_set_is_what_is_shown_and_what_another_client_reads() {
    let lab = Lab::new();
    lab.gro_on();
    let before = lab.show();
    assert_eq!(before.devices[0].driver.as_deref(), Some("veth"));
    assert_eq!(policies(&before), ["base", "base"]);
    assert_eq!(before.devices[0].policy.as_deref(), Some("base"));
    let queues: Vec<_> =
        before.devices[0].napis.iter().map(|it| it.napi.rx_queues.clone()).collect();
    assert_eq!(queues, [[0], [1]]);
    agree(&lab, &before);

    lab.set(1, "defer20");
    let one = lab.show();
    assert_eq!(policies(&one), ["base", "defer20"]);
    assert_eq!(one.devices[0].policy.as_deref(), Some("mixed"));
    agree(&lab, &one);

    lab.set(0, "suspend20");
    lab.set(1, "suspend20,irq-suspend-timeout=10ms");
    let nearly = lab.show();
    assert_eq!(policies(&nearly), ["suspend20", "suspend20 but irq-suspend-timeout=10ms"]);
    assert!(nearly.devices[0].napis[0].policy.notes[0].contains("none seen"));
    agree(&lab, &nearly);

    lab.set(0, "base");
    lab.set(1, "base");
    assert_eq!(policies(&lab.show()), ["base", "base"]);
}

/// netlink does not report which instance polls which of a veth's queues; packets reveal it.
#[test]
fn a_veth_s_packets_come_by_the_instance_that_is_shown_for_their_queue() {
    needs_cpus(2);
    let lab = Lab::new();
    lab.gro_on();
    let cpus = napkin_os::sched::usable_cpus();
    let [one, other, ..] = cpus[..] else { unreachable!("two CPUs") };
    let report = lab.show();
    for (queue, cpu) in [(0, one), (1, other)] {
        // An unconnected datagram socket gets the NAPI id of its first packet.
        let receiver = lab.server.run(|| UdpSocket::bind((SERVER, 9_000)).expect("a socket"));
        let receiver = receiver.expect("the namespace is ours");
        receiver.set_read_timeout(Some(LONG)).expect("a timeout");
        // A CPU's packets leave by the queue that XPS assigns to it, and arrive by the same one.
        let sent = lab.client.run(|| {
            let path = format!("/sys/class/net/vb/queues/tx-{queue}/xps_cpus");
            needs(std::fs::exists(&path).expect("sysfs"), "a kernel with XPS");
            std::fs::write(path, cpus::show_mask(&[cpu])).expect("root may");
            napkin_os::sched::pin(None, &[cpu]).expect("it is usable");
            UdpSocket::bind((CLIENT, 0))?.send_to(b"x", (SERVER, 9_000))
        });
        sent.expect("the namespace is ours").expect("it goes out");
        receiver.recv(&mut [0; 8]).expect("it was sent");
        let arrived = socket::napi_id(&receiver).expect("a socket");
        let shown = report.devices[0].napis.iter().find(|it| it.napi.rx_queues == [queue]);
        assert_eq!(arrived, shown.map(|it| it.napi.id), "queue {queue}");
    }
}

#[test]
fn a_thread_is_shown_with_its_cpus_and_class() {
    let lab = Lab::new();
    lab.gro_on();
    lab.set(0, "threaded");
    let report = lab.show();
    assert_eq!(policies(&report), ["threaded", "base"]);
    let napi = &report.devices[0].napis[0].napi;
    let pid = napi.pid.expect("it has a thread");
    assert_eq!(napi.thread_class, Some(napkin_os::sched::Class::Fair));
    assert!(!napi.thread_cpus.as_ref().expect("it is seen").is_empty());
    agree(&lab, &report);

    let cpu = napkin_os::sched::usable_cpus()[0];
    napkin_os::sched::pin(Some(pid), &[cpu]).expect("root may");
    napkin_os::sched::classify(Some(pid), napkin_os::sched::Class::Fifo(10)).expect("root may");
    let placed = lab.show();
    assert_eq!(placed.devices[0].napis[0].napi.thread_cpus, Some(vec![cpu]));
    assert_eq!(
        placed.devices[0].napis[0].napi.thread_class,
        Some(napkin_os::sched::Class::Fifo(10))
    );
    let json = serde_json::to_value(&placed).expect("plain data");
    assert_eq!(json["devices"][0]["napis"][0]["thread-class"], "fifo 10");
    assert_eq!(placed.devices[0].napis[1].napi.pid, None);

    lab.set(0, "base");
    assert_eq!(lab.show().devices[0].napis[0].napi.pid, None);
}

#[test]
fn memcached_owns_its_instances_and_its_epoll_names_the_policy() {
    let lab = Lab::new();
    lab.gro_on();
    let memcached = Memcached::start(&lab);
    let report = lab.show();
    let owners: Vec<_> =
        report.devices[0].napis.iter().flat_map(|it| &it.owners).map(|it| &it.owner).collect();
    assert!(!owners.is_empty(), "{report:?}");
    assert!(owners.iter().all(|it| it.pid == memcached.pid() && it.comm == "memcached"));
    let sockets: usize = owners.iter().map(|it| it.sockets).sum();
    assert_eq!(sockets, 4, "{owners:?}");

    // The flow hash decides which of the two queues serves a connection.
    let served = |report: &Report| -> Vec<String> {
        let napis = report.devices[0].napis.iter().filter(|it| !it.owners.is_empty());
        napis.map(|it| it.policy.to_string()).collect()
    };
    let all = |names: Vec<String>, name: &str| {
        assert!(!names.is_empty() && names.iter().all(|it| it == name), "{names:?}, not {name}");
    };
    for queue in [0, 1] {
        lab.set(queue, "napibusy");
    }
    all(served(&lab.show()), "defer200");
    let napibusy: Policy = "napibusy".parse().expect("a preset");
    memcached.set(napibusy.epoll.into());
    all(served(&lab.show()), "napibusy");

    let suspend: Policy = "suspend20".parse().expect("a preset");
    for queue in [0, 1] {
        lab.set(queue, "suspend20");
    }
    memcached.set(suspend.epoll.into());
    let report = lab.show();
    all(served(&report), "suspend20");
    for napi in &report.devices[0].napis {
        assert_eq!(napi.policy.notes.is_empty(), !napi.owners.is_empty(), "{napi:?}");
    }
}

#[test]
fn a_device_without_an_instance_says_what_mends_it() {
    let lab = Lab::new();
    let read = |name: &'static str| {
        let read = lab.server.run(|| device::read(&mut Netdev::open().expect("the family"), name));
        read.expect("the namespace is ours")
    };
    let message = read("va").expect_err("GRO is off").to_string();
    assert!(message.contains("ethtool -K va gro on"), "{message}");
    lab.gro_on();
    assert_eq!(read("va").expect("GRO is on").napis.len(), 2);
    let message = read("lo").expect_err("it has none").to_string();
    assert!(message.contains("loopback"), "{message}");
    match read("vaa").expect_err("there is none") {
        DeviceError::Absent { nearest, there, .. } => {
            assert_eq!(nearest.as_deref(), Some("va"));
            assert!(there.contains(&"lo".to_owned()), "{there:?}");
        }
        other => panic!("{other}"),
    }
    let down = lab.server.run(|| {
        let mut route = Route::open().expect("a socket");
        let va = route.link("va").expect("it is there").ifindex;
        route.set_down(va).expect("a link");
    });
    down.expect("the namespace is ours");
    let message = read("va").expect_err("it is down").to_string();
    assert!(message.contains("ip link set va up"), "{message}");
    let shown = lab.show();
    assert_eq!(shown.devices[0].policy, None);
    assert_eq!(shown.devices[0].why_none.as_deref(), Some(message.as_str()));
}

/// Runs a closure in the namespace, in a thread without capabilities; with its sysfs or with the host's.
fn without_rights<T: Send>(lab: &Lab, sysfs: bool, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if sysfs {
                lab.server.enter_thread().expect("the namespace is ours");
            } else {
                let network = Some(LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(lab.server.as_fd(), network)
                    .expect("the namespace is ours");
            }
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            rustix::thread::set_capabilities(None, sets).expect("rights can be given up");
            work()
        });
        thread.join().expect("no panic")
    })
}

#[test]
fn without_rights_it_shows_what_can_be_seen_and_names_the_right() {
    let lab = Lab::new();
    lab.gro_on();
    lab.set(0, "suspend20");
    lab.set(1, "threaded");
    let memcached = Memcached::start(&lab);
    let report = without_rights(&lab, true, || show::gather(Some("va"))).expect("it is shown");
    assert_eq!(policies(&report), ["suspend20", "threaded"]);
    assert!(report.devices[0].napis[1].napi.thread_cpus.is_some());
    let notes = report.notes.join("\n");
    assert!(notes.contains("CAP_SYS_PTRACE"), "{notes}");
    assert!(!notes.contains("/sys"), "{notes}");
    let unknown = &report.devices[0].napis[0].policy.notes[0];
    assert!(unknown.contains("could not be looked at"), "{unknown}");
    drop(memcached);

    let elsewhere = without_rights(&lab, false, || show::gather(None)).expect("it is shown");
    let notes = elsewhere.notes.join("\n");
    assert!(notes.contains("another network namespace"), "{notes}");
    assert!(notes.contains("CAP_SYS_ADMIN"), "{notes}");
    let va = elsewhere.devices.iter().find(|it| it.ifname == "va").expect("netlink lists it");
    assert_eq!(va.driver.as_deref(), Some("veth"), "the kind is netlink's");
}

napkin_testing::main!();
