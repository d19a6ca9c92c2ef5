//! Any bytes in a control segment give errors: no panic, no crash, no endless loop.

use std::mem::offset_of;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::case::Survivor;
use super::messages::{Kind, put, put_many, take};
use super::victim::{BOUNDS, MEMORY};
use crate::ring::descriptor::{Descriptor, INTENT_RECORDS, Participant};
use crate::ring::header::Header;
use crate::ring::put::Refusal;
use crate::ring::take::{Keep, Want};
use crate::ring::wait::WaitState;
use crate::segment::layout as at;
use crate::session::directory::Directory;
use crate::session::name::Token;
use crate::session::queue_table;
use crate::session::{Bounds, Control, Error, MemoryPolicy, Session, SessionQueue, folders};
use crate::sync::{AtomicU64, Ordering};

/// Offset of the slots of a ring: behind its header, its users and its key.
const SLOTS: u64 = size_of::<Header>() as u64 + 32 + 128;

/// Parts of the segment that are in use, and a little more: offset of the first, number, distance,
/// and words of each.
const PARTS: [(u64, u64, usize, u64); 18] = [
    (at::SUPERBLOCK, 1, 0, size_of::<at::Constants>() as u64 / 8),
    (offset_of!(at::Superblock, state) as u64, 1, 0, 1),
    (offset_of!(at::Superblock, counters) as u64, 1, 0, 8),
    (offset_of!(at::Superblock, used) as u64, 1, 0, 6),
    (offset_of!(at::Superblock, memory) as u64, 1, 0, 1),
    (offset_of!(at::Superblock, changed) as u64, 1, 0, 2),
    (at::PROCESSES, 4, size_of::<at::Process>(), 4),
    (
        at::INTENT_RECORDS,
        3,
        size_of::<Participant>(),
        INTENT_RECORDS as u64,
    ),
    (at::CHUNKS, 4, size_of::<at::Chunk>(), 1),
    (at::EXTENTS, 3, size_of::<at::Extent>(), 4),
    (at::QUEUES, 3, size_of::<at::QueueEntry>(), 8),
    (at::DESCRIPTORS, 10, size_of::<Descriptor>(), 7),
    // The ends of two rings, their words for sleepers, their users and keys, and their slots.
    (at::RINGS, 2, 128, 1),
    (at::RINGS + 256, 1, 0, 12),
    (at::RINGS + size_of::<Header>() as u64, 1, 0, 5),
    (at::RINGS + SLOTS, 1, 0, 9),
    (at::RINGS + 4096, 2, 128, 1),
    (at::RINGS + 4096 + SLOTS, 1, 0, 9),
];

/// Offsets of the words that are worth changing.
fn words() -> Vec<u64> {
    let parts = PARTS.iter();
    parts
        .flat_map(|&(first, count, apart, words)| {
            let begins = (0..count).map(move |at| first + at * apart as u64);
            begins.flat_map(move |begin| (0..words).map(move |word| begin + word * 8))
        })
        .collect()
}

/// Changes a word of the segment.
fn edit(control: &Control, place: u64, value: u64) {
    let view = control.views::<AtomicU64>(place, 1);
    view.expect("inside")[0].store(value, Ordering::Relaxed);
}

/// Number of cases: more if the variable says so.
fn cases() -> u32 {
    let asked = std::env::var_os("SHOAL_TEST_HOSTILE_CASES");
    let asked = asked.and_then(|cases| cases.to_str()?.parse().ok());
    asked.unwrap_or(64)
}

/// Values near to a valid one, and any.
fn value() -> impl Strategy<Value = u64> {
    let small = 0..40_u64;
    let word = (0..16_u64, 0..5_u64, 0..40_u64).prop_map(|(s, o, p)| s << 60 | o << 48 | p);
    let slot = (0..12_u64, prop_oneof![0..12_u64, Just(0xff_ffff)]).prop_map(|(l, d)| l << 24 | d);
    let place = prop::sample::select(words());
    let bit = (0..64_u32).prop_map(|bit| 1 << bit);
    let end = (0..3_u64).prop_map(|below| u64::MAX - below);
    prop_oneof![small, word, slot, place, bit, end, any::<u64>()]
}

