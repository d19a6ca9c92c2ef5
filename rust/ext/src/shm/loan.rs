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
use shoal_shm::session::{Draft, Held};

/// Keeps memory mapped, and its bytes reserved for one owner.
enum Owner {
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
    at: u64,
    len: u64,
}

impl Loan {
    pub(super) fn of_draft(draft: &Draft, at: usize, len: usize) -> Self {
        let (mapping, start) = draft.place();
        Self {
            owner: Owner::Draft(mapping, start),
            at: at as u64,
            len: len as u64,
        }
    }

    pub(super) fn of_taken(held: &Arc<Held>) -> Self {
        Self {
            owner: Owner::Taken(Arc::clone(held)),
            at: 0,
            len: held.len(),
        }
    }

    pub(super) fn of_parcel(bytes: &Arc<Pinned>, at: usize, len: usize) -> Self {
        Self {
            owner: Owner::Parcel(Arc::clone(bytes)),
            at: at as u64,
            len: len as u64,
        }
    }

    pub(super) fn of_received(bytes: &Arc<Buffer>, at: usize, len: usize) -> Self {
        Self {
            owner: Owner::Received(Arc::clone(bytes)),
            at: at as u64,
            len: len as u64,
        }
    }
}

#[pymethods]
impl Loan {
    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.len)?)
    }

    /// # Safety
    ///
    /// `view` must be one that Python wants filled: only the interpreter calls this.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let start = match &this.owner {
            Owner::Taken(held) => held.pointer(this.at, this.len).ok(),
            Owner::Draft(mapping, start) => mapping.pointer(start + this.at, this.len).ok(),
            Owner::Parcel(bytes) => {
                bytes.pointer(usize::try_from(this.at)?, usize::try_from(this.len)?)
            }
            Owner::Received(bytes) => {
                bytes.pointer(usize::try_from(this.at)?, usize::try_from(this.len)?)
            }
        };
        let start = start.ok_or_else(|| PyValueError::new_err("the message has no such part"))?;
        let len = ffi::Py_ssize_t::try_from(this.len)?;
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
        let loan = Loan {
            owner: Owner::Taken(Arc::clone(&self.0)),
            at: at as u64,
            len: len as u64,
        };
        Ok(Bound::new(py, loan)?.into_any())
    }
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
            Self::Short(_) => {
                let copy = PyByteArray::new_with(py, len, |to| {
                    self.read(at, to);
                    Ok(())
                })?;
                Ok(copy.into_any())
            }
            Self::Long(bytes) => {
                let loan = Loan::of_received(bytes, at, len);
                Ok(Bound::new(py, loan)?.into_any())
            }
        }
    }
}
