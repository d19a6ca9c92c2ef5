//! A file mapped into this process, and views of it.
//!
//! The contents may change at any time, because other processes write them. So a view consists of
//! atomics only (the trait [`Shared`]), and bytes are only copied in and out, by a process that has
//! them to itself: a producer that fills its block, or a consumer that has its message on loan.

#![expect(
    unsafe_code,
    reason = "mapping memory, and reading what is mapped, is what this module is for"
)]

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::ring::descriptor::{Descriptor, Participant};
use crate::ring::header::Header;
use crate::segment::layout;
use crate::sync::{AtomicU32, AtomicU64};

/// A type that may lie in memory that other processes write.
///
/// # Safety
///
/// The type is `repr(C)` or `repr(transparent)`, every bit pattern is a value of it, and it
/// consists of atomics only, so that a reference to it may exist while others write.
pub unsafe trait Shared: Sync {}

// SAFETY: it is an atomic and nothing else.
unsafe impl Shared for AtomicU32 {}
// SAFETY: it is an atomic and nothing else.
unsafe impl Shared for AtomicU64 {}
// SAFETY: `repr(C)`, and its fields are padded atomics.
unsafe impl Shared for Header {}
// SAFETY: `repr(C)`, and its fields are atomics.
unsafe impl Shared for Descriptor {}
// SAFETY: `repr(C)`, and its fields are atomics.
unsafe impl Shared for Participant {}

// SAFETY: `repr(C)`, and its fields are padded atomics; the padding is never read.
unsafe impl Shared for layout::Superblock {}
// SAFETY: `repr(C)`, and its fields are atomics.
unsafe impl Shared for layout::Process {}
// SAFETY: `repr(transparent)` over an atomic.
unsafe impl Shared for layout::Chunk {}
// SAFETY: `repr(C)`, and its fields are atomics.
unsafe impl Shared for layout::Extent {}
// SAFETY: `repr(C)`, and its fields are atomics.
unsafe impl Shared for layout::QueueEntry {}

/// A range that does not lie in a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// Where the range begins.
    pub offset: u64,
    /// Length of the range.
    pub length: u64,
    /// Length of the mapping.
    pub mapped: u64,
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            offset,
            length,
            mapped,
        } = self;
        write!(
            f,
            "{length} bytes at {offset} are not within the {mapped} that are mapped, or not aligned"
        )
    }
}

impl std::error::Error for Outside {}

