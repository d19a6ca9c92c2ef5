//! Memory that one process keeps warm and another needs.

use super::*;

#[test]
fn memory_that_an_idle_process_keeps_warm_makes_no_process_wait() {
    let folder = Folder::new(MIB, MemoryPolicy::Block);
    let (idle, busy) = (folder.process(1), folder.process(2));
    idle.get(idle.put(MIB).expect("room"));
    assert_eq!(
        busy.reserved(),
        MIB,
        "kept warm, and nothing knows that it is free"
    );
    let message = busy.put(MIB).expect("taken away from the other");

    // The idle process notices when it comes back, and waits its turn.
    assert!(idle.put(1000).is_none());
    assert_eq!(idle.get(message), 2);
    let back = idle.put_soon(MIB);
    assert_eq!(back.block.extent, 0, "in the same entry as ever");
    assert_eq!(busy.get(back), 1);
}

#[test]
fn memory_of_an_unfinished_put_is_not_taken_away() {
    let folder = Folder::new(MIB, MemoryPolicy::Block);
    let (producer, thief) = (folder.process(1), folder.process(2));
    let allocated = producer.allocate(MIB).expect("room");
    assert!(thief.put(1000).is_none(), "allocated");
    let claim = producer.claim();
    producer.arena.bind(&producer.control, &claim, &allocated);
    allocated.write(0, &vec![1; 1 << 20]).expect("inside");
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(50) {
        assert!(thief.put(1000).is_none(), "bound");
    }
    let message = Message {
        index: claim.index(),
        block: allocated.block(),
    };
    assert_eq!(producer.get(message), 1);
    let theirs = thief.put_soon(MIB);
    assert_eq!(producer.get(theirs), 2);
}

#[test]
fn a_process_that_lost_an_extent_does_not_take_the_next_one_in_its_entry_for_it() {
    let folder = Folder::new(2 * MIB, MemoryPolicy::Block);
    let (one, two) = (folder.process(1), folder.process(2));
    one.get(one.put(2 * MIB).expect("room"));
    let theirs = two.put(2 * MIB).expect("taken");
    two.get(theirs);
    // Its record of the lost extent still exists, and the entry is its own again.
    let message = one.put_soon(1500 * 1024);
    assert_eq!(message.block.extent, 0);
    assert_eq!(one.arena.counts().0, 1);
    assert_eq!(two.get(message), 1);
}

#[test]
fn cold_memory_is_given_up_beyond_what_may_stay_warm() {
    let folder = Folder::new(1024 * MIB, MemoryPolicy::Block);
    let producer = folder.process(1);
    let lengths = [30, 40, 50, 9];
    let messages: Vec<_> = lengths
        .iter()
        .map(|mib| producer.put(mib * MIB).expect("room"))
        .collect();
    let control = &producer.control;
    for message in messages {
        control.descriptors()[message.index as usize].set_word(Word::FREE);
    }
    let small = producer.put(1000).expect("room");
    assert_eq!(producer.arena.counts().0, 5, "all of it warm");
    let later = Instant::now() + Duration::from_secs(2);
    producer.arena.cool(control, later);
    let lengths: Vec<_> = producer.held().map(length_of).collect();
    assert_eq!(
        lengths,
        [30 * MIB, 9 * MIB, 4 * MIB + 4096],
        "the largest went first"
    );
    producer.arena.cool(control, later);
    assert_eq!(producer.held().count(), 3, "the rest stays warm");
    producer.get(small);
    producer.arena.trim(control);
    producer.assert_nothing_left(&folder);
}

fn length_of(entry: &Extent) -> u64 {
    use crate::sync::Ordering;
    entry.length.load(Ordering::Relaxed)
}

/// Number of messages for which each thread must find memory, and the time that it may take.
const PUTS: u32 = 50;
const LONG: std::time::Duration = std::time::Duration::from_secs(60);

#[test]
fn threads_of_two_processes_that_take_from_each_other_spoil_nothing() {
    let folder = Folder::new(MIB, MemoryPolicy::Block);
    let processes = [1, 2].map(|me| folder.process(me));
    let work = |process: &Process, thread: u64| {
        let mut kept = std::collections::VecDeque::new();
        let (mut put, begun) = (0, std::time::Instant::now());
        for round in 0_u64.. {
            if put == PUTS || begun.elapsed() > LONG {
                break;
            }
            let length = (round * 7919 + thread * 31) % 300_000 + 300;
            if let Some(message) = process.put(length) {
                put += 1;
                kept.push_back(message);
            }
            if (kept.len() > 1 || round % 3 == 0)
                && let Some(message) = kept.pop_front()
            {
                assert_eq!(usize::from(process.get(message)), process.me.index());
            }
        }
        for message in kept {
            assert_eq!(usize::from(process.get(message)), process.me.index());
        }
        put
    };
    let put: Vec<u32> = std::thread::scope(|scope| {
        let threads = [(0, 1), (0, 2), (1, 3), (1, 4)].map(|(process, thread)| {
            let process = &processes[process];
            scope.spawn(move || work(process, thread))
        });
        let joined = threads.map(|thread| thread.join().expect("no panic"));
        joined.to_vec()
    });
    assert_eq!(put, [PUTS; 4], "no thread is shut out");
    for process in &processes {
        process.trim();
        assert_eq!(process.arena.counts().1, 0);
    }
    folder.process(4).assert_nothing_left(&folder);
}
