//! Numpy arrays, and the dtype and shape that arrays and tensors share.

use std::ffi::CStr;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use super::head::Head;
use super::loaded::loaded;
use super::reader::Reader;
use crate::errors::shoal_error;

/// Maximum number of dimensions; arrays and tensors with more are pickled.
const DIMENSIONS: usize = 16;

/// The dtype and shape of contiguous values.
pub(super) struct Grid {
    /// The dtype, as its index in the table of numpy or of torch.
    pub(super) dtype: u8,
    pub(super) item_size: usize,
    dimensions: usize,
    sizes: [usize; DIMENSIONS],
}

impl Grid {
    pub(super) fn new(
        dtype: u8,
        item_size: usize,
        shape: impl ExactSizeIterator<Item = Option<usize>>,
    ) -> Option<Self> {
        let mut sizes = [0; DIMENSIONS];
        let dimensions = shape.len();
        if dimensions > DIMENSIONS {
            return None;
        }
        for (to, size) in sizes.iter_mut().zip(shape) {
            *to = size?;
        }
        Some(Self {
            dtype,
            item_size,
            dimensions,
            sizes,
        })
    }

    pub(super) fn shape(&self) -> &[usize] {
        &self.sizes[..self.dimensions]
    }

    /// The length of the values in bytes; None if it overflows.
    pub(super) fn len(&self) -> Option<usize> {
        if self.shape().contains(&0) {
            return Some(0);
        }
        let mut sizes = self.shape().iter();
        sizes.try_fold(self.item_size, |len, size| len.checked_mul(*size))
    }

    pub(super) fn write(&self, head: &mut Head) {
        head.push(self.dtype);
        // At most 16, so one byte.
        head.length(self.dimensions);
        for size in self.shape() {
            head.length(*size);
        }
    }

    /// Reads a dtype and shape; `item_size` returns the size of one value of a dtype.
    pub(super) fn read(
        reader: &Reader<'_>,
        item_size: impl FnOnce(u8) -> Option<usize>,
    ) -> PyResult<Self> {
        let dtype = reader.byte()?;
        let item_size = item_size(dtype)
            .ok_or_else(|| reader.damaged("it has a dtype that does not exist here"))?;
        let dimensions = reader.length()?;
        let mut sizes = [0; DIMENSIONS];
        let used = sizes
            .get_mut(..dimensions)
            .ok_or_else(|| reader.damaged("an array has too many dimensions"))?;
        for size in used {
            *size = reader.length()?;
        }
        Ok(Self {
            dtype,
            item_size,
            dimensions,
            sizes,
        })
    }

    pub(super) fn shape_tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.shape())
    }
}

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
pub(super) fn of_array(object: &Bound<'_, PyAny>) -> Option<(Grid, PyUntypedBuffer)> {
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

/// Reads the dtype and shape of an array.
pub(super) fn read(py: Python<'_>, reader: &Reader<'_>) -> PyResult<Grid> {
    let numpy = Numpy::import(py)?;
    Grid::read(reader, |dtype| {
        Some(numpy.dtypes.get(usize::from(dtype))?.1)
    })
}

/// An array over the memory of `buffer`, which it keeps; an array without values needs no buffer.
pub(super) fn array<'py>(
    py: Python<'py>,
    grid: &Grid,
    buffer: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let numpy = Numpy::import(py)?;
    let dtype = numpy.dtypes[usize::from(grid.dtype)].0.bind(py);
    let shape = grid.shape_tuple(py)?;
    match buffer {
        Some(buffer) => numpy.ndarray.bind(py).call1((shape, dtype, buffer)),
        None => numpy.empty.bind(py).call1((shape, dtype)),
    }
}

/// The index of a dtype, or of an object that numpy converts to one, and the size of its values.
pub(super) fn known_dtype(dtype: &Bound<'_, PyAny>) -> PyResult<(u8, usize)> {
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
    Err(shoal_error(dtype.py(), "ShoalValueError", message, None))
}
