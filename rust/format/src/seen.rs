//! The objects that an encoding has met, to notice one that occurs twice.

use std::collections::BTreeSet;

use smallvec::SmallVec;

/// Maximum number of objects in `few`, which is searched one by one.
const FEW: usize = 16;

/// Addresses of the objects met so far that could be met again.
#[derive(Debug, Default)]
pub struct Seen {
    few: SmallVec<[usize; FEW]>,
    /// The addresses that do not fit into `few`; few messages have so many.
    many: Option<BTreeSet<usize>>,
}

impl Seen {
    /// No object.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes the address of an object; returns None if it was noted before.
    pub fn note(&mut self, address: usize) -> Option<()> {
        if self.few.contains(&address) {
            return None;
        }
        if self.few.len() < FEW {
            self.few.push(address);
            return Some(());
        }
        let many = self.many.get_or_insert_default();
        many.insert(address).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_new_once() {
        let mut seen = Seen::new();
        for address in 0..3 * FEW {
            assert_eq!(seen.note(address), Some(()));
        }
        for address in 0..3 * FEW {
            assert_eq!(seen.note(address), None);
        }
    }
}
