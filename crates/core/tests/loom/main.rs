//! Models of the core under loom: every interleaving, within a bound, of concurrent events, and each race of the
//! kernel's history re-introduced (`docs/races.md`).
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p napkin-core --release --test loom
//! ```
//! explores two preemptions a schedule (one where three actors run at once), in a few minutes on two CPUs.
//! `LOOM_MAX_PREEMPTIONS=3` explores more of every model and takes hours; name a test with it.
//! `NAPKIN_LOOM_UNBOUNDED=1` explores every schedule, which is feasible for a test like `r4`, not for all. The
//! scenes of `the_smallest_exhaustively` are always explored so. `-- --nocapture` prints each scene with the number
//! of its schedules; a scene that fails is named, and can then be run alone with `LOOM_LOG=trace LOOM_LOCATION=1`.
//!
//! Without `--cfg loom` this file is empty.
#![cfg(loom)]

mod contexts;
mod control;
mod device;
mod neighbours;
mod pairs;
mod races;
mod scene;
mod world;
