//! Applies a policy to the kernel's NAPI below an AF_XDP device, for as long as the device is served.
//!
//! One policy acts on two levels. If it defers interrupts, so does the kernel's NAPI of the device's queues
//! (`napi_defer_hard_irqs`, `gro_flush_timeout`); if it busy polls, that NAPI is polled from here. As with `napkin
//! apply`, changes are journalled first and restored at the end, or after `kill -9` by `napkin restore`. A failure
//! here never keeps a device from being served; it is reported.

use napkin_kernel::settings::Setting;
use napkin_linux::apply::{Lifeline, Options, Request, Temporary, lifelines};
use napkin_nic::xdp::{BusyPoll, Xdp};
use napkin_policy::{InstancePolicy, Policy, Time, WaitsIn, effective_budget};

/// The policy's busy polling in the form of an AF_XDP socket's; `None` if the policy does not busy poll.
pub(super) fn busy_poll(policy: &Policy) -> Option<BusyPoll> {
    let Policy { epoll, application, .. } = policy;
    // Use the settings that govern the application's own waits: those of epoll, or of the socket.
    let (usecs, budget, prefer) = match policy.waits_in()? {
        WaitsIn::Epoll => (epoll.busy_poll_usecs, epoll.effective_budget(), epoll.prefer_busy_poll),
        WaitsIn::Socket => {
            let budget = effective_budget(application.socket_busy_poll_budget);
            (application.socket_busy_poll_usecs, budget, application.socket_prefer_busy_poll)
        }
    };
    // With `prefer_busy_poll` and a time of 0, epoll polls once; so does a call here.
    Some(BusyPoll { usecs: usecs.max(1), budget, prefer })
}

/// Sets the deferral below the device. Also returns a note on what was done, or why not, as the end of a sentence.
pub(super) fn defer(interface: &str, policy: &Policy, xdp: &Xdp) -> (Option<Temporary>, String) {
    let polls = busy_poll(policy).is_some();
    let below = match (polls, xdp.polled) {
        (true, true) => "; the kernel's NAPI is polled from here",
        (true, false) => {
            "; the kernel's own NAPI cannot be polled from here, as the socket has no id of it yet (since Linux \
             6.13 sockets whose frames are copied never have one, and before any only from its first frame on)"
        }
        (false, _) => "",
    };
    let instance = &policy.instance;
    if !instance.defers() {
        return (None, below.to_owned());
    }
    let without = |why: &str| (None, format!("{below}; its interrupts are not deferred{why}"));
    if polls && !xdp.polled {
        // Nothing would poll in their place: the interrupts would only be late.
        return without(" either");
    }
    let queue = match xdp.numbers[..] {
        _ if xdp.total == Some(xdp.numbers.len() as u32) => None,
        [one] => Some(one),
        _ => {
            return without(&format!(
                ": these are some queues of several, so set each: napkin apply POLICY --dev {interface} --queue N"
            ));
        }
    };
    match lifelines(interface).as_deref() {
        Ok([]) => {}
        Ok([first, ..]) => return without(&lifeline_refusal(interface, first)),
        Err(error) => return without(&format!(": {error}")),
    }
    let (defer_hard_irqs, gro_flush_timeout) =
        (instance.defer_hard_irqs, instance.gro_flush_timeout);
    let instance =
        InstancePolicy { defer_hard_irqs, gro_flush_timeout, ..InstancePolicy::default() };
    let policy = Policy { instance, ..Policy::BASE };
    // Leave `threaded` alone: a deferral does not need it changed.
    let settings = vec![Setting::DeferHardIrqs, Setting::GroFlushTimeout];
    let options = Options { queue, settings, ..Options::default() };
    match Temporary::here(&Request {
        policy: &policy,
        ifname: interface,
        options: &options,
        force: false,
    }) {
        Ok(set) => {
            let note = format!(
                "{below}; its interrupts are deferred until the end (napi_defer_hard_irqs {defer_hard_irqs}, \
                 gro_flush_timeout {})",
                Time(gro_flush_timeout)
            );
            (Some(set), note)
        }
        Err(error) => without(&format!(": {error}")),
    }
}

fn lifeline_refusal(interface: &str, lifeline: &Lifeline) -> String {
    format!(
        ": {interface} carries {lifeline} (napkin apply POLICY --dev {interface} --yes does it)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_busy_polls_the_socket_as_it_does_the_application_s() {
        let of = |text: &str| {
            let policy: Policy = text.parse().expect(text);
            busy_poll(&policy).map(|it| (it.usecs, it.budget, it.prefer))
        };
        assert_eq!(of("base"), None);
        assert_eq!(of("defer20"), None);
        let napibusy = Policy::NAPIBUSY.epoll;
        let expected = (napibusy.busy_poll_usecs, napibusy.effective_budget(), true);
        assert_eq!(of("napibusy"), Some(expected));
        assert_eq!(of("suspend20").expect("one pass").0, 1);
        assert!(of("busypoll").is_some());
        // If both parts busy poll, the one that the application waits in counts.
        let both = "napibusy,socket-busy-poll-usecs=50,socket-busy-poll-budget=5";
        assert_eq!(of(both), Some(expected));
        let separate = format!("{both},socket-poller=separate");
        assert_eq!(of(&separate), Some((50, 5, false)));
    }
}
