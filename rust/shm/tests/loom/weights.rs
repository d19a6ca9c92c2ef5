//! Weights, which are read before their message is taken.

use shoal_shm::internals::heap::Heap;
use shoal_shm::{Keep, OverweightPolicy, Taken, Want};

use super::support::*;

/// The descriptor of a message is filled again, and not put, while another process looks at the
/// message.
#[test]
fn a_weight_counts_only_for_a_message_that_is_there() {
    search(
        || Heap::new(1, 6).with_ring(4, 3),
        Some(3),
        |view| Process::new(view, 1, Awake).put(3).unwrap(),
        || {
            let takes = work(|view| Process::new(view, 2, Awake).take(Want::Count(1), Keep::Copy));
            let fills = work(|view| {
                let process = Process::new(view, 4, Awake);
                if let Some(claim) = process.claim(9) {
                    process.queue.unclaim(claim);
                }
                vec![]
            });
            let looks = work(|view| {
                let mut process = Process::new(view, 3, Awake);
                let want = Want::Weight {
                    target: 5,
                    overweight: OverweightPolicy::Refuse,
                    least: None,
                };
                let taken =
                    process
                        .queue
                        .take(&mut process.record, want, Keep::Copy, &mut |message| {
                            unreachable!("{} is not enough", number(&message))
                        });
                let taken = taken.unwrap();
                assert!(matches!(taken, Taken::Short | Taken::Empty), "{taken:?}");
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
