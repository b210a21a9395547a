//! The server side of NBD, a remote disk, as in doc/proto.md of NetworkBlockDevice/nbd.
//!
//! Implemented: the fixed newstyle handshake with one export; read, write, flush, trim, write-zeroes and
//! disconnect; force unit access; simple and structured replies; several connections to the export at a time. Not
//! implemented, and not offered: TLS, block status, cache, resize, fast zeroes, unfragmented reads.
//!
//! There is one [`Nbd`] per thread, each with a handle of the same [store](BlockStore). Operations that do not
//! complete at once are answered on completion, in any order, as the protocol allows: the store wakes the thread's
//! loop, which [collects](StreamService::collect) them.

mod handshake;
pub mod memory;
mod operations;
pub mod store;
mod transmission;
mod wire;

use napkin_policy::Ns;
use napkin_stack::{Flow, TcpLimits};

pub use memory::MemoryStore;
pub use store::{Action, BlockStore, Ended, Operation, StoreError};

use crate::{Served, StreamService};
use handshake::{Handshake, Step};
use operations::Operations;
use transmission::Transmission;

/// Most bytes that one request may read or write: the maximum that the protocol lets clients assume without
/// negotiation.
pub const PAYLOAD_LIMIT: u32 = 32 << 20;
/// TCP limits for a remote disk: few connections, each with up to a megabyte or two in flight, and bulk transfers.
pub const TCP_LIMITS: TcpLimits = TcpLimits {
    connections: 256,
    half_open: 128,
    receive_buffer: u16::MAX as usize,
    send_buffer: 256 * 1_024,
    ..TcpLimits::DEFAULT
};
/// Longest name of an export in bytes.
pub const NAME_LIMIT: usize = 4_096;
/// Preferred block size in bytes (one page), as reported to clients.
const PREFERRED_BLOCK: u32 = 4_096;

/// The export offered to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    name: String,
    /// Size in bytes.
    size: u64,
    read_only: bool,
}

/// An invalid name of an export: longer than [`NAME_LIMIT`], or with a NUL in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the name of an export has at most {NAME_LIMIT} bytes, and no NUL")]
pub struct NameError;

impl Export {
    fn flags(&self) -> u16 {
        use wire::export_flags;
        let always = export_flags::HAS_FLAGS
            | export_flags::FLUSH
            | export_flags::FUA
            | export_flags::MULTI_CONN;
        match self.read_only {
            true => always | export_flags::READ_ONLY,
            false => always | export_flags::TRIM | export_flags::WRITE_ZEROES,
        }
    }

    /// Whether `name` selects this export. The empty name selects the default export, which is this one.
    fn has_name(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }
}

/// One thread's NBD server.
#[derive(Debug)]
pub struct Nbd<S> {
    export: Export,
    operations: Operations<S>,
}

/// State of a connection.
#[derive(Debug)]
pub struct Session {
    flow: Flow,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Handshake(Handshake),
    Transmission(Box<Transmission>),
}

impl<S: BlockStore> Nbd<S> {
    /// Creates a server of one export, which has the size of `store`.
    ///
    /// # Errors
    /// An invalid name.
    pub fn new(name: &str, read_only: bool, store: S) -> Result<Nbd<S>, NameError> {
        if name.len() > NAME_LIMIT || name.contains('\0') {
            return Err(NameError);
        }
        let export = Export { name: name.to_owned(), size: store.size(), read_only };
        Ok(Nbd { export, operations: Operations::on(store) })
    }

    /// The export's store.
    pub fn store(&self) -> &S {
        &self.operations.store
    }

    /// The export's store, to poll it for its own work.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.operations.store
    }
}

impl<S: BlockStore> StreamService for Nbd<S> {
    type Connection = Session;

    fn open(&mut self, flow: Flow) -> Session {
        Session { flow, stage: Stage::Handshake(Handshake::default()) }
    }

    fn proceed(&mut self, session: &mut Session, output: &mut Vec<u8>, _: Ns) -> bool {
        match &mut session.stage {
            Stage::Handshake(handshake) => {
                handshake.greet(output);
                false
            }
            Stage::Transmission(transmission) => {
                transmission.proceed(&mut self.operations, output);
                transmission.has_pending()
            }
        }
    }

    fn must_close(&self, session: &Session) -> bool {
        matches!(&session.stage, Stage::Transmission(transmission) if transmission.is_broken())
    }

    fn serve(
        &mut self,
        session: &mut Session,
        input: &[u8],
        output: &mut Vec<u8>,
        _: Ns,
    ) -> Served {
        let handshake = match &mut session.stage {
            Stage::Handshake(handshake) => handshake,
            Stage::Transmission(transmission) => {
                return transmission.serve(&self.export, input, &mut self.operations, output);
            }
        };
        match handshake.serve(&self.export, input, output) {
            Step::Took(bytes) => Served::Request(bytes),
            Step::Discarded(bytes) => Served::Continued(bytes),
            Step::More => Served::More,
            Step::Close => Served::Close,
            Step::Ready(bytes) => {
                let inbox = self.operations.inbox(session.flow);
                let transmission = Transmission::new(inbox, handshake.structured());
                session.stage = Stage::Transmission(Box::new(transmission));
                Served::Request(bytes)
            }
        }
    }

    fn collect(&mut self, look_at: &mut dyn FnMut(Flow)) {
        while let Some(flow) = self.operations.collect() {
            look_at(flow);
        }
    }

    fn submit(&mut self) {
        self.operations.submit();
    }

    fn longest_request(&self) -> usize {
        // One option, which is read as a whole; the payload of a write is taken as it arrives.
        64 * 1_024
    }
}
