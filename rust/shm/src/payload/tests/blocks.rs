//! The blocks that an arena allocates, and its behaviour when there is no more memory.

use super::*;

#[test]
fn messages_share_an_extent_and_come_back_with_their_descriptors() {
    let folder = Folder::new(256 * MIB, MemoryPolicy::Block);
    let (producer, consumer) = (folder.process(1), folder.process(2));
    let messages: Vec<_> = (1..200).map(|n| producer.put(n * 100)).collect();
    assert_eq!(producer.arena.counts(), (1, 199));
    for message in messages {
        assert_eq!(consumer.get(message.expect("room")), 1);
    }
    // The producer is not told: it looks when it needs memory.
    let message = producer.put(1000).expect("room");
    assert!(producer.arena.counts().1 < 199);
    consumer.get(message);
    producer.trim();
    assert_eq!(producer.arena.counts(), (0, 0));
    consumer.assert_nothing_left(&folder);
}

#[test]
fn blocks_are_aligned_and_lie_within() {
    let folder = Folder::new(16 * MIB, MemoryPolicy::Block);
    let producer = folder.process(1);
    for length in [1, 63, 64, 65, 4096, 500_000, 3 * MIB] {
        let allocated = producer.allocate(length).expect("room");
        assert_eq!(allocated.block().offset % 64, 0);
        let pointer = allocated.pointer().expect("inside").as_ptr() as usize;
        assert_eq!(pointer % 64, 0);
        allocated.write(length - 1, &[1]).expect("inside");
        allocated.write(length, &[]).expect("nothing");
        allocated.write(length, &[1]).expect_err("outside");
        allocated.write(u64::MAX, &[1]).expect_err("wraps");
        producer.bind(&allocated).set_word(Word::FREE);
    }
    producer.trim();
    producer.assert_nothing_left(&folder);
}

#[test]
fn the_memory_of_a_stream_is_used_again_and_stays_what_it_was() {
    let folder = Folder::new(256 * MIB, MemoryPolicy::Block);
    let (producer, consumer) = (folder.process(1), folder.process(2));
    for length in [1000, 100_000, 9 * MIB] {
        let mut waiting = std::collections::VecDeque::new();
        let mut extents = std::collections::BTreeSet::new();
        for _ in 0..50 {
            let message = producer.put(length).expect("room");
            extents.insert((message.block.extent, message.block.offset));
            waiting.push_back(message);
            if waiting.len() > 2 {
                consumer.get(waiting.pop_front().expect("three"));
            }
        }
        assert!(extents.len() <= 8, "{length}: {}", extents.len());
        for message in waiting {
            assert_eq!(consumer.get(message), 1);
        }
    }
}

#[test]
fn a_message_that_is_kept_does_not_hide_those_behind_it() {
    let folder = Folder::new(256 * MIB, MemoryPolicy::Block);
    let (producer, consumer) = (folder.process(1), folder.process(2));
    let kept = producer.put(1000).expect("room");
    for _ in 0..100 {
        let message = producer.put(1000).expect("room");
        consumer.get(message);
    }
    assert!(
        producer.arena.counts().1 < 8,
        "{:?}",
        producer.arena.counts()
    );
    assert_eq!(consumer.get(kept), 1);
}

#[test]
fn where_memory_is_used_up_the_policy_decides() {
    for policy in [
        MemoryPolicy::Block,
        MemoryPolicy::Error,
        MemoryPolicy::Spill,
    ] {
        let folder = Folder::new(MIB, policy);
        let producer = folder.process(1);
        let first = producer.put(MIB).expect("all of it");
        let used_up = producer.try_put(1000);
        match policy {
            MemoryPolicy::Block => assert!(matches!(used_up, Ok(None))),
            MemoryPolicy::Error => {
                let error = used_up.expect_err("used up").to_string();
                let text = "(1048576 of 1048576 bytes), and this message has 1000; process ";
                assert!(error.contains(text), "{error}");
            }
            MemoryPolicy::Spill => {
                let spilled = used_up.expect("no error").expect("disk");
                let larger = producer.put(3 * MIB).expect("more than there is memory");
                assert_eq!(
                    (folder.files_in(".").len(), folder.files_in("disk").len()),
                    (1, 2)
                );
                assert_eq!(producer.get(larger), 1);
                assert_eq!(producer.get(spilled), 1);
            }
        }
        assert_eq!(producer.reserved(), MIB, "what was spilled does not count");
        assert_eq!(producer.get(first), 1);
        assert!(producer.put(1000).is_some());
    }
}

#[test]
fn a_message_that_can_never_fit_is_refused_at_once() {
    for policy in [MemoryPolicy::Block, MemoryPolicy::Error] {
        let folder = Folder::new(MIB, policy);
        let producer = folder.process(1);
        let error = producer
            .try_put(MIB + 1)
            .expect_err("too large")
            .to_string();
        assert!(
            error.starts_with("a message of 1048577 bytes never fits"),
            "{error}"
        );
        producer.try_put(u64::MAX).expect_err("too large");
        assert!(producer.put(MIB).is_some(), "but just so much can");
    }
    let folder = Folder::new(MIB, MemoryPolicy::Spill);
    folder
        .process(1)
        .try_put(1 << 50)
        .expect_err("more than any disk");
    folder.process(1).assert_nothing_left(&folder);
}

#[test]
fn all_of_the_memory_can_be_used_by_small_messages() {
    let folder = Folder::new(2 * MIB, MemoryPolicy::Block);
    let producer = folder.process(1);
    let messages: Vec<_> = std::iter::from_fn(|| producer.put(4096)).collect();
    assert!(messages.len() > 400, "of 512: {}", messages.len());
    assert!(producer.reserved() <= 2 * MIB);
    for message in messages {
        assert_eq!(producer.get(message), 1);
    }
    assert!(producer.put(2 * MIB).is_some(), "and then by one large one");
}

#[test]
fn payloads_can_be_on_disk_and_count_there() {
    let folder = Folder::within(in_memory(), MIB, MemoryPolicy::Block, true);
    let producer = folder.process(1);
    let message = producer.put(MIB).expect("room");
    assert_eq!(
        (folder.files_in(".").len(), folder.files_in("disk").len()),
        (0, 1)
    );
    assert_eq!(producer.reserved(), MIB);
    assert!(producer.put(1000).is_none());
    assert_eq!(folder.process(2).get(message), 1);
    producer.trim();
    producer.assert_nothing_left(&folder);
}

#[test]
fn users_of_the_memory_are_named_the_largest_first() {
    let folder = Folder::new(64 * MIB, MemoryPolicy::Block);
    let processes: Vec<_> = (1..6).map(|me| folder.process(me)).collect();
    let mut messages = Vec::new();
    for (process, length) in processes.iter().zip([300, 9000, 1000, 250, 4000]) {
        messages.push(process.put(length).expect("room"));
        messages.push(process.put(length).expect("room"));
    }
    let _filling = processes[0].claim();
    let usage = usage(&processes[0].control);
    assert_eq!((usage.descriptors, usage.bytes), (11, 29_100));
    assert_eq!(usage.senders, [(2, 18_000), (5, 8000), (3, 2000)]);
    assert_eq!(
        usage.queues, usage.senders,
        "each has a queue of its own number"
    );
}
