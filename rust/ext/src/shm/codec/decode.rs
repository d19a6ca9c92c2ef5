//! The decoder: from a message to its object.

use std::cell::{OnceCell, RefCell};
use std::sync::MutexGuard;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple,
};

use super::encoded::{PREFIX, next_place};
use super::keys::{Keys, keys};
use super::reader::Reader;
use super::{
    DEPTH, KIND_PIECES, KIND_PLAIN, LENT, PIECE, Payload, arrays, pickling, scalars, tag, tensors,
};

/// Maximum length in bytes of a head that is copied to the stack.
const ON_STACK: usize = 512;

/// Rebuilds the object of a message that was copied and is only a head.
///
/// Returns a `ValueError` about damage, or an error that Python raised because of it (such as a
/// list as a key), about a module that is missing here, or while unpickling.
pub(crate) fn decode_inline<'py>(
    py: Python<'py>,
    kind: u32,
    message: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    if kind != KIND_PLAIN {
        return Err(wrong_kind(kind));
    }
    Decoder {
        py,
        head: Reader::new(message),
        keys: OnceCell::new(),
        pieces: None,
    }
    .message()
}

/// Rebuilds the object of any message. The object uses long pieces in place.
///
/// Returns the same errors as [`decode_inline`].
pub(crate) fn decode_block<'py>(
    py: Python<'py>,
    kind: u32,
    payload: &dyn Payload,
) -> PyResult<Bound<'py, PyAny>> {
    let total = payload.len();
    let (start, length) = match kind {
        KIND_PLAIN => (0, total),
        KIND_PIECES if total >= PREFIX => {
            let mut prefix = [0; PREFIX];
            payload.read(0, &mut prefix);
            let length = usize::try_from(u64::from_le_bytes(prefix)).unwrap_or(usize::MAX);
            (PREFIX, length)
        }
        _ => return Err(wrong_kind(kind)),
    };
    if length > total - start {
        return Err(PyValueError::new_err(format!(
            "the message is damaged: its head takes {length} bytes and all of it {total}"
        )));
    }
    let mut stack = [0; ON_STACK];
    let mut heap;
    let head = if let Some(head) = stack.get_mut(..length) {
        head
    } else {
        heap = vec![0; length];
        heap.as_mut_slice()
    };
    payload.read(start, head);
    Decoder {
        py,
        head: Reader::new(head),
        keys: OnceCell::new(),
        pieces: (kind == KIND_PIECES).then(|| Pieces {
            payload,
            end: (start + length).into(),
        }),
    }
    .message()
}

/// Returns an error if no message can be of this kind.
pub(crate) fn check_kind(kind: u32) -> PyResult<()> {
    if matches!(kind, KIND_PLAIN | KIND_PIECES) {
        Ok(())
    } else {
        Err(wrong_kind(kind))
    }
}

#[cold]
fn wrong_kind(kind: u32) -> PyErr {
    PyValueError::new_err(format!(
        "the message is damaged: it is of kind {kind} where {KIND_PLAIN} or {KIND_PIECES} was expected"
    ))
}

/// The pieces, which follow the head.
struct Pieces<'a> {
    payload: &'a dyn Payload,
    /// The end of the last piece that was read.
    end: std::cell::Cell<usize>,
}

struct Decoder<'a, 'py> {
    py: Python<'py>,
    head: Reader<'a>,
    /// Locked by the first dict.
    keys: OnceCell<Option<RefCell<MutexGuard<'static, Keys>>>>,
    pieces: Option<Pieces<'a>>,
}

/// A value that is read when the list or tuple under construction gets to it.
struct Next<'d, 'a, 'py>(&'d Decoder<'a, 'py>, u32);

impl<'py> IntoPyObject<'py> for Next<'_, '_, 'py> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, _: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.value(self.1)
    }
}

