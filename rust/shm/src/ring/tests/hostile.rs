//! Any bytes in shared memory give errors: no panic, no endless loop.

use proptest::prelude::*;

use super::*;
use crate::sync::Ordering;

/// Values near to a valid one, and any.
fn value() -> impl Strategy<Value = u64> {
    let small = 0..40_u64;
    let word = (0..16_u64, 0..4_u64, 0..40_u64).prop_map(|(s, o, p)| s << 60 | o << 48 | p);
    let slot = (0..12_u64, prop_oneof![0..12_u64, Just(0xff_ffff)]).prop_map(|(l, d)| l << 24 | d);
    prop_oneof![small, word, slot, any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn damage_gives_errors(
        edits in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..4),
        before in 0..3_u64,
    ) {
        let heap = Heap::new(8, 3).with_ring(4, 3);
        let rings = heap.rings().expect("sound");
        let view = heap.view(&rings);
        let mut process = Process::new(view, 0);
        for number in 0..before {
            prop_assert_eq!(process.put(number), Ok(()));
        }
        for (at, value) in edits {
            let words = rings[0].words_for_tests();
            let words: Vec<_> = words.chain(view.table.descriptors.iter().flat_map(Descriptor::words_for_tests)).collect();
            at.get(&words).store(value, Ordering::Relaxed);
        }
        for round in 0..6 {
            // The results do not matter, only that each call returns.
            if let Some(claim) = process.queue.claim() {
                process.queue.fill(&claim, Label::default(), b"");
                let _ = process.queue.put(&mut process.record, claim);
            }
            let want = if round % 2 == 0 {
                Want::Count(2)
            } else {
                Want::Weight { target: 3, least: None }
            };
            let _ = process.queue.take(&mut process.record, want, Keep::Copy, &mut |_| ());
            let _ = rings[0].len();
            let mut record = record(view, owner(1));
            let _ = view.sweeper(owner(1), SystemFutex).sweep(&mut record, |o| o == owner(2));
            if round == 3 {
                let _ = process.queue.close();
            }
        }
    }
}

#[test]
fn a_consumer_that_finds_nothing_is_told_of_damage() {
    let heap = Heap::new(2, 2).with_ring(4, 3);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    let (mut one, mut other) = (Process::new(view, 0), Process::new(view, 1));
    assert_eq!(one.put(1), Ok(()));
    let word = Word::new(State::Loaned, owner(1), 0);
    view.table.descriptors[0].set_word(word);
    let take = |process: &mut Process<'_>| {
        let record = &mut process.record;
        process
            .queue
            .take(record, Want::Count(1), Keep::Copy, &mut |_| ())
    };
    let found = take(&mut one);
    assert_eq!(
        found,
        Err(Corrupt::WrongWord {
            index: 0,
            position: 4,
            word
        })
    );
    assert_eq!(take(&mut other), Err(Corrupt::FoundBefore));
}
