//! A caller that waits is not held up by others, such as a stopped holder of the structural lock.

use super::*;
use crate::ring::descriptor::Label;
use crate::segment::layout::CHUNK;
use crate::session::Offer;
use crate::session::tests::{open, session};

#[test]
fn a_process_that_needs_more_descriptors_is_soon_told_that_there_are_none_now() {
    let (_folder, session) = session(4 * u32::try_from(CHUNK).expect("few"));
    let queue = open(&session, b"q");
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
