//! `napkin completions` and `napkin man`: what clap's own generators make of the arguments.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Arg, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::failure::{Failure, print};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  napkin completions bash > ~/.local/share/bash-completion/completions/napkin
  napkin completions zsh > ~/.zfunc/_napkin
      (with fpath+=~/.zfunc before compinit)
  napkin completions fish > ~/.config/fish/completions/napkin.fish")]
pub(crate) struct Completions {
    /// The shell to complete for.
    shell: Shell,
}

/// Prints a shell's script for a command.
pub(crate) fn completions(args: &Completions, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "napkin", &mut script);
    print(&String::from_utf8_lossy(&script))
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  napkin man ~/.local/share/man/man1 && man napkin-bench
  sudo napkin man /usr/local/share/man/man1")]
pub(crate) struct Manual {
    /// The directory; it is made if it is not there.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes a page for a command, and for each below it.
pub(crate) fn man(args: &Manual, command: Command) -> Result<(), Failure> {
    let directory = &args.directory;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    fs::create_dir_all(directory).and_then(|()| write_pages(&command, directory)).map_err(|error| {
        Failure::Failed(format!("cannot write to {}: {error}", directory.display()))
    })
}

/// The pages of a command and of those below it.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    let page = Man::new(command.clone().mut_args(with_aliases));
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    fs::write(directory.join(page.get_filename()), keep_lines(&text))?;
    command.get_subcommands().try_for_each(|below| write_pages(below, directory))
}

/// An option with its other names behind its help, as --help has them and the generator has not.
fn with_aliases(arg: Arg) -> Arg {
    let aliases = arg.get_visible_aliases().into_iter().flatten();
    let aliases: Vec<String> = aliases.map(|alias| format!("--{alias}")).collect();
    if aliases.is_empty() {
        return arg;
    }
    let es = if aliases.len() == 1 { "" } else { "es" };
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    arg.long_help(format!("{help} [alias{es}: {}]", aliases.join(", ")))
}

/// What follows the options in the help has lines and columns of its own, which the generator lets be
/// filled and justified.
fn keep_lines(page: &str) -> String {
    match page.split_once("\n.SH EXTRA\n") {
        None => page.to_owned(),
        Some((before, after)) => {
            let (extra, rest) =
                after.split_once("\n.SH ").unwrap_or((after, "SEE ALSO\nnapkin(1)"));
            format!("{before}\n.SH EXAMPLES\n.nf\n{extra}\n.fi\n.SH {rest}")
        }
    }
}
