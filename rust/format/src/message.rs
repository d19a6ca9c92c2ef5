//! A message before it is written: its head, and its pieces, which still lie elsewhere.

use crate::layout::{ALIGNMENT, PREFIX, places};
use crate::{Head, KIND_PIECES, KIND_PLAIN, LONG};

/// The bytes between two pieces: fewer than this.
const GAP: [u8; ALIGNMENT] = [0; ALIGNMENT];

/// A piece of a message: bytes that are not in the head.
pub trait Part {
    /// The bytes; none if room for them is reserved only.
    fn bytes(&self) -> &[u8];

    /// The number of bytes.
    fn byte_len(&self) -> usize {
        self.bytes().len()
    }

    /// The kind and the sender, if the part is a whole message that was encoded before. Then there
    /// is no head and no other piece.
    fn whole(&self) -> Option<(u32, u32)> {
        None
    }
}

impl Part for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A message, with its length and a method that writes it.
#[derive(Debug)]
pub struct Message<P> {
    /// The head.
    pub head: Head,
    /// The pieces, in the order of the values.
    pub pieces: Vec<P>,
}

impl<P> Default for Message<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P> Message<P> {
    /// An empty message.
    #[inline]
    pub const fn new() -> Self {
        Self {
            head: Head::new(),
            pieces: Vec::new(),
        }
    }

    /// Makes it empty again.
    #[inline]
    pub fn clear(&mut self) {
        self.head.clear();
        self.pieces.clear();
    }
}

impl<P: Part> Message<P> {
    /// The kind of the message.
    #[inline]
    pub fn kind(&self) -> u32 {
        match self.pieces.first() {
            None => KIND_PLAIN,
            Some(piece) => piece.whole().map_or(KIND_PIECES, |(kind, _)| kind),
        }
    }

    /// The process that sent it, if it was encoded before; None if this process sends it.
    #[inline]
    pub fn sender(&self) -> Option<u32> {
        self.pieces.first()?.whole().map(|(_, sender)| sender)
    }

    /// The whole message, if its bytes are contiguous already.
    #[inline]
    pub fn plain(&self) -> Option<&[u8]> {
        match self.pieces.first() {
            None => Some(self.head.bytes()),
            Some(piece) => piece.whole().map(|_| piece.bytes()),
        }
    }

    /// The length of the message in bytes.
    #[inline]
    pub fn total_len(&self) -> usize {
        match self.plain() {
            Some(all) => all.len(),
            None => self.places().last().map_or(0, |(_, end)| end),
        }
    }

    /// Whether it takes long to write: [`LONG`] bytes or more.
    #[inline]
    pub fn is_long(&self) -> bool {
        let pieces = self.pieces.iter().map(Part::byte_len);
        pieces.fold(self.head.bytes().len(), usize::saturating_add) >= LONG
    }

    /// Writes the message, each byte once; bytes between the pieces are not written.
    ///
    /// `write` gets offsets below [`Self::total_len`], in ascending order.
    pub fn write_into(&self, write: &mut dyn FnMut(usize, &[u8])) {
        if let Some(all) = self.plain() {
            write(0, all);
            return;
        }
        let head = self.head.bytes();
        write(0, &self.prefix());
        write(PREFIX, head);
        for (piece, (at, _)) in self.pieces.iter().zip(self.places()) {
            let bytes = piece.bytes();
            if !bytes.is_empty() {
                write(at, bytes);
            }
        }
    }

    /// The bytes that [`Self::parts`] begins with, if the message has pieces.
    pub fn prefix(&self) -> [u8; PREFIX] {
        (self.head.bytes().len() as u64).to_le_bytes()
    }

    /// All bytes of the message, in as many parts as they lie in; those between the pieces are 0.
    ///
    /// `prefix` is what [`Self::prefix`] returns. No room may be reserved in the message.
    pub fn parts<'a>(&'a self, prefix: &'a [u8; PREFIX]) -> Vec<&'a [u8]> {
        if let Some(all) = self.plain() {
            return vec![all];
        }
        let head = self.head.bytes();
        let mut parts: Vec<&[u8]> = vec![prefix, head];
        let mut end = PREFIX + head.len();
        for (piece, (at, next)) in self.pieces.iter().zip(self.places()) {
            parts.extend([&GAP[..at - end], piece.bytes()]);
            end = next;
        }
        parts
    }

    /// The start and the end of each piece.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        places(
            self.head.bytes().len(),
            self.pieces.iter().map(Part::byte_len),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Piece {
        Bytes(Vec<u8>),
        Reserved(usize),
        Whole(u32, Vec<u8>),
    }