/// A mapped file; it stays mapped, at the same address and with the same length, until this is
/// dropped.
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory belongs to no thread, and this type gives references to atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `length` bytes of a file for reading and writing, shared with all that map
    /// it.
    ///
    /// The file must have at least this length: a process that touches a page behind its end is
    /// killed.
    ///
    /// # Errors
    ///
    /// The system's error: no address space, a length of 0.
    pub fn new(file: impl AsFd, length: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that nothing else has.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let start = NonNull::new(start.cast())
            .ok_or_else(|| io::Error::other("the system mapped a file at address 0"))?;
        let mapping = Self { start, length };
        // The mapping would only make core dumps huge. A system that does not know the advice
        // writes it to them.
        let _ = mapping.advise(Advice::LinuxDontDump);
        Ok(mapping)
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is this mapping, and both advices that are used keep its contents.
        unsafe { madvise(self.start.as_ptr().cast(), self.length, advice) }?;
        Ok(())
    }

    /// Makes all its pages present, writable and warm, as far as the system can.
    ///
    /// Writing to fresh pages is nine times slower than to warm ones, so a producer does this once
    /// for each extent. The file must be allocated. Linux before 5.14 cannot do it, and the first
    /// writes stay slow.
    pub fn populate(&self) {
        let _ = self.advise(Advice::LinuxPopulateWrite);
    }

    /// Number of bytes that are mapped.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no bytes are mapped; never true.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn within(&self, offset: u64, length: u64, align: usize) -> Result<NonNull<u8>, Outside> {
        let mapped = self.length as u64;
        let outside = Outside {
            offset,
            length,
            mapped,
        };
        let end = offset.checked_add(length).ok_or(outside)?;
        let at = usize::try_from(offset).map_err(|_| outside)?;
        if end > mapped || at % align != 0 {
            return Err(outside);
        }
        // SAFETY: `at` is within the mapping, or right behind its end for a length of 0. The
        // mapping begins at a page, so an offset that is aligned gives an address that is aligned.
        Ok(unsafe { self.start.add(at) })
    }

    /// A view of the value at an offset.
    ///
    /// # Errors
    ///
    /// If it does not lie in the mapping, or the offset is not aligned for it.
    pub fn view<T: Shared>(&self, offset: u64) -> Result<&T, Outside> {
        let at = self.within(offset, size_of::<T>() as u64, align_of::<T>())?;
        // SAFETY: it lies in the mapping, which outlives the reference; it is aligned; and by
        // `Shared` any bits are a value, and writes by others are writes to atomics.
        Ok(unsafe { at.cast::<T>().as_ref() })
    }

    /// A view of `count` values in a row.
    ///
    /// # Errors
    ///
    /// Same as `view`.
    pub fn views<T: Shared>(&self, offset: u64, count: usize) -> Result<&[T], Outside> {
        let length = (count as u64).saturating_mul(size_of::<T>() as u64);
        let at = self.within(offset, length, align_of::<T>())?;
        // SAFETY: as in `view`, for each of them.
        Ok(unsafe { std::slice::from_raw_parts(at.cast::<T>().as_ptr(), count) })
    }

    /// Copies bytes into a part of the mapping that the caller has to itself.
    ///
    /// # Errors
    ///
    /// If they do not lie in the mapping.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Outside> {
        let at = self.within(offset, bytes.len() as u64, 1)?;
        // SAFETY: the part lies in the mapping; `bytes` is memory of this process that nothing writes
        // meanwhile, so the two do not overlap. A process that writes to this part at the same time
        // breaks the protocol and spoils these bytes, which have no meaning to this module.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes out of the mapping.
    ///
    /// # Errors
    ///
    /// If they do not lie in the mapping.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Outside> {
        let at = self.within(offset, to.len() as u64, 1)?;
        // SAFETY: as in `write`, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Address of a part in this process: for a caller that exports it as a buffer and keeps the
    /// mapping.
    ///
    /// # Errors
    ///
    /// If it does not lie in the mapping.
    pub fn pointer(&self, offset: u64, length: u64) -> Result<NonNull<u8>, Outside> {
        self.within(offset, length, 1)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one, and no view outlives it. The call fails only for an
        // address that was never mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    fn mapped(length: usize) -> Mapping {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(length as u64).expect("this length");
        Mapping::new(&file, length).expect("mapped")
    }

    #[test]
    fn written_bytes_are_read_and_visible_as_atomics() {
        let mapping = mapped(4096);
        mapping.write(8, &7_u64.to_ne_bytes()).expect("inside");
        let word: &AtomicU64 = mapping.view(8).expect("inside");
        assert_eq!(word.load(Ordering::Relaxed), 7);
        word.store(9, Ordering::Relaxed);
        let mut bytes = [0; 8];
        mapping.read(8, &mut bytes).expect("inside");
        assert_eq!(u64::from_ne_bytes(bytes), 9);
    }

    #[test]
    fn nothing_outside_or_askew_is_given_out() {
        let mapping = mapped(4096);
        assert!(mapping.view::<AtomicU64>(4096).is_err());
        assert!(mapping.view::<AtomicU64>(4092).is_err());
        assert!(mapping.view::<AtomicU64>(4).is_err(), "not aligned");
        assert!(mapping.view::<AtomicU64>(u64::MAX - 3).is_err(), "wraps");
        assert!(mapping.views::<AtomicU64>(0, 513).is_err());
        assert!(mapping.views::<AtomicU64>(0, usize::MAX).is_err());
        assert!(mapping.views::<AtomicU64>(4096, 0).is_ok());
        assert!(mapping.write(4000, &[0; 97]).is_err());
        assert!(mapping.read(4095, &mut [0; 2]).is_err());
        assert!(mapping.pointer(1, 4096).is_err());
    }

    #[test]
    fn an_empty_mapping_is_refused() {
        let file = tempfile::tempfile().expect("a file");
        assert!(Mapping::new(&file, 0).is_err());
    }
}
