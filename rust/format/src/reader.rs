//! Checked reads from the head of a message, whose bytes are not trusted.

use std::cell::Cell;
use std::error::Error;
use std::fmt;

use crate::{KIND_PIECES, KIND_PLAIN, tag};

/// The reason why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// No message has this kind, or not these bytes.
    Kind(u32),
    /// The head does not fit into the message.
    Head {
        /// The length of the head in bytes, as the message says.
        length: usize,
        /// The length of the message in bytes.
        total: usize,
    },
    /// A value in the head is not one.
    Value {
        /// What is wrong with the message.
        what: &'static str,
        /// The first byte of the head that was not read.
        at: usize,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the message is damaged: ")?;
        match self {
            Self::Kind(kind) => write!(
                f,
                "it is of kind {kind} where {KIND_PLAIN} or {KIND_PIECES} was expected"
            ),
            Self::Head { length, total } => {
                write!(f, "its head takes {length} bytes and all of it {total}")
            }
            Self::Value { what, at } => write!(f, "{what}, before byte {at} of its head"),
        }
    }
}

impl Error for Damage {}

/// A position in the head of a message.
///
/// It advances behind a shared reference, so that list items can be decoded while the list is made.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: Cell<usize>,
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: Cell::new(0),
        }
    }

    /// The number of bytes left.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at.get()
    }

    /// The damage at this position; `what` says what is wrong.
    #[cold]
    pub(crate) fn damage(&self, what: &'static str) -> Damage {
        Damage::Value {
            what,
            at: self.at.get(),
        }
    }

    #[inline]
    pub(crate) fn fixed<const N: usize>(&self) -> Result<[u8; N], Damage> {
        let at = self.at.get();
        match self.bytes.get(at..).and_then(<[u8]>::first_chunk) {
            Some(bytes) => {
                self.at.set(at + N);
                Ok(*bytes)
            }
            None => Err(self.damage("it ends too early")),
        }
    }

    #[inline]
    pub(crate) fn byte(&self) -> Result<u8, Damage> {
        self.fixed::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn slice(&self, length: usize) -> Result<&'a [u8], Damage> {
        let at = self.at.get();
        match self.bytes.get(at..).and_then(|rest| rest.get(..length)) {
            Some(bytes) => {
                self.at.set(at + length);
                Ok(bytes)
            }
            None => Err(self.damage("something in it is longer than the rest of it")),
        }
    }

    #[inline]
    pub(crate) fn length(&self) -> Result<usize, Damage> {
        match self.byte()? {
            tag::LENGTH_4 => Ok(u32::from_le_bytes(self.fixed()?) as usize),
            tag::LENGTH_8 => usize::try_from(u64::from_le_bytes(self.fixed()?))
                .map_err(|_| self.damage("a length is larger than any memory")),
            short => Ok(usize::from(short)),
        }
    }

    /// Reads a number of values that take at least `least` bytes each. It is checked, because
    /// memory is reserved for them.
    #[inline]
    pub(crate) fn count(&self, least: usize) -> Result<usize, Damage> {
        let count = self.length()?;
        if count > self.left() / least {
            return Err(self.damage("it has fewer values than it says"));
        }
        Ok(count)
    }

    /// Reads the bytes of a str if a str with a length of one byte comes next.
    #[inline]
    pub(crate) fn short_text(&self) -> Option<&'a [u8]> {
        let at = self.at.get();
        let (&[tag::STR, length @ 0..tag::LENGTH_4], rest) =
            self.bytes.get(at..)?.split_first_chunk()?
        else {
            return None;
        };
        let bytes = rest.get(..usize::from(length))?;
        self.at.set(at + 2 + bytes.len());
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Head;

    fn value(what: &'static str, at: usize) -> Damage {
        Damage::Value { what, at }
    }

    #[test]
    fn lengths_are_read_as_they_were_written_in_as_few_bytes_as_possible() {
        const LARGEST_IN_4: usize = u32::MAX as usize;
        for (lengths, bytes) in [
            ([0, 1, 253], 1),
            ([254, 255, 256], 5),
            ([65_536, LARGEST_IN_4 - 1, LARGEST_IN_4], 5),
            ([LARGEST_IN_4 + 1, 1 << 40, 1 << 62], 9),
        ] {
            for length in lengths {
                let mut head = Head::new();
                head.length(length);
                assert_eq!(head.bytes().len(), bytes);
                let reader = Reader::new(head.bytes());
                assert_eq!(reader.length(), Ok(length));
                assert_eq!(reader.left(), 0);
            }
        }
    }

    #[test]
    fn nothing_is_read_behind_the_end() {
        let reader = Reader::new(&[tag::LENGTH_4, 1, 0, 0]);
        assert_eq!(reader.length(), Err(value("it ends too early", 1)));
        let reader = Reader::new(&[1, 2, 3]);
        assert_eq!(
            reader.slice(4),
            Err(value("something in it is longer than the rest of it", 0))
        );
        assert_eq!(reader.slice(3), Ok(&[1, 2, 3][..]));
        assert_eq!(reader.byte(), Err(value("it ends too early", 3)));
    }

    #[test]
    fn a_slice_of_any_length_is_checked() {
        let reader = Reader::new(&[7; 4]);
        assert_eq!(reader.byte(), Ok(7));
        assert!(reader.slice(usize::MAX).is_err());
        assert_eq!(reader.left(), 3);
    }

    #[test]
    fn memory_is_reserved_only_for_values_that_can_be_there() {
        assert_eq!(Reader::new(&[3, 0, 0, 0]).count(1), Ok(3));
        assert!(Reader::new(&[4, 0, 0, 0]).count(1).is_err());
        assert!(Reader::new(&[2, 0, 0, 0]).count(2).is_err());
        let all = [255, 255, 255, 255, 255, 255, 255, 255, 255, 0];
        assert!(Reader::new(&all).count(2).is_err());
    }

    #[test]
    fn only_a_whole_short_text_is_read_as_one() {
        let reader = Reader::new(&[tag::STR, 2, b'a', b'b', 9]);
        assert_eq!(reader.short_text(), Some(&b"ab"[..]));
        assert_eq!(reader.left(), 1);
        for other in [
            &[][..],
            &[tag::STR],
            &[tag::STR, 3, 0, 0],
            &[tag::BYTES, 1, 0],
            &[tag::STR, tag::LENGTH_4, 1, 0, 0, 0, 0],
        ] {
            let reader = Reader::new(other);
            assert_eq!(reader.short_text(), None);
            assert_eq!(reader.left(), other.len());
        }
    }
}
