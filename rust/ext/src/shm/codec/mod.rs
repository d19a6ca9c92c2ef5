//! Python objects as the bytes of messages, and back.
//!
//! # What is promised
//!
//! What goes in comes out, type for type. Plain values take a fast lane without pickle: None, bool,
//! int, float, complex, str, bytes, bytearray, numpy arrays and CPU tensors, and list, tuple and
//! dict of these. Only exact types do; subclasses, and all else, are pickled. A message is either
//! in the fast lane whole or pickled whole, so that an object that occurs twice in it, or contains
//! itself, is one object afterwards too: where the fast lane meets a container, an array, a tensor,
//! or a long str or bytes for the second time, or more than [`DEPTH`] containers inside each other,
//! pickle takes over. Equal short strings, numbers and bytes may be one object afterwards or not.
//! Arrays and tensors arrive writable and exclusive. Attributes that somebody hung onto a tensor,
//! and the metadata of a dtype, stay behind.
//!
//! # Layout
//!
//! A message of kind [`KIND_PLAIN`] is a head and nothing else. One of kind [`KIND_PIECES`] is the
//! length of the head (8 bytes), the head, and then its pieces, each at the next multiple of 64:
//! payloads of [`PIECE`] bytes or more, which are copied only once, straight to their place. All
//! numbers are little-endian. The head is one value:
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
//! A length is one byte up to 253; 254 and 4 bytes, or 255 and 8 bytes, for more.
//!
//! A parcel is a message already: put by itself it goes as it is, of whichever kind, with whatever
//! lies between its pieces. Inside of something else it is an object like any other, and pickled.
//!
//! # Damage
//!
//! What is read may have been damaged by another process. Every length is checked before it is
//! used, each byte of the head is read once, from a private copy, and no nesting is followed deeper
//! than the encoder nests. Damage is a Python error, mostly a `ValueError`, or passes for another
//! message. A pickle is
//! trusted: only processes of the same user can write there.

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

/// The whole message is a head.
pub(crate) const KIND_PLAIN: u32 = 1;

/// The head is followed by pieces.
pub(crate) const KIND_PIECES: u32 = 2;

/// From this length on, bytes are a piece instead of a part of the head.
pub(crate) const PIECE: usize = 4096;

/// From this length on, a piece is lent to the object that is made of it, instead of copied.
pub(crate) const LENT: usize = 64 * 1024;

/// From this length on, copying is worth letting other threads of Python run.
pub(crate) const DETACHED: usize = 32 * 1024;

/// So many containers may be inside each other; what is deeper is pickled.
pub(crate) const DEPTH: u32 = 32;

/// The bytes of a message that has been taken and not given back yet.
pub(crate) trait Payload {
    /// How many they are.
    fn len(&self) -> usize;

    /// Copies those from `at` on; the decoder asks only for what lies within [`Self::len`].
    fn read(&self, at: usize, to: &mut [u8]);

    /// An object with the buffer protocol over `len` bytes from `at` on, writable and flat.
    ///
    /// The message may be given back when this object has been deallocated and not before: numpy
    /// and torch keep the object, not a buffer that they got from it. The decoder asks for places
    /// that do not overlap.
    fn view<'py>(&self, py: Python<'py>, at: usize, len: usize) -> PyResult<Bound<'py, PyAny>>;
}
