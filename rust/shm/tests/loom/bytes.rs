//! The bound in bytes.

use shoal_shm::internals::heap::Heap;
use shoal_shm::{Keep, Want};

use super::support::*;

/// The length of an earlier message is read from a descriptor while others use it again.
#[test]
fn a_bound_in_bytes_is_exact() {
    search(
        || Heap::new(3, 4).with_ring(4, 3).with_max_bytes(16),
        Some(2),
        |view| Process::new(view, 1, Awake).put(1).unwrap(),
        || {
            let passes = work(|view| {
                let mut process = Process::new(view, 2, Awake);
                let mut numbers = process.take(Want::Count(1), Keep::Copy);
                numbers.extend([3, 4].into_iter().filter(|&n| process.put(n).is_ok()));
                numbers
            });
            vec![puts(1, &[2]), passes]
        },
        |view, results| {
            // Two fit. The first was taken before, so at most one of the three was refused.
            let put = results[0].len() + results[1].len() - 1;
            assert_eq!((results[1][0], put), (1, 2));
            let queue = Process::new(view, 3, Awake).queue;
            assert_eq!(queue.queued_bytes(), Ok(Some(16)));
            assert_eq!(rest(view).len(), 2);
        },
    );
}

/// One process waits for weight that cannot come before it takes, another for room in bytes.
#[test]
fn a_wait_for_weight_learns_that_no_more_bytes_fit_in() {
    search(
        || Heap::new(2, 3).with_ring(4, 3).with_max_bytes(8),
        Some(3),
        |view| Process::new(view, 1, Awake).put(1).unwrap(),
        || {
            let sleep = Sleep::new();
            let other = sleep.clone();
            let want = Want::Weight {
                target: 9,
                least: None,
            };
            vec![
                work(move |view| {
                    let end = Process::new(view, 1, other.clone()).put_waiting(&[2]);
                    assert_eq!(end, None);
                    vec![]
                }),
                work(move |view| Process::new(view, 2, sleep.clone()).take_waiting(want).1),
            ]
        },
        |view, results| {
            assert_eq!(results[1], [1]);
            assert_eq!(rest(view), [2]);
        },
    );
}
