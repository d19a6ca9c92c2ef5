//! `ShmParcel`: a message in encoded form, for code that passes it on without rebuilding its
//! object.

use std::process;
use std::sync::Arc;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyType};
use pyo3::{PyTraverseError, PyVisit};
use shoal_codec::{
    Encoded, KIND_PIECES, KIND_PLAIN, Pinned, Whole, check_kind, decode_block, encode_into,
};
use shoal_shm::Label;

use super::arguments::{whole, whole_or_none};
use super::errors::bad_type;
use super::loan::Source;

/// The result of `__reduce_ex__`: the class and its arguments.
type Reduced<'py> = (Bound<'py, PyType>, (u32, Bound<'py, PyAny>, u32));

/// First pickle protocol with out-of-band buffers.
const WITH_BUFFERS: i32 = 5;
/// Minimum length in bytes of data that is pickled out of band.
const BESIDE: usize = 4096;

/// A message in encoded form. Its pickle names the module `shoal._backend`, in which each process
/// finds the class of its own backend.
#[pyclass(frozen, name = "ShmParcel", module = "shoal._backend")]
pub(crate) struct PyShmParcel {
    kind: u32,
    /// The pid of the process that sent the message, on its own machine.
    #[pyo3(get)]
    sender: u32,
    data: Py<PyAny>,
    /// The number of its bytes.
    #[pyo3(get)]
    nbytes: usize,
}

impl PyShmParcel {
    /// A parcel of a message that was taken, in memory that belongs to this process.
    ///
    /// # Errors
    ///
    /// A `ValueError` if the kind does not exist, the same as from the decoder.
    pub(super) fn taken<'py>(
        py: Python<'py>,
        label: Label,
        data: Bound<'py, PyAny>,
        nbytes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        check_kind(label.kind)?;
        let parcel = Self {
            kind: label.kind,
            sender: label.sender,
            data: data.unbind(),
            nbytes,
        };
        Ok(Bound::new(py, parcel)?.into_any())
    }
}

/// The message of a parcel, whose bytes stay in place; None for any other object.
pub(super) fn message_of(object: &Bound<'_, PyAny>) -> PyResult<Option<Whole>> {
    if !object.is_exact_instance_of::<PyShmParcel>() {
        return Ok(None);
    }
    let parcel = object.cast_exact::<PyShmParcel>()?.get();
    let (bytes, _) = pinned(parcel.data.bind(object.py()))?;
    Ok(Some(Whole {
        kind: parcel.kind,
        sender: parcel.sender,
        bytes,
    }))
}

/// The bytes of an object with a buffer, and whether they are writable.
fn pinned(data: &Bound<'_, PyAny>) -> PyResult<(Pinned, bool)> {
    if let Ok(buffer) = PyUntypedBuffer::get(data)
        && buffer.is_c_contiguous()
    {
        let writable = !buffer.readonly();
        if let Some(pinned) = Pinned::buffer(buffer) {
            return Ok((pinned, writable));
        }
    }
    let class = data.get_type().name()?;
    let message = format!("data: expected a buffer that lies in one piece, got {class}");
    Err(bad_type(data.py(), message))
}

/// A message in memory that belongs to this process.
pub(super) fn own(data: &Bound<'_, PyAny>) -> PyResult<Source> {
    let (bytes, writable) = pinned(data)?;
    Ok(Source::Object(Arc::new(bytes), writable))
}

/// A copy of a message, in memory of its own.
fn copied<'py>(py: Python<'py>, encoded: &Encoded) -> PyResult<Bound<'py, PyByteArray>> {
    PyByteArray::new_with(py, encoded.total_len(), |to| {
        let mut fits = true;
        encoded.write_into(&mut |at, bytes| match to
            .get_mut(at..)
            .and_then(|to| to.get_mut(..bytes.len()))
        {
            Some(to) => to.copy_from_slice(bytes),
            None => fits = false,
        });
        if fits {
            Ok(())
        } else {
            Err(PyValueError::new_err("the object changed meanwhile"))
        }
    })
}

#[pymethods]
impl PyShmParcel {
    #[new]
    #[pyo3(signature = (kind, data, sender = None))]
    fn new(
        kind: &Bound<'_, PyAny>,
        data: Bound<'_, PyAny>,
        sender: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let kind = whole(kind, "kind", KIND_PLAIN.into(), KIND_PIECES.into())?;
        let nbytes = pinned(&data)?.0.len();
        let sender = whole_or_none(sender, "sender", 0, u32::MAX.into())?;
        Ok(Self {
            kind: u32::try_from(kind)?,
            sender: sender.map_or_else(|| Ok(process::id()), u32::try_from)?,
            data: data.unbind(),
            nbytes,
        })
    }

    /// Encode an object into new private memory; a parcel of a parcel keeps its sender.
    #[classmethod]
    fn of(_class: &Bound<'_, PyType>, obj: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = obj.py();
        let mut encoded = Encoded::new();
        encode_into(obj, &mut encoded, message_of)?;
        Ok(Self {
            kind: encoded.kind(),
            sender: encoded.sender().unwrap_or_else(process::id),
            data: copied(py, &encoded)?.into_any().unbind(),
            nbytes: encoded.total_len(),
        })
    }

    /// Rebuild the object.
    fn open<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        decode_block(py, self.kind, &own(self.data.bind(py))?)
    }

    fn __reduce_ex__<'py>(slf: &Bound<'py, Self>, protocol: i32) -> PyResult<Reduced<'py>> {
        let (py, this) = (slf.py(), slf.get());
        let data = this.data.bind(py);
        let data = if protocol < WITH_BUFFERS {
            py.get_type::<PyByteArray>().call1((data,))?
        } else if this.nbytes < BESIDE {
            py.get_type::<PyBytes>().call1((data,))?
        } else {
            static BUFFER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            let buffer = BUFFER.import(py, "pickle", "PickleBuffer")?;
            buffer.call1((data,))?
        };
        Ok((slf.get_type(), (this.kind, data, this.sender)))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.data)
    }
}
