//! In what a workload's application waits, and what of a policy takes no part there.
//!
//! The epoll part and the application's part of a policy act where an application waits as they say. A
//! workload whose application waits otherwise, in whichever world, runs what is left of such a policy, under
//! the name of the whole: its report says so. It is not refused, since one list of policies goes to several
//! workloads.

use napkin_policy::{ApplicationPolicy, EpollPolicy, NamedPolicy, Policy};

/// In what a workload's application waits, whatever a policy asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// In nothing: no application takes part.
    Nowhere,
    /// In receive calls, with no epoll and no thread that polls beside it.
    Receive,
    /// In an epoll.
    Epoll,
    /// In what the policy says ([`Policy::waits_in`]).
    AsAsked,
}

impl Waiting {
    /// Whether a part of the policy does not happen here.
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

    /// A report's note that names those of the policies of which a part does not happen here, and says which
    /// part; `None` if there are none.
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
