//! The kernel rules of each built-in profile, compared with the changes in Linux: the table "What a kernel does
//! differently" of `docs/races.md`, for the rules that have keys.

use std::collections::BTreeSet;

use napkin_machine::profile::{Origin, Profile, Schema};

/// A release of Linux: 6.11 is `(6, 11)`, and 2.6.23 is `(2, 6)`.
type Version = (u32, u32);

/// A rule that changed: its key, and the value that the key must have for a version.
struct Rule {
    key: &'static str,
    word: fn(Version) -> &'static str,
}

fn on(yes: bool) -> &'static str {
    if yes { "on" } else { "off" }
}

/// The rules that follow from the release of Linux. No profile lies between the last release known to have one value
/// and the first known to have the other.
const RULES: [Rule; 8] = [
    Rule { key: "kernel.scheduler", word: |linux| if linux >= (6, 6) { "eevdf" } else { "cfs" } },
    Rule { key: "kernel.hrtick", word: |linux| on(linux >= (7, 1)) },
    Rule { key: "kernel.stacks-on-bound", word: |linux| on(((5, 6)..=(5, 15)).contains(&linux)) },
    Rule { key: "kernel.sync-wake-preempts", word: |linux| on(((2, 7)..(6, 19)).contains(&linux)) },
    Rule { key: "kernel.next-buddy", word: |linux| on(linux >= (6, 19)) },
    // 6.18 stable also lost it, in September 2026: no profile is of one that late.
    Rule { key: "kernel.session-polls-once-more", word: |linux| on(linux < (7, 2)) },
    // Before 6.13 there is no suspension. It was added with this rule, and 7.3 still has it.
    Rule { key: "kernel.prolongs-without-poll", word: |_| "on" },
    Rule {
        key: "kernel.inline-while-ksoftirqd",
        word: |linux| on(!((4, 9)..(6, 5)).contains(&linux)),
    },
];

fn built_in() -> impl Iterator<Item = Profile> {
    Profile::names()
        .map(|name| Profile::named(Schema::host(), name).unwrap_or_else(|error| panic!("{error}")))
}

/// Returns the version that a profile names: "Linux 6.11" in its description.
fn version(profile: &Profile) -> Version {
    let about = profile.about();
    let (_, after) = about.split_once("Linux ").unwrap_or_else(|| {
        panic!("{}: 'about' names no version of Linux: {about}", profile.name())
    });
    let mut numbers =
        after.split(|c: char| !c.is_ascii_digit()).map_while(|digits| digits.parse::<u32>().ok());
    let version = numbers.next().zip(numbers.next());
    version.unwrap_or_else(|| panic!("{}: 'Linux {after}' is no version", profile.name()))
}

#[test]
fn each_profile_follows_the_rules_of_the_kernel_that_it_names() {
    for profile in built_in() {
        let linux = version(&profile);
        for rule in RULES {
            assert_eq!(
                profile.choice(rule.key),
                (rule.word)(linux),
                "{} on {}, Linux {linux:?}",
                rule.key,
                profile.name()
            );
        }
    }
}

#[test]
fn no_kernel_has_a_preemption_model_of_another_time() {
    for profile in built_in() {
        let linux = version(&profile);
        let has_it = match profile.choice("kernel.preemption") {
            "none" | "voluntary" => linux < (7, 0),
            "lazy" => linux >= (6, 13),
            _ => true,
        };
        assert!(has_it, "{}: Linux {linux:?} has no such preemption", profile.name());
    }
}

#[test]
fn each_profile_states_its_rules_and_where_it_has_them_from() {
    let more = ["kernel.preemption", "kernel.migration-cost", "nic.gro-batch"];
    let keys: BTreeSet<&str> = RULES.iter().map(|rule| rule.key).chain(more).collect();
    for profile in built_in() {
        for constant in profile.constants() {
            let path = constant.key.path();
            if !keys.contains(path.as_str()) {
                continue;
            }
            let stated = match constant.origin {
                Origin::Source { .. } => true,
                // How a kernel was built cannot be known from its version.
                Origin::Assumed { .. } => path == "kernel.preemption",
                _ => false,
            };
            assert!(stated, "{}: {path} is not stated with a source", profile.name());
        }
    }
}