/// A session with two queues, messages in and outside of descriptors, and some in use.
fn used(policy: MemoryPolicy) -> (Survivor, SessionQueue, Vec<super::messages::Received>) {
    let survivor = Survivor::new(policy);
    let session = &survivor.session;
    let queue = session.queue(b"a", BOUNDS).expect("room");
    let bounded = Bounds {
        maxsize: Some(0),
        max_bytes: Some(1 << 14),
    };
    let other = session.queue(b"b", bounded).expect("room");
    for number in 0..3 {
        let kind = [Kind::Inline, Kind::Block][usize::from(number == 1)];
        assert_eq!(put(&queue, number, kind).expect("sound"), Ok(()));
        put(&other, number, kind).expect("sound").ok();
    }
    let in_use = take(&queue, 1, Keep::Lease, |_| ()).expect("sound");
    (survivor, queue, in_use)
}

/// Every operation of a process. The results do not matter, only that each call returns.
fn everything(session: &Arc<Session>, queue: &SessionQueue) -> Result<(), Error> {
    let anything = |result: Result<(), Error>| {
        if let Err(error) = result {
            assert!(!error.to_string().is_empty());
        }
    };
    let token: Token = session.token().parse()?;
    let path = token.folder().join(folders::CONTROL);
    anything(fresh(&path, token.session()));
    anything(session.stats().map(drop));
    let _ = session.usage();
    for key in [b"a", b"b", b"c"] {
        anything(session.queue(key, BOUNDS).map(drop));
    }
    let limit = Duration::from_micros(100);
    for round in 0..4 {
        anything(put_any(queue, Kind::Inline));
        anything(put_any(queue, Kind::Block));
        anything(put_many(queue, &[1, 2], Kind::Inline));
        let want = if round % 2 == 0 {
            Want::Count(2)
        } else {
            Want::Weight {
                target: 3,
                least: None,
            }
        };
        let keep = [Keep::Copy, Keep::Loan, Keep::Lease][round % 3];
        anything(take_any(queue, want, keep));
        let mut wait_state = WaitState::default();
        anything(queue.wait_to_take(want, &mut wait_state, limit).map(drop));
        queue.done_taking(want, wait_state);
        let mut wait_state = WaitState::default();
        anything(queue.wait_to_put(8, &mut wait_state, limit).map(drop));
        queue.done_putting(wait_state);
        session.wait_for_memory(limit);
        queue.arm_take();
        queue.arm_put();
        let _ = queue.len();
        anything(queue.bytes().map(drop));
        anything(queue.is_full().map(drop));
        anything(session.sweep().map(drop));
        session.tend();
        if round == 2 {
            anything(session.bell().map(drop));
            anything(queue.close());
            anything(queue.is_closed().map(drop));
            session.trim();
        }
    }
    Ok(())
}

/// The operations of a process that attaches.
fn fresh(path: &std::path::Path, session: [u64; 2]) -> Result<(), Error> {
    let control = Control::open(path, session, Instant::now())?;
    Directory::default().refresh(&control)?;
    let _: Vec<_> = queue_table::rings(&control)?
        .iter()
        .map(crate::ring::Ring::len)
        .collect();
    Ok(())
}

/// Puts a message if there is memory: damage may have made all of it impossible to free.
fn put_any(queue: &SessionQueue, kind: Kind) -> Result<(), Error> {
    if kind == Kind::Block {
        for length in [1, 5000, MEMORY] {
            if let Some(draft) = queue.draft(length)? {
                draft.write(0, &[7])?;
                let _refused: Result<(), Refusal> = queue
                    .put(draft, crate::Label::default())?
                    .map_err(|(_, refusal)| refusal);
            }
        }
        return Ok(());
    }
    queue.offer(crate::Label::default(), &[7; 100])?;
    Ok(())
}

fn take_any(queue: &SessionQueue, want: Want, keep: Keep) -> Result<(), Error> {
    let mut taken = Vec::new();
    let result = queue.take(want, keep, &mut |message| {
        message.copy(&mut [0; 300]);
        taken.extend(message.loan().map(|loan| (loan, message.payload())));
    });
    for (loan, payload) in taken {
        let held = queue.hold(loan, payload)?;
        if let Ok(length) = usize::try_from(held.len().min(1 << 16)) {
            held.read(0, &mut vec![0; length])?;
        }
        held.acknowledge()?;
    }
    result.map(drop)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..<_>::default() })]

    #[test]
    fn damage_anywhere_gives_errors(
        edits in prop::collection::vec((prop::sample::select(words()), value()), 1..5),
        spill: bool,
    ) {
        let policy = if spill { MemoryPolicy::Spill } else { MemoryPolicy::Error };
        let (survivor, queue, in_use) = used(policy);
        for (place, value) in edits {
            edit(survivor.session.control(), place, value);
        }
        everything(&survivor.session, &queue)?;
        for one in in_use {
            if let Some(held) = one.held {
                let _ = held.acknowledge();
            }
        }
    }
}
