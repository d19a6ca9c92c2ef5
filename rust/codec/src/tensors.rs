//! Torch tensors; torch is not imported unless a message holds a tensor.

use pyo3::exceptions::{PyImportError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use shoal_format::Grid;

use crate::arrays::shape_tuple;
use crate::loaded::loaded;

/// Dtypes that are sent as raw bytes. A message holds the index of the dtype; older versions of
/// torch lack some of them.
const DTYPES: [&str; 22] = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "uint16",
    "uint32",
    "uint64",
    "complex64",
    "complex128",
    "complex32",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
];

struct Dtype {
    object: Py<PyAny>,
    item_size: usize,
    is_complex: bool,
}

/// The objects of torch that the codec uses.
struct Torch {
    tensor: Py<PyType>,
    strided: Py<PyAny>,
    frombuffer: Py<PyAny>,
    empty: Py<PyAny>,
    dtypes: Vec<Option<Dtype>>,
}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

impl Torch {
    fn of(module: &Bound<'_, PyAny>) -> PyResult<Self> {
        let dtypes = DTYPES.iter().map(|name| {
            let Some(object) = module.getattr_opt(*name)? else {
                return Ok(None);
            };
            Ok(Some(Dtype {
                item_size: object.getattr("itemsize")?.extract()?,
                is_complex: object.getattr("is_complex")?.extract()?,
                object: object.unbind(),
            }))
        });
        Ok(Self {
            tensor: module.getattr("Tensor")?.cast_into()?.unbind(),
            strided: module.getattr("strided")?.unbind(),
            frombuffer: module.getattr("frombuffer")?.unbind(),
            empty: module.getattr("empty")?.unbind(),
            dtypes: dtypes.collect::<PyResult<_>>()?,
        })
    }

    /// Torch, if the program has imported it.
    fn loaded(py: Python<'_>) -> Option<&Self> {
        match TORCH.get(py) {
            Some(torch) => Some(torch),
            None => TORCH
                .get_or_try_init(py, || {
                    Self::of(&loaded(py, "torch").ok_or(())?).map_err(|_| ())
                })
                .ok(),
        }
    }

    fn import(py: Python<'_>) -> PyResult<&Self> {
        TORCH.get_or_try_init(py, || {
            let module = py.import(intern!(py, "torch")).map_err(|error| {
                let clear = PyImportError::new_err(
                    "the message holds a torch tensor and torch cannot be imported here: install shoal[torch]",
                );
                clear.set_cause(py, Some(error));
                clear
            })?;
            Self::of(&module.into_any())
        })
    }

    /// The index of a dtype in the table, and its entry.
    fn place(&self, dtype: &Bound<'_, PyAny>) -> Option<(u8, &Dtype)> {
        let mut known = (0..).zip(&self.dtypes);
        known.find_map(|(place, known)| {
            let known = known.as_ref().filter(|known| known.object.is(dtype))?;
            Some((place, known))
        })
    }

    fn dtype(&self, place: u8) -> Option<&Dtype> {
        self.dtypes.get(usize::from(place))?.as_ref()
    }
}

/// A tensor that is only its values: strided and contiguous, in CPU memory, neither lazily
/// conjugated nor negated, and without `requires_grad`.
pub(crate) struct Dense<'a> {
    tensor: &'a Bound<'a, PyAny>,
    grid: Grid,
    len: usize,
}

impl<'a> Dense<'a> {
    /// The object as such a tensor; None for any other tensor, and for anything else.
    pub(crate) fn check(object: &'a Bound<'a, PyAny>) -> Option<Self> {
        let py = object.py();
        let torch = Torch::loaded(py)?;
        if object.get_type_ptr().addr() != torch.tensor.as_ptr().addr() {
            return None;
        }
        Self::describe(object, torch).ok()?
    }

