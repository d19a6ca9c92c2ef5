//! The sessions of this process: one object for each, so that nobody opens its lock file twice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{Origin, Session};

/// A child has lists of its own: one that is forked while a thread of its parent has a list in hand
/// would wait for that one for ever. A list comes again only after so many forks in a row.
const LISTS: usize = 64;

static SESSIONS: [Mutex<Vec<Known>>; LISTS] = [const { Mutex::new(Vec::new()) }; LISTS];

struct Known {
    /// The random part of its name: a folder may have several paths.
    id: [u64; 2],
    session: Weak<Session>,
}

/// What this process has of a session.
pub(super) enum Here {
    /// Objects; all but one of them were left, if not all.
    Objects(Vec<Arc<Session>>),
    /// One that nobody has any more, and that is about to be left.
    Going,
}

/// What there is of a session.
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

/// Makes one known, until it is removed.
pub(super) fn add(session: Session) -> Arc<Session> {
    let id = session.id();
    let session = Arc::new(session);
    list().push(Known {
        id,
        session: Arc::downgrade(&session),
    });
    session
}

/// Forgets what nobody has any more of a session, after it was left.
pub(super) fn remove(id: [u64; 2]) {
    list().retain(|known| known.id != id || known.session.strong_count() > 0);
}

fn list() -> MutexGuard<'static, Vec<Known>> {
    let list = &SESSIONS[Origin::here().number() % LISTS];
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
