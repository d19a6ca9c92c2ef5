//! The word that names the holder of an extent, so that payload memory always has a known owner.
//!
//! ```text
//! 63..32  changes  increases with every change, so that a process can tell that nothing happened
//!                  between two looks
//! 31..16  pending  number of blocks that were allocated and that no descriptor names yet;
//!                  all ones: the extent is being removed
//! 15..0   holder   1 + the participant that allocates from it; 0: the entry is free;
//!                  1: no holder, because its producer died while messages were in it
//! ```
//!
//! The allocator of an extent is private to its producer, so other processes cannot know which
//! parts of the extent are free. But any process can find out that *all* of it is free: no block is
//! pending, no descriptor names it, and the word is the same before and after the look at the
//! descriptors. Then a process that needs the memory may take it away. So an idle process that
//! keeps memory warm for itself never makes others wait; it notices the loss when it next allocates
//! there.
//!
//! | from | to | by whom, when |
//! |---|---|---|
//! | free | held, one pending | a producer, before it makes the file |
//! | held | held, pending + 1 | its producer: a block is allocated |
//! | held | held, pending - 1 | its producer: a descriptor names the block |
//! | held, none pending | held by the process that removes it | any process, if no descriptor names it |
//! | held by a dead process | the same, or no holder | a recovery |
//! | being removed | free | the process that removes it, after the file |
//!
//! A process that dies during any of these is a dead holder, whatever it was about to do.

use crate::ring::word::Owner;
use crate::segment::layout::Extent;
use crate::sync::{AtomicU64, Ordering};

const HOLDER_MASK: u64 = 0xffff;
const PENDING_SHIFT: u32 = 16;
const PENDING_MASK: u64 = 0xffff << PENDING_SHIFT;
const PENDING_ONE: u64 = 1 << PENDING_SHIFT;
const CHANGE_ONE: u64 = 1 << 32;

/// The value of the word at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ownership(u64);

impl Ownership {
    /// The holder; None if the entry is free or the value is not valid.
    pub(super) fn holder(self) -> Option<Owner> {
        let holder = u16::try_from(self.0 & HOLDER_MASK).ok()?;
        Owner::new(holder.checked_sub(1)?)
    }

    fn is_free(self) -> bool {
        self.0 & HOLDER_MASK == 0
    }

    /// Whether no block is pending, and the extent is not being removed.
    pub(super) fn is_quiet(self) -> bool {
        self.0 & PENDING_MASK == 0
    }

    /// The next value of the word, with this holder and this many pending blocks.
    fn next(self, holder: Option<Owner>, pending: u64) -> Self {
        let changes = (self.0 & !(HOLDER_MASK | PENDING_MASK)).wrapping_add(CHANGE_ONE);
        let holder = holder.map_or(0, |owner| owner.index() as u64 + 1);
        Self(changes | pending | holder)
    }
}

/// Operations on the word of an entry.
pub(super) trait OwnershipWord {
    /// The value now.
    fn seen(&self) -> Ownership;

    /// Takes a free entry, with one block pending; false if it was not free.
    fn claim(&self, me: Owner) -> bool;

    /// Announces that a block is about to be allocated; false if this participant lost the extent.
    fn begin(&self, me: Owner) -> bool;

    /// Ends what `begin` announced: a descriptor names the block.
    fn end(&self, me: Owner);

    /// Takes the extent in order to remove it; false if anything happened since it was seen.
    fn seize(&self, seen: Ownership, me: Owner) -> bool;

    /// Leaves the extent without a holder, until no descriptor names it; false if anything happened
    /// since it was seen.
    fn orphan(&self, seen: Ownership) -> bool;

    /// Frees an entry that was seized, after its file is gone.
    fn vacate(&self);
}

impl OwnershipWord for Extent {
    fn seen(&self) -> Ownership {
        // ORDER: Acquire, pairs with `end`: the descriptor that names the block.
        Ownership(self.ownership.load(Ordering::Acquire))
    }

    fn claim(&self, me: Owner) -> bool {
        let seen = self.seen();
        seen.is_free() && exchange(&self.ownership, seen, seen.next(Some(me), PENDING_ONE))
    }

    fn begin(&self, me: Owner) -> bool {
        let mut seen = self.seen();
        loop {
            let pending = seen.0 & PENDING_MASK;
            // The largest number is not used: all ones means that the extent is being removed.
            if seen.holder() != Some(me) || pending + PENDING_ONE >= PENDING_MASK {
                return false;
            }
            if exchange(
                &self.ownership,
                seen,
                seen.next(Some(me), pending + PENDING_ONE),
            ) {
                return true;
            }
            seen = self.seen();
        }
    }

