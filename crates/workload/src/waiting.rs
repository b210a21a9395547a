//! The call in which a workload's application waits, and the parts of a policy that have no effect there.
//!
//! The epoll part and the application part of a policy take effect only if the application waits as they say. A
//! workload whose application waits differently runs the rest of such a policy, in any world, under the policy's
//! full name, and its report says so. The policy is not refused, because one list of policies is used for several
//! workloads.

use napkin_policy::{ApplicationPolicy, EpollPolicy, NamedPolicy, Policy};

/// The call in which a workload's application waits, whatever a policy asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// No call: no application takes part.
    Nowhere,
    /// Receive calls, without epoll and without a separate thread that polls.
    Receive,
    /// An epoll wait.
    Epoll,
    /// The call that the policy selects ([`Policy::waits_in`]).
    AsAsked,
}

impl Waiting {
    /// Whether a part of the policy has no effect here.
    fn leaves_out(self, policy: &Policy) -> bool {
        let Policy { epoll, application, .. } = policy;
        let epoll = *epoll != EpollPolicy::default();
        match self {
            Waiting::Nowhere => epoll || *application != ApplicationPolicy::default(),
            Waiting::Receive => epoll || application.spin || application.has_poller(),
            Waiting::Epoll => {
                ApplicationPolicy { spin: false, ..*application } != ApplicationPolicy::default()
            }
            Waiting::AsAsked => false,
        }
    }

    /// Returns a report's note that lists the policies with a part that has no effect here, and names the part;
    /// `None` if there are none.
    pub(crate) fn note<'p>(
        self,
        policies: impl IntoIterator<Item = &'p NamedPolicy>,
    ) -> Option<String> {
        let what = match self {
            Waiting::Nowhere => {
                "no application takes part: what these ask of one (busy polling, suspending)"
            }
            Waiting::Receive => {
                "the application waits in receive calls: what these ask of an epoll (busy polling, \
                 suspending, spinning), or of a thread that polls beside it,"
            }
            Waiting::Epoll => {
                "the application waits in an epoll: what these ask of its sockets (busy polling in \
                 receive calls, or by a thread beside it)"
            }
            Waiting::AsAsked => return None,
        };
        let policies = policies.into_iter().filter(|it| self.leaves_out(&it.policy));
        let names: Vec<&str> = policies.map(|it| it.name.as_str()).collect();
        (!names.is_empty()).then(|| {
            format!(
                "{what} does not happen here, and only the rest of them is measured: {}",
                names.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_which_a_part_does_not_happen_are_named() {
        let all = "base,hold,feedback,threaded-busy-poll,defer20,napibusy,fullbusy,suspend20,busypoll,\
                   busypoll-separate";
        let policies = NamedPolicy::read(all).expect("presets");
        let named = |waiting: Waiting| {
            let note = waiting.note(&policies)?;
            Some(note.rsplit_once(": ").expect("names follow").1.to_owned())
        };
        let all = "napibusy, fullbusy, suspend20, busypoll, busypoll-separate";
        assert_eq!(named(Waiting::Nowhere).as_deref(), Some(all));
        let others = "napibusy, fullbusy, suspend20, busypoll-separate";
        assert_eq!(named(Waiting::Receive).as_deref(), Some(others));
        assert_eq!(named(Waiting::Epoll).as_deref(), Some("busypoll, busypoll-separate"));
        assert_eq!(named(Waiting::AsAsked), None);
        let policies = NamedPolicy::all([Policy::BASE, Policy::FEEDBACK]);
        for waiting in [Waiting::Nowhere, Waiting::Receive, Waiting::Epoll] {
            assert_eq!(waiting.note(&policies), None, "{waiting:?}");
        }
    }

    #[test]
    fn an_application_that_spins_is_an_epoll_s() {
        let spins = NamedPolicy::read("spins=application=spin").expect("a policy");
        assert!(Waiting::Receive.note(&spins).is_some_and(|note| note.ends_with(": spins")));
        assert_eq!(Waiting::Epoll.note(&spins), None);
    }
}
