//! `RankLists`: compact storage of the resource ranks of every process.

/// A list of ranks for each process, stored as one list and the end of each part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankLists {
    flat: Vec<u32>,
    ends: Vec<usize>,
}

impl RankLists {
    /// An empty list of processes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a process.
    pub fn push(&mut self, ranks: impl IntoIterator<Item = u32>) {
        self.flat.extend(ranks);
        self.ends.push(self.flat.len());
    }

    /// How many processes there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The ranks of a process, which must exist.
    pub fn get(&self, process: usize) -> &[u32] {
        let start = process.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.flat[start..self.ends[process]]
    }

    /// The ranks of each process.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        (0..self.len()).map(|process| self.get(process))
    }

    /// The same lists, each ascending, and in the order of their first ranks.
    #[must_use]
    pub fn in_order(&self) -> Self {
        let first = |ranks: &[u32]| ranks.first().copied();
        let ascending = self.iter().all(<[u32]>::is_sorted);
        if ascending && self.iter().is_sorted_by_key(first) {
            return self.clone();
        }
        let mut lists: Vec<Vec<u32>> = self.iter().map(<[u32]>::to_vec).collect();
        for list in &mut lists {
            list.sort_unstable();
        }
        lists.sort_by_key(|list| list.first().copied());
        lists.into_iter().collect()
    }

    /// Every rank once, ascending.
    pub fn unique(&self) -> Vec<u32> {
        let mut ranks = self.flat.clone();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// The first rank of each process that has one.
    pub fn firsts(&self) -> Vec<u32> {
        self.iter()
            .filter_map(|ranks| ranks.first().copied())
            .collect()
    }
}

impl<R: IntoIterator<Item = u32>> FromIterator<R> for RankLists {
    fn from_iter<I: IntoIterator<Item = R>>(lists: I) -> Self {
        let mut made = Self::new();
        for list in lists {
            made.push(list);
        }
        made
    }
}
