use super::*;
use crate::failpoint::dies_after;
use crate::ring::word::Owner;
use crate::session::Settings;
use crate::session::queue_table::{ring, seal};

const BOUNDS: Bounds = bounds(3);

pub(in crate::session) const fn bounds(maxsize: u64) -> Bounds {
    Bounds {
        maxsize: Some(maxsize),
        max_bytes: None,
    }
}

/// A control segment, in a folder that is removed when its object is dropped.
pub(in crate::session) fn control() -> (tempfile::TempDir, Control) {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = Settings::in_folder(folder.path(), 1, 1);
    let path = folder.path().join("ctl");
    let control = Control::create(&path, [1, 2], &settings).expect("space");
    (folder, control)
}

fn owner(index: u16) -> Owner {
    Owner::new(index).expect("in range")
}

/// Finds a queue, or makes one.
fn queue(directory: &mut Directory, control: &Control, key: &[u8]) -> Found {
    directory.refresh(control).expect("sound");
    let found = directory.find(key);
    found.unwrap_or_else(|| directory.make(control, key, BOUNDS).expect("room"))
}

/// Makes as many queues as exist before one is forgotten.
fn filled(directory: &mut Directory, control: &Control) -> Vec<Vec<u8>> {
    let keys = (0..KEPT).map(|number| format!("key {number}").into_bytes());
    let keys: Vec<_> = keys.collect();
    for key in &keys {
        queue(directory, control, key);
    }
    keys
}

/// Each key of the directory, by index, as a new process reads them.
fn keys(control: &Control) -> Vec<Option<Arc<[u8]>>> {
    let mut directory = Directory::default();
    directory.refresh(control).expect("sound");
    directory.keys
}

/// Two copies of the directory have the same contents.
fn assert_equal(one: &Directory, other: &Directory) {
    assert_eq!(one.known, other.known);
    assert_eq!(one.keys, other.keys);
    assert_eq!(
        one.known.len(),
        one.keys.iter().flatten().count(),
        "one each"
    );
}

#[test]
fn any_number_of_keys_one_after_the_other_needs_few_queues() {
    let (_folder, control) = control();
    let (mut one, mut other) = (Directory::default(), Directory::default());
    for number in 0..1000_u32 {
        let key = number.to_le_bytes();
        let made = queue(&mut one, &control, &key);
        queue_users::add(&control, made.index, owner(1)).expect("sound");
        assert_eq!(queue(&mut other, &control, &key), made);
        queue_users::remove(&control, made.index, owner(1));
    }
    assert_eq!(count(&control), KEPT);
    one.refresh(&control).expect("sound");
    assert_equal(&one, &other);
    assert_eq!(one.find(&0_u32.to_le_bytes()), None, "it was forgotten");
}

#[test]
fn a_reader_that_missed_many_changes_reads_all_entries() {
    let (_folder, control) = control();
    let mut one = Directory::default();
    filled(&mut one, &control);
    for missed in [1, CHANGED - 1, CHANGED, CHANGED + 1, 3 * CHANGED] {
        let mut other = Directory::default();
        other.refresh(&control).expect("sound");
        for number in 0..missed {
            let key = format!("{missed}: {number}").into_bytes();
            queue(&mut one, &control, &key);
        }
        other.refresh(&control).expect("sound");
        one.refresh(&control).expect("sound");
        assert_equal(&one, &other);
    }
    // After damage, no process reads an entry that does not exist.
    let superblock = control.superblock();
    superblock.changed.0[0].store(u32::MAX, Ordering::Relaxed);
    for changes in [u64::MAX, 0, 1] {
        let word = &superblock.used.0.changes;
        word.store(changes, Ordering::Relaxed);
        one.refresh(&control).expect("sound");
        assert_eq!(one.keys, keys(&control));
    }
}

#[test]
fn a_queue_in_use_keeps_its_key() {
    let (_folder, control) = control();
    let mut directory = Directory::default();
    let all = filled(&mut directory, &control);
    // All of them are open, each by another participant.
    for (number, index) in (1..=255).cycle().zip(0..64) {
        queue_users::add(&control, index, owner(number)).expect("sound");
    }
    let next = queue(&mut directory, &control, b"next");
    assert_eq!(u64::from(next.index), KEPT, "a new one");
    for key in &all {
        assert!(directory.find(key).is_some());
    }
    // Two participants release theirs, but one queue is closed.
    for index in [20_u16, 40] {
        queue_users::remove(&control, index.into(), owner(index + 1));
    }
    plug(&ring(&control, 20).expect("sound")).expect("sound");
    queue_users::add(&control, next.index, owner(9)).expect("sound");
    directory.cursor = 18;
    let made = queue(&mut directory, &control, b"another");
    let looked_at = KEPT + 1;
    assert_eq!(u64::from(made.index), looked_at, "40 is too far");
    queue_users::add(&control, made.index, owner(9)).expect("sound");
    let made = queue(&mut directory, &control, b"the other");
    assert_eq!(made.index, 40);
    assert_eq!(directory.find(&all[40]), None);
    assert!(directory.find(&all[20]).is_some());
}

