//! Cache of the strings that were decoded as keys of dicts.
//!
//! Messages of one program have few different keys. Finding a string by its bytes takes a fraction
//! of the time that making it takes, and a cached string has its hash already.

/// Number of cached keys, a power of two.
const SLOTS: usize = 512;

/// Maximum length in bytes of a cached key.
const LONGEST: usize = 39;

#[derive(Debug)]
struct Key<T> {
    length: u8,
    bytes: [u8; LONGEST],
    used: u8,
    text: T,
}

/// Keys, as strings of type `T`, in slots chosen by a hash of their bytes.
#[derive(Debug)]
pub struct Keys<T>(Vec<Option<Key<T>>>);

/// The place of one key in the cache.
#[derive(Debug)]
pub enum Cached<'a, T> {
    /// The cached string, and how often it was found, this time included; at most 255.
    Found(&'a mut T, u8),
    /// The key is not cached.
    Missing(Vacancy<'a, T>),
    /// The key is too long for the cache.
    TooLong,
}

/// The slot of a key that is not cached.
#[derive(Debug)]
pub struct Vacancy<'a, T> {
    slot: &'a mut Option<Key<T>>,
    length: u8,
    bytes: [u8; LONGEST],
}

impl<T> Default for Keys<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Keys<T> {
    /// An empty cache, which has no memory yet.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Finds a key by its bytes.
    #[inline]
    pub fn find(&mut self, bytes: &[u8]) -> Cached<'_, T> {
        if bytes.len() > LONGEST {
            return Cached::TooLong;
        }
        if self.0.is_empty() {
            self.0.resize_with(SLOTS, || None);
        }
        let slot = &mut self.0[slot_of(bytes)];
        let found = slot
            .as_ref()
            .is_some_and(|key| key.bytes.get(..usize::from(key.length)) == Some(bytes));
        match (found, slot) {
            (true, Some(key)) => {
                key.used = key.used.saturating_add(1);
                Cached::Found(&mut key.text, key.used)
            }
            (_, slot) => {
                let mut copy = [0; LONGEST];
                copy[..bytes.len()].copy_from_slice(bytes);
                Cached::Missing(Vacancy {
                    slot,
                    length: u8::try_from(bytes.len()).unwrap_or_default(),
                    bytes: copy,
                })
            }
        }
    }
}

impl<T> Vacancy<'_, T> {
    /// Caches the string of the key, instead of another key with the same slot.
    pub fn fill(self, text: T) {
        *self.slot = Some(Key {
            length: self.length,
            bytes: self.bytes,
            used: 0,
            text,
        });
    }
}

/// The slot of a key: a hash of its length, first and last bytes.
#[inline]
fn slot_of(bytes: &[u8]) -> usize {
    let (first, last) = if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk())
    {
        (u64::from_le_bytes(*first), u64::from_le_bytes(*last))
    } else {
        // Shifting is faster than writing bytes to memory and reading them as a word.
        let shift = |word, byte: &u8| word << 8 | u64::from(*byte);
        (bytes.iter().fold(0, shift), bytes.len() as u64)
    };
    let mixed = (first ^ last.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let shift = u64::BITS - SLOTS.trailing_zeros();
    usize::try_from(mixed >> shift).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Decodes a key as the crate of Python does, with the number of strings made so far.
    fn decoded(keys: &mut Keys<String>, key: &str, made: &mut u32) -> String {
        match keys.find(key.as_bytes()) {
            Cached::Found(text, _) => text.clone(),
            Cached::Missing(vacancy) => {
                *made += 1;
                vacancy.fill(key.to_owned());
                key.to_owned()
            }
            Cached::TooLong => key.to_owned(),
        }
    }

    #[test]
    fn every_key_is_decoded_as_itself() {
        let (mut keys, mut made) = (Keys::new(), 0);
        for round in 0..3 {
            for n in 0..3000 {
                // Lengths from 0 to 59, with equal first and last bytes, and empty keys.
                let key = "abc".repeat(n % 20) + &n.to_string().repeat(n % 3);
                assert_eq!(decoded(&mut keys, &key, &mut made), key, "round {round}");
            }
        }
    }

    #[test]
    fn a_key_is_made_once_and_its_uses_are_counted() {
        let (mut keys, mut made) = (Keys::new(), 0);
        let longest = "k".repeat(LONGEST);
        for key in ["", "reward", &longest] {
            made = 0;
            decoded(&mut keys, key, &mut made);
            for used in 1..300_u32 {
                let Cached::Found(text, count) = keys.find(key.as_bytes()) else {
                    unreachable!("the key was cached");
                };
                assert_eq!((text.as_str(), u32::from(count)), (key, used.min(255)));
            }
        }
        assert_eq!(made, 1);
        assert!(matches!(keys.find(&[b'k'; LONGEST + 1]), Cached::TooLong));
    }

    #[test]
    fn keys_spread_over_the_slots() {
        let names = (0..SLOTS).map(|n| format!("feature_{n}"));
        let slots: BTreeSet<usize> = names.map(|name| slot_of(name.as_bytes())).collect();
        // Of 512 random choices 324 would differ.
        assert!(slots.len() > 200, "{} slots", slots.len());
        assert!(slots.iter().all(|slot| *slot < SLOTS));
    }
}
