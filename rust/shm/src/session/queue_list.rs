//! The queues of a session for a process that does not take part in it.
//!
//! It takes no lock, so that a stopped process cannot delay it; and as it is no participant, the
//! session does not end with it, and needs no recovery after it. It writes nothing.

use std::time::Instant;

use super::folders::CONTROL;
use super::peek::{QueueStats, stats_of};
use super::queue_table::{self, Entry};
use super::{Control, Error, Token};
use crate::ring::queue::Queue;
use crate::ring::wait::SystemFutex;
use crate::ring::word::Owner;
use crate::segment::layout::PARTICIPANTS;

/// Maximum number of attempts to read an entry that gets another key meanwhile.
const ATTEMPTS: usize = 8;

/// A queue of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedQueue {
    /// Its key.
    pub key: Vec<u8>,
    /// Maximum number of messages, 0 if only the session's backlog limits it.
    pub maxsize: u64,
    /// Whether it is closed.
    pub is_closed: bool,
    /// How it is used.
    pub stats: QueueStats,
}

/// The queues of a session, the first one first; without those that get another key meanwhile.
///
/// # Errors
///
/// If the token is not valid, or the session is gone, not ready, of another user or version, or
/// damaged.
pub fn list_queues(token: &str) -> Result<Vec<ListedQueue>, Error> {
    let token: Token = token.parse()?;
    let path = token.folder().join(CONTROL);
    let control = Control::open(&path, token.session(), Instant::now())?;
    let mut found = Vec::new();
    for index in 0..queue_table::count(&control) {
        for _ in 0..ATTEMPTS {
            let before = keyed(&control, index)?;
            let queue = before
                .as_ref()
                .map(|(entry, key)| look(&control, entry, key));
            // A process that changes the key takes it away first.
            if let Some(queue) = queue
                && keyed(&control, index)? == before
            {
                found.push(queue?);
                break;
            }
        }
    }
    Ok(found)
}

/// An entry and its key; None if it has no key now.
fn keyed(control: &Control, index: u64) -> Result<Option<(Entry, Vec<u8>)>, Error> {
    let entry = Entry::read(control, index)?;
    Ok(entry.key(control)?.map(|key| (entry, key)))
}

fn look(control: &Control, entry: &Entry, key: &[u8]) -> Result<ListedQueue, Error> {
    let found = entry.found();
    // Any participant does: only operations that change the queue use it.
    let (ring, anyone) = (entry.ring(control)?, Owner::new(1).unwrap_or(Owner::NOBODY));
    let queue = Queue::new(control.table(), ring, found.index, anyone, SystemFutex, 0);
    let queue = queue.ok_or(Error::NoRoom {
        what: "participants",
        limit: PARTICIPANTS as u64,
    })?;
    Ok(ListedQueue {
        key: key.to_vec(),
        maxsize: found.maxsize,
        is_closed: queue.is_closed()?,
        stats: stats_of(&queue, found.before)?,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ring::descriptor::Label;
    use crate::session::directory::tests::bounds;
    use crate::session::tests::session;

    #[test]
    fn the_queues_of_a_session_are_listed_while_its_lock_is_held() {
        let (_folder, session) = session(10);
        let one = session.queue(b"one", bounds(3)).expect("opened");
        let two = session.queue(b"two", bounds(0)).expect("opened");
        for _ in 0..2 {
            one.offer(Label::default(), b"12345").expect("open");
        }
        two.close().expect("open");
        let guard = session.lock(Duration::ZERO).expect("free");
        let found = list_queues(session.token()).expect("listed");
        let shown: Vec<_> = found
            .iter()
            .map(|queue| {
                let stats = &queue.stats;
                let numbers = (queue.maxsize, stats.messages, stats.bytes, stats.puts);
                (queue.key.as_slice(), numbers, queue.is_closed)
            })
            .collect();
        assert_eq!(
            shown,
            [
                (&b"one"[..], (3, 2, 10, 2), false),
                (&b"two"[..], (0, 0, 0, 0), true)
            ]
        );
        drop(guard);
        session.remove().expect("removed");
        assert!(list_queues(session.token()).is_err());
    }
}
