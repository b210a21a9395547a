//! Any pass of the core, so that contexts of different kinds fit one list.

use napkin_core::{
    CpuId, Did, Disable, Enable, EpollWait, Interrupt, Kthread, Ns, Op, Pass, SocketWait, Softirq,
    TxPoll, Worker,
};

use super::device::Port;

/// One pass of some kind.
#[derive(Debug)]
pub(crate) enum Any<'a> {
    Interrupt(Interrupt<'a, Port>),
    Softirq(Softirq<'a, Port>, CpuId),
    Kthread(Kthread<'a, Port>),
    Worker(Worker<'a, Port>),
    Epoll(EpollWait<'a, Port>),
    Socket(SocketWait<'a, Port>),
    Disable(Disable<'a, Port>),
    Enable(Enable<'a, Port>),
    TxPoll(TxPoll<'a, Port>),
}

impl Pass<Port> for Any<'_> {
    fn next(&mut self, now: Ns, did: Did) -> Op {
        match self {
            Any::Interrupt(pass) => pass.next(now, did),
            Any::Softirq(pass, _) => pass.next(now, did),
            Any::Kthread(pass) => pass.next(now, did),
            Any::Worker(pass) => pass.next(now, did),
            Any::Epoll(pass) => pass.next(now, did),
            Any::Socket(pass) => pass.next(now, did),
            Any::Disable(pass) => pass.next(now, did),
            Any::Enable(pass) => pass.next(now, did),
            Any::TxPoll(pass) => pass.next(now, did),
        }
    }

    fn queue(&mut self) -> &mut Port {
        match self {
            Any::Interrupt(pass) => pass.queue(),
            Any::Softirq(pass, _) => pass.queue(),
            Any::Kthread(pass) => pass.queue(),
            Any::Worker(pass) => pass.queue(),
            Any::Epoll(pass) => pass.queue(),
            Any::Socket(pass) => pass.queue(),
            Any::Disable(pass) => pass.queue(),
            Any::Enable(pass) => pass.queue(),
            Any::TxPoll(pass) => pass.queue(),
        }
    }
}
