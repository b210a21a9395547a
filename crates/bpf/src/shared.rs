//! An array of 64-bit words that BPF programs and this process share as memory, so that access here takes no system
//! call.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::call::create_mappable;

/// The only value of an array map (`BPF_F_MMAPABLE`, Linux 5.5), whose words are 0 at first. Programs get its
/// address with [`Assembler::set_map_value`](crate::assemble::Assembler::set_map_value). The kernel frees it with
/// the last program that uses it.
#[derive(Debug)]
pub struct SharedWords {
    descriptor: OwnedFd,
    address: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the shared words are atomics, and the mapping belongs to the process, not to one of its threads.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Creates an array of `words` words, allocated at once. Its name is cut after 15 bytes.
    ///
    /// # Errors
    /// If the kernel refuses: `CAP_BPF` or memory is missing, or `words` is 0 or 2^28 and above.
    pub fn create(words: usize, named: &str) -> io::Result<SharedWords> {
        let bytes = words.checked_mul(8).and_then(|bytes| u32::try_from(bytes).ok());
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        let descriptor = create_mappable(bytes, named)?;
        let length = words * 8;
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let at = std::ptr::null_mut();
        // SAFETY: this creates a new mapping at an address that the kernel chooses.
        let address = unsafe { libc::mmap(at, length, access, shared, descriptor.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedWords { descriptor, address, words })
    }

    /// The map's descriptor, for the programs that use it.
    pub fn descriptor(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    /// The words; programs may write to them at any time.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this many words, is page-aligned, and lives as long as `self`; only programs and
        // atomics write to it.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.words) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: this unmaps the mapping of `create`, to which no reference remains.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.words * 8) };
    }
}
