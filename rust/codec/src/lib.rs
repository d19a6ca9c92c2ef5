//! The codec: encodes Python objects as messages and decodes messages.
//!
//! The bytes of a message, and what becomes of damaged ones, are described in `shoal-format`.
//!
//! # Guarantees
//!
//! The decoded object equals the encoded one, type for type. Plain values take a fast path without
//! pickle: None, bool, int, float, complex, str, bytes, bytearray, numpy arrays and CPU tensors,
//! and list, tuple and dict of these. Only exact types do; subclasses and all other types are
//! pickled. A message uses either only the fast path or only pickle, so that an object that occurs
//! twice in it, or contains itself, is one object after decoding too. Pickle therefore takes over
//! if the fast path meets a container, an array, a tensor, or a long str or bytes for the second
//! time, or more than [`DEPTH`](shoal_format::DEPTH) containers inside each other. Equal short strings, numbers and
//! bytes may or may not be one object after decoding. Arrays and tensors arrive writable and
//! exclusive. Attributes that the program set on a tensor, and the metadata of a dtype, are not
//! sent.
//!
//! A parcel is already a message: put by itself, it is sent unchanged, whatever its kind and
//! whatever lies between its pieces. Inside another object it is pickled like any other object.
//!
//! # Damage
//!
//! Damage causes a Python error, mostly a `ValueError`, or yields the object of another valid
//! message. A pickle is trusted: only processes of the same user can write to the memory.

mod arrays;
mod decode;
mod encode;
mod encoded;
mod errors;
mod keys;
mod loaded;
mod pickling;
mod raw;
mod reserve;
mod scalars;
mod tensors;

use pyo3::prelude::*;

pub use decode::{check_kind, decode_block, decode_inline};
pub use encode::{encode, encode_into};
pub use encoded::{Encoded, Piece, Whole};
pub use raw::Pinned;
pub use reserve::{Reservation, reserve};
pub use shoal_format::{KIND_PIECES, KIND_PLAIN};

/// Minimum length in bytes of a piece that the decoded object uses in place; shorter pieces are
/// copied.
pub const LENT: usize = 64 * 1024;

/// The bytes of a message that was taken and not released yet.
pub trait Payload: shoal_format::Payload {
    /// A writable, flat object with the buffer protocol over `len` bytes from `at` on.
    ///
    /// The message must not be released before this object is deallocated: numpy and torch keep the
    /// object, not a buffer of it. The decoder never asks for overlapping ranges.
    fn view<'py>(&self, py: Python<'py>, at: usize, len: usize) -> PyResult<Bound<'py, PyAny>>;
}
