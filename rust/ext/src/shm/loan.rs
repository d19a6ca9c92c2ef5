//! Views of a message's memory, which the arrays made over it keep.
//!
//! Only this module and `raw.rs` of the codec have unsafe code because of Python, which has no way
//! to expose memory except by its address.

#![expect(
    unsafe_code,
    reason = "the buffer protocol hands out an address and a length"
)]

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use shoal_codec::{Payload, Pinned};
use shoal_format::Payload as _;
use shoal_lane::client::Buffer;
use shoal_shm::segment::Mapping;
use shoal_shm::session::Held;

/// Keeps memory mapped, and its bytes reserved for one owner.
pub(super) enum Owner {
    /// A message that was taken; released when nothing uses it any more.
    Taken(Arc<Held>),
    /// Memory of a message before its put, and its offset; it stays mapped afterwards.
    Draft(Arc<Mapping>, u64),
    /// An opened parcel: memory of a Python object that nothing else uses.
    Parcel(Arc<Pinned>),
    /// A message of another node.
    Received(Arc<Buffer>),
}

/// A part of a message as writable memory.
///
/// numpy and torch keep this object for as long as they use the memory.
#[pyclass(frozen, name = "ShmLoan", module = "shoal.shm")]
pub(super) struct Loan {
    owner: Owner,
    at: usize,
    len: usize,
}

impl Loan {
    pub(super) fn of(
        py: Python<'_>,
        owner: Owner,
        at: usize,
        len: usize,
    ) -> PyResult<Bound<'_, PyAny>> {
        Ok(Bound::new(py, Self { owner, at, len })?.into_any())
    }
}

#[pymethods]
impl Loan {
    fn __len__(&self) -> usize {
        self.len
    }

    /// # Safety
    ///
    /// `view` must be one that Python wants filled: only the interpreter calls this.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let Self { owner, at, len } = slf.get();
        let start = match owner {
            Owner::Taken(held) => held.pointer(*at as u64, *len as u64).ok(),
            Owner::Draft(mapping, start) => mapping.pointer(start + *at as u64, *len as u64).ok(),
            Owner::Parcel(bytes) => bytes.pointer(*at, *len),
            Owner::Received(bytes) => bytes.pointer(*at, *len),
        };
        let start = start.ok_or_else(|| PyValueError::new_err("the message has no such part"))?;
        let len = ffi::Py_ssize_t::try_from(*len)?;
        // SAFETY: Python passes a `view` to be filled, and `slf` is alive. The `len` bytes from
        // `start` on lie in a mapping, in the writable buffer of an object, or in a buffer of the
        // lane; `owner` keeps that, this object keeps `owner`, and the view holds a reference to this
        // object. The bytes belong to this process: they are part of a message that it has taken, or
        // has not put.
        let failed = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.as_ptr().cast(), len, 0, flags)
        };
        if failed != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }
}

/// A message, as the decoder reads it.
pub(super) enum Source {
    /// It was taken, and lies in shared memory.
    Taken(Arc<Held>),
    /// It lies in the memory of a Python object; and whether that is writable.
    Object(Arc<Pinned>, bool),
    /// A short one of another node.
    Short(Vec<u8>),
    /// One of another node.
    Long(Arc<Buffer>),
}

impl shoal_format::Payload for Source {
    fn byte_len(&self) -> usize {
        match self {
            Self::Taken(held) => usize::try_from(held.len()).unwrap_or(usize::MAX),
            Self::Object(bytes, _) => bytes.len(),
            Self::Short(bytes) => bytes.len(),
            Self::Long(bytes) => bytes.len(),
        }
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        // The decoder asks only for bytes that exist.
        match self {
            Self::Taken(held) => drop(held.read(at as u64, to)),
            Self::Object(bytes, _) => bytes.bytes().read(at, to),
            Self::Short(bytes) => bytes.as_slice().read(at, to),
            Self::Long(bytes) => bytes.read(at, to),
        }
    }
}

impl Payload for Source {
    fn view<'py>(&self, py: Python<'py>, at: usize, len: usize) -> PyResult<Bound<'py, PyAny>> {
        let owner = match self {
            Self::Taken(held) => Owner::Taken(Arc::clone(held)),
            Self::Object(bytes, true) => Owner::Parcel(Arc::clone(bytes)),
            Self::Long(bytes) => Owner::Received(Arc::clone(bytes)),
            Self::Object(_, false) | Self::Short(_) => {
                // Received arrays are writable, so read-only memory is copied.
                let copy = PyByteArray::new_with(py, len, |to| {
                    self.read(at, to);
                    Ok(())
                })?;
                return Ok(copy.into_any());
            }
        };
        Loan::of(py, owner, at, len)
    }
}
