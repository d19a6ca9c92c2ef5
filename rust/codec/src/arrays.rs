//! Numpy arrays; numpy is not imported unless a message holds an array.

use std::ffi::CStr;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};
use shoal_format::Grid;

use crate::errors::bad_value;
use crate::loaded::loaded;

/// Formats of array buffers, and numpy's characters for them. A message holds the index.
const FORMATS: [(&CStr, &str); 18] = [
    (c"?", "?"),
    (c"b", "b"),
    (c"B", "B"),
    (c"h", "h"),
    (c"H", "H"),
    (c"i", "i"),
    (c"I", "I"),
    (c"l", "l"),
    (c"L", "L"),
    (c"q", "q"),
    (c"Q", "Q"),
    (c"e", "e"),
    (c"f", "f"),
    (c"d", "d"),
    (c"g", "g"),
    (c"Zf", "F"),
    (c"Zd", "D"),
    (c"Zg", "G"),
];

/// The objects of numpy that the codec uses.
struct Numpy {
    ndarray: Py<PyType>,
    empty: Py<PyAny>,
    dtype: Py<PyAny>,
    dtypes: Vec<(Py<PyAny>, usize)>,
}

static NUMPY: PyOnceLock<Numpy> = PyOnceLock::new();

impl Numpy {
    fn of(module: &Bound<'_, PyAny>) -> PyResult<Self> {
        let dtype = module.getattr("dtype")?;
        let dtypes = FORMATS.iter().map(|(_, character)| {
            let dtype = dtype.call1((*character,))?;
            let item_size = dtype.getattr("itemsize")?.extract()?;
            Ok((dtype.unbind(), item_size))
        });
        Ok(Self {
            ndarray: module.getattr("ndarray")?.cast_into()?.unbind(),
            empty: module.getattr("empty")?.unbind(),
            dtypes: dtypes.collect::<PyResult<_>>()?,
            dtype: dtype.clone().unbind(),
        })
    }

    /// Numpy, if the program has imported it.
    fn loaded(py: Python<'_>) -> Option<&Self> {
        match NUMPY.get(py) {
            Some(numpy) => Some(numpy),
            None => NUMPY
                .get_or_try_init(py, || {
                    Self::of(&loaded(py, "numpy").ok_or(())?).map_err(|_| ())
                })
                .ok(),
        }
    }

    fn import(py: Python<'_>) -> PyResult<&Self> {
        NUMPY.get_or_try_init(py, || {
            Self::of(&py.import(intern!(py, "numpy"))?.into_any())
        })
    }
}

/// The memory of an array; None if the object is not a contiguous array of a plain dtype.
pub(crate) fn of_array(object: &Bound<'_, PyAny>) -> Option<(Grid, PyUntypedBuffer)> {
    let numpy = Numpy::loaded(object.py())?;
    if object.get_type_ptr().addr() != numpy.ndarray.as_ptr().addr() {
        return None;
    }
    // Arrays of dates, for example, have no buffer. An array without dimensions has a buffer
    // without a shape, which is refused; it is viewed as a row of one value.
    let (buffer, alone) = match PyUntypedBuffer::get(object) {
        Ok(buffer) => (buffer, false),
        Err(_) => (alone(object).ok()?, true),
    };
    if !buffer.is_c_contiguous() {
        return None;
    }
    let format = buffer.format();
    let dtype = FORMATS.iter().position(|(known, _)| *known == format)?;
    let shape = if alone { &[] } else { buffer.shape() };
    let shape = shape.iter().map(|size| Some(*size));
    let grid = Grid::new(u8::try_from(dtype).ok()?, buffer.item_size(), shape)?;
    Some((grid, buffer))
}

fn alone(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let py = object.py();
    let dimensions: usize = object.getattr(intern!(py, "ndim"))?.extract()?;
    if dimensions > 0 {
        return Err(PyBufferError::new_err("it has dimensions"));
    }
    PyUntypedBuffer::get(&object.call_method1(intern!(py, "reshape"), (1,))?)
}

/// The size of one value of a dtype; None if there is no such dtype.
pub(crate) fn item_size(py: Python<'_>, dtype: u8) -> PyResult<Option<usize>> {
    let dtypes = &Numpy::import(py)?.dtypes;
    Ok(dtypes.get(usize::from(dtype)).map(|(_, size)| *size))
}

/// The shape of a grid, for numpy or torch.
pub(crate) fn shape_tuple<'py>(py: Python<'py>, grid: &Grid) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, grid.shape())
}

/// An array over the memory of `buffer`, which it keeps; an array without values needs no buffer.
pub(crate) fn array<'py>(
    py: Python<'py>,
    grid: &Grid,
    buffer: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let numpy = Numpy::import(py)?;
    let dtype = numpy.dtypes[usize::from(grid.dtype())].0.bind(py);
    let shape = shape_tuple(py, grid)?;
    match buffer {
        Some(buffer) => numpy.ndarray.bind(py).call1((shape, dtype, buffer)),
        None => numpy.empty.bind(py).call1((shape, dtype)),
    }
}

/// The index of a dtype, or of an object that numpy converts to one, and the size of its values.
pub(crate) fn known_dtype(dtype: &Bound<'_, PyAny>) -> PyResult<(u8, usize)> {
    let numpy = Numpy::import(dtype.py())?;
    let dtype = numpy.dtype.bind(dtype.py()).call1((dtype,))?;
    for (place, (known, item_size)) in numpy.dtypes.iter().enumerate() {
        if dtype.eq(known)? {
            return Ok((u8::try_from(place)?, *item_size));
        }
    }
    let message = format!(
        "room for values of dtype {dtype} cannot be reserved: expected numbers in this machine's byte order"
    );
    Err(bad_value(dtype.py(), message))
}
