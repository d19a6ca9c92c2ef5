//! Random operations of two processes, checked against invariants.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Put { by: usize, length: u64 },
    Get { by: usize, which: usize },
    Reserve { by: usize, length: u64 },
    Cancel { which: usize },
    Trim { by: usize },
    Cool { by: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![1..1000_u64, 1000..100_000_u64, 100_000..(3 * MIB)];
    prop_oneof![
        6 => (0..2_usize, length.clone()).prop_map(|(by, length)| Step::Put { by, length }),
        5 => (0..2_usize, any::<usize>()).prop_map(|(by, which)| Step::Get { by, which }),
        2 => (0..2_usize, length).prop_map(|(by, length)| Step::Reserve { by, length }),
        2 => any::<usize>().prop_map(|which| Step::Cancel { which }),
        1 => (0..2_usize).prop_map(|by| Step::Trim { by }),
        1 => (0..2_usize).prop_map(|by| Step::Cool { by }),
    ]
}

/// Checks that no two blocks share a byte, and that each lies in its extent.
fn assert_sound(process: &Process, blocks: impl Iterator<Item = Block>) {
    let mut blocks: Vec<_> = blocks.map(|b| (b.extent, b.offset, b.length)).collect();
    blocks.sort_unstable();
    for pair in blocks.windows(2) {
        let [(one, offset, length), (other, next, _)] = pair else {
            unreachable!("windows of two");
        };
        assert!(one != other || offset + length <= *next, "{pair:?}");
    }
    for (extent, offset, length) in blocks {
        let entry = &process.control.extents()[extent as usize];
        assert!(entry.seen().holder().is_some());
        let bytes = entry.length.load(crate::sync::Ordering::Relaxed);
        assert!(offset + length <= bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn blocks_never_overlap_and_all_memory_comes_back(
        steps in proptest::collection::vec(step(), 1..80),
        max_bytes in prop_oneof![Just(MIB), Just(5 * MIB), Just(64 * MIB)],
    ) {
        let folder = Folder::new(max_bytes, MemoryPolicy::Block);
        let both = [folder.process(1), folder.process(2)];
        let mut messages = Vec::new();
        let mut reserved = Vec::new();
        for step in steps {
            match step {
                Step::Put { by, length } => {
                    let put = both[by].try_put(length);
                    prop_assert_eq!(put.is_err(), length > max_bytes);
                    messages.extend(put.ok().flatten());
                }
                Step::Get { by, which } if !messages.is_empty() => {
                    let which = which % messages.len();
                    let message: Message = messages.swap_remove(which);
                    let sender = both[by].get(message);
                    prop_assert!(sender == 1 || sender == 2);
                }
                Step::Reserve { by, length } => {
                    let allocated = both[by].arena.allocate(&both[by].control, length);
                    if let Ok(Some(allocated)) = allocated {
                        reserved.push((allocated.block(), both[by].bind(&allocated)));
                    }
                }
                Step::Cancel { which } if !reserved.is_empty() => {
                    let (_, descriptor) = reserved.swap_remove(which % reserved.len());
                    descriptor.set_word(Word::FREE);
                }
                Step::Trim { by } => both[by].trim(),
                Step::Cool { by } => {
                    let later = Instant::now() + Duration::from_secs(5);
                    both[by].arena.cool(&both[by].control, later);
                }
                Step::Get { .. } | Step::Cancel { .. } => (),
            }
            prop_assert!(both[0].reserved() <= max_bytes);
            let blocks = messages.iter().map(|message| message.block);
            let pending = reserved.iter().map(|(block, _)| *block);
            assert_sound(&both[0], blocks.chain(pending));
        }
        for (_, descriptor) in reserved {
            descriptor.set_word(Word::FREE);
        }
        for message in messages {
            both[0].get(message);
        }
        for process in &both {
            process.trim();
            prop_assert_eq!(process.arena.counts(), (0, 0));
        }
        both[0].assert_nothing_left(&folder);
    }
}
