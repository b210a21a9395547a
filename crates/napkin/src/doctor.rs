//! `napkin doctor`.

use std::time::Duration;

use napkin_keep::{Directory, Survey};
use napkin_linux::doctor::{CHECKS, Finding, Report, Request, Status, examine, gather};
use napkin_measure::report::text::fill;
use napkin_policy::Policy;
use serde_json::json;

use crate::failure::{Failure, exit_with_answer, print, print_json};
use crate::policies::policy;
use crate::{table, units};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fault: the mode does not work, or not as its policy says. Advice: what the
published set-ups did, what costs other programs something, what has no
benefit, or what does not last. Unknown: it could not be seen; a missing
capability is named. The checks depend on the policy; napkin doctor --list
explains them.

The program is observed for a moment (--for), best under load: only activity
can be seen. Without PID: the programs that own sockets on the device. Without
--dev: the devices by which the program's sockets receive. Nothing is changed.
Root sees most. If another napkin holds the device or the program, the fix is
followed by what to do first.

Exit code: 0 without a fault, 1 with one, 2 if that is unknown, as when the
device or the program does not exist or may not be examined.

Examples:
  napkin doctor                                  every device, and who uses it
  napkin doctor $(pidof memcached)               why is suspension not active?
  napkin doctor 812 --policy suspend20           what is missing for it
  napkin doctor --dev eth0 --for 5s --json       for a script
  napkin doctor 812 --json |
      jq -r '.devices[].findings[] | select(.status == \"fault\").fix'")]
pub(crate) struct Doctor {
    /// The program, with its children.
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Examine this device only.
    #[arg(long, value_name = "DEV")]
    dev: Option<String>,
    /// The policy whose conditions are checked. [default: the one that the settings amount to]
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    policy: Option<Policy>,
    /// How long to observe the programs.
    #[arg(
        long = "for",
        value_name = "TIME",
        default_value = "500ms",
        value_parser = units::within(Duration::ZERO..=Request::LONGEST)
    )]
    window: Duration,
    /// Show the checks that are in order in full as well.
    #[arg(long)]
    all: bool,
    /// List the checks, and do nothing.
    #[arg(long, conflicts_with_all = ["pid", "dev", "policy", "all"])]
    list: bool,
    /// Print JSON instead of sentences.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Doctor) -> Result<(), Failure> {
    if args.list {
        return list(args.json);
    }
    let request = Request {
        pid: args.pid,
        ifname: args.dev.clone(),
        policy: args.policy,
        window: args.window,
        wishes: Survey::for_doctor(&Directory::here()),
    };
    let facts = gather(&request).map_err(Failure::unanswered)?;
    let reports: Vec<Report> = facts.iter().map(examine).collect();
    let faults: usize = reports.iter().map(|report| report.count(Status::Fault)).sum();
    let printed = if args.json {
        print_json(&as_json(&reports))
    } else {
        let text: Vec<String> = reports.iter().map(|report| readable(report, args.all)).collect();
        print(&text.join("\n"))
    };
    exit_with_answer((faults > 0).into(), printed)
}

fn list(json: bool) -> Result<(), Failure> {
    if json {
        let checks: Vec<_> =
            CHECKS.iter().map(|check| json!({"check": check.name, "what": check.what})).collect();
        return print_json(&json!(checks));
    }
    let rows = CHECKS.iter().map(|check| vec![check.name.to_owned(), check.what.to_owned()]);
    print(&table::wrapped(&["check", "in order if"], rows.collect()))
}

fn as_json(reports: &[Report]) -> serde_json::Value {
    let count = |status| reports.iter().map(|report| report.count(status)).sum::<usize>();
    json!({
        "devices": reports,
        "faults": count(Status::Fault),
        "advice": count(Status::Advice),
        "unknown": count(Status::Unknown),
        "ok": count(Status::Ok),
    })
}

fn readable(report: &Report, all: bool) -> String {
    let how = if report.asked { "asked for" } else { "by the settings" };
    let mut out = format!("{}: {} ({how})", report.ifname, report.policy);
    if !report.programs.is_empty() {
        out.push_str(&format!(", {}", report.programs.join(", ")));
    }
    out.push_str("\n\n");
    for finding in &report.findings {
        if all || finding.status != Status::Ok {
            out.push_str(&full(finding));
        }
    }
    let mut fine: Vec<&str> = report
        .findings
        .iter()
        .filter(|finding| finding.status == Status::Ok)
        .map(|finding| finding.check)
        .collect();
    fine.dedup();
    if !all && !fine.is_empty() {
        out.push_str(&filled("in order: ", &fine.join(", ")));
        out.push('\n');
    }
    out.push_str(&format!("{}\n", report.summary()));
    out
}

fn full(finding: &Finding) -> String {
    let Finding { check, status, what, seen, .. } = finding;
    let mut out = format!("{status:8}{check}\n{}", filled("        ", what));
    let label = if *status == Status::Unknown { "missing" } else { "seen" };
    out.push_str(&filled(&format!("{label:>7}: "), seen));
    if let Some(fix) = finding.command() {
        // Never wrapped, so that it can be copied.
        out.push_str(&format!("    fix: {fix}\n"));
    }
    out.push('\n');
    out
}

/// Characters in a line: a terminal of 80 columns.
const WIDTH: usize = 79;

/// Wraps a text, with the label before the first line and blanks before the others.
fn filled(label: &str, text: &str) -> String {
    fill(text, WIDTH, label, &" ".repeat(label.len())) + "\n"
}

#[cfg(test)]
mod tests {
    use super::filled;

    #[test]
    fn long_texts_are_broken_between_words() {
        let text = filled("seen: ", &"word ".repeat(40));
        assert!(text.lines().count() > 2, "{text}");
        assert!(text.lines().all(|line| line.len() < 80), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("      word")), "{text}");
    }
}
