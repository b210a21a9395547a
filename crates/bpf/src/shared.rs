//! An array of 64-bit words that programs and this process share: it is read and written here as memory,
//! without a system call.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::call::create_mappable;

/// The only value of an array map (`BPF_F_MMAPABLE`, Linux 5.5), of words that are 0 at first. Programs find it by
/// [`Assembler::set_map_value`](crate::assemble::Assembler::set_map_value). It goes with the last program that uses it.
#[derive(Debug)]
pub struct SharedWords {
    descriptor: OwnedFd,
    address: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: what is shared are atomics, and the mapping belongs to the process, not to a thread of it.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Makes one of so many words, all of whose memory is taken at once; of its name the first 15 bytes count.
    ///
    /// # Errors
    /// If the kernel refuses, as without `CAP_BPF`, without memory, or with none or more than 2^28 words.
    pub fn create(words: usize, named: &str) -> io::Result<SharedWords> {
        let bytes = words.checked_mul(8).and_then(|bytes| u32::try_from(bytes).ok());
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        let descriptor = create_mappable(bytes, named)?;
        let length = words * 8;
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let at = std::ptr::null_mut();
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let address = unsafe { libc::mmap(at, length, access, shared, descriptor.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedWords { descriptor, address, words })
    }

    /// Its descriptor, for the programs that use it.
    pub fn descriptor(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    /// The words, which programs write at any time.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has as many words, begins at a page, and lives as long as `self`; nobody but programs
        // and atomics writes to it.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.words) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping of `create`, to which nobody has a reference any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.words * 8) };
    }
}
