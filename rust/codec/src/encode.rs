//! The encoder: from an object to its message.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple,
};
use shoal_format::{DEPTH, Grid, Head, PIECE, Seen, tag};

use crate::encoded::{Encoded, Piece, Whole};
use crate::raw::{Pinned, references};
use crate::tensors::Dense;
use crate::{arrays, pickling, scalars};

/// Minimum length in bytes from which a str or bytes that occurs twice is sent only once.
const REPEATED: usize = 1024;

/// Number of references to an object that only its container and this module hold.
const HELD_ONCE: isize = 2;

/// Encodes an object.
///
/// Returns the error that pickling raised if the object has no fast path.
pub fn encode(object: &Bound<'_, PyAny>) -> PyResult<Encoded> {
    let mut encoded = Encoded::new();
    encode_into(object, &mut encoded, |_| Ok(None))?;
    Ok(encoded)
}

/// Encodes an object into an `encoded` that is empty. For small objects: to move the value that
/// [`encode`] returns takes longer than to encode a number.
///
/// `whole` returns the message of an object that already is one, such as a parcel.
#[inline]
pub fn encode_into(
    object: &Bound<'_, PyAny>,
    encoded: &mut Encoded,
    whole: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<Option<Whole>>,
) -> PyResult<()> {
    match simple(object, &mut encoded.head) {
        Some(()) => Ok(()),
        None => encode_other(object, encoded, whole),
    }
}

/// Encodes an object that is not [`simple`].
fn encode_other(
    object: &Bound<'_, PyAny>,
    encoded: &mut Encoded,
    whole: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<Option<Whole>>,
) -> PyResult<()> {
    if let Some(whole) = whole(object)? {
        encoded.pieces.push(Piece::Whole(whole));
        return Ok(());
    }
    let mut encoder = Encoder {
        encoded,
        seen: Seen::new(),
    };
    if encoder.other(object, 0).is_none() {
        encoder.encoded.clear();
        encoder.pickle(object)?;
    }
    Ok(())
}

/// Writes a value without parts that need not be recognized if it occurs again. Returns None for
/// all other and for long values.
#[expect(clippy::inline_always, reason = "10 ns for each value of a dict")]
#[inline(always)]
fn simple(object: &Bound<'_, PyAny>, head: &mut Head) -> Option<()> {
    // The type is checked before the cast: a cast that fails makes an error, with references.
    if object.is_exact_instance_of::<PyString>() {
        // A str with lone surrogates has no UTF-8.
        let utf8 = object.cast_exact::<PyString>().ok()?.to_str().ok()?;
        (utf8.len() < REPEATED).then(|| head.text(tag::STR, utf8.as_bytes()))
    } else if object.is_exact_instance_of::<PyInt>() {
        let int = object.extract::<i64>().ok()?;
        match i8::try_from(int) {
            Ok(small) => head.tagged(tag::SMALL_INT, small.to_le_bytes()),
            Err(_) => head.tagged(tag::INT, int.to_le_bytes()),
        }
        Some(())
    } else if object.is_exact_instance_of::<PyFloat>() {
        let float = object.cast_exact::<PyFloat>().ok()?.value();
        head.tagged(tag::FLOAT, float.to_le_bytes());
        Some(())
    } else if object.is_exact_instance_of::<PyBool>() {
        let yes = object.cast_exact::<PyBool>().ok()?.is_true();
        head.push(if yes { tag::TRUE } else { tag::FALSE });
        Some(())
    } else if object.is_none() {
        head.push(tag::NONE);
        Some(())
    } else if object.is_exact_instance_of::<PyBytes>() {
        let bytes = object.cast_exact::<PyBytes>().ok()?.as_bytes();
        (bytes.len() < REPEATED).then(|| head.text(tag::BYTES, bytes))
    } else {
        None
    }
}

/// The state of an encoding. Each method returns None if pickle has to take over.
struct Encoder<'a> {
    encoded: &'a mut Encoded,
    seen: Seen,
}