    impl Part for Piece {
        fn bytes(&self) -> &[u8] {
            match self {
                Self::Bytes(bytes) | Self::Whole(_, bytes) => bytes,
                Self::Reserved(_) => &[],
            }
        }

        fn byte_len(&self) -> usize {
            match self {
                Self::Reserved(len) => *len,
                _ => self.bytes().len(),
            }
        }

        fn whole(&self) -> Option<(u32, u32)> {
            match self {
                Self::Whole(kind, _) => Some((*kind, 77)),
                _ => None,
            }
        }
    }

    fn message(head: &[u8], pieces: Vec<Piece>) -> Message<Piece> {
        let mut message = Message::new();
        message.head.extend(head);
        message.pieces = pieces;
        message
    }

    /// The bytes of a message, where those that are not written are 0xee.
    fn written(message: &Message<Piece>) -> Vec<u8> {
        let mut bytes = vec![0xee; message.total_len()];
        let mut end = 0;
        message.write_into(&mut |at, part| {
            assert!(at >= end, "the parts are not in order");
            end = at + part.len();
            bytes[at..end].copy_from_slice(part);
        });
        assert!(message.plain().is_none_or(|plain| plain == bytes));
        bytes
    }

    #[test]
    fn the_parts_of_a_message_are_all_its_bytes() {
        let pieces = || vec![Piece::Bytes(vec![1; 70]), Piece::Bytes(Vec::new())];
        let whole = Piece::Whole(2, b"all of it".to_vec());
        for (head, pieces) in [
            (&b"head"[..], Vec::new()),
            (b"head", pieces()),
            (&[7; 56], pieces()),
            (b"", vec![whole]),
        ] {
            let message = message(head, pieces);
            let mut bytes = vec![0; message.total_len()];
            message.write_into(&mut |at, part| bytes[at..at + part.len()].copy_from_slice(part));
            assert_eq!(message.parts(&message.prefix()).concat(), bytes);
        }
    }

    #[test]
    fn a_message_without_pieces_is_its_head() {
        let message = message(b"head", Vec::new());
        assert_eq!((message.kind(), message.sender()), (KIND_PLAIN, None));
        assert_eq!(message.plain(), Some(&b"head"[..]));
        assert_eq!(written(&message), b"head");
    }

    #[test]
    fn pieces_follow_the_head_at_multiples_of_64() {
        let pieces = vec![
            Piece::Bytes(vec![1; 70]),
            Piece::Bytes(vec![2; 64]),
            Piece::Bytes(Vec::new()),
            Piece::Bytes(vec![3; 5]),
        ];
        let message = message(b"head", pieces);
        assert_eq!((message.kind(), message.plain()), (KIND_PIECES, None));
        let bytes = written(&message);
        assert_eq!(bytes[..8], 4_u64.to_le_bytes());
        assert_eq!(bytes[8..12], *b"head");
        assert_eq!(bytes[12..64], [0xee; 52]);
        assert_eq!(bytes[64..134], [1; 70]);
        assert_eq!(bytes[134..192], [0xee; 58]);
        assert_eq!(bytes[192..256], [2; 64]);
        assert_eq!(bytes[256..], [3; 5]);
    }

    #[test]
    fn reserved_room_is_not_written() {
        let message = message(&[9; 57], vec![Piece::Reserved(4096)]);
        let bytes = written(&message);
        assert_eq!(bytes.len(), 128 + 4096);
        assert_eq!(bytes[65..], [0xee; 63 + 4096]);
    }

    #[test]
    fn a_message_that_was_encoded_before_stays_as_it_is() {
        let message = message(b"", vec![Piece::Whole(2, b"all of it".to_vec())]);
        assert_eq!((message.kind(), message.sender()), (2, Some(77)));
        assert_eq!(written(&message), b"all of it");
    }

    #[test]
    fn long_messages_are_known_by_the_bytes_that_are_copied() {
        assert!(!message(&vec![0; LONG - 1], Vec::new()).is_long());
        assert!(message(&vec![0; LONG], Vec::new()).is_long());
        assert!(message(b"", vec![Piece::Reserved(LONG)]).is_long());
        assert!(message(b"", vec![Piece::Reserved(LONG - 1), Piece::Bytes(vec![0])]).is_long());
    }

    #[test]
    fn a_cleared_message_is_empty() {
        let mut message = message(b"head", vec![Piece::Reserved(8)]);
        message.clear();
        assert_eq!(message.plain(), Some(&[][..]));
    }
}
