//! Which sessions this process takes part in, and how many of its objects stand for each.
//!
//! A process is one participant of a session, which it leaves when the last of these objects is
//! closed or gone. What is received keeps what it needs beyond that.
//!
//! The lock is held only by threads that are attached to the interpreter, for a moment, and never
//! while they call it. So it is free whenever Python forks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use shoal_core::shm::session::{Error, Session};

/// How long to wait for another thread that leaves the session that is to be attached to.
const PATIENCE: Duration = Duration::from_secs(10);

struct Host {
    session: Weak<Session>,
    /// 0 while the process leaves.
    objects: usize,
}

static HOSTS: Mutex<Vec<Host>> = Mutex::new(Vec::new());

fn hosts() -> MutexGuard<'static, Vec<Host>> {
    HOSTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session of this process for one more object.
///
/// `open` makes it or attaches to it; it is asked again where this process just leaves it.
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

/// Counts an object; false where the session is being left.
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

/// Counts an object no more; whether it was the last, so that the session is to be shut.
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

/// Says that a session whose last object was removed has been shut: it may be joined again, where
/// what was received keeps it.
pub(super) fn forget(session: &Arc<Session>) {
    hosts().retain(|host| !std::ptr::eq(host.session.as_ptr(), Arc::as_ptr(session)));
}

/// Leaves a session whose last object was removed.
pub(super) fn shut(py: Python<'_>, session: &Arc<Session>) {
    py.detach(|| session.shut());
    forget(session);
}

/// The sessions that this process takes part in, no object of which counts any more.
pub(super) fn remove_all() -> Vec<Arc<Session>> {
    let all = std::mem::take(&mut *hosts());
    let left = all.iter().filter_map(|host| host.session.upgrade());
    left.filter(|session| session.origin().is_here()).collect()
}
