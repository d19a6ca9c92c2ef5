//! The codec as an extension module of its own, for its tests: `tests/unit/test_shm_codec.py`
//! builds it and imports it. No wheel contains it.

#[path = "../src/shm/codec/mod.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "the functions that only parcels use are not tested here"
)]
mod codec;
#[path = "../src/errors.rs"]
#[expect(dead_code, reason = "the codec uses only one of its functions")]
mod errors;

/// Functions for the tests.
#[pyo3::pymodule]
mod codec_for_tests {
    use std::time::Instant;

    use pyo3::buffer::PyBuffer;
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;
    use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PySlice};

    use crate::codec::{
        Encoded, Payload, Reservation, decode_block, decode_inline, encode, encode_into, reserve,
    };

    /// A message in ordinary memory.
    struct Memory<'py> {
        all: Bound<'py, PyByteArray>,
        bytes: PyBuffer<u8>,
    }

    impl Payload for Memory<'_> {
        fn len(&self) -> usize {
            self.bytes.len_bytes()
        }

        fn read(&self, at: usize, to: &mut [u8]) {
            let py = self.all.py();
            let all = self.bytes.as_slice(py).expect("a bytearray is flat");
            let from = &all[at..at + to.len()];
            for (to, from) in to.iter_mut().zip(from) {
                *to = from.get();
            }
        }

        fn view<'py>(&self, py: Python<'py>, at: usize, len: usize) -> PyResult<Bound<'py, PyAny>> {
            let view = PyMemoryView::from(self.all.as_unbound().bind(py))?;
            let slice = PySlice::new(py, at.cast_signed(), (at + len).cast_signed(), 1);
            view.get_item(slice)
        }
    }

    /// The kind and the bytes of an object's message.
    #[pyfunction]
    #[pyo3(name = "encode")]
    fn encoded<'py>(object: &Bound<'py, PyAny>) -> PyResult<(u32, Bound<'py, PyByteArray>)> {
        let py = object.py();
        let encoded = encode(object)?;
        let mut bytes = vec![0xee; encoded.total_len()];
        let (mut end, mut bad) = (0, false);
        let mut write = || {
            encoded.write_into(&mut |at, part| {
                bad |= at < end;
                end = at + part.len();
                bytes[at..end].copy_from_slice(part);
            });
        };
        if encoded.is_long() {
            py.detach(write);
        } else {
            write();
        }
        if bad || encoded.plain().is_some_and(|plain| plain != bytes) {
            return Err(PyValueError::new_err(
                "the parts are not in order, or not what the message is",
            ));
        }
        Ok((encoded.kind(), PyByteArray::new(py, &bytes)))
    }

    /// The object of a message without pieces.
    #[pyfunction]
    #[pyo3(name = "decode_inline")]
    fn decoded_inline<'py>(
        py: Python<'py>,
        kind: u32,
        message: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        decode_inline(py, kind, message)
    }

    /// The object of any message; arrays in it are views of `message`.
    #[pyfunction]
    #[pyo3(name = "decode_block")]
    fn decoded_block<'py>(
        py: Python<'py>,
        kind: u32,
        message: &Bound<'py, PyByteArray>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let memory = Memory {
            all: message.clone(),
            bytes: PyBuffer::get(message)?,
        };
        decode_block(py, kind, &memory)
    }

    /// A message whose values are written later: its kind, its bytes, and the array or tensor over
    /// them.
    #[pyfunction]
    #[pyo3(name = "reserve")]
    fn reserved<'py>(
        shape: &Bound<'py, PyAny>,
        dtype: &Bound<'py, PyAny>,
    ) -> PyResult<(u32, Bound<'py, PyByteArray>, Bound<'py, PyAny>)> {
        let py = shape.py();
        let reservation: Reservation = reserve(shape, dtype)?;
        let Some(message) = reservation.message() else {
            let object = reservation.object(py, None)?;
            let (kind, bytes) = encoded(&object)?;
            return Ok((kind, bytes, object));
        };
        let mut bytes = vec![0xee; message.total_len()];
        message.write_into(&mut |at, part| bytes[at..at + part.len()].copy_from_slice(part));
        let all = PyByteArray::new(py, &bytes);
        let (at, len) = reservation.values();
        let memory = Memory {
            bytes: PyBuffer::get(&all)?,
            all: all.clone(),
        };
        let object = reservation.object(py, Some(memory.view(py, at, len)?))?;
        Ok((message.kind(), all, object))
    }

    /// Nanoseconds to encode an object, to encode and write it, and to decode it; None for the last
    /// if the message has pieces.
    #[pyfunction]
    fn measure(object: &Bound<'_, PyAny>, times: u32) -> PyResult<(f64, f64, Option<f64>)> {
        let py = object.py();
        let mut encoded = Encoded::new();
        encode_into(object, &mut encoded, |_| Ok(None))?;
        let mut target = vec![0; encoded.total_len()];
        let each = |start: Instant| start.elapsed().as_secs_f64() * 1e9 / f64::from(times);
        let start = Instant::now();
        for _ in 0..times {
            let mut encoded = Encoded::new();
            encode_into(std::hint::black_box(object), &mut encoded, |_| Ok(None))?;
            std::hint::black_box(encoded.total_len());
        }
        let encoding = each(start);
        let start = Instant::now();
        for _ in 0..times {
            let mut encoded = Encoded::new();
            encode_into(std::hint::black_box(object), &mut encoded, |_| Ok(None))?;
            encoded.write_into(&mut |at, part| {
                target[at..at + part.len()].copy_from_slice(part);
            });
            std::hint::black_box(&mut target);
        }
        let writing = each(start);
        let Some(plain) = encoded.plain() else {
            return Ok((encoding, writing, None));
        };
        let message = PyBytes::new(py, plain);
        let start = Instant::now();
        for _ in 0..times {
            let plain = std::hint::black_box(message.as_bytes());
            std::hint::black_box(decode_inline(py, encoded.kind(), plain)?);
        }
        Ok((encoding, writing, Some(each(start))))
    }
}
