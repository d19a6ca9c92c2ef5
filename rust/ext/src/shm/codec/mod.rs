//! Codec: encodes Python objects as messages and decodes messages.
//!
//! # Guarantees
//!
//! The decoded object equals the encoded one, type for type. Plain values take a fast lane without
//! pickle: None, bool, int, float, complex, str, bytes, bytearray, numpy arrays and CPU tensors,
//! and list, tuple and dict of these. Only exact types do; subclasses and all other types are
//! pickled. A message uses either only the fast lane or only pickle, so that an object that occurs
//! twice in it, or contains itself, is one object after decoding too. Pickle therefore takes over
//! if the fast lane meets a container, an array, a tensor, or a long str or bytes for the second
//! time, or more than [`DEPTH`] containers inside each other. Equal short strings, numbers and
//! bytes may or may not be one object after decoding. Arrays and tensors arrive writable and
//! exclusive. Attributes that the program set on a tensor, and the metadata of a dtype, are not
//! sent.
//!
//! # Layout
//!
//! A message of kind [`KIND_PLAIN`] is only a head. A message of kind [`KIND_PIECES`] is the length
//! of the head (8 bytes), the head, and then its pieces, each at the next multiple of 64: payloads
//! of [`PIECE`] bytes or more, which are copied only once, directly to their place. All numbers are
//! little-endian. The head is one value:
//!
//! | tag | then |
//! |---|---|
//! | none, true, false | |
//! | small int, int | 1, 8 bytes, two's complement |
//! | big int | length, two's complement |
//! | float, complex | 8, 16 bytes |
//! | str, bytes, bytearray | length; the bytes, or a piece |
//! | list, tuple | length; the values |
//! | dict | length; key, value, key, value, … |
//! | array, tensor | dtype (1), dimensions (1), lengths; the bytes, or a piece |
//! | pickle | length; the bytes, or a piece; number of buffers; for each the same |
//!
//! A length up to 253 is one byte; a longer one is the byte 254 and 4 bytes, or the byte 255 and 8
//! bytes.
//!
//! A parcel is already a message: put by itself, it is sent unchanged, whatever its kind and
//! whatever lies between its pieces. Inside another object it is pickled like any other object.
//!
//! # Damage
//!
//! Another process may have damaged the bytes that are decoded. Every length is checked before it
//! is used, each byte of the head is read once, from a private copy, and no nesting is followed
//! deeper than the encoder nests. Damage causes a Python error, mostly a `ValueError`, or yields
//! the object of another valid message. A pickle is trusted: only processes of the same user can
//! write to the memory.

mod arrays;
mod decode;
mod encode;
mod encoded;
mod head;
mod keys;
mod loaded;
mod pickling;
mod raw;
mod reader;
mod reserve;
mod scalars;
mod seen;
mod tag;
mod tensors;

use pyo3::prelude::*;

pub(crate) use decode::{check_kind, decode_block, decode_inline};
pub(crate) use encode::{encode, encode_into};
pub(crate) use encoded::{Encoded, Whole};
pub(crate) use raw::Pinned;
pub(crate) use reserve::{Reservation, reserve};

/// Kind of a message that is only a head.
pub(crate) const KIND_PLAIN: u32 = 1;

/// Kind of a message whose head is followed by pieces.
pub(crate) const KIND_PIECES: u32 = 2;

/// Minimum length in bytes of a piece; shorter payloads are part of the head.
pub(crate) const PIECE: usize = 4096;

/// Minimum length in bytes of a piece that the decoded object uses in place; shorter pieces are
/// copied.
pub(crate) const LENT: usize = 64 * 1024;

/// Minimum length in bytes of a copy during which other Python threads may run.
pub(crate) const DETACHED: usize = 32 * 1024;

/// Maximum number of containers inside each other; deeper objects are pickled.
pub(crate) const DEPTH: u32 = 32;

/// The bytes of a message that was taken and not released yet.
pub(crate) trait Payload {
    /// The number of bytes.
    fn len(&self) -> usize;

    /// Copies the bytes from `at` on; the decoder asks only for bytes within [`Self::len`].
    fn read(&self, at: usize, to: &mut [u8]);

    /// A writable, flat object with the buffer protocol over `len` bytes from `at` on.
    ///
    /// The message must not be released before this object is deallocated: numpy and torch keep the
    /// object, not a buffer of it. The decoder never asks for overlapping ranges.
    fn view<'py>(&self, py: Python<'py>, at: usize, len: usize) -> PyResult<Bound<'py, PyAny>>;
}
