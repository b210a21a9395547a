//! A virtual machine with a Debian kernel and four network cards: eth0 and eth1 are virtio with four queue pairs each
//! (those of eth1 share one interrupt), eth2 is an e1000e, eth3 an igb.
//!
//! Its root file system is the host's, read only, so that it runs the programs built and installed here; only the
//! kernel is its own. With a disk ([`Disk`]), which is overlaid on the host's root, it can write; systemd is then the
//! first process, and a reboot keeps what was written. The peers of the cards are in a network namespace that ends
//! with this process, as does the machine. It is emulated without KVM: counts, states and orders are meaningful, times
//! are not.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use napkin_kernel::namespace::Namespace;
use napkin_testing::{ignore, needs};

use super::disk::Disk;

/// Timeout of a boot and of a command: longer than either takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
/// Timeout of a boot and of a shutdown with systemd, which reads hundreds of files from the host's root.
const PATIENCE_WITH_SYSTEMD: Duration = Duration::from_secs(480);
/// Timeout of the commands that set the addresses of the cards.
const PATIENCE_AT_BOOT: Duration = Duration::from_secs(60);
/// Attempts to boot: emulated machines hang now and then, even before napkin runs.
const BOOTS: usize = 3;
/// Queue pairs of a virtio card, and CPUs.
const QUEUES: u32 = 4;
const CPUS: u32 = 4;

/// A running machine, ended on drop.
pub(crate) struct Vm {
    machine: Machine,
    port: BufReader<UnixStream>,
    /// The namespace of the cards' peers: 10.9.N.100 for ethN.
    pub peers: Namespace,
    kernel: PathBuf,
    disk: Option<Disk>,
    cards: Cards,
    /// As `uname -r` prints it.
    pub release: String,
    /// Whether a command had no answer; no further commands are sent then.
    pub hung: bool,
}

/// The network cards of a machine.
#[derive(Debug, Clone)]
pub(crate) enum Cards {
    /// The four of the module's header.
    Four,
    /// Virtio cards, from eth0 on, served by the vhost-user backends at these sockets.
    VhostUser(Vec<VhostUser>),
}

#[derive(Debug, Clone)]
pub(crate) struct VhostUser {
    pub socket: PathBuf,
    /// Whether packed rings are offered; split ones otherwise.
    pub packed: bool,
}

/// The emulator and its files. Ended on drop; the files are removed then unless the thread panics.
struct Machine {
    qemu: Child,
    place: PathBuf,
}

/// The result of a command in the guest.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its exit status, as in a shell.
    pub status: i32,
    /// Its output, with standard error.
    pub text: String,
}

fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("napkin-vm")
}

/// Runs a program, which must succeed, and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("it can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {errors}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

impl Vm {
    /// Boots a kernel by Debian's version, as in `7.3-rt`, and sets up its cards.
    pub(crate) fn boot(version: &str) -> Vm {
        Vm::of(version, None, &Cards::Four)
    }

    /// As [`Vm::boot`], with other cards, which have no addresses yet.
    pub(crate) fn boot_with(version: &str, cards: &Cards) -> Vm {
        Vm::of(version, None, cards)
    }

    /// As [`Vm::boot`], with a disk, whose units do the set-up.
    pub(crate) fn boot_from(version: &str, disk: fn(&Path) -> Disk) -> Vm {
        Vm::of(version, Some(disk), &Cards::Four)
    }

    fn of(version: &str, disk: Option<fn(&Path) -> Disk>, cards: &Cards) -> Vm {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels");
        let fetched = Command::new(sources.join("fetch")).arg(cache()).arg(version).output();
        let fetched = fetched.expect("bash is installed");
        let why = String::from_utf8_lossy(&fetched.stderr);
        needs(fetched.status.success(), format_args!("Debian's kernel {version}: {}", why.trim()));
        let kernel = PathBuf::from(String::from_utf8_lossy(&fetched.stdout).trim_end());
        let release = fs::read_to_string(kernel.join("release")).expect("fetched");
        let mut hung = String::new();
        for _ in 0..BOOTS {
            let disk = disk.map(|make| make(&kernel));
            match Vm::start(version, &sources, &kernel, release.trim(), disk, cards) {
                Ok(vm) => return vm,
                Err(why) => hung = why,
            }
            println!("{version}: {hung}");
        }
        ignore(format_args!("needs an emulator that boots {version}: {hung}"))
    }

