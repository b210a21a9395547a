//! Checks whether each wish is in force, without privileges.

use std::time::{Duration, Instant};

use napkin_linux::apply::{Backend, BackendError, Linux, Target, changes};
use napkin_linux::doctor;
use napkin_linux::place::Change;
use napkin_os::rights::Right;
use serde::Serialize;

use crate::assign::assign;
use crate::device_match::{Drivers, Matched, matched};
use crate::directory::{Directory, Found};
use crate::parse::BadFile;
use crate::wish::Wish;

/// The state of a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// In force on each matching device.
    Held,
    /// Possible here, but not in force: no keeper holds it, or a device is down or missing.
    NotHeld,
    /// The wish, or a part of it, is impossible here.
    Refused,
}

impl State {
    /// Its name, as in JSON: `held`, `not-held`, `refused`.
    pub const fn name(self) -> &'static str {
        match self {
            State::Held => "held",
            State::NotHeld => "not-held",
            State::Refused => "refused",
        }
    }
}

/// A wish on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct OnDevice {
    /// The device's name.
    pub ifname: String,
    /// What cannot be had of the wish, and why.
    pub refused: Vec<String>,
    /// Why it waits: the device is down.
    pub waits: Option<String>,
    /// The settings that differ from the wish.
    pub different: Vec<Change>,
}

impl OnDevice {
    /// Why the wish is not in force on the device, a sentence for each reason.
    pub fn why(&self) -> Vec<String> {
        let mut why = self.refused.clone();
        why.extend(self.waits.clone());
        if !self.different.is_empty() {
            why.push(different(&self.ifname, &self.different));
        }
        why
    }

    /// The state of the wish on the device.
    pub fn state(&self) -> State {
        match (self.refused.is_empty(), self.waits.is_none() && self.different.is_empty()) {
            (false, _) => State::Refused,
            (true, true) => State::Held,
            (true, false) => State::NotHeld,
        }
    }
}

/// A wish and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The wish, as in its file.
    pub wish: Wish,
    /// The matching devices; empty while it waits for one.
    pub devices: Vec<OnDevice>,
    /// Why it is unknown which devices match by driver, so that there may be more.
    pub unknown: Option<String>,
    /// The name of an earlier wish that has the programs of the same unit, if any.
    pub programs_of: Option<String>,
}

impl Standing {
    /// The worst state of all its devices; refused if another wish has its unit's programs.
    pub fn state(&self) -> State {
        // On a device that may match, the state is unknown.
        let least = if self.unknown.is_some() { State::NotHeld } else { State::Held };
        let least = if self.programs_of.is_some() { State::Refused } else { least };
        let worst = self.devices.iter().map(OnDevice::state).max().unwrap_or(State::NotHeld);
        worst.max(least)
    }

    /// Whether it is held, or will be once a device is up and a keeper runs.
    pub fn can_be_held(&self) -> bool {
        !self.devices.is_empty() && self.state() != State::Refused
    }

    /// Notes on the programs of its unit, which [`state`](Standing::state) does not cover; empty for a wish
    /// without a unit. `keeper` is the process ID of the running keeper, if any.
    pub fn programs(&self, keeper: Option<u32>) -> Vec<String> {
        let Some(unit) = &self.wish.unit else { return Vec::new() };
        let mut notes =
            vec![format!("this is about the device; programs of {unit} are set while they run")];
        match unit.directory() {
            None => notes.push("there are no control groups (v2) here".into()),
            Some(group) if !group.is_dir() => {
                notes.push(format!("none of them runs: there is no {}", group.display()));
            }
            Some(_) => {}
        }
        if let Some(pid) = keeper.filter(|pid| Right::SysPtrace.held_by(*pid) == Some(false)) {
            notes.push(format!(
                "the keeper (process {pid}) lacks {}, which programs of other users take: see napkin \
                 keeper --help",
                Right::SysPtrace
            ));
        }
        notes
    }

    /// What cannot be had of it here and now, a sentence for each reason.
    pub fn refused(&self) -> Vec<String> {
        let mut why: Vec<String> = self.unit_refused().into_iter().collect();
        for refused in self.devices.iter().flat_map(|on| &on.refused) {
            if !why.contains(refused) {
                why.push(refused.clone());
            }
        }
        why
    }

    /// Why its programs are not set, if they belong to another wish.
    fn unit_refused(&self) -> Option<String> {
        Some(self.wish.unit.as_ref()?.of_another(self.programs_of.as_ref()?))
    }

    /// Whether a device differs from what is possible.
    fn is_different(&self) -> bool {
        self.devices.iter().any(|on| !on.different.is_empty())
    }

    /// Why it is not in force, a sentence for each reason.
    pub fn why(&self) -> Vec<String> {
        if self.devices.is_empty() && self.unknown.is_none() {
            return vec![format!("no device here is {}", self.wish.device)];
        }
        let all = self.unit_refused().into_iter().chain(self.unknown.clone());
        all.chain(self.devices.iter().flat_map(OnDevice::why)).collect()
    }
}

/// Describes the differences: `eth0: 3 settings are not as wished: threaded of queue 0 is ...`.
fn different(ifname: &str, changes: &[Change]) -> String {
    let count = changes.len();
    let first = changes.first().map_or_else(String::new, |change| {
        let now =
            change.old.as_ref().map_or_else(|| "not there".into(), |it| change.place.show(it));
        format!(
            "{} of {} is {now}, wished is {}",
            change.place.what(),
            change.place.subject(),
            change.place.show(&change.new)
        )
    });
    match count {
        1 => format!("{ifname}: {first}"),
        count => format!("{ifname}: {count} settings are not as wished: {first}, ..."),
    }
}

