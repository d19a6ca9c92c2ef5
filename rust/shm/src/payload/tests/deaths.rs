//! A process that dies at any access leaves nothing that is not found later.

use super::*;
use crate::failpoint::dies_after;
use crate::segment::layout::EXTENTS_LIMIT;

/// The accesses at which to die in work that makes `all` of them: every one except those in the
/// middle of the long loops over the table of extents, which do the same as their neighbours.
fn deaths(all: u64) -> impl Iterator<Item = u64> {
    (0..all).filter(move |&at| at < 80 || at + 80 > all || at % 211 == 0)
}

/// Number of accesses of some work.
fn accesses_of(mut work: impl FnMut()) -> u64 {
    let mut died = 1;
    while dies_after(died, &mut work).is_none() {
        died *= 2;
    }
    let mut lived = died;
    died /= 2;
    while lived - died > 1 {
        let middle = u64::midpoint(died, lived);
        match dies_after(middle, &mut work) {
            Some(()) => lived = middle,
            None => died = middle,
        }
    }
    lived
}

#[test]
fn a_process_that_dies_while_it_allocates_leaves_nothing_after_a_recovery() {
    let folder = Folder::new(64 * MIB, MemoryPolicy::Block);
    let survivor = folder.process(9);
    let allocate = || {
        let dying = folder.process(1);
        dying.try_put(1000).expect("no error").expect("room");
    };
    let all = accesses_of(allocate);
    assert!(all > EXTENTS_LIMIT as u64, "it adds up all of them: {all}");
    free_all(&survivor);
    survivor.recover(&[1]);
    survivor.assert_nothing_left(&folder);
    for accesses in deaths(all) {
        let dying = folder.process(1);
        let died = dies_after(accesses, || dying.try_put(1000).map(|_| ())).is_none();
        assert!(survivor.held().count() <= 1);
        survivor.recover(&[1]);
        let put = usage(&survivor.control).bytes > 0;
        assert!(died || put);
        assert_eq!(
            survivor.held().count(),
            usize::from(put),
            "died at {accesses}"
        );
        free_all(&survivor);
        survivor.recover(&[]);
        survivor.assert_nothing_left(&folder);
    }
}

/// Frees all descriptors, as a sweep and consumers would.
fn free_all(process: &Process) {
    for descriptor in process.control.descriptors() {
        descriptor.set_word(Word::FREE);
    }
}

#[test]
fn a_process_that_dies_while_it_gives_memory_up_leaves_nothing_after_a_recovery() {
    let folder = Folder::new(64 * MIB, MemoryPolicy::Block);
    let survivor = folder.process(9);
    let trim = |accesses| {
        let dying = folder.process(1);
        for length in [1000, 5 * MIB] {
            dying.get(dying.put(length).expect("room"));
        }
        let died = dies_after(accesses, || dying.arena.trim(&dying.control)).is_none();
        survivor.recover(&[1]);
        survivor.assert_nothing_left(&folder);
        died
    };
    let all = (0..10_000).take_while(|&accesses| trim(accesses)).count();
    assert!(all > 10, "{all}");
}

#[test]
fn a_process_that_dies_while_it_takes_memory_away_leaves_nothing_after_a_recovery() {
    let folder = Folder::new(MIB, MemoryPolicy::Block);
    let survivor = folder.process(9);
    let take = |accesses| {
        let (idle, dying) = (folder.process(1), folder.process(2));
        idle.get(idle.put(MIB).expect("room"));
        let work = || dying.recover(&[1]);
        let died = dies_after(accesses, work).is_none();
        survivor.recover(&[1, 2]);
        survivor.assert_nothing_left(&folder);
        died
    };
    let all = accesses_of(|| {
        survivor.recover(&[]);
    });
    for accesses in deaths(all + 1000) {
        take(accesses);
    }
    assert!(!take(u64::MAX));
}

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
