//! `Word`: the state of a descriptor, and the participant that is responsible for it.
//!
//! ```text
//! 63..60  state      0 free, 1 writing, 2 queued, 3 queued again, 4 loaned, 5 leased, 6 salvage
//! 59..48  owner      the participant that wrote the word
//! 47..0   position   where it was published, modulo 2^48
//! ```
//!
//! Free is the whole word 0, so that zeroed memory is a table of free descriptors, and so that no
//! word names an owner that is no longer responsible for it.

use std::fmt;

const OWNER_BITS: u32 = 12;
const POSITION_BITS: u32 = 48;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;
const STATE_SHIFT: u32 = POSITION_BITS + OWNER_BITS;

/// A participant of a session, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(u16);

impl Owner {
    /// The participant that is always dead. It owns the messages that were in a queue when their
    /// producer was found dead. No process gets this index.
    pub const NOBODY: Self = Self(0);

    /// The limit of indexes: no session has more participants.
    pub const LIMIT: u16 = 1 << OWNER_BITS;

    /// The participant of this index; None if a word cannot hold the index.
    pub const fn new(index: u16) -> Option<Self> {
        if index < Self::LIMIT {
            Some(Self(index))
        } else {
            None
        }
    }

    /// Its index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The state of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No participant uses it.
    Free,
    /// A producer fills it.
    Writing,
    /// Complete, and published at the position or about to be.
    Queued,
    /// Same as `Queued`, for a message that is published again: it was put before, and must not be
    /// dropped.
    QueuedAgain,
    /// A consumer has it; it is lost if the consumer dies.
    Loaned,
    /// A consumer has it and will acknowledge it; it is delivered again if the consumer dies.
    Leased,
    /// A sweeper, or the consumer that had it leased, is putting it back into the queue.
    Salvage,
}

impl State {
    const ALL: [Self; 7] = [
        Self::Free,
        Self::Writing,
        Self::Queued,
        Self::QueuedAgain,
        Self::Loaned,
        Self::Leased,
        Self::Salvage,
    ];
}

/// The word of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(u64);

impl Word {
    /// The word of a free descriptor.
    pub const FREE: Self = Self(0);

    /// A word of a state other than `Free`; only the low 48 bits of the position are kept.
    pub const fn new(state: State, owner: Owner, position: u64) -> Self {
        Self(
            (state as u64) << STATE_SHIFT
                | (owner.0 as u64) << POSITION_BITS
                | position & POSITION_MASK,
        )
    }

    /// The same owner and position, in a state other than `Free`.
    pub(super) const fn with_state(self, state: State) -> Self {
        Self(self.0 << 4 >> 4 | (state as u64) << STATE_SHIFT)
    }

    /// The word with these bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits in memory.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Its state; None for bits that no process writes.
    pub fn state(self) -> Option<State> {
        if self == Self::FREE {
            return Some(State::Free);
        }
        let state = usize::try_from(self.0 >> STATE_SHIFT).ok()?;
        State::ALL.get(state).copied().filter(|&s| s != State::Free)
    }

    /// The same word, with [`Owner::NOBODY`] as its owner.
    pub(super) const fn handed_over(self) -> Self {
        let owner = (Owner::LIMIT as u64 - 1) << POSITION_BITS;
        Self(self.0 & !owner | (Owner::NOBODY.0 as u64) << POSITION_BITS)
    }

    /// The participant that is responsible for the descriptor.
    pub const fn owner(self) -> Owner {
        Owner((self.0 >> POSITION_BITS) as u16 & (Owner::LIMIT - 1))
    }

    /// Whether it names this position.
    pub const fn is_at(self, position: u64) -> bool {
        self.0 & POSITION_MASK == position & POSITION_MASK
    }

    /// The position that it names: of the possible ones, the one that is nearest to `near`.
    pub const fn position_near(self, near: u64) -> u64 {
        near.wrapping_add(sign_extend(self.0.wrapping_sub(near), POSITION_BITS).cast_unsigned())
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state() {
            Some(State::Free) => f.write_str("Free"),
            Some(state) => write!(
                f,
                "{state:?}(by {}, at {})",
                self.owner().0,
                self.0 & POSITION_MASK
            ),
            None => write!(f, "{:#018x}", self.0),
        }
    }
}

/// The low bits of a wrapping difference, as the number nearest to 0.
pub(super) const fn sign_extend(difference: u64, bits: u32) -> i64 {
    let unused = u64::BITS - bits;
    (difference << unused).cast_signed() >> unused
}

/// The number of positions by which one is ahead of another; positions wrap.
pub(super) const fn distance(ahead: u64, of: u64) -> i64 {
    ahead.wrapping_sub(of).cast_signed()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zeroed_memory_is_free_and_nothing_else_is() {
        assert_eq!(Word::from_bits(0).state(), Some(State::Free));
        assert_eq!(Word::from_bits(1).state(), None, "free with a position");
        assert_eq!(Word::from_bits(7 << STATE_SHIFT).state(), None);
        assert_eq!(Owner::new(Owner::LIMIT), None);
    }

    proptest! {
        #[test]
        fn a_word_gives_back_what_it_was_made_of(
            state in 1..7_usize, owner in 0..Owner::LIMIT, position: u64,
        ) {
            let (state, owner) = (State::ALL[state], Owner::new(owner).expect("in range"));
            let word = Word::from_bits(Word::new(state, owner, position).bits());
            prop_assert_eq!(word.state(), Some(state));
            prop_assert_eq!(word.owner(), owner);
            prop_assert!(word.is_at(position));
            prop_assert!(!word.is_at(position.wrapping_add(1)));
            prop_assert_eq!(word.handed_over(), Word::new(state, Owner::NOBODY, position));
        }

        #[test]
        fn a_position_is_found_again_from_any_near_one(position: u64, off in -(1_i64 << 47)..1 << 47) {
            let word = Word::new(State::Queued, Owner(3), position);
            let near = position.wrapping_sub(off.cast_unsigned());
            prop_assert_eq!(word.position_near(near), position);
            prop_assert_eq!(distance(position, near), off);
        }
    }
}
