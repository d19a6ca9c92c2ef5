//! The buffer in which the head of a message is written.

use std::fmt;

use crate::tag;

/// Size in bytes of the part on the stack: a head that fits into a descriptor needs no more.
const STACK: usize = 224;

/// A growing buffer, on the stack while it is small.
pub struct Head {
    /// The used part of `stack`; if `heap` is not empty, all bytes have moved there.
    used: usize,
    stack: [u8; STACK],
    heap: Vec<u8>,
}

impl Default for Head {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Head").field(&self.bytes()).finish()
    }
}

impl Head {
    /// An empty head.
    #[inline]
    pub const fn new() -> Self {
        Self {
            used: 0,
            stack: [0; STACK],
            heap: Vec::new(),
        }
    }

    /// The bytes that were written.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        if self.heap.is_empty() {
            &self.stack[..self.used]
        } else {
            &self.heap
        }
    }

    /// Makes it empty again.
    #[inline]
    pub fn clear(&mut self) {
        self.used = 0;
        self.heap.clear();
    }

    /// Writes one byte.
    #[inline]
    pub fn push(&mut self, byte: u8) {
        self.extend(&[byte]);
    }

    /// Writes bytes.
    #[inline]
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.heap.is_empty() {
            let end = self.used + bytes.len();
            if let Some(to) = self.stack.get_mut(self.used..end) {
                to.copy_from_slice(bytes);
                self.used = end;
                return;
            }
            self.move_out(bytes.len());
        }
        self.heap.extend_from_slice(bytes);
    }

    /// Writes a tag and a value of fixed size in one step.
    #[inline]
    pub fn tagged<const N: usize>(&mut self, tag: u8, bytes: [u8; N]) {
        if self.heap.is_empty()
            && let Some((first, rest)) = self.stack[self.used..].split_first_mut()
            && let Some(to) = rest.first_chunk_mut()
        {
            *first = tag;
            *to = bytes;
            self.used += 1 + N;
        } else {
            self.push(tag);
            self.extend(&bytes);
        }
    }

    /// Writes a tag, a length and that many bytes, in one step if they are few.
    #[inline]
    pub fn text(&mut self, tag: u8, bytes: &[u8]) {
        if self.heap.is_empty()
            && let Some([first, second, rest @ ..]) = self.stack.get_mut(self.used..)
            && let Some(to) = rest.get_mut(..bytes.len())
            && let Ok(length @ ..tag::LENGTH_4) = u8::try_from(bytes.len())
        {
            *first = tag;
            *second = length;
            to.copy_from_slice(bytes);
            self.used += 2 + bytes.len();
        } else {
            self.push(tag);
            self.length(bytes.len());
            self.extend(bytes);
        }
    }

    /// Writes a length, in as few bytes as possible.
    #[inline]
    pub fn length(&mut self, length: usize) {
        match u8::try_from(length) {
            Ok(short) if short < tag::LENGTH_4 => self.push(short),
            _ => self.long_length(length),
        }
    }

    #[cold]
    fn long_length(&mut self, length: usize) {
        match u32::try_from(length) {
            Ok(length) => self.tagged(tag::LENGTH_4, length.to_le_bytes()),
            Err(_) => self.tagged(tag::LENGTH_8, (length as u64).to_le_bytes()),
        }
    }

    #[cold]
    fn move_out(&mut self, more: usize) {
        self.heap.reserve(STACK * 4 + more);
        self.heap.extend_from_slice(&self.stack[..self.used]);
        // An empty heap means that the bytes are on the stack. If the head was empty the heap is
        // still empty now, but the caller appends its bytes next.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that `write` adds to a head that already has `filled` bytes.
    fn after(filled: usize, write: impl Fn(&mut Head)) -> Vec<u8> {
        let mut head = Head::new();
        head.extend(&vec![7; filled]);
        write(&mut head);
        assert_eq!(&head.bytes()[..filled], vec![7; filled]);
        head.bytes()[filled..].to_vec()
    }

    #[test]
    fn a_head_is_the_same_on_the_stack_and_on_the_heap() {
        for filled in 0..STACK + 20 {
            assert_eq!(after(filled, |head| head.push(3)), [3]);
            assert_eq!(
                after(filled, |head| head.tagged(5, [1, 2, 3])),
                [5, 1, 2, 3]
            );
            assert_eq!(after(filled, |head| head.text(9, b"abc")), *b"\x09\x03abc");
            assert_eq!(after(filled, |head| head.text(9, b"")), [9, 0]);
            let long = after(filled, |head| head.text(9, &[8; 300]));
            assert_eq!(long[..6], [9, tag::LENGTH_4, 44, 1, 0, 0]);
            assert_eq!(long[6..], [8; 300]);
        }
    }

    #[test]
    fn a_cleared_head_starts_again() {
        let mut head = Head::new();
        for filled in [3, STACK * 2, 3] {
            head.extend(&vec![1; filled]);
            head.clear();
            assert_eq!(head.bytes(), []);
            head.push(2);
            assert_eq!(head.bytes(), [2]);
            head.clear();
        }
    }
}
