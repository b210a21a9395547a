//! A wish that is in force after a reboot, with napkin installed as by its package, under systemd.

use super::cases::Outcome;
use super::disk::Disk;
use super::guest::Guest;
use super::vm::Vm;
use super::{attempt, case_wanted, wanted};

use napkin_testing::{needs, test};

const DEV: &str = "eth0";

impl Guest {
    /// Waits until the card is up and this boot's keeper has read its wishes.
    fn settled(&mut self) -> Outcome {
        self.does(
            "for try in $(seq 1200); do \
               systemctl -q is-active card napkin && exit 0; sleep 0.1; \
             done; systemctl --no-pager status card napkin; exit 1",
        )
    }

    /// Waits until `napkin keep --list` says that all wishes are in force.
    fn held(&mut self) -> Outcome {
        self.does(
            "for try in $(seq 600); do \
               /usr/bin/napkin keep --list > /run/list 2>&1 && exit 0; sleep 0.1; \
             done; cat /run/list; journalctl --no-pager -u napkin; exit 1",
        )
    }

    /// Reboots, and returns the new boot id.
    fn reboot(&mut self) -> Outcome {
        let boot = "cat /proc/sys/kernel/random/boot_id";
        let before = self.does(boot)?;
        self.vm.reboot()?;
        let after = self.does(boot)?;
        assert_ne!(after, before, "another boot");
        self.settled()
    }
}

/// The wish is held, held after a reboot, then removed, and absent after another reboot.
fn over_reboots(guest: &mut Guest) -> Outcome {
    guest.does("systemctl enable --now napkin")?;
    guest.settled()?;
    let defaults = guest.set(DEV);

    guest.does(&format!("/usr/bin/napkin keep suspend20 --dev {DEV} --name w --yes"))?;
    guest.held()?;
    let wished = guest.set(DEV);
    assert_ne!(wished, defaults);

    // No command to napkin in between: the boot alone must put the wish in force.
    guest.reboot()?;
    guest.held()?;
    assert_eq!(guest.set(DEV), wished);

    guest.does("/usr/bin/napkin unkeep w")?;
    assert_eq!(guest.set(DEV), defaults);
    guest.reboot()?;
    assert_eq!(guest.set(DEV), defaults);
    Ok("in force again after a reboot; the defaults after unkeep, and after another one".into())
}

#[test]
fn a_wish_is_in_force_after_a_reboot_and_not_after_it_was_taken_back_on_debian_7_2() {
    wanted("7.2");
    needs(case_wanted("reboot"), "NAPKIN_CASE with reboot, or none");
    let boot = || Guest::of(Vm::boot_from("7.2", Disk::with_napkin));
    let outcome = attempt(&mut boot(), "7.2", boot, over_reboots);
    println!("7.2 | virtio_net | reboot | {}", outcome.expect("as it says"));
}