    fn end(&self, me: Owner) {
        let mut seen = self.seen();
        loop {
            let pending = seen.0 & PENDING_MASK;
            // Otherwise this process was taken for dead, and the extent is no longer its own.
            if seen.holder() != Some(me) || pending == 0 || pending == PENDING_MASK {
                return;
            }
            if exchange(
                &self.ownership,
                seen,
                seen.next(Some(me), pending - PENDING_ONE),
            ) {
                return;
            }
            seen = self.seen();
        }
    }

    fn seize(&self, seen: Ownership, me: Owner) -> bool {
        exchange(&self.ownership, seen, seen.next(Some(me), PENDING_MASK))
    }

    fn orphan(&self, seen: Ownership) -> bool {
        exchange(&self.ownership, seen, seen.next(Some(Owner::NOBODY), 0))
    }

    fn vacate(&self) {
        // ORDER: Release, pairs with `claim`: the next holder's values come after this one's.
        let free = self.seen().next(None, 0);
        self.ownership.store(free.0, Ordering::Release);
    }
}

fn exchange(word: &AtomicU64, old: Ownership, new: Ownership) -> bool {
    // ORDER: AcqRel. Release: the changes to descriptors, before a block is no longer pending.
    // Acquire: a process that takes an extent sees what its holder did before.
    word.compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Extent {
        Extent {
            ownership: AtomicU64::new(0),
            serial: AtomicU64::new(0),
            length: AtomicU64::new(0),
            place: AtomicU64::new(0),
        }
    }

    fn owner(index: u16) -> Owner {
        Owner::new(index).expect("in range")
    }

    #[test]
    fn an_extent_is_its_producers_until_it_is_seized() {
        let (entry, me, other) = (entry(), owner(3), owner(4));
        assert_eq!(entry.seen().holder(), None);
        assert!(entry.claim(me));
        assert!(!entry.claim(other), "taken");
        assert_eq!(entry.seen().holder(), Some(me));
        assert!(!entry.begin(other));
        assert!(!entry.seen().is_quiet(), "the first block");
        entry.end(me);
        assert!(entry.seen().is_quiet());

        assert!(entry.seize(entry.seen(), other));
        assert!(!entry.begin(me), "it is another's now");
        assert!(!entry.begin(other), "and is being removed");
        entry.end(me);
        assert!(!entry.seen().is_quiet());
        entry.vacate();
        assert!(entry.claim(me));
    }

    #[test]
    fn a_process_that_looked_before_a_block_came_and_went_does_not_get_it() {
        let (entry, me, other) = (entry(), owner(3), owner(4));
        assert!(entry.claim(me));
        entry.end(me);
        let seen = entry.seen();
        assert!(entry.begin(me));
        entry.end(me);
        assert!(entry.seen().is_quiet(), "as before");
        assert!(!entry.seize(seen, other), "but not the same");
        assert!(!entry.orphan(seen));
    }

    #[test]
    fn an_orphan_has_no_holder_and_can_be_seized() {
        let (entry, me, other) = (entry(), owner(3), owner(4));
        assert!(entry.claim(me));
        assert!(entry.orphan(entry.seen()));
        assert_eq!(entry.seen().holder(), Some(Owner::NOBODY));
        assert!(entry.seen().is_quiet());
        assert!(entry.seize(entry.seen(), other));
    }

    #[test]
    fn pending_blocks_are_counted_up_to_the_limit() {
        let (entry, me) = (entry(), owner(0xffe));
        assert!(entry.claim(me));
        let begun = (0..70_000).take_while(|_| entry.begin(me)).count();
        assert_eq!(
            begun, 0xfffd,
            "one at the claim, and all ones are something else"
        );
        for _ in 0..0xfffe {
            assert!(!entry.seen().is_quiet());
            entry.end(me);
        }
        assert!(entry.seen().is_quiet());
        entry.end(me);
        assert_eq!(
            entry.seen().holder(),
            Some(me),
            "one too many changes nothing"
        );
    }

    #[test]
    fn a_word_that_cannot_be_has_no_holder() {
        let entry = entry();
        entry.ownership.store(0xffff, Ordering::Relaxed);
        assert_eq!(entry.seen().holder(), None);
        assert!(!entry.claim(owner(1)), "nor is it free");
        assert!(!entry.begin(owner(1)));
    }
}
