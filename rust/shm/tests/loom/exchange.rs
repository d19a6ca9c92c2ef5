//! Puts and takes against each other.

use shoal_shm::internals::heap::Heap;
use shoal_shm::{Refusal, Want};

use super::support::*;

/// A message goes from one process to another whole, through a slot and a descriptor used again.
#[test]
fn one_puts_and_one_takes() {
    search(
        || Heap::new(1, 3).with_ring(2, 1),
        None,
        |_| (),
        || vec![puts(1, &[1, 2]), takes(2, 2, Want::Count(1))],
        |view, results| {
            assert!(results[1].is_sorted());
            nothing_lost(view, results[..1].to_vec(), results[1..].to_vec());
        },
    );
}

#[test]
fn two_put_and_one_takes() {
    search(
        || Heap::new(3, 4).with_ring(2, 1),
        Some(3),
        |_| (),
        || vec![puts(1, &[1]), puts(2, &[2]), takes(3, 1, Want::Count(1))],
        |view, results| nothing_lost(view, results[..2].to_vec(), results[2..].to_vec()),
    );
}

/// A batch is published message by message and taken whole by one of two.
#[test]
fn one_puts_a_batch_and_two_take_batches() {
    search(
        || Heap::new(2, 4).with_ring(4, 3),
        Some(3),
        |_| (),
        || {
            let put = work(|view| {
                let mut process = Process::new(view, 1, Awake);
                let mut claims = vec![process.claim(1).unwrap(), process.claim(2).unwrap()];
                let end = process
                    .queue
                    .put_many(&mut process.record, &mut claims)
                    .unwrap();
                assert_eq!((end, claims.len()), (None, 0));
                vec![1, 2]
            });
            let want = Want::Weight {
                target: 3,
                least: None,
            };
            vec![put, takes(2, 1, want), takes(3, 1, Want::Count(2))]
        },
        |view, results| {
            assert!(
                results[1].is_empty() || results[1] == [1, 2],
                "half a batch"
            );
            nothing_lost(view, results[..1].to_vec(), results[1..].to_vec());
        },
    );
}

/// A put comes before the end or is refused.
#[test]
fn a_put_races_with_the_end() {
    search(
        || Heap::new(2, 4).with_ring(4, 2),
        Some(3),
        |_| (),
        || {
            let close = work(|view| {
                Process::new(view, 2, Awake).queue.close().unwrap();
                vec![]
            });
            vec![puts(1, &[1, 2]), takes(3, 1, Want::Count(1)), close]
        },
        |view, results| {
            nothing_lost(view, results[..1].to_vec(), results[1..].to_vec());
            assert_eq!(Process::new(view, 0, Awake).put(9), Err(Refusal::Closed));
        },
    );
}
