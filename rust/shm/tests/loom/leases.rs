//! Messages that are given back or dropped while other processes go on.

use shoal_shm::internals::GivenBack;
use shoal_shm::internals::heap::Heap;
use shoal_shm::{Keep, Want};

use super::support::*;

/// A lease is given back while another process sweeps and a third one takes.
#[test]
fn a_lease_given_back_during_a_sweep_is_delivered_once() {
    search(
        || Heap::new(2, 4).with_ring(4, 2),
        Some(2),
        |view| {
            let mut process = Process::new(view, 1, Awake);
            process.put(1).unwrap();
        },
        || {
            let gives_back = work(|view| {
                let mut process = Process::new(view, 2, Awake);
                let mut leases = Vec::new();
                let taken = process.queue.take(
                    &mut process.record,
                    Want::Count(1),
                    Keep::Lease,
                    &mut |message| leases.extend(message.loan()),
                );
                taken.unwrap();
                for lease in leases {
                    let ring = process.queue.ring();
                    let back = lease.give_back(&mut process.record, &view.table, ring, owner(2));
                    assert_eq!(back, Ok(GivenBack::Queued));
                }
                vec![]
            });
            let sweeper = work(|view| {
                takes_nothing(view);
                vec![]
            });
            vec![gives_back, sweeper, takes(3, 1, Want::Count(1))]
        },
        |view, results| nothing_lost(view, vec![vec![1]], results[2..].to_vec()),
    );
}

/// One process makes room while others put and take: no process gets a dropped message, and only a
/// full queue loses one.
#[test]
fn a_full_queue_is_displaced_once() {
    search(
        || Heap::new(3, 4).with_ring(4, 2),
        Some(2),
        |view| {
            let mut process = Process::new(view, 1, Awake);
            process.put(1).unwrap();
            process.put(2).unwrap();
        },
        || {
            let displaces = work(|view| {
                let mut process = Process::new(view, 3, Awake);
                vec![process.queue.displace(&mut process.record, false).unwrap()]
            });
            vec![takes(2, 1, Want::Count(1)), puts(1, &[3]), displaces]
        },
        |view, results| {
            let put = results[1].len() as u64;
            let left = view.rings[0].len();
            assert_eq!(results[0].len() as u64 + results[2][0] + left, 2 + put);
            assert_eq!(view.table.in_use() as u64, left);
        },
    );
}
