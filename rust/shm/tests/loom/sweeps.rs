//! Sweeps while other processes go on.

use shoal_shm::internals::heap::Heap;
use shoal_shm::{Keep, Want};

use super::support::*;

/// One process died after its message was published, with `tail` behind, and another with a lease;
/// the others go on during a recovery.
#[test]
fn a_sweep_takes_nothing_from_the_living() {
    search(
        || Heap::new(3, 4).with_ring(4, 2),
        Some(2),
        |view| {
            let mut dead = Process::new(view, 3, Awake);
            dead.put(1).unwrap();
            dead.take(Want::Count(1), Keep::Lease);
            dead.put(2).unwrap();
            drop(dead.claim(7));
        },
        || {
            let sweeper = work(|view| {
                let swept = sweep(view, 0, 3);
                assert_eq!((swept.unpublished, swept.lost, swept.postponed), (1, 0, 0));
                assert_eq!(swept.redelivered, 1);
                vec![]
            });
            vec![puts(1, &[3]), takes(2, 1, Want::Count(1)), sweeper]
        },
        |view, results| {
            assert!(results[1].is_empty() || results[1] == [2]);
            let put = vec![vec![1, 2], results[0].clone()];
            nothing_lost(view, put, results[1..2].to_vec());
        },
    );
}

/// Messages go through the ring and descriptors come back, lap after lap, under a sweep.
#[test]
fn a_sweep_judges_a_ring_that_moves() {
    search(
        || Heap::new(1, 4).with_ring(2, 1),
        Some(4),
        |view| Process::new(view, 1, Awake).put(1).unwrap(),
        || {
            let passes = work(|view| {
                let mut process = Process::new(view, 2, Awake);
                let mut got = process.take(Want::Count(1), Keep::Copy);
                // The only descriptor is free again, and used for a put by the other process.
                assert_eq!(process.put(2), Ok(()));
                got.extend(process.take(Want::Count(1), Keep::Copy));
                got
            });
            let sweeper = work(|view| {
                takes_nothing(view);
                vec![]
            });
            vec![passes, sweeper]
        },
        |view, results| {
            assert_eq!(results[0], [1, 2]);
            assert_eq!(view.table.in_use(), 0);
        },
    );
}

/// The slot of a message that is being taken is used again while a sweep looks at it.
#[test]
fn a_sweep_is_lapped() {
    search(
        || Heap::new(3, 4).with_ring(2, 1),
        Some(2),
        |view| Process::new(view, 1, Awake).put(1).unwrap(),
        || {
            let laps = work(|view| {
                let mut process = Process::new(view, 3, Awake);
                let mut got = Vec::new();
                for number in [2, 3] {
                    if process.put(number).is_ok() {
                        got.push(number + 100);
                    }
                    if number == 2 {
                        got.extend(process.take(Want::Count(1), Keep::Copy));
                    }
                }
                got
            });
            let sweeper = work(|view| {
                takes_nothing(view);
                vec![]
            });
            vec![takes(2, 1, Want::Count(1)), laps, sweeper]
        },
        |view, results| {
            let (put, got): (Vec<_>, _) = results.concat().into_iter().partition(|&n| n > 100);
            let put = put.into_iter().map(|n| n - 100).chain([1]).collect();
            nothing_lost(view, vec![put], vec![got]);
        },
    );
}

#[test]
fn two_sweepers_bring_a_message_back_once() {
    search(
        || Heap::new(2, 4).with_ring(4, 2),
        Some(4),
        |view| {
            let mut dead = Process::new(view, 3, Awake);
            dead.put(1).unwrap();
            dead.take(Want::Count(1), Keep::Lease);
        },
        || {
            let sweeper = |me| work(move |view| vec![sweep(view, me, 3).redelivered]);
            vec![sweeper(1), sweeper(0)]
        },
        |view, results| {
            assert_eq!(results.concat().iter().sum::<u64>(), 1);
            nothing_lost(view, vec![vec![1]], vec![]);
        },
    );
}
