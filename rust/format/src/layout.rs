//! The places of the head and of the pieces in a message.

use std::cell::Cell;

use crate::{Damage, KIND_PIECES, KIND_PLAIN};

/// Alignment of pieces in bytes.
pub(crate) const ALIGNMENT: usize = 64;

/// Size in bytes of the prefix that holds the length of the head.
pub(crate) const PREFIX: usize = 8;

/// The start of a piece that follows something that ends at `end`; None if it overflows.
#[inline]
fn next_place(end: usize) -> Option<usize> {
    end.checked_next_multiple_of(ALIGNMENT)
}

/// The places of pieces of these lengths behind a head of `head` bytes, and the end of each.
pub(crate) fn places(
    head: usize,
    lengths: impl Iterator<Item = usize>,
) -> impl Iterator<Item = (usize, usize)> {
    let mut end = PREFIX + head;
    lengths.map(move |length| {
        let at = end.next_multiple_of(ALIGNMENT);
        end = at + length;
        (at, end)
    })
}

/// The place of the head in a message of this kind and length: its start and its length.
///
/// `prefix` reads the first bytes of the message, if it has pieces.
#[inline]
pub(crate) fn head_of(
    kind: u32,
    total: usize,
    prefix: impl FnOnce() -> [u8; PREFIX],
) -> Result<(usize, usize), Damage> {
    let (start, length) = match kind {
        KIND_PLAIN => (0, total),
        KIND_PIECES if total >= PREFIX => {
            let length = usize::try_from(u64::from_le_bytes(prefix())).unwrap_or(usize::MAX);
            (PREFIX, length)
        }
        _ => return Err(Damage::Kind(kind)),
    };
    if length > total - start {
        return Err(Damage::Head { length, total });
    }
    Ok((start, length))
}

/// The pieces of a message, found one after the other.
pub(crate) struct Pieces {
    /// The end of the last piece that was found; at first that of the head.
    end: Cell<usize>,
    total: usize,
}

impl Pieces {
    pub(crate) fn new(head_end: usize, total: usize) -> Self {
        Self {
            end: Cell::new(head_end),
            total,
        }
    }

    /// The place of the next piece; None if it does not fit into the message.
    pub(crate) fn next(&self, length: usize) -> Option<usize> {
        let at = next_place(self.end.get())?;
        let end = at.checked_add(length)?;
        (end <= self.total).then(|| {
            self.end.set(end);
            at
        })
    }

    /// Whether nothing follows the last piece that was found.
    pub(crate) fn at_end(&self) -> bool {
        self.end.get() == self.total
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_head_of_a_message_is_inside_it() {
        let with = |length: u64| move || length.to_le_bytes();
        assert_eq!(head_of(KIND_PLAIN, 0, with(9)), Ok((0, 0)));
        assert_eq!(head_of(KIND_PLAIN, 40, with(9)), Ok((0, 40)));
        assert_eq!(head_of(KIND_PIECES, 40, with(32)), Ok((8, 32)));
        let all = Err(Damage::Head {
            length: 33,
            total: 40,
        });
        assert_eq!(head_of(KIND_PIECES, 40, with(33)), all);
        let huge = Err(Damage::Head {
            length: usize::MAX,
            total: 40,
        });
        assert_eq!(head_of(KIND_PIECES, 40, with(u64::MAX)), huge);
        for kind in [0, 3, u32::MAX] {
            assert_eq!(head_of(kind, 40, with(1)), Err(Damage::Kind(kind)));
        }
        assert_eq!(head_of(KIND_PIECES, 7, with(0)), Err(Damage::Kind(2)));
    }

    #[test]
    fn a_piece_that_overflows_is_not_there() {
        assert_eq!(Pieces::new(usize::MAX - 3, usize::MAX).next(1), None);
        assert_eq!(Pieces::new(100, 200).next(usize::MAX), None);
        let pieces = Pieces::new(100, 200);
        assert_eq!(pieces.next(73), None);
        assert_eq!(pieces.next(72), Some(128));
        assert!(pieces.at_end());
        assert_eq!(pieces.next(1), None);
    }

    proptest! {
        #[test]
        fn pieces_are_found_where_they_were_placed(
            head in 0..10_000_usize,
            lengths in prop::collection::vec(0..100_000_usize, 0..8),
        ) {
            let placed: Vec<_> = places(head, lengths.iter().copied()).collect();
            let total = placed.last().map_or(PREFIX + head, |(_, end)| *end);
            let pieces = Pieces::new(PREFIX + head, total);
            let mut before = PREFIX + head;
            for (length, (at, end)) in lengths.iter().zip(&placed) {
                prop_assert_eq!(pieces.next(*length), Some(*at));
                prop_assert_eq!(at % ALIGNMENT, 0);
                prop_assert!((before..before + ALIGNMENT).contains(at));
                prop_assert_eq!(at + length, *end);
                before = *end;
            }
            prop_assert!(pieces.at_end());
        }
    }
}