impl Encoder<'_> {
    /// Notes an object; returns None if it was met before.
    ///
    /// Most objects are referenced only by their container and cannot be met again: their reference
    /// count shows that, and they are not noted.
    #[inline]
    fn first_time(&mut self, object: &Bound<'_, PyAny>, root: bool) -> Option<()> {
        if !root && references(object) <= HELD_ONCE {
            return Some(());
        }
        self.seen.note(object.as_ptr().addr())
    }

    #[inline]
    fn value(&mut self, object: &Bound<'_, PyAny>, depth: u32) -> Option<()> {
        match simple(object, &mut self.encoded.head) {
            Some(()) => Some(()),
            None => self.other(object, depth),
        }
    }

    /// Separate from `value`, so that small values need no large stack frame.
    #[inline(never)]
    fn other(&mut self, object: &Bound<'_, PyAny>, depth: u32) -> Option<()> {
        if object.is_exact_instance_of::<PyDict>() {
            self.dict(object.cast_exact().ok()?, depth)
        } else if object.is_exact_instance_of::<PyList>() {
            self.list(object.cast_exact().ok()?, depth)
        } else if object.is_exact_instance_of::<PyTuple>() {
            self.tuple(object.cast_exact().ok()?, depth)
        } else if object.is_exact_instance_of::<PyString>() {
            self.long_text(object.cast_exact().ok()?, depth)
        } else if object.is_exact_instance_of::<PyBytes>() {
            self.long_bytes(object.cast_exact().ok()?, depth)
        } else if object.is_exact_instance_of::<PyInt>() {
            self.big_int(object.cast_exact().ok()?)
        } else {
            self.rare(object, depth)
        }
    }

    #[inline(never)]
    fn rare(&mut self, object: &Bound<'_, PyAny>, depth: u32) -> Option<()> {
        if let Ok(complex) = object.cast_exact::<PyComplex>() {
            let mut parts = [0; 16];
            parts[..8].copy_from_slice(&complex.real().to_le_bytes());
            parts[8..].copy_from_slice(&complex.imag().to_le_bytes());
            self.encoded.head.tagged(tag::COMPLEX, parts);
            return Some(());
        }
        self.first_time(object, depth == 0)?;
        if object.is_exact_instance_of::<PyByteArray>() {
            let pinned = Pinned::buffer(PyUntypedBuffer::get(object).ok()?)?;
            self.encoded.head.push(tag::BYTEARRAY);
            self.encoded.head.length(pinned.len());
            self.memory(pinned);
            Some(())
        } else if let Some((grid, buffer)) = arrays::of_array(object) {
            self.grid(tag::ARRAY, &grid, Pinned::buffer(buffer)?)
        } else {
            let dense = Dense::check(object)?;
            self.grid(tag::TENSOR, dense.grid(), Pinned::tensor(&dense)?)
        }
    }

    fn big_int(&mut self, int: &Bound<'_, PyInt>) -> Option<()> {
        let head = &mut self.encoded.head;
        let bytes = scalars::big_int_bytes(int).ok()?;
        head.push(tag::BIG_INT);
        head.length(bytes.as_bytes().len());
        head.extend(bytes.as_bytes());
        Some(())
    }

    fn long_text(&mut self, text: &Bound<'_, PyString>, depth: u32) -> Option<()> {
        let utf8 = text.to_str().ok()?;
        self.first_time(text, depth == 0)?;
        if utf8.len() < PIECE {
            self.encoded.head.text(tag::STR, utf8.as_bytes());
            return Some(());
        }
        self.encoded.head.push(tag::STR);
        self.encoded.head.length(utf8.len());
        let text = PyBackedStr::try_from(text.clone()).ok()?;
        self.encoded.pieces.push(Piece::Str(text));
        Some(())
    }

    fn long_bytes(&mut self, bytes: &Bound<'_, PyBytes>, depth: u32) -> Option<()> {
        self.first_time(bytes, depth == 0)?;
        self.encoded.head.push(tag::BYTES);
        self.plain_bytes(bytes);
        Some(())
    }

    fn plain_bytes(&mut self, bytes: &Bound<'_, PyBytes>) {
        let plain = bytes.as_bytes();
        self.encoded.head.length(plain.len());
        if plain.len() < PIECE {
            self.encoded.head.extend(plain);
        } else {
            let bytes = PyBackedBytes::from(bytes.clone());
            self.encoded.pieces.push(Piece::Bytes(bytes));
        }
    }

    fn list(&mut self, list: &Bound<'_, PyList>, depth: u32) -> Option<()> {
        self.container(tag::LIST, list, list.len(), depth)?;
        for index in 0..list.len() {
            self.value(&list.get_item(index).ok()?, depth + 1)?;
        }
        Some(())
    }

    fn tuple(&mut self, tuple: &Bound<'_, PyTuple>, depth: u32) -> Option<()> {
        self.container(tag::TUPLE, tuple, tuple.len(), depth)?;
        // Iterates over owned references, as `list` does: `Seen` counts them.
        for item in tuple {
            self.value(&item, depth + 1)?;
        }
        Some(())
    }

    fn dict(&mut self, dict: &Bound<'_, PyDict>, depth: u32) -> Option<()> {
        let size = dict.len();
        self.container(tag::DICT, dict, size, depth)?;
        let mut items = dict.iter();
        for _ in 0..size {
            // A finalizer that runs meanwhile may change the dict, and the iterator would panic.
            if dict.len() != size {
                return None;
            }
            let (key, value) = items.next()?;
            self.value(&key, depth + 1)?;
            self.value(&value, depth + 1)?;
        }
        Some(())
    }

    fn container(
        &mut self,
        tag: u8,
        object: &Bound<'_, PyAny>,
        length: usize,
        depth: u32,
    ) -> Option<()> {
        if depth >= DEPTH {
            return None;
        }
        // An empty tuple contains nothing, and there is only one.
        if length > 0 || tag != tag::TUPLE {
            self.first_time(object, depth == 0)?;
        }
        self.encoded.head.push(tag);
        self.encoded.head.length(length);
        Some(())
    }

    fn grid(&mut self, tag: u8, grid: &Grid, pinned: Pinned) -> Option<()> {
        if grid.byte_len() != Some(pinned.len()) {
            return None;
        }
        self.encoded.head.push(tag);
        grid.write(&mut self.encoded.head);
        self.memory(pinned);
        Some(())
    }

    fn memory(&mut self, pinned: Pinned) {
        if pinned.len() < PIECE {
            self.encoded.head.extend(pinned.bytes());
        } else {
            self.encoded.pieces.push(Piece::Memory(pinned));
        }
    }

    fn pickle(&mut self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let pickled = pickling::dumps(object)?;
        self.encoded.head.push(tag::PICKLE);
        self.plain_bytes(&pickled.pickle);
        self.encoded.head.length(pickled.buffers.len());
        for buffer in pickled.buffers {
            self.encoded.head.length(buffer.len());
            self.memory(buffer);
        }
        Ok(())
    }
}
