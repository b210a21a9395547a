//! Finds and restores epoll contexts that were set, and are now at another descriptor.
//!
//! A context has no identity of its own. A program that moves it (`dup2` and `close`), or whose first thread ends and
//! leaves the descriptors to the others, has it at a place that the journal does not know. It is recognised by its
//! parameters: only napkin, and a program that does the same by itself, gives a context exactly these. The program's
//! contexts that had them at the first scan are remembered, so that those are left alone.

use std::collections::BTreeSet;

use crate::process_change::{ProcessChange, What};
use napkin_kernel::process::{Params, Process, ProcessError};

/// A context at a known place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) fd: i32,
    /// The original parameters; equal to `new` if the program set them itself.
    pub(super) old: Params,
    /// The parameters that were set.
    pub(super) new: Params,
    /// Whether it is no longer there: the descriptor is closed, or refers to another context.
    pub(super) lost: bool,
}

/// Returns the original parameters of a context that is found at a new place with the parameters `now`;
/// `None` if the program set those itself.
pub(super) fn old_of(fd: i32, now: Params, known: &[Known]) -> Option<Params> {
    let original = |it: &Known| (it.old != it.new).then_some(it.old);
    let fits = || known.iter().filter(|it| it.new == now);
    // The same descriptor number in another thread's table.
    if let Some(same) = fits().find(|it| it.lost && it.fd == fd) {
        return original(same);
    }
    if let Some(lost) = fits().filter(|it| it.lost).find_map(original) {
        return Some(lost);
    }
    // No context that was set is missing: this may be a second descriptor of one.
    if fits().any(|it| original(it).is_none()) { None } else { fits().find_map(original) }
}

/// Puts back the contexts of a process that are at none of the places in `changes`. `changes` holds everything known
/// about the process that is not put back yet. Returns each context with its descriptor and its original parameters.
///
/// # Errors
/// If the process has ended, or may not be reached.
pub(crate) fn restore_moved(
    process: &Process,
    changes: &[&ProcessChange],
    limit: usize,
) -> Result<Vec<What>, ProcessError> {
    let refused = |errno| process.refused("to put back an epoll context", errno);
    let mut known = Vec::new();
    let mut places = BTreeSet::new();
    for change in changes {
        let What::Epoll { tid, fd, old, new } = change.what else { continue };
        let now = match process.take_fd(tid, fd) {
            Ok(Some(taken)) => Params::get(&taken).map_err(refused)?,
            Ok(None) => None,
            // The thread has ended and left its descriptors to others.
            Err(error) if error.is_gone() => None,
            Err(error) => return Err(error),
        };
        known.push(Known { fd, old, new, lost: now != Some(new) });
        places.insert((tid, fd));
    }
    let mut back = Vec::new();
    if known.iter().all(|it| it.old == it.new) {
        return Ok(back);
    }
    for epoll in process.descriptors(limit)?.epolls() {
        if places.contains(&(epoll.tid, epoll.fd)) {
            continue;
        }
        let Some(taken) = process.take(&epoll)? else { continue };
        let Some(new) = Params::get(&taken).map_err(refused)? else { continue };
        if let Some(old) = old_of(epoll.fd, new, &known)
            && old.set(&taken).map_err(refused)?
        {
            back.push(What::Epoll { tid: epoll.tid, fd: epoll.fd, old, new });
        }
    }
    Ok(back)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usecs(busy_poll_usecs: u32) -> Params {
        Params { busy_poll_usecs, ..Params::default() }
    }

    fn known(fd: i32, old: u32, lost: bool) -> Known {
        Known { fd, old: usecs(old), new: usecs(64), lost }
    }

    #[test]
    fn a_context_at_a_new_place_has_what_the_one_had_that_is_missing() {
        let old = |known: &[Known]| old_of(100, usecs(64), known);
        assert_eq!(old(&[known(5, 7, true)]), Some(usecs(7)));
        assert_eq!(old(&[known(5, 7, true), known(100, 8, true)]), Some(usecs(8)), "its number");
        assert_eq!(old(&[known(5, 7, false)]), Some(usecs(7)), "a second descriptor");
        assert_eq!(old(&[]), None);
        assert_eq!(old_of(100, usecs(9), &[known(5, 7, true)]), None, "not what was set");
    }

    #[test]
    fn what_the_program_set_by_itself_is_left() {
        let own = |fd, lost| known(fd, 64, lost);
        let old = |known: &[Known]| old_of(100, usecs(64), known);
        assert_eq!(old(&[own(5, false), known(6, 7, false)]), None, "it may do so again");
        assert_eq!(old(&[own(100, true), known(6, 7, true)]), None, "its number");
        assert_eq!(old(&[own(5, false), known(6, 7, true)]), Some(usecs(7)), "one is missing");
    }
}