    /// Starts a machine. Fails if it hangs before its cards are up.
    fn start(
        version: &str,
        sources: &Path,
        kernel: &Path,
        release: &str,
        disk: Option<Disk>,
        cards: &Cards,
    ) -> Result<Vm, String> {
        // A directory for each attempt: the console of a machine that hung must not be read as this one's.
        static STARTED: AtomicUsize = AtomicUsize::new(1);
        let nth = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("napkin-vm-{}-{nth}-{version}", std::process::id());
        let place = std::env::temp_dir().join(name);
        fs::create_dir_all(&place).expect("a place");
        initrd(sources, kernel, release, &place, disk.is_some());

        let peers = Namespace::new().expect("a namespace");
        let qemu = peers
            .run(|| {
                if matches!(cards, Cards::Four) {
                    wire();
                }
                start(kernel, &place, disk.as_ref(), cards)
            })
            .expect("a thread");
        let machine = Machine { qemu, place };
        let patience = if disk.is_some() { PATIENCE_WITH_SYSTEMD } else { PATIENCE };
        let port = connect(&machine.place, machine.qemu.id(), patience)?;
        let release = release.to_owned();
        let kernel = kernel.to_owned();
        let cards = cards.clone();
        let mut vm = Vm { machine, port, peers, kernel, disk, cards, release, hung: false };
        if vm.disk.is_some() || matches!(vm.cards, Cards::VhostUser(_)) {
            vm.patience(PATIENCE);
            return Ok(vm);
        }
        vm.patience(PATIENCE_AT_BOOT);
        // All cards are on one bridge: only the card that has an address may answer ARP for it, or another card's
        // instances would get the traffic.
        let conf = "/proc/sys/net/ipv4/conf/all";
        let arp = format!("echo 1 > {conf}/arp_ignore; echo 2 > {conf}/arp_announce");
        let mut commands = vec!["uname -r".to_owned(), arp];
        commands.extend((0..4).map(|card| {
            format!("ip addr add 10.9.{card}.1/24 dev eth{card} && ip link set eth{card} up")
        }));
        for command in commands {
            let answer = vm.sh(&command);
            if vm.hung {
                return Err(answer.text);
            }
            assert_eq!(answer.status, 0, "{command}: {}", answer.text);
        }
        vm.patience(PATIENCE);
        Ok(vm)
    }

    /// Shuts the machine down by systemd, and boots from the same disk again.
    pub(crate) fn reboot(&mut self) -> Result<(), String> {
        // The machine may end before it answers.
        let _ = self.ask("systemctl reboot --no-block");
        let begun = Instant::now();
        while self.machine.qemu.try_wait().expect("a child").is_none() {
            if begun.elapsed() > PATIENCE_WITH_SYSTEMD {
                self.hung = true;
                let _ = self.machine.qemu.kill();
                return Err(format!("it does not go down; its console:\n{}", self.console()));
            }
            thread::sleep(Duration::from_millis(100));
        }
        let (place, kernel) = (&self.machine.place, &self.kernel);
        // Must not be read as the next boot's console. The emulator has removed its sockets itself.
        fs::remove_file(place.join("console")).expect("it was there");
        let (disk, cards) = (self.disk.as_ref(), &self.cards);
        self.machine.qemu = self.peers.run(|| start(kernel, place, disk, cards)).expect("a thread");
        match connect(place, self.machine.qemu.id(), PATIENCE_WITH_SYSTEMD) {
            Ok(port) => self.port = port,
            Err(why) => {
                self.hung = true;
                return Err(why);
            }
        }
        self.patience(PATIENCE);
        Ok(())
    }

    /// The last 30 lines of the console.
    fn console(&self) -> String {
        let console = fs::read(self.machine.place.join("console")).unwrap_or_default();
        let console = String::from_utf8_lossy(&console).into_owned();
        let lines: Vec<&str> = console.lines().rev().take(30).collect();
        lines.into_iter().rev().collect::<Vec<&str>>().join("\n")
    }

    /// Sets the timeout of a command's answer.
    fn patience(&mut self, patience: Duration) {
        self.port.get_ref().set_read_timeout(Some(patience)).expect("a timeout");
    }

