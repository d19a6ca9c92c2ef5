//! A message before it is written, whose pieces are still in the memory of Python objects.

use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use shoal_format::{Message, Part};

use crate::raw::Pinned;

/// An encoded object, with its length and a method that writes it.
///
/// It refers to the memory of the object's arrays, tensors, bytes and strings, and keeps them
/// alive. It can be written without the interpreter's lock, but should be dropped while holding it.
pub type Encoded = Message<Piece>;

/// A long payload, kept alive at its address.
#[derive(Debug)]
pub enum Piece {
    /// The memory of a bytes.
    Bytes(PyBackedBytes),
    /// The memory of a str.
    Str(PyBackedStr),
    /// The memory of another object.
    Memory(Pinned),
    /// The number of bytes reserved for values that are written in place.
    Reserved(usize),
    /// A whole message: then there is no head and no other piece.
    Whole(Whole),
}

/// A message that was encoded before: its kind, the process that sent it, and its bytes.
#[derive(Debug)]
pub struct Whole {
    /// The kind of the message.
    pub kind: u32,
    /// The pid of the process that sent it.
    pub sender: u32,
    /// The message.
    pub bytes: Pinned,
}

impl Part for Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Str(text) => text.as_bytes(),
            Self::Memory(pinned) => pinned.bytes(),
            Self::Whole(whole) => whole.bytes.bytes(),
            Self::Reserved(_) => &[],
        }
    }

    fn byte_len(&self) -> usize {
        match self {
            Self::Memory(pinned) => pinned.len(),
            Self::Whole(whole) => whole.bytes.len(),
            Self::Reserved(len) => *len,
            _ => self.bytes().len(),
        }
    }

    #[inline]
    fn whole(&self) -> Option<(u32, u32)> {
        match self {
            Self::Whole(whole) => Some((whole.kind, whole.sender)),
            _ => None,
        }
    }
}
