//! The sessions in which this process takes part, with the number of Python objects of each.
//!
//! A process is one participant of a session, and leaves it when the last of these objects is
//! closed or deallocated. Received objects keep the memory that they need beyond that.
//!
//! The lock is held only briefly, only by threads that are attached to the interpreter, and never
//! while they call it. It is therefore free whenever Python forks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use shoal_shm::session::{Error, Session};

/// Maximum wait for another thread that is leaving the session to be joined.
const PATIENCE: Duration = Duration::from_secs(10);

struct Host {
    session: Weak<Session>,
    /// The number of open objects; 0 while the process leaves the session.
    objects: usize,
}

static HOSTS: Mutex<Vec<Host>> = Mutex::new(Vec::new());

fn hosts() -> MutexGuard<'static, Vec<Host>> {
    HOSTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a session for one more object of this process.
///
/// `open` creates the session or attaches to it; it is called again while this process is leaving
/// the session.
pub(super) fn join(
    py: Python<'_>,
    open: impl Fn() -> Result<Arc<Session>, Error> + Sync,
) -> PyResult<Result<Arc<Session>, Error>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let session = match py.detach(&open) {
            Ok(session) => session,
            Err(error) => return Ok(Err(error)),
        };
        if add(&session) || Instant::now() > deadline {
            return Ok(Ok(session));
        }
        py.check_signals()?;
        py.detach(|| std::thread::sleep(Duration::from_millis(1)));
    }
}

/// Counts one more object; returns false if the process is leaving the session.
fn add(session: &Arc<Session>) -> bool {
    let mut hosts = hosts();
    hosts.retain(|host| host.session.strong_count() > 0);
    for host in hosts.iter_mut() {
        if std::ptr::eq(host.session.as_ptr(), Arc::as_ptr(session)) {
            let open = host.objects > 0;
            host.objects += usize::from(open);
            return open;
        }
    }
    let session = Arc::downgrade(session);
    hosts.push(Host {
        session,
        objects: 1,
    });
    true
}

/// Counts one object less. Returns whether it was the last one: then the caller must shut the
/// session.
pub(super) fn remove(session: &Arc<Session>) -> bool {
    let mut hosts = hosts();
    let found = hosts
        .iter_mut()
        .find(|host| std::ptr::eq(host.session.as_ptr(), Arc::as_ptr(session)));
    match found {
        Some(host) if host.objects > 0 => {
            host.objects -= 1;
            host.objects == 0
        }
        _ => false,
    }
}

/// Forgets a session that was shut after its last object was closed. Received objects may keep it
/// alive; then it can be joined again.
pub(super) fn forget(session: &Arc<Session>) {
    hosts().retain(|host| !std::ptr::eq(host.session.as_ptr(), Arc::as_ptr(session)));
}

/// Leaves a session whose last object was closed.
pub(super) fn shut(py: Python<'_>, session: &Arc<Session>) {
    py.detach(|| session.shut());
    forget(session);
}

/// Empties the table and returns the sessions in which this process takes part.
pub(super) fn remove_all() -> Vec<Arc<Session>> {
    let all = std::mem::take(&mut *hosts());
    let left = all.iter().filter_map(|host| host.session.upgrade());
    left.filter(|session| session.origin().is_here()).collect()
}
