//! The end of a process that has sessions open. The only test of its program, because it leaves the
//! sessions of all tests.

#![cfg(all(target_os = "linux", not(loom)))]

use std::convert::Infallible;
use std::sync::Arc;

use shoal_shm::session::{Error, Session, Settings, is_ending, leave_all};

#[test]
fn a_process_that_ends_leaves_all_sessions() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = Settings::in_folder(folder.path(), 1 << 20, 16);
    let made = || {
        let joined = Session::join(|| Session::create(&settings), || Ok::<(), Infallible>(()));
        joined.expect("no interrupt").expect("made")
    };
    let sessions = [made(), made(), made()];
    let twice = Session::join(|| Ok(Arc::clone(&sessions[1])), || Ok::<(), Infallible>(()));
    assert!(twice.expect("no interrupt").is_ok());
    assert!(sessions[2].release(), "its last object is about to leave");
    let unused = Session::create(&settings).expect("made");
    assert!(!is_ending());
    leave_all();
    unused
        .stats()
        .expect("no object of it was joined, so nothing leaves it");
    unused.shut();
    assert!(is_ending());
    for session in &sessions {
        assert!(matches!(session.stats(), Err(Error::Closed(_))));
        assert!(!session.release(), "nothing is left to leave");
    }
    assert_eq!(folder.path().read_dir().expect("a folder").count(), 0);
    leave_all();
}
