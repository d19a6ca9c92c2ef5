//! The decoder: from a message to its Python object.

use std::cell::{OnceCell, RefCell};
use std::sync::MutexGuard;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple,
};
use shoal_format::{Build, Damage, Grid, GridKind};

use crate::keys::{Keys, keys, text};
use crate::{LENT, Payload, arrays, pickling, scalars, tensors};

/// Rebuilds the object of a message that was copied and is only a head.
///
/// Returns a `ValueError` about damage, or an error that Python raised because of it (such as a
/// list as a key), about a module that is missing here, or while unpickling.
#[inline]
pub fn decode_inline<'py>(
    py: Python<'py>,
    kind: u32,
    message: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    shoal_format::decode_inline::<dyn Payload, _>(&Objects::new(py), kind, message)
}

/// Rebuilds the object of any message. The object uses long pieces in place.
///
/// Returns the same errors as [`decode_inline`].
pub fn decode_block<'py>(
    py: Python<'py>,
    kind: u32,
    payload: &dyn Payload,
) -> PyResult<Bound<'py, PyAny>> {
    shoal_format::decode(&Objects::new(py), kind, payload)
}

/// Returns an error if no message can be of this kind.
#[inline]
pub fn check_kind(kind: u32) -> PyResult<()> {
    shoal_format::check_kind(kind).map_err(|damage| error(&damage))
}

#[cold]
fn error(damage: &Damage) -> PyErr {
    PyValueError::new_err(damage.to_string())
}

/// Makes the objects of one message.
struct Objects<'py> {
    py: Python<'py>,
    /// Locked by the first key.
    keys: OnceCell<Option<RefCell<MutexGuard<'static, Keys>>>>,
}

type Data<'a, 'p> = shoal_format::Data<'a, dyn Payload + 'p>;

/// An item of a list or tuple under construction.
struct Item<'py>(PyResult<Bound<'py, PyAny>>);

impl<'py> IntoPyObject<'py> for Item<'py> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    #[inline]
    fn into_pyobject(self, _: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0
    }
}

impl<'py> Objects<'py> {
    #[inline]
    fn new(py: Python<'py>) -> Self {
        Self {
            py,
            keys: OnceCell::new(),
        }
    }

    /// Memory for an array or tensor, or for a buffer beside a pickle.
    fn buffer(&self, data: &Data<'_, '_>) -> PyResult<Bound<'py, PyAny>> {
        match data {
            Data::Head(bytes) => Ok(PyByteArray::new(self.py, bytes).into_any()),
            Data::Piece {
                payload,
                at,
                length,
            } if *length < LENT => {
                let copy = PyByteArray::new_with(self.py, *length, |to| {
                    payload.read(*at, to);
                    Ok(())
                });
                Ok(copy?.into_any())
            }
            Data::Piece {
                payload,
                at,
                length,
            } => payload.view(self.py, *at, *length),
        }
    }

    fn plain_bytes(&self, data: &Data<'_, '_>) -> PyResult<Bound<'py, PyBytes>> {
        let py = self.py;
        match data {
            Data::Head(bytes) => Ok(PyBytes::new(py, bytes)),
            Data::Piece {
                payload,
                at,
                length,
            } if *length < LENT => PyBytes::new_with(py, *length, |to| {
                payload.read(*at, to);
                Ok(())
            }),
            // Through a view there is only one copy, into memory that was not cleared first.
            Data::Piece {
                payload,
                at,
                length,
            } => {
                let view = payload.view(py, *at, *length)?;
                Ok(py.get_type::<PyBytes>().call1((view,))?.cast_into()?)
            }
        }
    }

    #[cold]
    fn long_text(
        &self,
        payload: &(dyn Payload + '_),
        at: usize,
        length: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        if length < LENT {
            let mut bytes = vec![0; length];
            payload.read(at, &mut bytes);
            return Ok(PyString::from_bytes(self.py, &bytes)?.into_any());
        }
        let view = payload.view(self.py, at, length)?;
        self.py.get_type::<PyString>().call1((view, "utf-8"))
    }
}

impl<'py, 'p> Build<dyn Payload + 'p> for Objects<'py> {
    type Object = Bound<'py, PyAny>;
    type Dict = Bound<'py, PyDict>;
    type Error = PyErr;

