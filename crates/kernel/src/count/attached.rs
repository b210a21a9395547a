//! A counting program that is loaded in the kernel and attached to a hook.

use std::os::fd::OwnedFd;

use napkin_bpf::assemble::AssembleError;
use napkin_bpf::{Hook, Program, Refused, RunStats};

use super::error::{CountError, denied, read_error};

/// A program and its run statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramStats {
    /// The program's name, as `bpftool` lists it.
    pub name: &'static str,
    /// Its length in eBPF instructions. No program jumps backwards, so a run executes at most this many.
    pub instructions: usize,
    /// The number and duration of its runs.
    pub runs: RunStats,
}

/// A program in the kernel, attached to a trace point or a function.
#[derive(Debug)]
pub(super) struct Attached {
    name: &'static str,
    instructions: usize,
    /// The attachment, which ends when this is dropped; `None` while detached.
    link: Option<OwnedFd>,
    program: Program,
}

impl Attached {
    pub(super) fn new(
        name: &'static str,
        instructions: Result<Vec<u8>, AssembleError>,
        btf_id: u32,
    ) -> Result<Attached, CountError> {
        Attached::at(name, instructions, Hook::TracePoint, btf_id)
    }

    pub(super) fn at(
        name: &'static str,
        instructions: Result<Vec<u8>, AssembleError>,
        hook: Hook,
        btf_id: u32,
    ) -> Result<Attached, CountError> {
        let instructions =
            instructions.map_err(|error| CountError::Assemble { program: name, error })?;
        let program = Program::load(name, &instructions, hook, btf_id).map_err(
            |Refused { error, log }| {
                match denied(&error, "loading a tracing program") {
                    // A verifier log means that the program was refused, not the access.
                    Some(denied) if log.is_empty() => denied,
                    _ => CountError::Refused { program: name, error, log },
                }
            },
        )?;
        let instructions = instructions.len() / 8;
        let mut attached = Attached { name, instructions, link: None, program };
        attached.attach()?;
        Ok(attached)
    }

    /// Attaches the program, unless it is attached.
    pub(super) fn attach(&mut self) -> Result<(), CountError> {
        if self.link.is_none() {
            let link = self.program.attach().map_err(|error| {
                denied(&error, "attaching a tracing program").unwrap_or(CountError::Refused {
                    program: self.name,
                    error,
                    log: "it could not be attached".into(),
                })
            })?;
            self.link = Some(link);
        }
        Ok(())
    }

    /// Detaches the program and keeps it loaded.
    pub(super) fn detach(&mut self) {
        self.link = None;
    }

    pub(super) fn stats(&self) -> Result<ProgramStats, CountError> {
        let runs = self.program.stats().map_err(read_error)?;
        Ok(ProgramStats { name: self.name, instructions: self.instructions, runs })
    }
}
