//! A guest's own disk, with napkin installed as by its package, and the systemd units that run there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use napkin_testing::needs;

/// The host's systemd, and its program that creates a populated file system without mounting it.
const SYSTEMD: &str = "/lib/systemd/systemd";
const MKE2FS: &str = "/sbin/mke2fs";

/// Units masked in the guest: those that a machine without screen, users and a second disk does not need, those that
/// would clean up the host's `/tmp`, and udev, which would rename the card while it is up.
const MASKED: [&str; 22] = [
    "dbus.service",
    "dbus.socket",
    "getty.target",
    "systemd-binfmt.service",
    "systemd-firstboot.service",
    "systemd-journal-flush.service",
    "systemd-logind.service",
    "systemd-machine-id-commit.service",
    "systemd-modules-load.service",
    "systemd-random-seed.service",
    "systemd-remount-fs.service",
    "systemd-sysusers.service",
    "systemd-tmpfiles-clean.timer",
    "systemd-tmpfiles-setup-dev.service",
    "systemd-tmpfiles-setup.service",
    "systemd-udev-trigger.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-udevd.service",
    "systemd-update-utmp.service",
    "systemd-user-sessions.service",
    "timers.target",
];

/// The unit of the tests' agent, without dependencies.
const AGENT: &str = "\
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/bin/bash /run/agent
";

/// A disk image, removed on drop.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// A disk with `napkin.service` as packaged and not enabled, and a unit for the card without ordering to or from
    /// it.
    /// `kernel` is the directory of the kernel's modules.
    pub(crate) fn with_napkin(kernel: &Path) -> Disk {
        for file in [SYSTEMD, MKE2FS] {
            needs(Path::new(file).exists(), file);
        }
        static MADE: AtomicUsize = AtomicUsize::new(1);
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("napkin-disk-{}-{nth}", std::process::id());
        let disk = Disk(std::env::temp_dir().join(name));
        let files = disk.0.join("files");
        let (upper, units) = (files.join("upper"), files.join("units"));
        let [programs, packaged] = ["usr/bin", "usr/lib/systemd/system"].map(|it| upper.join(it));
        let wanted = units.join("multi-user.target.wants");
        for folder in [&programs, &packaged, &wanted, &files.join("work")] {
            fs::create_dir_all(folder).expect("a folder");
        }
        fs::copy(env!("CARGO_BIN_EXE_napkin"), programs.join("napkin")).expect("it is built");
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/napkin.service");
        fs::copy(unit, packaged.join("napkin.service")).expect("it is here");
        for name in MASKED {
            symlink("/dev/null", units.join(name)).expect("a link");
        }
        let card = format!(
            "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nRemainAfterExit=yes\n\
             ExecStart=/bin/sh -c 'modprobe -d {} virtio_net && ip addr add 10.9.0.1/24 dev eth0 && ip link set eth0 up'\n\
             Environment=PATH={}:/usr/sbin:/usr/bin:/sbin:/bin\n",
            kernel.display(),
            kernel.join("../../host/tools").display(),
        );
        for (name, content) in [("agent.service", AGENT), ("card.service", &card)] {
            fs::write(units.join(name), content).expect("written");
            symlink(format!("../{name}"), wanted.join(name)).expect("a link");
        }
        let mut make = Command::new(MKE2FS);
        make.args(["-q", "-t", "ext4", "-d"]).arg(&files).arg(disk.image()).arg("2G");
        let made = make.output().expect("it can be started");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        disk
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.0.join("image")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
