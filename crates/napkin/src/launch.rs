//! `napkin run`.

use std::ffi::OsString;
use std::process::Command;

use napkin_linux::attach::{Exit, Lines, RunEvent};
use napkin_os::{signals::Signals, signals::end_by_signal};

use crate::attach::{SessionArgs, check_all_set, check_device_restored};
use crate::failure::{Failure, say};

/// The exit code for failures of napkin itself, as `env` and `timeout` have it.
const UNSTARTED: u8 = 125;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Starts an unmodified program under a policy: its epoll contexts (and sockets,
if the policy has options for them), those of its children too, are set from
outside as they are opened; with --dev the device is set before the program
starts, and put back after it has ended. There is no preload and no patch, so
that statically linked programs work as well.

A signal that only napkin got is passed on after 50 ms (up to 250 ms on a busy
machine); one that went to the whole process group or control group (a
terminal, timeout, systemd) has reached the program as well, and is not passed
on. Two small processes (signal-witness) let napkin tell the two cases apart.

The exit code is the program's; if a signal ended it, the same ends napkin.
127: there is no such program; 126: it cannot be executed; 125: napkin could
not start it, or the program's own code was 0 and not everything could be set
or put back. If the program leaves processes behind (a daemon), napkin stays
until the last has ended. napkin's own messages go to standard error.

Under a policy that suspends interrupts --guard watches for a queue that the
program starves; napkin attach --help explains it.

Examples:
  sudo napkin run --policy suspend20 --dev eth0 \\
      -- memcached -u memcache -t 4 -N 4
      a thread for each of four queues
  sudo napkin run --policy suspend20 --dev eth0 --cpus 2-5 --pin \\
      -- memcached -u memcache -t 4 -N 4
      each thread on the CPU that polls the packets it waits for
  napkin run --policy napibusy -q -- nginx -g 'daemon off;'
      the program only; napkin apply has set the device
  napkin run --policy base -- PROGRAM
      the same program for comparison
Then: napkin doctor $(pidof memcached), which says whether the mode is active")]
pub(crate) struct Run {
    #[command(flatten)]
    options: SessionArgs,
    /// The program and its arguments.
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<OsString>,
}

pub(crate) fn run(args: &Run) -> Result<(), Failure> {
    let options = &args.options;
    let Some((program, arguments)) = args.program.split_first() else {
        return Err(Failure::Usage("name the program".into()));
    };
    // A failure before the program has started must not look like one of its exit codes.
    let prepared = (|| -> Result<_, Failure> {
        // Signals are blocked before the first change, and passed on to the program.
        let signals = Signals::block(&Signals::FORWARDED).map_err(Failure::of)?;
        Ok((signals, options.begin(None)?))
    })();
    let (signals, mut session) = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => {
            failure.report();
            return Err(Failure::Exit(UNSTARTED));
        }
    };
    options.watch(&mut session);
    let mut lines = Lines::new(options.detail());
    let mut on_event = |event: RunEvent<'_>| match event {
        RunEvent::Event(event) => lines.line(event).iter().for_each(|line| say(line)),
        RunEvent::Remaining(count) => options.note(&format!(
            "the program has ended; waiting for what it left behind ({count} processes)"
        )),
        _ => {}
    };
    let mut command = Command::new(program);
    command.args(arguments);
    let ended = session.run(&mut command, &signals, &mut on_event);
    let end = session.end(&mut |_| {});
    let (set, device) = (check_all_set(end.unset), check_device_restored(end.device));
    // The program's own exit code takes precedence, unless it is 0.
    let left = set.map_err(Failure::report).is_err() | device.map_err(Failure::report).is_err();
    match ended {
        Ok(Exit::Code(0)) if left => Err(Failure::Exit(UNSTARTED)),
        Ok(Exit::Code(0)) => Ok(()),
        Ok(Exit::Code(code)) => Err(Failure::Exit(u8::try_from(code).unwrap_or(u8::MAX))),
        Ok(Exit::Signal(signal)) => {
            end_by_signal(signal);
            // Still alive: the signal's default action does not end a process.
            Err(Failure::Exit(128_u8.saturating_add(u8::try_from(signal).unwrap_or(0))))
        }
        Err(error) => {
            let code = error.exit_code();
            Failure::of(error).report();
            Err(Failure::Exit(code))
        }
    }
}