    fn describe(object: &'a Bound<'a, PyAny>, torch: &Torch) -> PyResult<Option<Self>> {
        let py = object.py();
        let is = |name| -> PyResult<bool> { object.getattr(name)?.is_truthy() };
        let says = |name| -> PyResult<bool> { object.call_method0(name)?.is_truthy() };
        let dtype = object.getattr(intern!(py, "dtype"))?;
        let Some((place, dtype)) = torch.place(&dtype) else {
            return Ok(None);
        };
        let plain = is(intern!(py, "is_cpu"))?
            && object.getattr(intern!(py, "layout"))?.is(&torch.strided)
            && !is(intern!(py, "requires_grad"))?
            && !is(intern!(py, "is_nested"))?
            && says(intern!(py, "is_contiguous"))?
            && !says(intern!(py, "is_neg"))?
            && !(dtype.is_complex && says(intern!(py, "is_conj"))?);
        if !plain {
            return Ok(None);
        }
        let shape = object.getattr(intern!(py, "shape"))?;
        let sizes = shape.cast::<PyTuple>()?.iter();
        let grid = Grid::new(
            place,
            dtype.item_size,
            sizes.map(|size| size.extract().ok()),
        );
        Ok(grid.and_then(|grid| {
            Some(Self {
                tensor: object,
                len: grid.byte_len()?,
                grid,
            })
        }))
    }

    pub(crate) fn grid(&self) -> &Grid {
        &self.grid
    }

    pub(crate) fn tensor(&self) -> &Bound<'a, PyAny> {
        self.tensor
    }

    /// The length of its values in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of its values.
    ///
    /// Returns an error if its storage ends before its values: the program made the storage smaller
    /// than the tensor.
    pub(crate) fn address(&self) -> PyResult<usize> {
        let py = self.tensor.py();
        let number =
            |of: &Bound<'_, PyAny>, name| -> PyResult<usize> { of.call_method0(name)?.extract() };
        let storage = self.tensor.call_method0(intern!(py, "untyped_storage"))?;
        let address = number(self.tensor, intern!(py, "data_ptr"))?;
        let begin = number(&storage, intern!(py, "data_ptr"))?;
        let length = number(&storage, intern!(py, "nbytes"))?;
        if address < begin || address - begin + self.len > length {
            return Err(PyValueError::new_err(format!(
                "a tensor of {} bytes has a storage of {length}: it was made smaller than the tensor",
                self.len
            )));
        }
        Ok(address)
    }
}

/// The size of one value of a dtype; None if there is no such dtype.
pub(crate) fn item_size(py: Python<'_>, dtype: u8) -> PyResult<Option<usize>> {
    let dtype = Torch::import(py)?.dtype(dtype);
    Ok(dtype.map(|dtype| dtype.item_size))
}

/// A tensor over the memory of `buffer`, which it keeps; a tensor without values needs no buffer.
pub(crate) fn tensor<'py>(
    py: Python<'py>,
    grid: &Grid,
    buffer: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let torch = Torch::import(py)?;
    let keywords = PyDict::new(py);
    let dtype = torch.dtype(grid.dtype()).map(|dtype| dtype.object.bind(py));
    keywords.set_item(intern!(py, "dtype"), dtype)?;
    let Some(buffer) = buffer else {
        let shape = (shape_tuple(py, grid)?,);
        return torch.empty.bind(py).call(shape, Some(&keywords));
    };
    let flat = torch.frombuffer.bind(py).call((buffer,), Some(&keywords))?;
    if grid.shape().len() == 1 {
        return Ok(flat);
    }
    flat.call_method1(intern!(py, "view"), (shape_tuple(py, grid)?,))
}

/// The index of a torch dtype and the size of its values; None for any other object.
pub(crate) fn known_dtype(dtype: &Bound<'_, PyAny>) -> Option<(u8, usize)> {
    let torch = Torch::loaded(dtype.py())?;
    torch
        .place(dtype)
        .map(|(place, known)| (place, known.item_size))
}
