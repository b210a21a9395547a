//! `napkin bench`: workloads under policies, measured.

use std::path::{Path, PathBuf};
use std::time::Duration;

use napkin_measure::report::{Report, column, file};
use napkin_policy::NamedPolicy;
use napkin_workload::machine::Plan;
use napkin_workload::{
    BenchError, Interrupt, Live, Options, Stopped, World, resumable, run, short_round,
};

use crate::attempt::{self, Attempt};
use crate::common::{Common, Setup};
use crate::failure::{Failure, print_failure, say};
use crate::machine;
use crate::outputs::Outputs;
use crate::policies::warn;
use crate::workload::Chosen;
use crate::world::worlds;

/// What follows the options in its help.
const HELP: &str = "\
Without a workload: a short round of flood-ping, udp-sink and xsk-rr on
embedded devices, in about a minute. Policies that are compared run
interleaved, each turn in an order drawn from the seed (A B C C A B ...). The
table shows medians, and for the p99 the range of the repetitions, with a = if
it overlaps the best row's: no difference is claimed then. The JSON file has
every repetition. On a shared machine trust ratios within one run, not
microseconds. A policy that needs a privilege which this user lacks gets a row
with the reason in place of figures.

Worlds: the engine runs real threads on real packets on this machine; the
machine is a model in virtual time, of hosts that you need not have (napkin
profile list); linux is this kernel's own NAPI under the real ping, a UDP
sink, Debian's memcached or an application on AF_XDP rings, over a veth
between two network namespaces that the run makes and removes (needs root).
The default world of each workload is listed at --world.
--world engine,machine runs the workload in one after the other, with the same
policies and loads, and then prints the rows side by side; FILE of --json is
then FILE.engine.json and so on. In the machine a window is virtual time,
repetitions are seeds, runs use all cores, and the same seed gives the same
bytes.

The number of measurements and their duration are printed first. Ctrl-C (or
SIGTERM) prints the results so far, with exit code 130 (143), leaves a file,
and prints the command that resumes from it; a second one ends at once. A file
is also left if the table, the figures or the page cannot be written.

Latency counts from the time at which a request was due. A percentile with
fewer than ten answers beyond it is a dash; one that requests without an answer
may exceed is a lower bound (>567 ms). If less than 99 % of the due requests
are answered, latency grows as long as the run lasts.

Above a table is what it shows; below it is a conclusion from its figures:
ratios of medians. If this host interrupted a run for long (column
interrupted), or the repetitions differ more than the policies do, it says that
it cannot tell, and why. Virtual time is not interrupted.

A table has the columns that fit on a line of the terminal (of $COLUMNS, else
of 120 characters in a pipe), the most important first; the others are named
below it. --help explains them all.

A --policy value is a list of names, unless it contains a '=': then all of it
is one policy, spelled out. So base,ksoftirqd is two policies, and
suspend20,hold=50us is one: the preset with a change. It may have a name that
is neither a key nor a preset: mine=suspend20,hold=50us.

Examples:
  napkin bench
  napkin bench xsk-rr --policy base,busypoll \\
      --policy suspend20,gro-flush-timeout=50us
  napkin bench flood-ping --policy base --policy hold1000
  sudo napkin bench flood-ping --wire tap --policy base --policy hold1000 \\
      --json ping.json
  napkin bench udp-sink --policy base,ksoftirqd,feedback --offered 0.2,1,1.8,4
  napkin bench xsk-rr --policy interrupts --policy threaded-busy-poll \\
      --rate 12000 --delay 0us
  napkin bench memcached --policy base,suspend20 --load 200k,max \\
      --json memcached.json
  napkin bench memcached --load 200k,600k,1M --report memcached.html
  napkin bench memcached --cpus 16 --queues 4 --set cost.poll=400ns \\
      --trace timeline.json
  napkin bench udp-sink --world machine --load 5000,13000,21000 --seeds 5
  napkin bench tcp-rr --world engine --policy base,threaded
  napkin bench memcached --world engine,machine --policy base,suspend20 \\
      --load 20k,max
  napkin bench ssd --world engine,machine --load 64K:2800 --cpus 0-3 \\
      --queues 3
  sudo napkin bench memcached --world engine \\
      --server napkin,kernel,memcached --load 20k,max
  sudo napkin bench memcached --world linux --policy base,defer20,suspend20 \\
      --load 20k,max";