    /// Runs a bash command in the guest; its background jobs go on. If the guest does not answer it has hung: the
    /// answer
    /// says so, and no further commands are sent.
    pub(crate) fn sh(&mut self, command: &str) -> Answer {
        if !self.hung {
            match self.ask(command) {
                Ok(answer) => return answer,
                Err(_) => {
                    self.hung = true;
                    let _ = self.machine.qemu.kill();
                }
            }
        }
        let text = format!("the guest has hung at `{command}`; its console:\n{}", self.console());
        Answer { status: 124, text }
    }

    fn ask(&mut self, command: &str) -> std::io::Result<Answer> {
        let text = format!("{}\n{command}", command.len());
        self.port.get_mut().write_all(text.as_bytes())?;
        let mut head = String::new();
        self.port.read_line(&mut head)?;
        let (status, length) = head.trim_end().split_once(' ').expect("status and length");
        let mut output = vec![0; length.parse().expect("a length")];
        self.port.read_exact(&mut output)?;
        let text = String::from_utf8_lossy(&output).trim_end().to_owned();
        Ok(Answer { status: status.parse().expect("a status"), text })
    }

    /// Runs a command, which must succeed, and returns its output.
    pub(crate) fn ok(&mut self, command: &str) -> String {
        let answer = self.sh(command);
        assert_eq!(answer.status, 0, "{command}: {}", answer.text);
        answer.text
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.place);
        }
    }
}

/// Creates a bridge with a tap for each card, in the calling thread's network namespace.
fn wire() {
    let ip = |arguments: String| run(Command::new("ip").args(arguments.split(' ')));
    ip("link add br0 type bridge".into());
    for card in 0..4 {
        let queues = if card < 2 { " multi_queue" } else { "" };
        ip(format!("tuntap add tap{card} mode tap{queues}"));
        ip(format!("link set tap{card} master br0 up"));
        ip(format!("addr add 10.9.{card}.100/24 dev br0"));
    }
    ip("link set br0 up".into());
}

/// Writes the initrd, which mounts the host's root, with the disk overlaid if there is one.
fn initrd(sources: &Path, kernel: &Path, release: &str, place: &Path, disk: bool) {
    let host = cache().join("host");
    let root = place.join("initrd");
    for folder in ["bin", "dev", "proc", "host", "modules"] {
        fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    let busybox = [host.join("bin/busybox"), host.join("usr/bin/busybox"), "/bin/busybox".into()]
        .into_iter()
        .find(|it| it.exists())
        .expect("fetched, or installed");
    fs::copy(&busybox, root.join("bin/busybox")).expect("copied");
    let mut order: Vec<String> = Vec::new();
    let mut modules = vec!["virtio_pci", "9pnet_virtio", "9p"];
    if disk {
        fs::create_dir(root.join("disk")).expect("a folder");
        modules.extend(["virtio_blk", "ext4", "overlay"]);
    }
    for module in modules {
        let shown = run(Command::new(host.join("tools/modprobe"))
            .args(["--show-depends", "-S", release, "-d"])
            .arg(kernel)
            .arg(module));
        for path in shown.lines().filter_map(|line| line.strip_prefix("insmod ")) {
            let path = Path::new(path.trim());
            let name = path.file_name().expect("a file").to_string_lossy();
            let name = name.trim_end_matches(".xz").to_owned();
            if order.contains(&name) {
                continue;
            }
            let content = match path.extension().is_some_and(|it| it == "xz") {
                true => {
                    Command::new(&busybox).arg("xzcat").arg(path).output().expect("it runs").stdout
                }
                false => fs::read(path).expect("a module"),
            };
            fs::write(root.join("modules").join(&name), content).expect("written");
            order.push(name);
        }
    }
    fs::write(root.join("modules/order"), order.join("\n")).expect("written");
    fs::copy(sources.join("init"), root.join("init")).expect("copied");
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).expect("changed");
    let exports = format!(
        "export TOOLS={} KERNEL={} MODULES='{}'\n",
        host.join("tools").display(),
        kernel.display(),
        if disk { "" } else { "virtio_net e1000e igb veth" },
    );
    let agent = fs::read_to_string(sources.join("agent")).expect("it is here");
    fs::write(root.join("agent"), exports + &agent).expect("written");
    let pack = format!("find . | {} cpio -o -H newc > ../initrd.cpio", busybox.display());
    run(Command::new("sh").args(["-ec", &pack]).current_dir(&root));
}

