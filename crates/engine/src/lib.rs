//! The engine (world 1): the core on real threads and real packets.
//!
//! User space has no hard interrupts, so the engine has the shape of a fully threaded kernel: every
//! context is a thread that the operating system schedules, and every tool knows it (`ps -L`,
//! `top -H`, `taskset`, `chrt`, `perf`).
//!
//! | thread | what it does |
//! |---|---|
//! | `irq/<cpu>` | waits on the queues' interrupts and the timers of a CPU; runs softirqs inline, within the kernel's limits; real-time if the process may |
//! | `ksoftirqd/<cpu>` | takes over where those limits end, or where the policy says so |
//! | `napi/<dev>-<id>` | polls one instance (threaded, and threaded busy poll) |
//! | `kworker/u:<n>` | polls the next instance of the pool (workqueue) |
//! | the application's | waits in [`Epoll::wait`] or [`Blocking::wait`], and busy polls there if so configured |
//!
//! Unlike a kernel, the engine cannot see whether a thread of *another* process wants a CPU (`need_resched`). It
//! knows which threads of the application wait in the engine and which do not.
//!
//! The shortest server is on the front page of `napkin-embed`, which re-exports what it needs.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

mod activity;
mod application;
mod assembly;
mod blocking;
mod change;
mod config;
mod contexts;
pub mod control;
mod cpu;
mod drive;
mod engine;
mod epoll;
#[cfg(debug_assertions)]
pub mod fault;
#[cfg(debug_assertions)]
mod fault_point;
#[cfg(debug_assertions)]
mod invariant;
mod kick;
mod line;
mod napi_info;
mod napi_threads;
mod os;
mod parker;
mod port;
mod ready;
mod refusals;
mod relay;
mod shared;
mod slack;
mod spin;
mod sync;
mod thread;
mod timer;
mod wait_error;
mod waiter;
mod workers;

pub use activity::{Activity, Role};
pub use application::ApplicationWait;
pub use blocking::{Blocking, Poller};
pub use change::NapiChange;
pub use config::{Contexts, DeviceConfig, EngineConfig, EngineError};
pub use engine::Engine;
pub use epoll::Epoll;
pub use napi_info::NapiInfo;
pub use napkin_os::clock::now;
pub use napkin_os::sched::{self as sched, Class, Placement};
pub use ready::Event;
pub use relay::Relay;
pub use spin::Spin;
pub use wait_error::{WATCHES, WaitError};
pub use waiter::Waker;