/// The arguments of `napkin bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP, after_long_help = format!("{HELP}\n\n{}", column::explained()))]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) workload: Option<Chosen>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Checks the run in all worlds, then runs it in each and prints the tables.
pub(crate) fn bench(args: &Bench) -> Result<(), Failure> {
    let worlds = worlds(args.workload.as_ref(), &args.common)?;
    let interrupt = attempt::watch()?;
    let common = &args.common;
    let files = [common.json.as_deref(), common.modelled.trace.as_deref()];
    let mut outputs = Outputs::new(files, common.report.as_deref());
    let policies = policies(common)?;
    let Some(chosen) = &args.workload else {
        let result = short_round(common, &policies, interrupt, &mut outputs);
        return finished(result, outputs);
    };
    let several = worlds.len() > 1;
    // Check all worlds before the first run: a usage error in one must not cost a run in another.
    let ready = worlds.iter().map(|world| prepare(chosen, common, &policies, *world, several));
    let mut ready: Vec<_> = ready.collect::<Result<_, _>>()?;
    let mut resume = common.resume.as_deref();
    if let Some(path) = resume.filter(|_| several) {
        // If the file names no world, the first world reports what is wrong with it.
        let left = attempt::world_of(path, chosen.workload.name());
        let place = worlds.iter().position(|it| Some(it.name()) == left.as_deref()).unwrap_or(0);
        if place > 0 {
            let page = if common.report.is_some() { ", and are not on the page" } else { "" };
            say(&format!("continues in {}: the worlds before it are done{page}", worlds[place]));
        }
        ready.drain(..place);
    }
    check_files(&ready, common, &outputs)?;
    let mut result = Ok(());
    for (setup, run) in ready {
        // The worlds after the one that is resumed begin anew.
        let (resume, interrupt) = (resume.take(), interrupt.clone());
        let ran = match run {
            Ready::Modelled(plan) => {
                machine::bench(&plan, common, &setup, resume, interrupt, &mut outputs)
            }
            Ready::Live(run) => {
                let json = |_: &str| setup.json.clone();
                all(&[*run], common, setup.of_several, resume, interrupt, &mut outputs, json)
            }
        };
        match ran {
            Ok(()) => {}
            // A closed output does not end the run: the files of the other worlds are still wanted.
            Err(Failure::Closed) => result = Err(Failure::Closed),
            failed => {
                result = failed;
                break;
            }
        }
    }
    if result.is_ok() && several {
        result = outputs.side_by_side();
    }
    finished(result, outputs)
}

/// Fails if a file of any world cannot be written, or two of them are the same file. Each world checks its own files
/// as well, but only after the worlds before it have run.
fn check_files(
    ready: &[(Setup, Ready)],
    common: &Common,
    outputs: &Outputs<'_>,
) -> Result<(), Failure> {
    let mut files: Vec<&Path> = ready.iter().filter_map(|(it, _)| it.json.as_deref()).collect();
    // All worlds may write to standard output, one after the other.
    files.dedup();
    if ready.iter().any(|(_, run)| matches!(run, Ready::Modelled(_))) {
        files.extend(common.modelled.trace.as_deref());
    }
    outputs.check(files)
}

/// Writes the page of the results, also if the run ended early. Of two failures the run's is returned, unless it
/// is only a closed output.
fn finished(result: Result<(), Failure>, outputs: Outputs<'_>) -> Result<(), Failure> {
    let written = outputs.finish();
    match result {
        Ok(()) | Err(Failure::Closed) => written.and(result),
        failed => {
            print_failure(written);
            failed
        }
    }
}