    #[cold]
    fn damaged(&self, damage: Damage) -> PyErr {
        error(&damage)
    }

    #[inline]
    fn none(&self) -> Bound<'py, PyAny> {
        self.py.None().into_bound(self.py)
    }

    #[inline]
    fn bool(&self, value: bool) -> Bound<'py, PyAny> {
        PyBool::new(self.py, value).to_owned().into_any()
    }

    #[inline]
    fn int(&self, value: i64) -> Bound<'py, PyAny> {
        PyInt::new(self.py, value).into_any()
    }

    fn big_int(&self, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        scalars::big_int(self.py, bytes)
    }

    #[inline]
    fn float(&self, value: f64) -> Bound<'py, PyAny> {
        PyFloat::new(self.py, value).into_any()
    }

    fn complex(&self, real: f64, imaginary: f64) -> Bound<'py, PyAny> {
        PyComplex::from_doubles(self.py, real, imaginary).into_any()
    }

    #[inline]
    fn text(&self, utf8: Data<'_, 'p>) -> PyResult<Bound<'py, PyAny>> {
        match utf8 {
            Data::Head(utf8) => Ok(PyString::from_bytes(self.py, utf8)?.into_any()),
            Data::Piece {
                payload,
                at,
                length,
            } => self.long_text(payload, at, length),
        }
    }

    #[inline]
    fn key(&self, utf8: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let keys = self.keys.get_or_init(|| keys().map(RefCell::new));
        let text = match keys {
            Some(keys) => text(&mut keys.borrow_mut(), self.py, utf8),
            None => PyString::from_bytes(self.py, utf8),
        };
        Ok(text?.into_any())
    }

    #[inline]
    fn bytes(&self, bytes: Data<'_, 'p>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.plain_bytes(&bytes)?.into_any())
    }

    fn bytearray(&self, bytes: Data<'_, 'p>) -> PyResult<Bound<'py, PyAny>> {
        match bytes {
            Data::Piece {
                payload,
                at,
                length,
            } if length >= LENT => {
                let view = payload.view(self.py, at, length)?;
                self.py.get_type::<PyByteArray>().call1((view,))
            }
            bytes => self.buffer(&bytes),
        }
    }

    #[inline]
    fn list(
        &self,
        items: impl ExactSizeIterator<Item = PyResult<Bound<'py, PyAny>>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(self.py, items.map(Item))?.into_any())
    }

    #[inline]
    fn tuple(
        &self,
        items: impl ExactSizeIterator<Item = PyResult<Bound<'py, PyAny>>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyTuple::new(self.py, items.map(Item))?.into_any())
    }

    #[inline]
    fn dict(&self) -> Bound<'py, PyDict> {
        PyDict::new(self.py)
    }

    #[inline]
    fn insert(
        &self,
        dict: &mut Bound<'py, PyDict>,
        key: Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
    ) -> PyResult<()> {
        dict.set_item(key, value)
    }

    #[inline]
    fn finish(&self, dict: Bound<'py, PyDict>) -> Bound<'py, PyAny> {
        dict.into_any()
    }

    fn item_size(&self, kind: GridKind, dtype: u8) -> PyResult<Option<usize>> {
        match kind {
            GridKind::Array => arrays::item_size(self.py, dtype),
            GridKind::Tensor => tensors::item_size(self.py, dtype),
        }
    }

    fn grid(
        &self,
        kind: GridKind,
        grid: &Grid,
        values: Option<Data<'_, 'p>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let buffer = values.map(|values| self.buffer(&values)).transpose()?;
        match kind {
            GridKind::Array => arrays::array(self.py, grid, buffer),
            GridKind::Tensor => tensors::tensor(self.py, grid, buffer),
        }
    }

    fn unpickle<'a>(
        &self,
        pickle: Data<'a, 'p>,
        buffers: impl Iterator<Item = PyResult<Data<'a, 'p>>>,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        'p: 'a,
    {
        let pickle = self.plain_bytes(&pickle)?;
        let list = PyList::empty(self.py);
        for buffer in buffers {
            list.append(self.buffer(&buffer?)?)?;
        }
        pickling::loads(pickle, list)
    }
}
