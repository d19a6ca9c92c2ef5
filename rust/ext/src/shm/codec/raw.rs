//! The one place of the extension that goes without the compiler's check.
//!
//! Memory of Python objects is copied from while the interpreter's lock is not held: a large array
//! would stop every other thread of the program for as long as it takes. And torch shows its memory
//! by address only.

#![expect(
    unsafe_code,
    reason = "Python exposes addresses and reference counts; this module reads through them"
)]

use std::ptr::NonNull;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::ffi;
use pyo3::prelude::*;

use super::tensors::Dense;

/// What keeps the memory where it is.
#[expect(dead_code, reason = "it is only kept alive, never read")]
enum Owner {
    /// The export of a buffer: its object neither frees nor moves the memory before it ends.
    Buffer(PyUntypedBuffer),
    /// A tensor, which owns its storage.
    Tensor(Py<PyAny>),
}

/// Memory that stays where it is as long as this lives.
pub(crate) struct Pinned {
    _owner: Owner,
    address: usize,
    len: usize,
}

impl Pinned {
    /// The memory of a buffer; None if it does not lie in one piece.
    pub(crate) fn buffer(buffer: PyUntypedBuffer) -> Option<Self> {
        if !buffer.is_c_contiguous() && !buffer.is_fortran_contiguous() {
            return None;
        }
        Some(Self {
            address: buffer.buf_ptr().expose_provenance(),
            len: buffer.len_bytes(),
            _owner: Owner::Buffer(buffer),
        })
    }

    /// The memory of a tensor; None if torch does not tell where it is.
    pub(super) fn tensor(dense: &Dense<'_>) -> Option<Self> {
        let (tensor, address, len) = (dense.tensor(), dense.address().ok()?, dense.len());
        if address == 0 && len > 0 {
            return None;
        }
        Some(Self {
            _owner: Owner::Tensor(tensor.clone().unbind()),
            address,
            len,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bytes. They must not change before the copy is made, as with any operation of numpy or
    /// torch that runs beside other threads: who writes there meanwhile sends a mixture.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        let start = std::ptr::with_exposed_provenance(self.address);
        // SAFETY: `start` and `len` come either from a contiguous buffer that is exported as long
        // as `_owner` lives, or from a tensor that `Dense` found to be strided, contiguous and in
        // the CPU's memory, of `len` bytes, and that `_owner` keeps alive: so many bytes can be
        // read there, and neither is null (an empty one has been answered above). Every byte is a
        // valid u8. The slice lives no longer than `self`, is only copied from, and nothing is
        // decided by its contents, so that a program that writes to its own array meanwhile, or
        // resizes a tensor's storage while it is being put, races with a copy as it would with
        // numpy's and torch's own.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }
}

impl Pinned {
    /// Where a part of it begins, for who lends it out as a buffer and keeps it.
    pub(crate) fn pointer(&self, at: usize, len: usize) -> Option<NonNull<u8>> {
        let end = at.checked_add(len)?;
        if end > self.len {
            return None;
        }
        NonNull::new(std::ptr::with_exposed_provenance_mut(self.address + at))
    }
}

/// How many references to an object there are.
#[inline]
pub(super) fn references(object: &Bound<'_, PyAny>) -> isize {
    // SAFETY: the pointer is that of a live object, which `object` holds, with the interpreter's
    // lock, and the count is only read.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) }
}
