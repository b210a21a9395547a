//! `napkin bench --world machine`: runs on a modelled host, and the profiles and scenarios that `napkin sweep` uses,
//! too.

use std::path::Path;

use napkin_machine::profile::Profile;
use napkin_measure::report::{Progress, Report, file};
use napkin_policy::text::quoted;
use napkin_workload::machine::perfetto;
use napkin_workload::machine::{Plan, PlanError, Scenario};
use napkin_workload::{Interrupt, WORKLOADS, Workload};

use crate::attempt::Attempt;
use crate::common::{Common, Setup};
use crate::failure::{Failure, print_failure, say};
use crate::outputs::Outputs;

/// Default warm-up before the window, in virtual nanoseconds.
const WARM_UP: u64 = 200_000_000;

/// Default window, in virtual nanoseconds.
const WINDOW: u64 = 500_000_000;

/// Reads a profile and applies changes to it. Returns it with its source: `built-in` or the file.
pub(crate) fn host(
    name: &str,
    set: &[String],
    cpus: Option<u64>,
    queues: Option<u16>,
) -> Result<(Profile, String), Failure> {
    let usage = |error: napkin_machine::profile::ProfileError| Failure::Usage(error.to_string());
    let mut profile = Profile::load(napkin_workload::schema(), name).map_err(usage)?;
    let mut changes = set.to_vec();
    changes.extend(cpus.map(|cpus| format!("processor.cpus={cpus}")));
    changes.extend(queues.map(|queues| format!("nic.queues={queues}")));
    // All at once: fewer CPUs with fewer queues must not be refused for their order.
    profile.set_texts(changes.iter().map(String::as_str)).map_err(usage)?;
    let built_in = Profile::built_in_text(name).is_some();
    Ok((profile, if built_in { "built-in".to_owned() } else { name.to_owned() }))
}

/// The workload of that name, with its scenario on a modelled host.
pub(crate) fn scenario(
    name: &str,
) -> Result<(&'static dyn Workload, &'static dyn Scenario), Failure> {
    let modelled = |workload: &&'static dyn Workload| Some((*workload, workload.machine()?));
    let mut all = WORKLOADS.iter().filter_map(modelled);
    all.clone().find(|(workload, _)| workload.name() == name).ok_or_else(|| {
        let known: Vec<&str> = all.by_ref().map(|(workload, _)| workload.name()).collect();
        Failure::Usage(format!(
            "no workload is called '{}'; the modelled host runs {}",
            quoted(name),
            known.join(", ")
        ))
    })
}

fn failure(error: PlanError, attempt: Option<&Attempt>) -> Failure {
    match (error, attempt) {
        (PlanError::Interrupted { interrupted, .. }, Some(attempt)) => {
            attempt.interrupted(interrupted)
        }
        (error, _) if error.is_usage() => Failure::Usage(error.to_string()),
        (error, _) => Failure::of(error),
    }
}

/// Builds and checks the plan of a run.
pub(crate) fn plan(
    workload: &dyn Workload,
    common: &Common,
    setup: &Setup,
) -> Result<Plan<'static>, Failure> {
    let modelled = &common.modelled;
    let Setup { policies, loads, of_several, .. } = setup;
    let (_, scenario) = scenario(workload.name())?;
    let cpus = match common.cpus.as_ref().map(|list| list.0.as_slice()) {
        // With several worlds --cpus means CPUs of this machine.
        _ if of_several.is_some() => None,
        None => None,
        Some([number]) => Some(*number as u64),
        Some(_) => {
            let text = "--cpus of a modelled host is how many it has, as in --cpus 64";
            return Err(Failure::Usage(text.to_owned()));
        }
    };
    let chosen = modelled.profile.as_deref().unwrap_or(scenario.profile());
    let (profile, source) = host(chosen, &modelled.set, cpus, modelled.queues)?;
    let loads = if loads.is_empty() { scenario.loads() } else { loads.clone() };
    let window = common.window.map(|window| u64::try_from(window.as_nanos()).unwrap_or(u64::MAX));
    let plan = Plan {
        scenario,
        profile,
        source,
        policies: policies.clone(),
        loads,
        repetitions: modelled.uncertainty.unwrap_or(common.repetitions as u64),
        drawn: modelled.uncertainty.is_some(),
        seed: common.seed,
        warm_up: modelled.warm_up.unwrap_or(WARM_UP),
        window: window.unwrap_or(WINDOW),
        jobs: modelled.jobs,
    };
    plan.check().map_err(|error| failure(error, None))?;
    Ok(plan)
}

/// Runs one workload.
pub(crate) fn bench(
    plan: &Plan<'_>,
    common: &Common,
    setup: &Setup,
    resume: Option<&Path>,
    interrupt: Interrupt,
    outputs: &mut Outputs<'_>,
) -> Result<(), Failure> {
    let (modelled, json) = (&common.modelled, setup.json.as_deref());
    let name = plan.scenario.name();
    let runs = plan.size();
    let identity = serde_json::json!({ name: plan.identity() });
    let mut attempt = Attempt::new(interrupt, resume, "bench", identity, runs)?;
    outputs.check(json.into_iter().chain(modelled.trace.as_deref()))?;
    // A timeline that cannot be written does not cost the table: the failure is returned at the end.
    let mut traced = Ok(());
    if let Some(path) = &modelled.trace {
        let window = modelled.trace_window.unwrap_or(perfetto::WINDOW);
        let timelines = plan
            .timelines(window, &attempt.interrupt)
            .map_err(|error| failure(error, Some(&attempt)))?;
        traced = file::write(path, &perfetto::json(&timelines)).map_err(Failure::of);
        if traced.is_ok() {
            say(&format!("timeline: {} (open it in https://ui.perfetto.dev)", path.display()));
        }
    }
    let progress = if common.quiet { Progress::hidden } else { Progress::new };
    let host = &plan.profile;
    let heading = format!("{name}, modelled on {}: {}", host.name(), host.about());
    let announced = outputs.announce(&heading, name);
    if Failure::is_failure(&announced) {
        return announced;
    }
    let mut show = |report: &Report| outputs.show(&heading, &plan.columns(), report, json, true);
    let Attempt { interrupt, partial, .. } = &mut attempt;
    let report = match plan.resumable(progress, interrupt, partial) {
        Ok(report) => report,
        Err(error) => {
            // Show the results from before the interruption.
            if let PlanError::Interrupted { report: Some(report), .. } = &error {
                print_failure(show(report));
            }
            return Err(failure(error, Some(&attempt)));
        }
    };
    let printed = show(&report);
    if Failure::is_failure(&printed) {
        return printed.map_err(|failure| attempt.failed(failure));
    }
    outputs.finish_run(attempt);
    traced?;
    let ran = report.rows.iter().map(|row| row.repetitions.len() as u64).sum::<u64>();
    let failed = runs.saturating_sub(ran);
    if failed > 0 {
        return Err(Failure::Failed(format!("{failed} runs failed; their rows say why")));
    }
    printed.and(announced)
}
