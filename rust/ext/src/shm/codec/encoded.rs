//! A message before it is written: its head, and the pieces that are still where Python has them.

use pyo3::pybacked::{PyBackedBytes, PyBackedStr};

use super::head::Head;
use super::raw::Pinned;
use super::{DETACHED, KIND_PIECES, KIND_PLAIN};

/// Pieces begin at multiples of this.
const ALIGNMENT: usize = 64;

/// The length of the head, in front of it.
pub(super) const PREFIX: usize = 8;

/// Where the piece after something that ends at `end` begins.
pub(super) fn next_place(end: usize) -> Option<usize> {
    end.checked_next_multiple_of(ALIGNMENT)
}

/// A long payload, kept alive and in place.
pub(super) enum Piece {
    Bytes(PyBackedBytes),
    Str(PyBackedStr),
    Memory(Pinned),
    /// So many bytes that are in their place already.
    Reserved(usize),
    /// A whole message: there is nothing else.
    Whole(Whole),
}

/// A message that was made before: its kind, the process that sent it, and its bytes.
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

/// An encoded object: how long it is, and how to write it.
///
/// It refers to the memory of the object's arrays, tensors, bytes and strings, and keeps them
/// alive. It can be written without the interpreter's lock; it is best dropped with it.
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
    /// Nothing yet.
    #[inline]
    pub(crate) const fn new() -> Self {
        Self {
            head: Head::new(),
            pieces: Vec::new(),
        }
    }

    /// Forgets everything.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.head.clear();
        self.pieces.clear();
    }

    /// How the bytes are to be read.
    pub(crate) fn kind(&self) -> u32 {
        match self.pieces.first() {
            None => KIND_PLAIN,
            Some(Piece::Whole(whole)) => whole.kind,
            Some(_) => KIND_PIECES,
        }
    }

    /// Who sent it, where it was a message before; None where this process does.
    #[inline]
    pub(crate) fn sender(&self) -> Option<u32> {
        match self.pieces.first() {
            Some(Piece::Whole(whole)) => Some(whole.sender),
            _ => None,
        }
    }

    /// The whole message, where it lies in one piece already.
    pub(crate) fn plain(&self) -> Option<&[u8]> {
        match self.pieces.first() {
            None => Some(self.head.bytes()),
            Some(Piece::Whole(whole)) => Some(whole.bytes.bytes()),
            Some(_) => None,
        }
    }

    /// How many bytes the message takes.
    pub(crate) fn total_len(&self) -> usize {
        match (self.plain(), self.places().last()) {
            (None, Some((at, piece))) => at + piece.len(),
            (all, _) => all.map_or(0, <[u8]>::len),
        }
    }

    /// Whether writing takes long enough to let other threads of Python run meanwhile.
    pub(crate) fn is_long(&self) -> bool {
        let pieces = self.pieces.iter().map(Piece::len);
        pieces.fold(self.head.bytes().len(), usize::saturating_add) >= DETACHED
    }

    /// Writes the message, each byte once, the bytes between the pieces not at all.
    ///
    /// `write` gets places within [`Self::total_len`], in rising order.
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

    /// The pieces and where each begins.
    fn places(&self) -> impl Iterator<Item = (usize, &Piece)> {
        let mut end = PREFIX + self.head.bytes().len();
        self.pieces.iter().map(move |piece| {
            let at = end.next_multiple_of(ALIGNMENT);
            end = at + piece.len();
            (at, piece)
        })
    }
}
