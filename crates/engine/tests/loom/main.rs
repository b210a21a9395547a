//! Models of the engine's own lock-free protocols: sleeping and waking, kicks, timers, ready lists, the pool's
//! workers.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p napkin-engine --release --test loom
//! ```
//! explores every interleaving, and old values of loads, within three preemptions a schedule (two
//! where three threads set timers), in less than a minute. `LOOM_MAX_PREEMPTIONS` sets another bound.
//!
//! The files under test are those that ship, compiled here a second time with loom's atomics (`sync.rs`) and with
//! stand-ins for the operating system's part (`os.rs`). A wake-up that is lost shows as a deadlock, a deadline that
//! is lost as a deadline without an alarm. Each protocol was wrong once, or could be; the wrong version is kept
//! beside the model, and must fail.
//!
//! Without `--cfg loom` this file is empty.
#![cfg(loom)]
#![allow(dead_code, unreachable_pub, reason = "the models use a part of each file")]

#[path = "../../src/kick.rs"]
mod kick;
#[path = "../../src/parker.rs"]
mod parker;
#[path = "../../src/ready.rs"]
mod ready;
#[path = "../../src/slack.rs"]
mod slack;
#[path = "../../src/timer.rs"]
mod timer;
#[path = "../../src/workers.rs"]
mod workers;

mod kicking;
mod listing;
mod os;
mod pooling;
mod sleeping;
mod sync;
mod timing;

/// Runs a model in every schedule within the usual bound.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    explore_within(3, model);
}

/// Runs a model in every schedule with that many preemptions.
fn explore_within(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(model);
}
