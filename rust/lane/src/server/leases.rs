//! Leases: messages that a client has for longer than its connections, until it ends them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::locked;
use super::takes::LentMessage;
use crate::frame::LeaseName;

#[derive(Debug)]
struct Lease {
    /// When it ends, unless it is renewed.
    ends: Instant,
    message: LentMessage,
}

/// All leases of a server, by holder and number.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<BTreeMap<(u128, u64), Lease>>);

impl Leases {
    /// Adds leases with the numbers from `first.number` on.
    pub(super) fn add(
        &self,
        first: LeaseName,
        messages: impl Iterator<Item = LentMessage>,
        kept: Duration,
    ) {
        let ends = Instant::now() + kept;
        let leases = (first.number..).zip(messages);
        let leases =
            leases.map(|(number, message)| ((first.holder, number), Lease { ends, message }));
        locked(&self.0).extend(leases);
    }

    /// Keeps leases of a holder for longer, if they have not ended.
    pub(super) fn renew(&self, holder: u128, numbers: impl Iterator<Item = u64>, kept: Duration) {
        let ends = Instant::now() + kept;
        let mut all = locked(&self.0);
        for number in numbers {
            if let Some(lease) = all.get_mut(&(holder, number)) {
                lease.ends = ends;
            }
        }
    }

    /// Ends a lease; None if it has ended before.
    pub(super) fn end(&self, holder: u128, number: u64) -> Option<LentMessage> {
        let lease = locked(&self.0).remove(&(holder, number))?;
        Some(lease.message)
    }

    /// Ends the leases that were not renewed in time; their messages go back.
    pub(super) fn expire(&self) {
        let now = Instant::now();
        locked(&self.0).retain(|_, lease| lease.ends > now);
    }

    /// Ends all leases.
    pub(super) fn clear(&self) {
        locked(&self.0).clear();
    }

    /// When a lease ends.
    #[cfg(test)]
    pub(super) fn ends(&self, holder: u128, number: u64) -> Option<Instant> {
        Some(locked(&self.0).get(&(holder, number))?.ends)
    }

    pub(super) fn len(&self) -> usize {
        locked(&self.0).len()
    }
}