/// All wishes of a directory, and whether each is in force.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// Each wish, in the order of the files.
    pub standings: Vec<Standing>,
    /// Invalid files.
    pub bad: Vec<BadFile>,
}

impl Survey {
    /// Checks whether wishes are in force. Needs no privilege, and changes nothing.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn take(found: Found) -> Result<Survey, BackendError> {
        let standings = standings(&found.wishes)?;
        Ok(Survey { standings, bad: found.bad })
    }

    /// The state of a directory's wishes on each device, for `doctor`. Empty if the wishes or the kernel
    /// cannot be read: other commands report that.
    pub fn for_doctor(directory: &Directory) -> Vec<doctor::Wish> {
        let found = directory.read().unwrap_or_default();
        let Ok(survey) = Survey::take(found) else { return Vec::new() };
        let on_devices = survey.standings.iter().flat_map(|standing| {
            let name = format!("{} ({})", standing.wish.name, standing.wish.place());
            standing.devices.iter().map(move |on| doctor::Wish {
                ifname: Some(on.ifname.clone()),
                name: name.clone(),
                why: on.why(),
            })
        });
        let bad = survey.bad.iter().map(|bad| doctor::Wish {
            ifname: None,
            name: bad.file.display().to_string(),
            why: vec![bad.to_string()],
        });
        on_devices.chain(bad).collect()
    }

    /// The state of one wish. If a device differs, checks again until it is in force, for at most `patience`.
    /// `None` if there is no such wish.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn of(
        directory: &Directory,
        name: &str,
        patience: Duration,
    ) -> Result<Option<Standing>, BackendError> {
        let begun = Instant::now();
        loop {
            let found = directory.read().unwrap_or_default();
            let survey = Survey::take(found)?;
            let standing = survey.standings.into_iter().find(|it| it.wish.name == name);
            match standing {
                Some(standing) if standing.is_different() && begun.elapsed() < patience => {
                    std::thread::sleep(AGAIN);
                }
                standing => return Ok(standing),
            }
        }
    }
}

/// The interval between two checks of a wish.
const AGAIN: Duration = Duration::from_millis(50);

fn standings(all: &[Wish]) -> Result<Vec<Standing>, BackendError> {
    let Matched { devices, no_drivers } =
        matched(all.iter().map(|wish| &wish.device), &mut Drivers::new())?;
    let standing = |wish: &Wish| {
        let why = no_drivers.as_ref().filter(|_| wish.device.driver.is_some());
        let unknown =
            why.map(|error| format!("which devices are {} is not known: {error}", wish.device));
        let before = all.iter().take_while(|other| *other != wish);
        let has = |it: &&Wish| {
            it.unit.as_ref().zip(wish.unit.as_ref()).is_some_and(|(one, other)| one.is_same(other))
        };
        let programs_of = before.clone().find(has).map(|it| it.name.clone());
        Standing { wish: wish.clone(), devices: vec![], unknown, programs_of }
    };
    let mut standings: Vec<Standing> = all.iter().map(standing).collect();
    // Without a matching device the kernel need not be queried.
    if devices.is_empty() {
        return Ok(standings);
    }
    let mut backend = Linux::open()?;
    for (link, meant) in devices {
        let at = match backend.look(Target::Index(link.ifindex)) {
            Ok(at) => at,
            Err(error) if error.is_absent() => continue,
            Err(error) => return Err(error),
        };
        let wishes: Vec<&Wish> = meant.iter().filter_map(|place| all.get(*place)).collect();
        let assignment = assign(&wishes, &at, backend.kernel());
        for ((place, wish), share) in meant.iter().zip(wishes).zip(assignment.shares) {
            let wanted = share
                .places
                .iter()
                .filter_map(|place| Some((place.clone(), assignment.wanted.get(place)?.clone())));
            let mut on = OnDevice {
                ifname: link.name.clone(),
                refused: share.refused,
                waits: None,
                different: changes(wanted, &at),
            };
            if !at.device.up && at.device.napis.is_empty() {
                // What this kernel cannot do is reported for a device that is down, too.
                let refused = wish.check().err().map(|refusal| refusal.to_string());
                on.refused = refused.into_iter().collect();
                on.waits = Some(format!("{} is down", link.name));
                on.different = Vec::new();
            }
            if let Some(standing) = standings.get_mut(*place) {
                standing.devices.push(on);
            }
        }
    }
    Ok(standings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn of_programs_it_is_said_that_they_are_not_the_device() {
        let notes = |unit: &str| {
            let text = format!("policy = \"suspend20\"\n{unit}\n[match]\nname = \"eth0\"\n");
            let wish = Wish::parse(Path::new("/etc/napkin/a.toml"), &text).expect("a wish");
            Standing { wish, devices: vec![], unknown: None, programs_of: None }.programs(None)
        };
        assert_eq!(notes(""), [""; 0]);
        let unit = notes("unit = \"napkin-none.service\"");
        let [what, why] = &unit[..] else { panic!("{unit:?}") };
        assert!(what.contains("programs of napkin-none.service"), "{what}");
        assert!(why.contains("none of them runs") || why.contains("no control groups"), "{why}");
    }
}
