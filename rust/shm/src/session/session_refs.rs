//! The objects through which a program uses a session: the process leaves with the last of them.
//!
//! A process is one participant of a session, however many objects of the program stand for it.
//! Messages that are in use keep the participant beyond the last object; then the process can join
//! again as the same participant.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::session::PATIENCE;
use super::{Error, Session, registry};
use crate::sync::hint::{AtomicBool, AtomicUsize, Ordering};

/// The value while the process leaves the session.
const LEAVING: usize = usize::MAX;

/// Pause between two looks whether this process has left.
const PAUSE: Duration = Duration::from_millis(1);

/// Whether the process has left all sessions because it ends.
static ENDING: AtomicBool = AtomicBool::new(false);

/// The number of objects of one session.
#[derive(Debug, Default)]
pub(super) struct SessionRefs(AtomicUsize);

impl SessionRefs {
    /// Counts one more object; returns false while the process leaves the session.
    fn add(&self) -> bool {
        let more = |count| (count != LEAVING).then(|| count + 1);
        self.0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more)
            .is_ok()
    }

    /// Counts one object less; returns whether it was the last. Then the process leaves.
    fn remove(&self) -> bool {
        let less = |count| match count {
            0 | LEAVING => None,
            1 => Some(LEAVING),
            count => Some(count - 1),
        };
        let before = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        before == Ok(1)
    }

    /// Removes all objects; returns whether there were any, or the process leaves.
    fn remove_all(&self) -> bool {
        self.0.swap(0, Ordering::SeqCst) != 0
    }

    /// Notes that the process has left, or stays only for the messages that it uses.
    pub(super) fn end_leaving(&self) {
        let _ = self
            .0
            .compare_exchange(LEAVING, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

impl Session {
    /// Opens a session for one more object; each object calls [`Self::release`] once.
    ///
    /// `open` makes the session or attaches to it. It is called again after a millisecond while
    /// another thread leaves the session, unless `interrupt` returns an error.
    ///
    /// # Errors
    ///
    /// The outer error is that of `interrupt`, the inner one that of `open`.
    pub fn join<E>(
        open: impl Fn() -> Result<Arc<Self>, Error>,
        mut interrupt: impl FnMut() -> Result<(), E>,
    ) -> Result<Result<Arc<Self>, Error>, E> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let session = match open() {
                Ok(session) => session,
                Err(error) => return Ok(Err(error)),
            };
            if session.refs.add() || Instant::now() > deadline {
                return Ok(Ok(session));
            }
            drop(session);
            interrupt()?;
            thread::sleep(PAUSE);
        }
    }

    /// Counts one object less. Returns whether it was the last one of this process: then the caller
    /// must call [`Self::shut`].
    pub fn release(&self) -> bool {
        self.refs.remove()
    }
}

/// Leaves all sessions that objects of this process have open, because the process ends: their last
/// process removes them.
pub fn leave_all() {
    ENDING.store(true, Ordering::SeqCst);
    for session in registry::all() {
        if session.refs.remove_all() {
            session.shut();
        }
    }
}

/// Whether this process has called [`leave_all`].
pub fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}