/// The location of the bytes of a value.
enum Found<'a> {
    Head(&'a [u8]),
    /// An offset behind the head, and a length.
    Piece(&'a dyn Payload, usize, usize),
}

impl<'a, 'py> Decoder<'a, 'py> {
    /// Decodes the whole message.
    fn message(&self) -> PyResult<Bound<'py, PyAny>> {
        let object = self.value(0)?;
        let pieces = self.pieces.as_ref();
        if self.head.left() > 0 || pieces.is_some_and(|p| p.end.get() != p.payload.len()) {
            return Err(self.head.damaged("it goes on where it should end"));
        }
        Ok(object)
    }

    #[expect(clippy::inline_always, reason = "10 ns for each value of a dict")]
    #[inline(always)]
    fn value(&self, depth: u32) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let head = &self.head;
        Ok(match head.byte()? {
            tag::STR => self.text()?.into_any(),
            tag::SMALL_INT => int(py, i8::from_le_bytes(head.fixed()?).into()),
            tag::INT => int(py, i64::from_le_bytes(head.fixed()?)),
            tag::FLOAT => PyFloat::new(py, f64::from_le_bytes(head.fixed()?)).into_any(),
            tag::TRUE => PyBool::new(py, true).to_owned().into_any(),
            tag::FALSE => PyBool::new(py, false).to_owned().into_any(),
            tag::NONE => py.None().into_bound(py),
            tag::BYTES => self.bytes()?.into_any(),
            tag => self.other(tag, depth)?,
        })
    }

    /// Separate from `value`, so that small values need no large stack frame.
    #[inline(never)]
    fn other(&self, tag: u8, depth: u32) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let head = &self.head;
        Ok(match tag {
            tag::DICT => self.dict(self.inside(depth)?)?.into_any(),
            tag::LIST => {
                let depth = self.inside(depth)?;
                let items = (0..head.count(1)?).map(|_| Next(self, depth));
                PyList::new(py, items)?.into_any()
            }
            tag::TUPLE => {
                let depth = self.inside(depth)?;
                let items = (0..head.count(1)?).map(|_| Next(self, depth));
                PyTuple::new(py, items)?.into_any()
            }
            tag::ARRAY => {
                let grid = arrays::read(py, head)?;
                arrays::array(py, &grid, self.memory(grid.len())?)?
            }
            tag::TENSOR => {
                let grid = tensors::read(py, head)?;
                tensors::tensor(py, &grid, self.memory(grid.len())?)?
            }
            tag::BYTEARRAY => match self.find(head.length()?)? {
                Found::Head(bytes) => PyByteArray::new(py, bytes).into_any(),
                Found::Piece(payload, at, length) => {
                    byte_array(py, payload, at, length)?.into_any()
                }
            },
            tag::COMPLEX => {
                let (real, imaginary) = (head.fixed()?, head.fixed()?);
                let (real, imaginary) = (f64::from_le_bytes(real), f64::from_le_bytes(imaginary));
                PyComplex::from_doubles(py, real, imaginary).into_any()
            }
            tag::BIG_INT => scalars::big_int(py, head.slice(head.length()?)?)?,
            tag::PICKLE if depth == 0 => self.pickle()?,
            _ => return Err(head.damaged("a value of it has no type that exists")),
        })
    }

    /// The depth of values inside a container; an error if it is too deep.
    fn inside(&self, depth: u32) -> PyResult<u32> {
        if depth >= DEPTH {
            return Err(self.head.damaged("it is nested too deep"));
        }
        Ok(depth + 1)
    }

    fn dict(&self, depth: u32) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(self.py);
        let count = self.head.count(2)?;
        for _ in 0..count {
            let key = self.key(depth)?;
            dict.set_item(key, self.value(depth)?)?;
        }
        Ok(dict)
    }

    fn key(&self, depth: u32) -> PyResult<Bound<'py, PyAny>> {
        let keys = self.keys.get_or_init(|| keys().map(RefCell::new));
        if let Some(keys) = keys
            && let Some(bytes) = self.head.short_text()
        {
            return Ok(keys.borrow_mut().text(self.py, bytes)?.into_any());
        }
        self.value(depth)
    }

    /// Finds the bytes of a value: in the head if they are few, otherwise in the next piece.
    fn find(&self, length: usize) -> PyResult<Found<'a>> {
        if length < PIECE {
            return Ok(Found::Head(self.head.slice(length)?));
        }
        let found = self.pieces.as_ref().and_then(|pieces| {
            let at = next_place(pieces.end.get())?;
            let end = at.checked_add(length)?;
            (end <= pieces.payload.len()).then(|| {
                pieces.end.set(end);
                Found::Piece(pieces.payload, at, length)
            })
        });
        found.ok_or_else(|| {
            self.head
                .damaged("something in it is longer than all of it")
        })
    }

    fn text(&self) -> PyResult<Bound<'py, PyString>> {
        let py = self.py;
        match self.find(self.head.length()?)? {
            Found::Head(bytes) => PyString::from_bytes(py, bytes),
            Found::Piece(payload, at, length) if length < LENT => {
                let mut bytes = vec![0; length];
                payload.read(at, &mut bytes);
                PyString::from_bytes(py, &bytes)
            }
            Found::Piece(payload, at, length) => {
                let view = payload.view(py, at, length)?;
                let text = py.get_type::<PyString>().call1((view, "utf-8"))?;
                Ok(text.cast_into()?)
            }
        }
    }

    fn bytes(&self) -> PyResult<Bound<'py, PyBytes>> {
        let py = self.py;
        match self.find(self.head.length()?)? {
            Found::Head(bytes) => Ok(PyBytes::new(py, bytes)),
            Found::Piece(payload, at, length) if length < LENT => {
                PyBytes::new_with(py, length, |to| {
                    payload.read(at, to);
                    Ok(())
                })
            }
            // Through a view there is only one copy, into memory that was not cleared first.
            Found::Piece(payload, at, length) => {
                let view = payload.view(py, at, length)?;
                Ok(py.get_type::<PyBytes>().call1((view,))?.cast_into()?)
            }
        }
    }

    /// Memory for one array or tensor; None if it has no values.
    fn memory(&self, length: Option<usize>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match length {
            Some(0) => Ok(None),
            Some(length) => self.buffer(length).map(Some),
            None => Err(self.head.damaged("an array is larger than any memory")),
        }
    }

    fn buffer(&self, length: usize) -> PyResult<Bound<'py, PyAny>> {
        match self.find(length)? {
            Found::Head(bytes) => Ok(PyByteArray::new(self.py, bytes).into_any()),
            Found::Piece(payload, at, length) if length < LENT => {
                Ok(byte_array(self.py, payload, at, length)?.into_any())
            }
            Found::Piece(payload, at, length) => payload.view(self.py, at, length),
        }
    }

    fn pickle(&self) -> PyResult<Bound<'py, PyAny>> {
        let pickle = self.bytes()?;
        let buffers = PyList::empty(self.py);
        for _ in 0..self.head.count(1)? {
            buffers.append(self.buffer(self.head.length()?)?)?;
        }
        pickling::loads(pickle, buffers)
    }
}

#[inline]
fn int(py: Python<'_>, int: i64) -> Bound<'_, PyAny> {
    PyInt::new(py, int).into_any()
}

fn byte_array<'py>(
    py: Python<'py>,
    payload: &dyn Payload,
    at: usize,
    length: usize,
) -> PyResult<Bound<'py, PyByteArray>> {
    if length >= LENT {
        let view = payload.view(py, at, length)?;
        return Ok(py.get_type::<PyByteArray>().call1((view,))?.cast_into()?);
    }
    PyByteArray::new_with(py, length, |to| {
        payload.read(at, to);
        Ok(())
    })
}
