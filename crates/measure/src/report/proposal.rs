//! The proposals to the Linux network stack from which the policies come, with links.

use napkin_policy::{FAMILIES, PRESETS};

/// The kernel's documentation of the features that resulted.
pub const KERNEL_DOCUMENTATION: &str = "https://docs.kernel.org/networking/napi.html";

/// A published proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal {
    /// Year, by which policies and experiments refer to it.
    pub year: &'static str,
    /// Subject line.
    pub title: &'static str,
    /// Authors, as signed.
    pub by: &'static str,
    /// Link to the message with the figures, or a search for its subject in the archive.
    pub url: &'static str,
}

/// All proposals.
pub const PROPOSALS: [Proposal; 5] = [
    Proposal {
        year: "2007",
        title: "possible NAPI improvements to reduce interrupt rates for low traffic rates",
        by: "Chapman",
        url: "https://lore.kernel.org/netdev/?q=s%3A%22possible+NAPI+improvements+to+reduce+interrupt+rates%22",
    },
    Proposal {
        year: "2018",
        title: "softirq: Defer net rx/tx processing to ksoftirqd context",
        by: "Safonov",
        url: "https://lore.kernel.org/lkml/?q=s%3A%22Defer+net+rx%2Ftx+processing+to+ksoftirqd+context%22",
    },
    Proposal {
        year: "2020",
        title: "implement kthread based napi poll",
        by: "Wei Wang, after Abeni, Sowa and Fietkau",
        url: "https://lore.kernel.org/netdev/?q=s%3A%22implement+kthread+based+napi+poll%22",
    },
    Proposal {
        year: "2024",
        title: "Suspend IRQs during application busy periods",
        by: "Damato, Karsten",
        url: "https://lore.kernel.org/netdev/20240823173103.94978-1-jdamato@fastly.com/",
    },
    Proposal {
        year: "2025",
        title: "Add support to do threaded napi busy poll",
        by: "Khawaja",
        url: "https://lore.kernel.org/netdev/CAAywjhRzKLjhYkiS836Sk4pZO4-ACHzYTvRgLDw6F=4RBPM6Ew@mail.gmail.com/",
    },
];

impl Proposal {
    /// The proposal of a year.
    pub fn of_year(year: &str) -> Option<&'static Proposal> {
        PROPOSALS.iter().find(|proposal| proposal.year == year)
    }

    /// The proposal that a policy comes from, given the policy's text: that of the preset or family it starts with.
    /// `None` if it starts with neither, or did not come from a proposal.
    pub fn of_policy(policy: &str) -> Option<&'static Proposal> {
        let name = policy.split(',').next().unwrap_or(policy);
        let preset = PRESETS.iter().find(|it| it.name == name).map(|it| it.proposal);
        let by = preset.or_else(|| {
            let member = |prefix: &str| {
                let number = name.strip_prefix(prefix)?;
                number.parse::<u32>().ok()
            };
            FAMILIES.iter().find(|it| member(it.prefix).is_some()).map(|it| it.proposal)
        })?;
        Proposal::of_year(by.split(',').next().unwrap_or(by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_leads_to_its_proposal() {
        let year = |policy: &str| Proposal::of_policy(policy).map(|it| it.year);
        assert_eq!(year("hold"), Some("2007"));
        assert_eq!(year("hold1000"), Some("2007"), "a member of a family");
        assert_eq!(year("suspend20,gro-flush-timeout=50us"), Some("2024"), "with a change");
        assert_eq!(year("threaded-busy-poll"), Some("2025"));
        assert_eq!(year("base"), None, "Linux as it is");
        assert_eq!((year("holdup"), year("hold=50us")), (None, None));
    }

    #[test]
    fn every_year_of_a_preset_has_a_link() {
        for preset in PRESETS {
            let year = preset.proposal.split(',').next().unwrap_or_default();
            let old = year.parse::<u32>().is_ok_and(|year| year < 2007);
            let linked = Proposal::of_policy(preset.name).is_some();
            assert_eq!(linked, year.parse::<u32>().is_ok() && !old, "{}", preset.name);
        }
    }
}
