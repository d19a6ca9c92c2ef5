//! Measures a put and a take of a small message on one thread, with everything that crash safety
//! needs.
//!
//! `cargo run --release -p shoal-shm --example put_and_take`
#![allow(clippy::print_stdout, reason = "printing is the purpose")]

use std::time::Instant;

use shoal_shm::internals::heap::Heap;
use shoal_shm::internals::{IntentRecord, Owner, SystemFutex};
use shoal_shm::{Keep, Label, Taken, Want};

fn main() {
    const PAIRS: u32 = 2_000_000;
    let heap = Heap::new(256, 1).with_ring(64, 63);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    let me = Owner::new(1).expect("in range");
    let queue = view.queue(0, me, SystemFutex, 0).expect("it exists");
    let mut record = IntentRecord::new(&view.table.participants[me.index()], 0).expect("it exists");
    let payload = [7; 64];
    for keep in [Keep::Copy, Keep::Loan] {
        let mut times: Vec<_> = (0..7)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..PAIRS {
                    let claim = queue.claim().expect("free");
                    assert!(queue.fill(&claim, Label::default(), &payload));
                    let put = queue.put(&mut record, claim).expect("undamaged");
                    assert!(put.is_ok());
                    let (mut bytes, mut loan) = ([0; 64], None);
                    let taken = queue.take(&mut record, Want::Count(1), keep, &mut |message| {
                        message.copy(&mut bytes);
                        loan = message.loan();
                    });
                    assert!(matches!(taken, Ok(Taken::Messages { .. })));
                    std::hint::black_box(&bytes);
                    if let Some(loan) = loan {
                        queue.release(loan).expect("in use");
                    }
                }
                start.elapsed() / PAIRS
            })
            .collect();
        times.sort_unstable();
        println!(
            "put and take of 64 bytes, {keep:?}: {:?} (best {:?})",
            times[3], times[0]
        );
    }
}
