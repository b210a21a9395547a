//! A wish: a policy, and the devices, queues and CPUs that it is for.

use std::path::PathBuf;

use napkin_kernel::probe::Kernel;
use napkin_linux::apply::{BackendError, Lifeline, Options, can_delay, lifelines};
use napkin_linux::support::{self, Refusal, Scope, Warning};
use napkin_os::sched::CpuList;
use napkin_policy::Policy;
use toml_edit::Value;

use crate::device_match::{Drivers, Match, Matched, matched};
use crate::unit::Unit;

/// The maximum length of a wish's name, which is its file's name without `.toml`.
const LONGEST_NAME: usize = 64;

/// The contents of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The name: the file's, without `.toml`.
    pub name: String,
    /// The file that contains it, or is to contain it.
    pub file: PathBuf,
    /// The policy. Its device part is held; its program part is for the programs of `unit`.
    pub policy: Policy,
    /// The line of the policy in the file; 0 if it was not read from one.
    pub line: usize,
    /// Selects the devices.
    pub device: Match,
    /// The receive queues whose instances are meant, in ascending order; `None` for all.
    pub queues: Option<Vec<u32>>,
    /// The interrupt and the thread of queue i go to the i-th of these CPUs, cyclically. If empty, they stay
    /// where they are.
    pub cpus: Vec<usize>,
    /// The `SCHED_FIFO` priority of the instances' threads, 1 to 99; `None` leaves their class.
    pub rt: Option<u8>,
    /// The unit whose programs get the program part of the policy while they run.
    pub unit: Option<Unit>,
    /// Whether each thread of these programs that waits for one instance is pinned to the CPU where that is
    /// polled.
    pub pin: bool,
}

impl Wish {
    /// Whether a text can be the name of a wish, and so of a file: letters, digits, `.`, `_`, `-` and `@`, no
    /// leading dot, at most 64 bytes.
    pub fn is_name(text: &str) -> bool {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
        (1..=LONGEST_NAME).contains(&text.len())
            && !text.starts_with('.')
            && text.bytes().all(plain)
    }

    /// Derives a name for a wish without one from its device match.
    pub fn default_name(device: &Match) -> String {
        let text = [&device.name, &device.driver].into_iter().flatten().next().cloned();
        let text = text.unwrap_or_else(|| device.mac_text().unwrap_or_default());
        let plain = |c: char| match c {
            '*' => 'x',
            c if c.is_ascii_alphanumeric() || "._-@".contains(c) => c,
            _ => '-',
        };
        let name: String = text.chars().map(plain).take(LONGEST_NAME).collect();
        let name = name.trim_start_matches('.');
        if name.is_empty() { "wish".into() } else { name.into() }
    }

    /// The options of `apply`: one entry for all queues, or one for each.
    pub(crate) fn options(&self) -> Vec<Options> {
        let options =
            |queue| Options { queue, cpus: self.cpus.clone(), rt: self.rt, ..Options::default() };
        match &self.queues {
            None => vec![options(None)],
            Some(queues) => queues.iter().map(|queue| options(Some(*queue))).collect(),
        }
    }

    /// Checks whether this kernel can do it, and returns warnings about parts that are not set.
    ///
    /// # Errors
    /// A [`Refusal`] names what this kernel lacks, and the nearest policy that it can do.
    pub fn check(&self) -> Result<Vec<Warning>, Refusal> {
        let scope = if self.unit.is_some() { Scope::Both } else { Scope::Device };
        support::check(&self.policy, &Kernel::probe(), scope)
    }

    /// Matching devices that carry traffic which the policy can delay and which must not be delayed by mistake.
    ///
    /// # Errors
    /// If the kernel does not answer, or sysfs does not say which devices have the driver that is asked for.
    pub fn risks(&self) -> Result<Vec<(String, Lifeline)>, BackendError> {
        let mut risks = Vec::new();
        if can_delay(&self.policy) {
            let Matched { devices, no_drivers } = matched([&self.device], &mut Drivers::new())?;
            if let Some(error) = no_drivers {
                return Err(error);
            }
            for (link, _) in devices {
                let found = lifelines(&link.name)?.into_iter();
                risks.extend(found.map(|lifeline| (link.name.clone(), lifeline)));
            }
        }
        Ok(risks)
    }

    /// Its place, as errors name it: `FILE:LINE`.
    pub fn place(&self) -> String {
        match self.line {
            0 => self.file.display().to_string(),
            line => format!("{}:{line}", self.file.display()),
        }
    }

    /// The wish in one line: `suspend20 for eth0 queues 0-3 on CPUs 2-5`.
    pub fn sentence(&self) -> String {
        let mut text = format!("{} for {}", self.policy, self.device);
        if let Some(queues) = &self.queues {
            let plural = if queues.len() == 1 { "" } else { "s" };
            text.push_str(&format!(", queue{plural} {}", queue_list(queues)));
        }
        if !self.cpus.is_empty() {
            let list = ordered(&self.cpus);
            text.push_str(&format!(
                ", on CPU{} {list}",
                if self.cpus.len() == 1 { "" } else { "s" }
            ));
        }
        if let Some(priority) = self.rt {
            text.push_str(&format!(", SCHED_FIFO {priority}"));
        }
        if let Some(unit) = &self.unit {
            let pinned = if self.pin { ", pinned" } else { "" };
            text.push_str(&format!(", and programs of {unit}{pinned}"));
        }
        text
    }

    /// The text of its file.
    pub fn to_text(&self) -> String {
        let quoted = |text: &str| Value::from(text).to_string();
        let mut text = format!(
            "# {}; held by napkin.service, see napkin-keep(1)\npolicy = {}\n",
            self.sentence().replace(|c: char| c.is_control(), " "),
            quoted(&self.policy.to_string()),
        );
        if let Some(queues) = &self.queues {
            text.push_str(&format!("queues = {}\n", quoted(&queue_list(queues))));
        }
        if !self.cpus.is_empty() {
            text.push_str(&format!("cpus = {}\n", quoted(&ordered(&self.cpus))));
        }
        if let Some(priority) = self.rt {
            text.push_str(&format!("rt = {priority}\n"));
        }
        if let Some(unit) = &self.unit {
            text.push_str(&format!("unit = {}\n", quoted(&unit.to_string())));
        }
        if self.pin {
            text.push_str("pin = true\n");
        }
        text.push_str("\n[match]\n");
        for (key, value) in [
            ("name", self.device.name.clone()),
            ("driver", self.device.driver.clone()),
            ("mac", self.device.mac_text()),
        ] {
            text.extend(value.map(|value| format!("{key} = {}\n", quoted(&value))));
        }
        text
    }
}

/// Formats queues as the kernel lists CPUs.
pub(crate) fn queue_list(queues: &[u32]) -> String {
    CpuList(queues.iter().map(|queue| *queue as usize).collect()).to_string()
}

/// Formats CPUs in the order in which queues are assigned to them: `4-7,0-3`.
fn ordered(cpus: &[usize]) -> String {
    let runs = cpus.chunk_by(|one, next| one + 1 == *next);
    runs.map(|run| CpuList(run.to_vec()).to_string()).collect::<Vec<_>>().join(",")
}
