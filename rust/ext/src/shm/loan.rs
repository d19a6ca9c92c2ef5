//! Memory of a message, lent to the arrays that are made over it.
//!
//! With the copying out of arrays this is the one place of the extension that goes without the
//! compiler's check: Python has no other way to show memory than by its address.

#![expect(
    unsafe_code,
    reason = "the buffer protocol hands out an address and a length"
)]

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use shoal_core::shm::memory::Mapping;
use shoal_core::shm::session::{Draft, Held};

use super::codec::{Payload, Pinned};

/// What keeps memory where it is, and its bytes for one owner.
enum Owner {
    /// A message that was taken; it is given back when nobody uses it any more.
    Taken(Arc<Held>),
    /// Room for a message that is not put yet; it stays mapped afterwards, from here on.
    Draft(Arc<Mapping>, u64),
    /// A parcel that was opened: memory of a Python object, which nobody else uses.
    Parcel(Arc<Pinned>),
}

/// A part of a message, as writable memory.
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
}

#[pymethods]
impl Loan {
    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.len)?)
    }

    /// # Safety
    ///
    /// `view` is one that Python wants filled: called by the interpreter only.
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
        };
        let start = start.ok_or_else(|| PyValueError::new_err("the message has no such part"))?;
        let len = ffi::Py_ssize_t::try_from(this.len)?;
        // SAFETY: `view` is Python's to fill, and `slf` is alive. The `len` bytes from `start` on
        // lie in a mapping, or in the writable buffer of an object, that `owner` keeps, and with it
        // this object, of which the view holds a reference. They are this process's own: of a
        // message that it has taken, or has not put.
        let failed = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.as_ptr().cast(), len, 0, flags)
        };
        if failed != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }
}

/// A message that was taken, for the decoder.
pub(super) struct Lent(pub(super) Arc<Held>);

impl Payload for Lent {
    fn len(&self) -> usize {
        usize::try_from(self.0.len()).unwrap_or(usize::MAX)
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        // The decoder asks only for what there is.
        let _ = self.0.read(at as u64, to);
    }

    fn view<'py>(&self, py: Python<'py>, at: usize, len: usize) -> PyResult<Bound<'py, PyAny>> {
        let loan = Loan {
            owner: Owner::Taken(Arc::clone(&self.0)),
            at: at as u64,
            len: len as u64,
        };
        Ok(Bound::new(py, loan)?.into_any())
    }
}
