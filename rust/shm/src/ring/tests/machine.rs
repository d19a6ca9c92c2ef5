//! Any sequence of operations gives the same results as a simple queue.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u64>),
    Take(Want, Keep),
    Release(usize),
    Close,
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let keep = prop_oneof![Just(Keep::Copy), Just(Keep::Loan), Just(Keep::Lease)];
    let want = prop_oneof![
        (1..5_u32).prop_map(Want::Count),
        (0..8_u64, prop::option::of(0..8_u64))
            .prop_map(|(target, least)| Want::Weight { target, least }),
    ];
    prop_oneof![
        8 => prop::collection::vec(0..5_u64, 1..4).prop_map(Step::Put),
        8 => (want, keep).prop_map(|(want, keep)| Step::Take(want, keep)),
        4 => any::<prop::sample::Index>().prop_map(|i| Step::Release(i.index(64))),
        1 => Just(Step::Sweep),
        1 => prop_oneof![9 => Just(Step::Sweep), 1 => Just(Step::Close)],
    ]
}

/// Length of a message: every third lies outside of its descriptor.
fn bytes(number: u64) -> u64 {
    if number.is_multiple_of(3) {
        length(number)
    } else {
        8
    }
}

/// Whether a simple queue would take a message.
fn fits(
    queue: &VecDeque<(u64, u64)>,
    number: u64,
    maxsize: u32,
    (max_bytes, overfill): (u64, bool),
) -> bool {
    let used: u64 = queue.iter().map(|(number, _)| bytes(*number)).sum();
    let needed = if overfill { 1 } else { bytes(number) };
    let fits = max_bytes == 0 || queue.is_empty() || used + needed <= max_bytes;
    queue.len() < maxsize as usize && fits
}

/// The result of a simple queue; `full`: no more can come before a message is taken.
fn expected(queue: &VecDeque<(u64, u64)>, want: Want, full: bool) -> Taken {
    let Some(&(_, first)) = queue.front() else {
        return Taken::Empty;
    };
    let messages = |count: usize| Taken::Messages {
        count: u32::try_from(count).expect("few"),
        weight: queue.iter().take(count).map(|(_, weight)| weight).sum(),
    };
    match want {
        Want::Count(count) => messages(queue.len().min(count as usize)),
        Want::Weight { target, .. } if first > target => messages(1),
        Want::Weight { target, least } => {
            let mut sum = 0;
            for (before, (_, weight)) in queue.iter().enumerate() {
                sum += weight;
                if sum > target {
                    return messages(before);
                }
                if sum == target {
                    return messages(before + 1);
                }
            }
            if full || least.is_some_and(|least| sum >= least) {
                messages(queue.len())
            } else {
                Taken::Short
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn it_is_a_queue(
        steps in prop::collection::vec(step(), 1..60), maxsize in 1..6_u32,
        max_bytes in prop_oneof![Just(0), 1..50_u64], overfill: bool,
        start in prop_oneof![8..40_u64, u64::MAX - 20..=u64::MAX, (1_u64 << 43) - 20..1 << 43],
    ) {
        let bytes_bound = (max_bytes, overfill);
        let heap = Heap::new(64, 2).with_ring_at(8, maxsize, start);
        let heap = heap.with_max_bytes(max_bytes).with_overfill(overfill);
        let rings = heap.rings().expect("sound");
        let view = heap.view(&rings);
        let mut process = Process::new(view, 0);
        let mut model = VecDeque::new();
        let mut loans = VecDeque::new();
        let (mut numbers, mut closed, mut refused) = (0.., false, false);
        for step in steps {
            match step {
                Step::Put(_) if loans.len() > 50 => (),
                Step::Put(weights) => {
                    let new: Vec<(u64, u64)> = weights.iter().map(|&w| (numbers.next().expect("many"), w)).collect();
                    let mut claims: Vec<_> =
                        new.iter().map(|&(number, weight)| match number % 3 {
                            0 => process.claim_outside(number, weight),
                            _ => process.claim(number, weight),
                        }).collect();
                    let refusal = process.queue.put_many(&mut process.record, &mut claims);
                    let why = if closed { Refusal::Closed } else { Refusal::Full };
                    let mut left = VecDeque::from(new);
                    while let Some(&(number, weight)) = left.front()
                        && !closed && fits(&model, number, maxsize, bytes_bound)
                    {
                        left.pop_front();
                        model.push_back((number, weight));
                    }
                    refused |= !left.is_empty();
                    prop_assert_eq!(refusal, Ok((!left.is_empty()).then_some(why)));
                    prop_assert_eq!(claims.len(), left.len());
                    for ((number, _), claim) in left.iter().zip(&claims) {
                        prop_assert_eq!(process.queue.length(claim), bytes(*number));
                        prop_assert_eq!(process.queue.is_puttable(bytes(*number)), Ok(closed || fits(&model, *number, maxsize, bytes_bound)));
                    }
                    for claim in claims {
                        process.queue.unclaim(claim);
                    }
                }
                Step::Take(want, keep) => {
                    let full = closed || refused || model.len() >= maxsize as usize;
                    let expected = match expected(&model, want, full) {
                        Taken::Empty if closed => Taken::Closed,
                        taken => taken,
                    };
                    let mut out = Vec::new();
                    let (taken, new) = process.take(want, keep, &mut out);
                    prop_assert_eq!(taken, expected);
                    for got in &out {
                        let (number, _) = model.pop_front().expect("as many as expected");
                        prop_assert_eq!(*got, (number, false));
                    }
                    if let Taken::Messages { count, .. } = taken {
                        prop_assert_eq!(out.len(), count as usize);
                        refused = false;
                    }
                    loans.extend(new);
                }
                Step::Release(which) => if !loans.is_empty() {
                    let loan = loans.remove(which % loans.len()).expect("in range");
                    prop_assert_eq!(process.queue.release(loan), Ok(()));
                },
                Step::Close => {
                    prop_assert_eq!(process.queue.close(), Ok(()));
                    closed = true;
                }
                // A process that had nothing in use died.
                Step::Sweep => prop_assert_eq!(sweep(view, 0, &[1]), Swept::default()),
            }
            prop_assert_eq!(rings[0].len(), model.len() as u64);
            let used = model.iter().map(|(number, _)| bytes(*number)).sum();
            prop_assert_eq!(process.queue.queued_bytes(), Ok((max_bytes > 0).then_some(used)));
            prop_assert_eq!(view.table.in_use(), model.len() + loans.len());
        }
        for loan in loans {
            prop_assert_eq!(process.queue.release(loan), Ok(()));
        }
        let mut out = Vec::new();
        while let (Taken::Messages { .. }, loans) = process.take(Want::Count(2), Keep::Copy, &mut out) {
            for loan in loans {
                prop_assert_eq!(loan.release(&view.table), Ok(()));
            }
        }
        prop_assert!(out.into_iter().eq(model.into_iter().map(|(number, _)| (number, false))));
        prop_assert_eq!(view.table.in_use(), 0);
    }
}
