//! The head of a message while it is written.

use super::tag;

/// What fits into a descriptor stays on the stack.
const STACK: usize = 224;

/// Bytes that grow, on the stack as long as they are few.
pub(crate) struct Head {
    /// How many of `stack` are in use; the bytes have moved when `heap` holds any.
    used: usize,
    stack: [u8; STACK],
    heap: Vec<u8>,
}

impl Head {
    pub(super) const fn new() -> Self {
        Self {
            used: 0,
            stack: [0; STACK],
            heap: Vec::new(),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        if self.heap.is_empty() {
            &self.stack[..self.used]
        } else {
            &self.heap
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.heap.clear();
    }

    #[inline]
    pub(super) fn push(&mut self, byte: u8) {
        self.extend(&[byte]);
    }

    #[inline]
    pub(super) fn extend(&mut self, bytes: &[u8]) {
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

    /// A tag and what has a fixed size behind it, in one go.
    #[inline]
    pub(super) fn tagged<const N: usize>(&mut self, tag: u8, bytes: [u8; N]) {
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

    /// A tag, a length and so many bytes, in one go where they are few.
    #[inline]
    pub(super) fn text(&mut self, tag: u8, bytes: &[u8]) {
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

    #[inline]
    pub(super) fn length(&mut self, length: usize) {
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
        // An empty head with a long first part: the emptiness of the heap must not mean "on the
        // stack" any more, and it does not, because the part follows.
    }
}
