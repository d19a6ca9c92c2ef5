//! Memory that long messages are received into.
//!
//! Fresh memory costs more than the transfer: the kernel clears each page when it is first written
//! to. So memory that is not used any more is kept for the next message of about its length.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Mutex, TryLockError};

/// Maximum number of bytes that the process keeps without use.
const MOST: usize = 256 * 1024 * 1024;
/// Maximum number of pieces.
const PIECES: usize = 16;

/// The memory that is kept, the last used last.
static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Memory with the bytes of one message, which belongs to its owner alone.
pub struct Buffer {
    /// Not used through this field while the buffer exists, but through `start`.
    memory: Vec<u8>,
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: `start` points into `memory`, which is `Send`; the buffer owns both.
#[expect(unsafe_code, reason = "a pointer is not Send by itself")]
unsafe impl Send for Buffer {}
// SAFETY: a shared buffer is only read by this type, and its pointers are used by one owner, as the
// caller of `pointer` promises.
#[expect(unsafe_code, reason = "a pointer is not Sync by itself")]
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of this many bytes, which `fill` writes; None if the system has no memory for it.
    pub(super) fn filled<E>(
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Option<Self>, E> {
        let Some(mut memory) = kept(length).or_else(|| fresh(length)) else {
            return Ok(None);
        };
        let bytes = &mut memory[..length];
        fill(bytes)?;
        Ok(Some(Self {
            start: NonNull::from(bytes).cast(),
            memory,
            length,
        }))
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of a part, for an object that exposes it as writable memory and keeps the buffer;
    /// None if it has no such part. Each part may be exposed once.
    pub fn pointer(&self, at: usize, length: usize) -> Option<NonNull<u8>> {
        let is_inside = at.checked_add(length)? <= self.length;
        // It lies inside, so nothing wraps.
        is_inside.then(|| self.start.map_addr(|start| start.saturating_add(at)))
    }

    /// Copies the bytes from `at` on; nothing if there are fewer.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        if let Some(from) = self.pointer(at, to.len()) {
            // SAFETY: `from` is followed by `to.len()` bytes of `memory`, which lives as long as
            // `self`; `to` is other memory, because nothing gives a reference to `memory`.
            #[expect(unsafe_code, reason = "the bytes may be exposed to Python meanwhile")]
            unsafe {
                from.copy_to_nonoverlapping(NonNull::from(&mut *to).cast(), to.len());
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        keep(std::mem::take(&mut self.memory));
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// Kept memory that is long enough, and not twice as long.
fn kept(length: usize) -> Option<Vec<u8>> {
    with_kept(|all| {
        let fits = |memory: &Vec<u8>| (length..=length.saturating_mul(2)).contains(&memory.len());
        let at = all.iter().rposition(fits)?;
        Some(all.remove(at))
    })
    .flatten()
}

fn fresh(length: usize) -> Option<Vec<u8>> {
    // Without this a length that the system refuses would end the process.
    Vec::<u8>::new().try_reserve_exact(length).ok()?;
    Some(vec![0; length])
}

fn keep(memory: Vec<u8>) {
    let freed = with_kept(|all| {
        let mut freed = Vec::new();
        if memory.len() > MOST {
            return vec![memory];
        }
        all.push(memory);
        let mut size: usize = all.iter().map(Vec::len).sum();
        while size > MOST || all.len() > PIECES {
            let oldest = all.remove(0);
            size -= oldest.len();
            freed.push(oldest);
        }
        freed
    });
    // Without the lock: to free much memory takes time.
    drop(freed);
}

/// Does something with the kept memory; None if another thread does. In the child of a fork that may
/// be so for ever: the thread exists in the parent only.
fn with_kept<T>(work: impl FnOnce(&mut Vec<Vec<u8>>) -> T) -> Option<T> {
    match KEPT.try_lock() {
        Ok(mut all) => Some(work(&mut all)),
        Err(TryLockError::Poisoned(all)) => Some(work(&mut all.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(byte: u8, length: usize) -> Buffer {
        let filled = Buffer::filled(length, |bytes| {
            assert_eq!(bytes.len(), length);
            bytes.fill(byte);
            Ok::<(), ()>(())
        });
        filled.expect("no error").expect("memory")
    }

    #[test]
    fn a_buffer_is_used_again_for_a_message_of_about_its_length() {
        // No other test of this process has buffers of these lengths.
        let length = 7_654_321;
        let first = filled(1, length);
        let place = first.pointer(0, length);
        let other = filled(2, length);
        assert_ne!(
            other.pointer(0, 1),
            first.pointer(0, 1),
            "the first is in use"
        );
        drop(first);
        let next = filled(3, length - 1000);
        assert_eq!(next.pointer(0, 1), place);
        let mut read = [0; 3];
        next.read(length - 1003, &mut read);
        assert_eq!(read, [3; 3]);
        drop(next);
        assert_ne!(filled(4, length / 3).pointer(0, 1), place, "it is too long");
    }

    #[test]
    fn a_part_outside_of_a_buffer_has_no_address() {
        let buffer = filled(1, 100);
        assert!(buffer.pointer(99, 1).is_some() && buffer.pointer(100, 0).is_some());
        assert!(buffer.pointer(100, 1).is_none() && buffer.pointer(usize::MAX, 2).is_none());
        let mut read = [9];
        buffer.read(100, &mut read);
        assert_eq!(read, [9]);
    }

    #[test]
    fn memory_that_the_system_does_not_have_is_refused() {
        let filled = Buffer::filled(usize::MAX / 2, |_| Ok::<(), ()>(()));
        assert!(filled.expect("no error").is_none());
    }
}
