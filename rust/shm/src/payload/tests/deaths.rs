//! A dead process leaves messages and memory. `session/tests/matrix.rs` shows that nothing else stays,
//! wherever it dies.

use super::*;

#[test]
fn messages_of_the_dead_stay_until_they_are_read() {
    let folder = Folder::new(64 * MIB, MemoryPolicy::Block);
    let (dead, consumer) = (folder.process(1), folder.process(2));
    let message = dead.put(1000).expect("room");
    let pending = dead.allocate(2000).expect("room");
    assert_eq!(consumer.recover(&[]), Reclaimed::default());
    assert_eq!(consumer.recover(&[1]), Reclaimed::default());
    let holders: Vec<_> = consumer.held().map(|entry| entry.seen().holder()).collect();
    assert_eq!(
        holders,
        [Some(Owner::NOBODY)],
        "the index can be given out again"
    );

    // Another process gets the index, and has nothing to do with it.
    let next = folder.process(1);
    let theirs = next.put(3000).expect("room");
    assert_eq!(consumer.held().count(), 2);
    assert_eq!(consumer.get(message), 1);
    let reclaimed = consumer.recover(&[]);
    assert_eq!(reclaimed.extents, 1, "now it is not needed");
    assert_eq!(consumer.get(theirs), 1);
    drop(pending);
}

#[test]
fn memory_of_the_dead_is_taken_by_a_process_that_needs_it_without_a_recovery() {
    let folder = Folder::new(MIB, MemoryPolicy::Block);
    let (dead, producer) = (folder.process(1), folder.process(2));
    let message = dead.put(MIB).expect("room");
    producer.recover(&[1]);
    assert!(producer.put(1000).is_none(), "it waits to be read");
    producer.get(message);
    let message = producer.put_soon(1000);
    assert_eq!(producer.get(message), 2);
}
