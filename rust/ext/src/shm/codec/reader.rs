//! Checked reads from the head of a message, whose bytes are not trusted.

use std::cell::Cell;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::tag;

/// A position in the head of a message.
///
/// It advances behind a shared reference, so that list items can be decoded while the list is made.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: Cell<usize>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: Cell::new(0),
        }
    }

    /// The number of bytes left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at.get()
    }

    /// The error for a damaged message; `what` says what is wrong with it.
    #[cold]
    pub(super) fn damaged(&self, what: &str) -> PyErr {
        PyValueError::new_err(format!(
            "the message is damaged: {what}, before byte {} of its head",
            self.at.get()
        ))
    }

    #[inline]
    pub(super) fn fixed<const N: usize>(&self) -> PyResult<[u8; N]> {
        let at = self.at.get();
        match self.bytes.get(at..).and_then(<[u8]>::first_chunk) {
            Some(bytes) => {
                self.at.set(at + N);
                Ok(*bytes)
            }
            None => Err(self.damaged("it ends too early")),
        }
    }

    #[inline]
    pub(super) fn byte(&self) -> PyResult<u8> {
        self.fixed::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub(super) fn slice(&self, length: usize) -> PyResult<&'a [u8]> {
        let at = self.at.get();
        match self.bytes.get(at..).and_then(|rest| rest.get(..length)) {
            Some(bytes) => {
                self.at.set(at + length);
                Ok(bytes)
            }
            None => Err(self.damaged("something in it is longer than the rest of it")),
        }
    }

    #[inline]
    pub(super) fn length(&self) -> PyResult<usize> {
        match self.byte()? {
            tag::LENGTH_4 => Ok(u32::from_le_bytes(self.fixed()?) as usize),
            tag::LENGTH_8 => usize::try_from(u64::from_le_bytes(self.fixed()?))
                .map_err(|_| self.damaged("a length is larger than any memory")),
            short => Ok(usize::from(short)),
        }
    }

    /// Reads a number of values that take at least `least` bytes each. It is checked, because
    /// memory is reserved for them.
    #[inline]
    pub(super) fn count(&self, least: usize) -> PyResult<usize> {
        let count = self.length()?;
        if count > self.left() / least {
            return Err(self.damaged("it has fewer values than it says"));
        }
        Ok(count)
    }

    /// Reads the bytes of a str if a str with a length of one byte comes next.
    #[inline]
    pub(super) fn short_text(&self) -> Option<&'a [u8]> {
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
