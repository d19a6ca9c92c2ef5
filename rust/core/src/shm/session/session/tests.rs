//! What happens while somebody holds the structural lock and does not let go: a process that is
//! stopped, say.

use super::super::super::descriptor::Label;
use super::super::super::session::layout::CHUNK;
use super::super::{Bounds, MemoryPolicy, Offer};
use super::*;

#[test]
fn who_needs_more_descriptors_is_soon_told_that_there_are_none_now() {
    let folder = tempfile::tempdir().expect("a folder");
    let session = Session::create(&Settings {
        folder: folder.path().to_owned(),
        disk: folder.path().to_owned(),
        payload_on_disk: false,
        max_bytes: 1 << 20,
        backlog: 4 * u32::try_from(CHUNK).expect("few"),
        memory_policy: MemoryPolicy::Block,
    })
    .expect("space");
    let any = Bounds {
        maxsize: None,
        max_bytes: None,
    };
    let queue = session.queue(b"q", any).expect("room");
    let offer = || queue.offer(Label::default(), b"one").expect("no error");
    (0..CHUNK).for_each(|_| assert_eq!(offer(), Offer::Put));

    let guard = session.locks.lock(deadline()).expect("free");
    assert_eq!(offer(), Offer::NoMemory);
    assert!(queue.draft(1000).expect("no error").is_none());
    session.tend();
    assert_eq!(queue.len(), CHUNK as u64);
    drop(guard);
    assert_eq!(offer(), Offer::Put);
    assert!(queue.draft(1000).expect("no error").is_some());
}
