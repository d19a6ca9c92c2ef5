//! An encoded message before it is written: its head, and its pieces, still in the memory of Python
//! objects.

use pyo3::pybacked::{PyBackedBytes, PyBackedStr};

use super::head::Head;
use super::raw::Pinned;
use super::{DETACHED, KIND_PIECES, KIND_PLAIN};

/// Alignment of pieces in bytes.
const ALIGNMENT: usize = 64;

/// Size in bytes of the prefix that holds the length of the head.
pub(super) const PREFIX: usize = 8;

/// The start of a piece that follows something that ends at `end`.
pub(super) fn next_place(end: usize) -> Option<usize> {
    end.checked_next_multiple_of(ALIGNMENT)
}

/// A long payload, kept alive at its address.
pub(super) enum Piece {
    Bytes(PyBackedBytes),
    Str(PyBackedStr),
    Memory(Pinned),
    /// The number of bytes reserved for values that are written in place.
    Reserved(usize),
    /// A whole message: then there is no head and no other piece.
    Whole(Whole),
}

/// A message that was encoded before: its kind, the process that sent it, and its bytes.
pub(crate) struct Whole {
    pub(crate) kind: u32,
    pub(crate) sender: u32,
    pub(crate) bytes: Pinned,
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Str(text) => text.as_bytes(),
            Self::Memory(pinned) => pinned.bytes(),
            Self::Whole(whole) => whole.bytes.bytes(),
            Self::Reserved(_) => &[],
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Memory(pinned) => pinned.len(),
            Self::Whole(whole) => whole.bytes.len(),
            Self::Reserved(len) => *len,
            _ => self.bytes().len(),
        }
    }
}

/// An encoded object, with its length and a method that writes it.
///
/// It refers to the memory of the object's arrays, tensors, bytes and strings, and keeps them
/// alive. It can be written without the interpreter's lock, but should be dropped while holding it.
pub(crate) struct Encoded {
    pub(super) head: Head,
    pub(super) pieces: Vec<Piece>,
}

impl Default for Encoded {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoded {
    /// An empty message.
    #[inline]
    pub(crate) const fn new() -> Self {
        Self {
            head: Head::new(),
            pieces: Vec::new(),
        }
    }

    /// Makes it empty again.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.head.clear();
        self.pieces.clear();
    }

    /// The kind of the message.
    pub(crate) fn kind(&self) -> u32 {
        match self.pieces.first() {
            None => KIND_PLAIN,
            Some(Piece::Whole(whole)) => whole.kind,
            Some(_) => KIND_PIECES,
        }
    }

    /// The process that sent it, if it was encoded before; None if this process sends it.
    #[inline]
    pub(crate) fn sender(&self) -> Option<u32> {
        match self.pieces.first() {
            Some(Piece::Whole(whole)) => Some(whole.sender),
            _ => None,
        }
    }

    /// The whole message, if its bytes are contiguous already.
    pub(crate) fn plain(&self) -> Option<&[u8]> {
        match self.pieces.first() {
            None => Some(self.head.bytes()),
            Some(Piece::Whole(whole)) => Some(whole.bytes.bytes()),
            Some(_) => None,
        }
    }

    /// The length of the message in bytes.
    pub(crate) fn total_len(&self) -> usize {
        match (self.plain(), self.places().last()) {
            (None, Some((at, piece))) => at + piece.len(),
            (all, _) => all.map_or(0, <[u8]>::len),
        }
    }

    /// Whether writing takes so long that other Python threads should run meanwhile.
    pub(crate) fn is_long(&self) -> bool {
        let pieces = self.pieces.iter().map(Piece::len);
        pieces.fold(self.head.bytes().len(), usize::saturating_add) >= DETACHED
    }

    /// Writes the message, each byte once; bytes between the pieces are not written.
    ///
    /// `write` gets offsets below [`Self::total_len`], in ascending order.
    pub(crate) fn write_into(&self, write: &mut dyn FnMut(usize, &[u8])) {
        if let Some(all) = self.plain() {
            write(0, all);
            return;
        }
        let head = self.head.bytes();
        write(0, &(head.len() as u64).to_le_bytes());
        write(PREFIX, head);
        for (at, piece) in self.places() {
            let bytes = piece.bytes();
            if !bytes.is_empty() {
                write(at, bytes);
            }
        }
    }

    /// The pieces, each with its offset.
    fn places(&self) -> impl Iterator<Item = (usize, &Piece)> {
        let mut end = PREFIX + self.head.bytes().len();
        self.pieces.iter().map(move |piece| {
            let at = end.next_multiple_of(ALIGNMENT);
            end = at + piece.len();
            (at, piece)
        })
    }
}
