//! Tests of a whole session, most of them with real processes that are killed while they use it.

mod case;
mod forgotten;
mod hostile;
mod matrix;
pub(super) mod messages;
mod noticed;
mod refused;
mod ring_growth;
mod two_mappings;
mod victim;

use std::sync::Arc;

use super::{Bounds, Session, SessionQueue, Settings};

/// A session with little memory. Its folder is removed when the folder's object is dropped.
pub(super) fn session(backlog: u32) -> (tempfile::TempDir, Arc<Session>) {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = Settings::in_folder(folder.path(), 1 << 20, backlog);
    let session = Session::create(&settings).expect("space");
    (folder, session)
}

/// Opens a queue, or makes one without bounds.
pub(super) fn open(session: &Arc<Session>, key: &[u8]) -> SessionQueue {
    session.queue(key, Bounds::default()).expect("room")
}
