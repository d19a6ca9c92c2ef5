//! Looks at a message that is taken meanwhile, and whose descriptor is filled again.

use shoal_shm::internals::PeekOutcome;
use shoal_shm::internals::heap::Heap;
use shoal_shm::{Keep, Want};

use super::support::*;

#[test]
fn a_look_sees_the_whole_message_or_that_it_is_gone() {
    search(
        || Heap::new(1, 6).with_ring(4, 3),
        Some(2),
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
                let process = Process::new(view, 3, Awake);
                let (head, end) = process.queue.span();
                if head == end {
                    return vec![];
                }
                match process.queue.peek_at(head).unwrap() {
                    PeekOutcome::Message(copy) => {
                        let bytes = copy.bytes().try_into().unwrap();
                        assert_eq!((copy.label.weight, u64::from_ne_bytes(bytes)), (3, 3));
                    }
                    PeekOutcome::Gone | PeekOutcome::End => (),
                }
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