/// A checked run in one world.
enum Ready {
    Modelled(Box<Plan<'static>>),
    Live(Box<(Box<dyn Live>, Options)>),
}

/// Prepares a run in a world.
fn prepare(
    chosen: &Chosen,
    common: &Common,
    policies: &[NamedPolicy],
    world: World,
    several: bool,
) -> Result<(Setup, Ready), Failure> {
    let Chosen { workload, given, .. } = chosen;
    let mut setup = Setup {
        policies: policies.to_vec(),
        loads: common.modelled.load.clone(),
        json: common.json.clone(),
        of_several: several.then_some(world),
    };
    if setup.policies.is_empty() {
        // Several worlds run the same policies: the engine's, if the workload runs there.
        let worlds = workload.worlds();
        let shown_world =
            if several && worlds.contains(&World::Engine) { World::Engine } else { world };
        setup.policies = NamedPolicy::all(workload.policies(shown_world));
    }
    if several {
        if setup.loads.is_empty() {
            setup.loads = workload.shared_loads().iter().map(|it| (*it).to_owned()).collect();
        }
        setup.json = setup.json.map(|path| json_of(&path, world.name()));
    }
    let live = match world {
        World::Machine => {
            let plan = machine::plan(*workload, common, &setup)?;
            return Ok((setup, Ready::Modelled(Box::new(plan))));
        }
        World::Linux => workload.linux(&setup.loads, given),
        World::Engine => workload.engine(&setup.loads, given),
    };
    let usage = |error: BenchError| Failure::Usage(error.to_string());
    let live = live.map_err(usage)?;
    let options = Options { policies: setup.policies.clone(), ..options(common) };
    run::check(&*live, &options).map_err(usage)?;
    Ok((setup, Ready::Live(Box::new((live, options)))))
}

/// Runs the short round, on the engine.
fn short_round(
    common: &Common,
    policies: &[NamedPolicy],
    interrupt: Interrupt,
    outputs: &mut Outputs<'_>,
) -> Result<(), Failure> {
    let mut round = short_round::round(&options(common), common.window);
    for (_, of_its_own) in &mut round {
        if !policies.is_empty() {
            of_its_own.policies = policies.to_vec();
        }
    }
    let json = common.json.as_deref();
    let of_each = |workload: &str| json.map(|path| json_of(path, workload));
    let resume = common.resume.as_deref();
    all(&round, common, None, resume, interrupt, outputs, of_each)
}

/// The JSON file of one workload of the short round, or of one of several worlds.
fn json_of(path: &Path, workload: &str) -> PathBuf {
    if file::is_stream(path) {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{workload}.json"));
    PathBuf::from(name)
}

/// The policies that were asked for. Prints warnings of what they will not do.
pub(crate) fn policies(common: &Common) -> Result<Vec<NamedPolicy>, Failure> {
    let mut policies = Vec::new();
    for text in &common.policies {
        policies.extend(NamedPolicy::read(text).map_err(Failure::Usage)?);
    }
    warn(&policies);
    Ok(policies)
}

fn options(common: &Common) -> Options {
    let default = Options::default();
    Options {
        repetitions: common.repetitions,
        window: common.window.unwrap_or(default.window),
        seed: common.seed,
        cpus: common.cpus.as_ref().map(|list| list.0.clone()).unwrap_or_default(),
        queues: common.modelled.queues.unwrap_or(default.queues),
        progress: !common.quiet,
        ..default
    }
}

/// Runs workloads one after the other, each with its JSON file, if any. The histograms of receive times, which are
/// long, are printed for a single workload only.
fn all(
    runs: &[(Box<dyn Live>, Options)],
    common: &Common,
    of_several: Option<World>,
    resume: Option<&Path>,
    interrupt: Interrupt,
    outputs: &mut Outputs<'_>,
    json: impl Fn(&str) -> Option<PathBuf>,
) -> Result<(), Failure> {
    for (workload, options) in runs {
        run::check(&**workload, options).map_err(|error| Failure::Usage(error.to_string()))?;
        outputs.check(json(workload.name()).as_deref())?;
    }
    let (mut steps, mut time) = (0, Duration::ZERO);
    let mut plans = serde_json::Map::new();
    for (workload, options) in runs {
        let (its_steps, its_time) = run::size(&**workload, options);
        (steps, time) = (steps + its_steps, time + its_time);
        plans.insert(workload.name().to_owned(), run::plan(&**workload, options));
    }
    let mut attempt = Attempt::new(interrupt, resume, "bench", plans.into(), steps)?;
    if !common.quiet {
        say(&attempt.size(time));
    }
    // A closed output does not end the runs: their files are still wanted.
    let mut printed = Ok(());
    for (workload, options) in runs {
        let (workload, whole) = (&**workload, runs.len() == 1);
        let json = json(workload.name());
        let name = workload.name();
        let heading = match of_several {
            Some(world) => format!("{name} in {world}"),
            None => name.to_owned(),
        };
        match outputs.announce(&heading, name) {
            Err(Failure::Closed) => printed = Err(Failure::Closed),
            announced => announced.map_err(|failure| attempt.failed(failure))?,
        }
        let mut show = |report: &Report| {
            outputs.show(&heading, &workload.columns(), report, json.as_deref(), whole)
        };
        match resumable(workload, options, &attempt.interrupt, &mut attempt.partial) {
            Ok(report) => match show(&report) {
                Err(Failure::Closed) => printed = Err(Failure::Closed),
                shown => shown.map_err(|failure| attempt.failed(failure))?,
            },
            Err(Stopped { error, report }) => {
                // Show the results from before the failure.
                if let Some(report) = report {
                    print_failure(show(&report));
                }
                return Err(match error {
                    BenchError::Interrupted(interrupted) => attempt.interrupted(interrupted),
                    BenchError::Usage(text) => Failure::Usage(text),
                    error => attempt.failed(Failure::of(error)),
                });
            }
        }
    }
    outputs.finish_run(attempt);
    printed
}

#[cfg(test)]
mod tests {
    use clap::{Args, CommandFactory};

    use super::*;
    use napkin_workload::WORKLOADS;

    #[test]
    fn help_shows_the_defaults_that_hold() {
        let mut command = Bench::augment_args(clap::Command::new("bench"));
        for workload in WORKLOADS {
            let subcommand = command.find_subcommand_mut(workload.name()).expect("it is one");
            let help = subcommand.render_long_help().to_string();
            let policies = workload.policies(workload.worlds()[0]);
            let policies: Vec<_> = policies.iter().map(ToString::to_string).collect();
            let policies = format!("Without --policy: {}", policies.join(", "));
            assert!(help.contains(&policies), "{policies}\n{help}");
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            for default in workload.settings().iter().filter_map(|it| it.default) {
                assert!(help.contains(&format!("[default: {default}]")), "{default}\n{help}");
            }
        }
    }

    #[test]
    fn only_loads_and_the_modelled_host_stand_under_their_heading() {
        let command = Bench::augment_args(clap::Command::new("bench"));
        let heading = |name: &str| {
            let arg = command.get_arguments().find(|it| it.get_long() == Some(name));
            arg.expect(name).get_help_heading()
        };
        for name in ["world", "policy", "repetitions", "window", "cpus", "json", "quiet"] {
            assert_eq!(heading(name), None, "{name}");
        }
        for name in ["load", "queues", "profile", "trace-window"] {
            assert_eq!(heading(name), Some("Load and modelled host"), "{name}");
        }
    }

    #[test]
    fn options_with_defaults_do_not_stand_in_the_way_of_others() {
        let parse = |line: &str| crate::args::Args::command().try_get_matches_from(line.split(' '));
        assert!(parse("napkin bench udp-sink --corner").is_ok());
        assert!(parse("napkin bench udp-sink --corner --offered 2").is_err());
        for huge in
            ["udp-sink --consume 2s", "udp-sink --delivery 2s", "xsk-rr --rate 1 --delay 2s"]
        {
            let error = parse(&format!("napkin bench {huge}")).unwrap_err().to_string();
            assert!(error.contains("at most 1s"), "{error}");
        }
        assert!(parse("napkin bench udp-sink --consume 1s").is_ok());
        let ports = "--device xdp:a --client-device xdp:b";
        for workload in ["flood-ping", "udp-sink", "xsk-rr", "tcp-rr", "memcached", "ssd"] {
            for wire in ["--wire xdp", "--wire vhost", ports] {
                assert!(
                    parse(&format!("napkin bench {workload} {wire}")).is_ok(),
                    "{workload} {wire}"
                );
            }
            assert!(parse(&format!("napkin bench {workload} --wire xdp {ports}")).is_err());
        }
        assert!(parse("napkin bench xsk-rr").is_ok());
        assert!(parse("napkin bench xsk-rr --delay 1us").is_err(), "a delay goes with a rate");
    }
}