/// Starts the emulator in the calling thread's network namespace.
fn start(kernel: &Path, place: &Path, disk: Option<&Disk>, cards: &Cards) -> Child {
    let host = cache().join("host");
    let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|it| host.join(it));
    let mut command = Command::new(host.join("usr/bin/qemu-system-x86_64"));
    command
        .env("LD_LIBRARY_PATH", std::env::join_paths(libraries).expect("paths"))
        .env("QEMU_MODULE_DIR", host.join("usr/lib/x86_64-linux-gnu/qemu"))
        .arg("-L")
        .arg(host.join("usr/share/qemu"))
        .arg("-L")
        .arg(host.join("usr/share/seabios"))
        // Shared memory, for vhost-user backends.
        .args([
            "-object",
            "memory-backend-memfd,id=m,size=1G,share=on",
            "-M",
            "q35,memory-backend=m",
        ])
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1G"])
        .args(["-smp", &CPUS.to_string(), "-nographic", "-no-reboot", "-nodefaults"])
        .arg("-kernel")
        .arg(kernel.join("vmlinuz"))
        .arg("-initrd")
        .arg(place.join("initrd.cpio"))
        .args(["-append", "console=ttyS0 panic=-1 mitigations=off nowatchdog net.ifnames=0 quiet"])
        .arg("-serial")
        .arg(format!("file:{}", place.join("console").display()))
        .args(["-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"])
        .args(["-device", "virtio-9p-pci,fsdev=root,mount_tag=root"])
        .args([
            "-device",
            "virtio-serial-pci",
            "-device",
            "virtserialport,chardev=agent,name=agent",
        ])
        .arg("-chardev")
        .arg(format!("socket,id=agent,path={},server=on,wait=off", place.join("agent").display()));
    if let Some(disk) = disk {
        let drive = format!("if=virtio,format=raw,file={}", disk.image().display());
        command.arg("-drive").arg(drive);
    }
    match cards {
        Cards::Four => four_cards(&mut command),
        Cards::VhostUser(all) => vhost_user_cards(&mut command, all),
    }
    let log = fs::File::create(place.join("qemu.log")).expect("a file");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("fetched")
}

fn four_cards(command: &mut Command) {
    for (card, model) in ["virtio-net-pci", "virtio-net-pci", "e1000e", "igb"].iter().enumerate() {
        let virtio = card < 2;
        let queues = if virtio { format!(",queues={QUEUES}") } else { String::new() };
        let vectors = match card {
            0 => format!(",mq=on,vectors={}", 2 * QUEUES + 2),
            // Too few vectors for one per queue: all queues share one.
            1 => ",mq=on,vectors=2".to_owned(),
            _ => String::new(),
        };
        command
            .arg("-netdev")
            .arg(format!("tap,id=n{card},ifname=tap{card},script=no,downscript=no{queues}"))
            .arg("-device")
            .arg(format!("{model},netdev=n{card},mac=52:54:00:00:00:0{card},romfile={vectors}"));
    }
}

fn vhost_user_cards(command: &mut Command, cards: &[VhostUser]) {
    for (card, VhostUser { socket, packed }) in cards.iter().enumerate() {
        let socket = socket.display();
        let packed = if *packed { "on" } else { "off" };
        command
            .arg("-chardev")
            .arg(format!("socket,id=c{card},path={socket},reconnect-ms=500"))
            .arg("-netdev")
            .arg(format!("vhost-user,id=n{card},chardev=c{card}"))
            .arg("-device")
            .arg(format!(
                "virtio-net-pci,netdev=n{card},mac=52:54:00:00:01:0{card},romfile=,packed={packed}"
            ));
    }
}

/// Connects to the agent's port, once it listens.
fn connect(place: &Path, qemu: u32, patience: Duration) -> Result<BufReader<UnixStream>, String> {
    let console = place.join("console");
    let begun = Instant::now();
    loop {
        let output = fs::read(&console).unwrap_or_default();
        if String::from_utf8_lossy(&output).contains("the agent listens") {
            break;
        }
        let alive =
            fs::read_to_string(format!("/proc/{qemu}/stat")).is_ok_and(|it| !it.contains(") Z"));
        if !alive || begun.elapsed() > patience {
            let log = fs::read_to_string(place.join("qemu.log")).unwrap_or_default();
            let output = String::from_utf8_lossy(&output);
            return Err(format!("no guest after {:.0?}: {log}{output}", begun.elapsed()));
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(BufReader::new(UnixStream::connect(place.join("agent")).expect("it listens")))
}
