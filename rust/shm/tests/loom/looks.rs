//! Looks at a message that is taken meanwhile, and whose descriptor is filled again and not put.

use shoal_shm::internals::PeekOutcome;
use shoal_shm::internals::heap::{Heap, View};
use shoal_shm::{Keep, Taken, Want};

use super::support::*;

/// Searches with one process that takes message 3, one that fills its descriptor with 9, and one
/// that looks.
fn search_looks(preemptions: usize, looks: fn(View<'_>)) {
    search(
        || Heap::new(1, 6).with_ring(4, 3),
        Some(preemptions),
        |view| Process::new(view, 1, Awake).put(3).unwrap(),
        move || {
            let takes = work(|view| Process::new(view, 2, Awake).take(Want::Count(1), Keep::Copy));
            let fills = work(|view| {
                let process = Process::new(view, 4, Awake);
                if let Some(claim) = process.claim(9) {
                    process.queue.unclaim(claim);
                }
                vec![]
            });
            let looks = work(move |view| {
                looks(view);
                vec![]
            });
            vec![takes, fills, looks]
        },
        |view, results| {
            assert_eq!(results[0], [3]);
            assert_eq!(rest(view), []);
        },
    );
}

#[test]
fn a_look_sees_the_whole_message_or_that_it_is_gone() {
    search_looks(2, |view| {
        let process = Process::new(view, 3, Awake);
        let (head, end) = process.queue.span();
        if head == end {
            return;
        }
        match process.queue.peek_at(head).unwrap() {
            PeekOutcome::Message(copy) => {
                let bytes = copy.bytes().try_into().unwrap();
                assert_eq!((copy.label.weight, u64::from_ne_bytes(bytes)), (3, 3));
            }
            PeekOutcome::Gone | PeekOutcome::End => (),
        }
    });
}

#[test]
fn a_weight_counts_only_for_a_message_that_is_there() {
    search_looks(3, |view| {
        let mut process = Process::new(view, 3, Awake);
        let want = Want::Weight {
            target: 5,
            least: None,
        };
        let taken = process
            .queue
            .take(&mut process.record, want, Keep::Copy, &mut |message| {
                unreachable!("{} is not enough", number(&message))
            });
        let taken = taken.unwrap();
        assert!(matches!(taken, Taken::Short | Taken::Empty), "{taken:?}");
    });
}
