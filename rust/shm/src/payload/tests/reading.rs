//! Mappings of consumers.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::sync::Ordering;

#[test]
fn an_extent_is_mapped_once() {
    let folder = Folder::new(64 * MIB, MemoryPolicy::Block);
    let (producer, consumer) = (folder.process(1), folder.process(2));
    let messages = [producer.put(1000), producer.put(2000)].map(|message| message.expect("room"));
    let map = |message: &Message| {
        let mapping = consumer.mapping(message.block.extent);
        mapping.expect("there")
    };
    let [one, two] = messages.each_ref().map(map);
    assert!(std::sync::Arc::ptr_eq(&one, &two));
    assert_eq!(consumer.mappings.count(), 1);
}

#[test]
fn retired_memory_is_freed_at_once_and_unmapped_by_readers() {
    let folder = Folder::new(64 * MIB, MemoryPolicy::Block);
    let (producer, consumer) = (folder.process(1), folder.process(2));
    // Two extents, so that the entry of one is used again.
    let [small, large] = [1000, 8 * MIB].map(|length| producer.put(length).expect("room"));
    let kept = consumer.mapping(large.block.extent);
    let kept = kept.expect("there");
    let index = large.block.extent;
    for message in [small, large] {
        consumer.get(message);
    }
    assert_eq!(consumer.mappings.count(), 2);
    producer.trim();
    let mut byte = [1];
    kept.read(0, &mut byte).expect("still mapped");
    assert_eq!(byte, [0], "but without memory");

    let error = consumer.mapping(1000).expect_err("none");
    assert!(
        error
            .to_string()
            .contains("extent 1000, which does not exist"),
        "{error}"
    );
    consumer.mapping(u32::MAX).expect_err("none");

    let again: Vec<_> = (0..2)
        .map(|_| producer.put(8 * MIB).expect("room"))
        .collect();
    assert!(again.iter().any(|message| message.block.extent == index));
    assert!(again.into_iter().all(|message| consumer.get(message) == 1));
    assert_eq!(consumer.mappings.count(), 2, "the old ones are gone");
}

#[test]
fn a_file_that_is_not_what_its_entry_says_is_refused() {
    let folder = Folder::new(64 * MIB, MemoryPolicy::Block);
    let (producer, consumer) = (folder.process(1), folder.process(2));
    let message = producer.put(1000).expect("room");
    let open = || consumer.mapping(message.block.extent);
    let entry = consumer.held().next().expect("one");
    let path = folder.path.join(&folder.files_in(".")[0]);

    let length = entry.length.fetch_add(4096, Ordering::Relaxed);
    let error = open().expect_err("longer than its file").to_string();
    assert!(
        error.contains(&format!("its length is {length:#x}")),
        "{error}"
    );
    entry.length.store(length, Ordering::Relaxed);

    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("set");
    let error = open().expect_err("others can read it").to_string();
    assert!(error.contains("its mode 644 lets others in"), "{error}");
    fs::remove_file(&path).expect("removed");
    open().expect_err("not there");
    assert_eq!(consumer.mappings.count(), 0);
}
