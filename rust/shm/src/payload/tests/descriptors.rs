//! Chunks of descriptors.

use std::collections::BTreeSet;

use super::*;
use crate::segment::layout::{CHUNK, CHUNKS_LIMIT};
use crate::sync::Ordering;

fn chunks_of(process: &Process) -> Vec<usize> {
    let me = process.me.index() as u64;
    let chunks = process.control.chunks().iter().enumerate();
    let mine = chunks.filter(|(_, chunk)| chunk.owner.load(Ordering::Relaxed) == me);
    mine.map(|(number, _)| number).collect()
}

#[test]
fn each_process_claims_in_chunks_of_its_own() {
    let folder = Folder::new(MIB, MemoryPolicy::Block);
    let (one, two) = (folder.process(1), folder.process(2));
    assert!(one.claim_now().is_none(), "it has none yet");
    let claimed: BTreeSet<_> = (0..=CHUNK)
        .flat_map(|_| [one.claim().index(), two.claim().index()])
        .collect();
    assert_eq!(claimed.len(), 2 * (CHUNK + 1), "no descriptor twice");
    assert_eq!((chunks_of(&one), chunks_of(&two)), (vec![0, 2], vec![1, 3]));
    assert_eq!(one.control.descriptors().len(), 4 * CHUNK);
    for index in claimed {
        let chunk = index as usize / CHUNK;
        let by = one.control.descriptors()[index as usize].word().owner();
        assert_eq!(by.index(), 1 + chunk % 2);
    }
}

#[test]
fn few_messages_stay_in_the_first_chunk() {
    let folder = Folder::new(MIB, MemoryPolicy::Block);
    let process = folder.process(1);
    let many: Vec<_> = (0..3 * CHUNK).map(|_| process.claim().index()).collect();
    assert_eq!(many.iter().max(), Some(&767));
    for index in many {
        process.free(index as usize);
    }
    let few: Vec<_> = (0..2 * CHUNK)
        .map(|_| {
            let index = process.claim().index();
            process.free(index as usize);
            index as usize
        })
        .collect();
    assert!(few.iter().all(|index| *index < CHUNK), "{few:?}");
}

#[test]
fn one_free_descriptor_is_found_wherever_it_is_where_there_are_no_more_chunks() {
    let folder = Folder::new(MIB, MemoryPolicy::Block);
    let process = folder.process(1);
    while process.grow().expect("room") {}
    let all = CHUNKS_LIMIT * CHUNK;
    let taken = (0..all).filter_map(|_| process.claim_now());
    assert_eq!(taken.count(), all);
    for index in [0, 1, 255, 256, 300, 511, 512, all - 1, 5] {
        assert!(process.claim_now().is_none());
        process.free(index);
        let claim = process.claim_now().expect("one is free");
        assert_eq!(claim.index() as usize, index);
    }
}

#[test]
fn a_process_that_looks_in_vain_too_often_gets_a_further_chunk() {
    let folder = Folder::new(MIB, MemoryPolicy::Block);
    let process = folder.process(1);
    (0..3 * CHUNK).for_each(|_| drop(process.claim()));
    let found_again = (0..10)
        .filter(|_| {
            process.free(300);
            process.claim().index() == 300
        })
        .count();
    assert!((1..9).contains(&found_again), "{found_again}");
    assert_eq!(chunks_of(&process), [0, 1, 2, 3]);
}

#[test]
fn a_chunk_of_the_dead_is_taken_over_with_the_messages_in_it() {
    let folder = Folder::new(MIB, MemoryPolicy::Block);
    let (dead, heir) = (folder.process(1), folder.process(2));
    let message = dead.put(1000).expect("room");
    (1..CHUNK).for_each(|_| drop(dead.claim()));
    dead.control.chunks()[0].owner.store(0, Ordering::Relaxed);
    // Nothing is free in the dead one's chunk, so it is of no use yet.
    drop(heir.claim());
    assert_eq!(chunks_of(&heir), [1]);
    (1..CHUNK).for_each(|_| drop(heir.claim()));
    dead.free(7);
    assert_eq!(heir.claim().index(), 7);
    assert_eq!(chunks_of(&heir), [0, 1]);
    assert_eq!(heir.get(message), 1);
}

#[test]
fn without_further_chunks_all_processes_share() {
    let folder = Folder::new(MIB, MemoryPolicy::Block);
    let (hog, late) = (folder.process(1), folder.process(2));
    (0..CHUNKS_LIMIT).for_each(|_| assert!(hog.grow().expect("room")));
    assert!(!hog.grow().expect("room"));
    assert!(late.claim_now().is_none());
    assert!(!late.grow().expect("no error"));
    let claim = late.claim_now().expect("the hog's");
    let other = hog.claim_now().expect("its own");
    assert_ne!(claim.index(), other.index());
}

#[test]
fn a_descriptor_that_another_claims_gives_its_block_back_all_the_same() {
    let folder = Folder::new(MIB, MemoryPolicy::Block);
    let (hog, late) = (folder.process(1), folder.process(2));
    (0..CHUNKS_LIMIT).for_each(|_| assert!(hog.grow().expect("room")));
    assert!(!late.grow().expect("no error"));
    let message = hog.put(1000).expect("room");
    let index = message.index;
    hog.get(message);
    let mut claims = std::iter::from_fn(|| late.claim_now());
    let claim = claims
        .find(|claim| claim.index() == index)
        .expect("among all");
    assert_eq!(hog.arena.counts().1, 1);
    let allocated = late.allocate(1000).expect("room");
    late.arena.bind(&late.control, &claim, &allocated);
    hog.trim();
    assert_eq!(
        hog.arena.counts(),
        (0, 0),
        "it is not in use, though its descriptor is"
    );
}

#[test]
fn threads_of_a_process_never_get_the_same() {
    let folder = Folder::new(MIB, MemoryPolicy::Block);
    let process = folder.process(1);
    assert!(process.grow().expect("room"));
    let claim = || process.claim_now().map(|claim| claim.index());
    let claimed: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| std::iter::from_fn(claim).collect::<Vec<_>>()))
            .collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        joined.flatten().collect()
    });
    assert_eq!(claimed.len(), CHUNK);
    assert_eq!(claimed.iter().collect::<BTreeSet<_>>().len(), CHUNK);
}
