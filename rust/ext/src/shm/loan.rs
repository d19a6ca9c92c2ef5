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

/// A message that was taken, as the decoder reads it.
pub(super) struct Lent(pub(super) Arc<Held>);

impl shoal_format::Payload for Lent {
    fn byte_len(&self) -> usize {
        usize::try_from(self.0.len()).unwrap_or(usize::MAX)
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        // The decoder asks only for bytes that exist.
        let _ = self.0.read(at as u64, to);
    }
}

impl Payload for Lent {
    fn view<'py>(&self, py: Python<'py>, at: usize, len: usize) -> PyResult<Bound<'py, PyAny>> {
        Loan::of(py, Owner::Taken(Arc::clone(&self.0)), at, len)
    }
}

/// A part of a message, in writable memory of its own.
pub(super) fn part_of<'py>(
    message: &impl shoal_format::Payload,
    py: Python<'py>,
    at: usize,
    len: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let copy = PyByteArray::new_with(py, len, |to| {
        message.read(at, to);
        Ok(())
    })?;
    Ok(copy.into_any())
}

/// A message of another node, as the decoder reads it.
pub(super) enum Received {
    Short(Vec<u8>),
    Long(Arc<Buffer>),
}

impl shoal_format::Payload for Received {
    fn byte_len(&self) -> usize {
        match self {
            Self::Short(bytes) => bytes.len(),
            Self::Long(bytes) => bytes.len(),
        }
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        // The decoder asks only for bytes that exist.
        match self {
            Self::Short(bytes) => bytes.as_slice().read(at, to),
            Self::Long(bytes) => bytes.read(at, to),
        }
    }
}

impl Payload for Received {
    fn view<'py>(&self, py: Python<'py>, at: usize, len: usize) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Short(_) => part_of(self, py, at, len),
            Self::Long(bytes) => Loan::of(py, Owner::Received(Arc::clone(bytes)), at, len),
        }
    }
}
