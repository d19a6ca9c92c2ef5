//! The idle connections of a client.

use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use super::connection::Connection;

/// Maximum number of idle connections.
const SLOTS: usize = 16;
/// How often to look for a slot to be free: a thread has one for less than a microsecond.
const LOOKS: u32 = 200;

/// Idle connections, the last used ones first.
///
/// No thread ever waits for another here. In the child of a fork a slot may stay locked for ever: the
/// thread that locked it exists in the parent only.
#[derive(Debug, Default)]
pub(super) struct Pool {
    slots: [Mutex<Option<Box<Connection>>>; SLOTS],
}

impl Pool {
    /// A connection of this process; the server may have ended it.
    pub(super) fn take(&self) -> Option<Box<Connection>> {
        let mut taken = (0..SLOTS).filter_map(|slot| self.at(slot, Option::take).flatten());
        // Those of a parent are closed. They are not shut down: it may use them.
        taken.find(|one| one.is_here())
    }

    /// Keeps a connection for later, and closes those that were not used for `idle`.
    pub(super) fn put(&self, connection: Box<Connection>, idle: Duration) {
        let mut connection = Some(connection);
        for slot in 0..SLOTS {
            let old = self.at(slot, |place| match place {
                None => {
                    *place = connection.take();
                    None
                }
                Some(kept) if kept.used.elapsed() > idle => place.take(),
                Some(_) => None,
            });
            drop(old);
        }
    }

    pub(super) fn len(&self) -> usize {
        let kept = |slot: &usize| self.at(*slot, |place| place.is_some()).unwrap_or(false);
        (0..SLOTS).filter(kept).count()
    }

    /// Does something with a slot; None if another thread keeps it.
    fn at<T>(
        &self,
        slot: usize,
        work: impl FnOnce(&mut Option<Box<Connection>>) -> T,
    ) -> Option<T> {
        for _ in 0..LOOKS {
            match self.slots[slot].try_lock() {
                Ok(mut place) => return Some(work(&mut place)),
                Err(TryLockError::Poisoned(place)) => return Some(work(&mut place.into_inner())),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }
}
