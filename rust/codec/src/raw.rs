//! Unsafe access to Python memory for the codec: bytes by address, and reference counts.
//!
//! Memory of Python objects is copied while the interpreter's lock is not held: otherwise a large
//! array would stop all other threads of the program during the copy. Torch exposes its memory only
//! by address.

#![expect(
    unsafe_code,
    reason = "Python exposes addresses and reference counts; this module reads through them"
)]

use std::fmt;
use std::ptr::NonNull;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::tensors::Dense;

/// Keeps the memory alive at its address.
#[expect(dead_code, reason = "it is only kept alive, never read")]
enum Owner {
    /// The export of a buffer: its object neither frees nor moves the memory before the export
    /// ends.
    Buffer(PyUntypedBuffer),
    /// A tensor, which owns its storage.
    Tensor(Py<PyAny>),
}

/// Memory of a Python object that stays valid at its address while this value lives.
pub struct Pinned {
    _owner: Owner,
    address: usize,
    len: usize,
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned")
            .field("address", &self.address)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Pinned {
    /// The memory of a buffer; None if it is not contiguous.
    pub fn buffer(buffer: PyUntypedBuffer) -> Option<Self> {
        if !buffer.is_c_contiguous() && !buffer.is_fortran_contiguous() {
            return None;
        }
        Some(Self {
            address: buffer.buf_ptr().expose_provenance(),
            len: buffer.len_bytes(),
            _owner: Owner::Buffer(buffer),
        })
    }

    /// The memory of a tensor; None if torch does not report its address.
    pub(crate) fn tensor(dense: &Dense<'_>) -> Option<Self> {
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

    /// The number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "only its length is asked for")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes. They must not change before the copy is made, as with any operation of numpy or
    /// torch while other threads run: a thread that writes to them meanwhile makes the message a
    /// mixture.
    pub fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        let start = std::ptr::with_exposed_provenance(self.address);
        // SAFETY: `start` and `len` come either from a contiguous buffer that is exported while
        // `_owner` lives, or from a tensor that `Dense` found to be strided, contiguous and in the
        // CPU's memory, of `len` bytes, and that `_owner` keeps alive: `len` bytes can be read
        // there, and `start` is not null (an empty one returned above). Every byte is a valid u8.
        // The slice does not outlive `self`, is only copied from, and its contents decide nothing,
        // so that a program that writes to its own array meanwhile, or resizes a tensor's storage
        // during the put, races with a copy as it would with numpy's and torch's own.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }
}

impl Pinned {
    /// The address of a part of the memory, for an object that exposes it as a buffer and keeps
    /// `self`.
    pub fn pointer(&self, at: usize, len: usize) -> Option<NonNull<u8>> {
        let end = at.checked_add(len)?;
        if end > self.len {
            return None;
        }
        NonNull::new(std::ptr::with_exposed_provenance_mut(self.address + at))
    }
}

/// The reference count of an object.
#[inline]
pub(crate) fn references(object: &Bound<'_, PyAny>) -> isize {
    // SAFETY: the pointer is that of a live object, which `object` holds while the interpreter's
    // lock is held, and the count is only read.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) }
}