#[test]
fn an_entry_too_small_for_a_key_is_not_reused() {
    let (_folder, control) = control();
    let mut directory = Directory::default();
    filled(&mut directory, &control);
    let long = directory.make(&control, &[7; 129], BOUNDS).expect("room");
    assert_eq!(u64::from(long.index), KEPT);
    let other = directory.make(&control, b"other", bounds(4)).expect("room");
    assert_eq!(u64::from(other.index), KEPT + 1);
    directory.cursor = KEPT;
    let made = directory.make(&control, &[8; 129], BOUNDS).expect("room");
    assert_eq!(made.index, long.index, "there is room for such a key");
    let limits = (made.maxsize, made.max_bytes, made.before);
    assert_eq!(limits, (3, 0, 0));
}

#[test]
fn nothing_is_forgotten_while_a_message_may_have_to_go_back() {
    let (_folder, control) = control();
    let mut directory = Directory::default();
    filled(&mut directory, &control);
    let counters = &control.superblock().counters.0;
    for (word, number) in [(&counters.postponed, 0), (&counters.given_back, 1)] {
        word.store(1, Ordering::Relaxed);
        let made = queue(&mut directory, &control, &[number]);
        assert_eq!(u64::from(made.index), KEPT + u64::from(number));
        word.store(0, Ordering::Relaxed);
    }
    assert!(u64::from(queue(&mut directory, &control, b"k").index) < KEPT);
    seal(&control, &crate::ring::wait::SystemFutex).expect("sound");
    let made = queue(&mut directory, &control, b"closed");
    assert_eq!(u64::from(made.index), KEPT + 2);
}

#[test]
fn where_there_is_no_room_for_more_all_are_looked_at() {
    let (_folder, control) = control();
    let mut directory = Directory::default();
    filled(&mut directory, &control);
    for index in 0..64 {
        if index != 50 {
            queue_users::add(&control, index, owner(1)).expect("sound");
        }
    }
    let end = &control.superblock().used.0.rings_end;
    end.store(at::TOTAL, Ordering::Relaxed);
    let made = directory.make(&control, b"last", BOUNDS).expect("one");
    assert_eq!(made.index, 50);
    queue_users::add(&control, 50, owner(1)).expect("sound");
    let error = directory.make(&control, b"no more", BOUNDS);
    let text = error.expect_err("no room").to_string();
    assert!(text.contains("bytes of rings"), "{text}");
}

#[test]
fn a_forgotten_queue_is_a_new_one() {
    let (_folder, control) = control();
    let mut directory = Directory::default();
    let all = filled(&mut directory, &control);
    // More messages went through this ring than through any other.
    let entry = Entry::read(&control, 0).expect("sound");
    let position = ring(&control, 0).expect("sound").head();
    assert!(
        ring(&control, 0)
            .expect("sound")
            .take(position, position + 5)
    );
    entry
        .ring(&control)
        .expect("sound")
        .advance_tail(position, position + 5);
    let made = queue(&mut directory, &control, b"new");
    assert_eq!((made.index, made.before), (0, 5));
    let back = directory.make(&control, &all[0], bounds(3)).expect("room");
    assert_eq!((back.index, back.before), (1, 0));
    assert_eq!(directory.find(b"new"), Some(made));
}

/// A process dies while it makes a queue of one that is not used; returns whether it did.
fn made_after_a_death(accesses: u64) -> bool {
    let (_folder, control) = control();
    let mut before = Directory::default();
    let all = filled(&mut before, &control);
    let mut dying = Directory::default();
    dying.refresh(&control).expect("sound");
    let died = dies_after(accesses, || dying.make(&control, b"new", BOUNDS)).is_none();
    let context = format!("died at {accesses}");

    // All copies find the same: the old key, the new one, or none.
    before.refresh(&control).expect("sound");
    let mut after = Directory::default();
    after.refresh(&control).expect("sound");
    assert_equal(&before, &after);
    assert_eq!(count(&control), KEPT, "{context}");
    let found = (before.find(&all[0]), before.find(b"new"));
    assert!(found.0.is_none() || found.1.is_none(), "{context}");
    assert!(died || found.1.is_some(), "{context}");
    for key in &all[1..] {
        assert!(before.find(key).is_some(), "{context}");
    }

    // Another process then makes the queue, in the same place.
    let made = queue(&mut before, &control, b"new");
    assert_eq!(u64::from(made.index), 0, "{context}");
    assert!(ring(&control, 0).expect("sound").is_empty());
    after.refresh(&control).expect("sound");
    assert_equal(&before, &after);
    assert_eq!(before.find(&all[0]), None, "{context}");
    assert_eq!(count(&control), KEPT, "{context}");
    died
}

#[test]
fn a_process_that_dies_while_it_gives_a_ring_another_key_spoils_nothing() {
    let deaths = (0..1000).take_while(|&at| made_after_a_death(at)).count();
    assert!((20..1000).contains(&deaths), "{deaths}");
}
