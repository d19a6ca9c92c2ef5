//! The sessions of this process: one live object each, so that a lock file is opened only once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{Origin, Session};

/// Number of lists: each child of a fork uses another. If it used its parent's, and another thread
/// of the parent held that list during the fork, the child would wait for ever. A list is used
/// again only after this many forks in a row.
const LISTS: usize = 64;

static SESSIONS: [Mutex<Vec<Known>>; LISTS] = [const { Mutex::new(Vec::new()) }; LISTS];

struct Known {
    /// The random part of the session's name: a folder may have several paths.
    id: [u64; 2],
    session: Weak<Session>,
}

/// The objects that this process has of a session.
pub(super) enum Here {
    /// The existing objects, possibly none; all but at most one of them have left.
    Objects(Vec<Arc<Session>>),
    /// An object that has no references any more, and is about to leave.
    Going,
}

/// Finds the objects of a session.
pub(super) fn find(id: [u64; 2]) -> Here {
    let all = list();
    let of_it = || all.iter().filter(|known| known.id == id);
    let objects: Vec<_> = of_it()
        .filter_map(|known| known.session.upgrade())
        .collect();
    if objects.len() < of_it().count() {
        return Here::Going;
    }
    Here::Objects(objects)
}

/// Registers a session until it is removed.
pub(super) fn add(session: Session) -> Arc<Session> {
    let id = session.id();
    let session = Arc::new(session);
    list().push(Known {
        id,
        session: Arc::downgrade(&session),
    });
    session
}

/// Removes the objects of a session that have no references any more, after they left.
pub(super) fn remove(id: [u64; 2]) {
    list().retain(|known| known.id != id || known.session.strong_count() > 0);
}

/// All sessions of this process that are in use.
pub(super) fn all() -> Vec<Arc<Session>> {
    let all = list();
    all.iter()
        .filter_map(|known| known.session.upgrade())
        .collect()
}

fn list() -> MutexGuard<'static, Vec<Known>> {
    let list = &SESSIONS[Origin::here().number() % LISTS];
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
