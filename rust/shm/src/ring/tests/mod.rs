//! Tests of the whole queue, on the heap.

mod bells;
mod deaths;
mod displacing;
mod hostile;
mod machine;
mod peek;
mod waiting;

use super::heap::{Heap, View};
use super::*;

/// A queue, and an intent record of its process.
struct Process<'a, F = SystemFutex> {
    queue: Queue<'a, F>,
    record: IntentRecord<'a>,
}

impl<'a> Process<'a> {
    fn new(view: View<'a>, me: u16) -> Self {
        Self::of_ring(view, 0, me, SystemFutex)
    }
}

impl<'a, F: Futex> Process<'a, F> {
    fn of_ring(view: View<'a>, ring: u32, me: u16, futex: F) -> Self {
        let (me, exists) = (owner(me), "ring and owner exist");
        Self {
            queue: view.queue(ring, me, futex, 0).expect(exists),
            record: record(view, me),
        }
    }

    /// A descriptor whose message is a number, which is also its weight if it has none.
    fn claim(&self, number: u64, weight: u64) -> Claim {
        let claim = self.queue.claim().expect("there are enough descriptors");
        let bytes = &number.to_ne_bytes();
        assert!(self.queue.fill(&claim, label(weight), bytes));
        claim
    }

    /// Same as `claim`, for a message outside of the descriptor; the number gives its place.
    fn claim_outside(&self, number: u64, weight: u64) -> Claim {
        let claim = self.queue.claim().expect("there are enough descriptors");
        let block = outside(number);
        assert!(self.queue.fill_external(&claim, label(weight), block));
        claim
    }

    fn put(&mut self, number: u64) -> Result<(), Refusal> {
        let claim = self.claim(number, 1);
        let put = self.queue.put(&mut self.record, claim).expect("undamaged");
        put.map_err(|(claim, refusal)| {
            self.queue.unclaim(claim);
            refusal
        })
    }

    /// Takes messages into `out`, with whether each was delivered before.
    fn take(&mut self, want: Want, keep: Keep, out: &mut Vec<(u64, bool)>) -> (Taken, Vec<Loan>) {
        let mut loans = Vec::new();
        let taken = self
            .queue
            .take(&mut self.record, want, keep, &mut |message| {
                out.push((number(&message), message.redelivered));
                loans.extend(message.loan());
            });
        (taken.expect("undamaged"), loans)
    }

    /// Gives a lease back.
    fn give_back(&mut self, lease: Loan) -> Result<GivenBack, Corrupt> {
        let Self { queue, record } = self;
        lease.give_back(record, &queue.table, queue.ring(), queue.me)
    }

    /// Takes all messages.
    fn drain(&mut self, out: &mut Vec<(u64, bool)>) {
        while let (Taken::Messages { .. }, _) = self.take(Want::Count(2), Keep::Copy, out) {}
    }
}

fn label(weight: u64) -> Label {
    Label {
        weight,
        kind: 7,
        sender: 5,
    }
}

/// As many messages as have this weight together.
fn of_weight(target: u64) -> Want {
    let least = None;
    Want::Weight { target, least }
}

fn outside(number: u64) -> Block {
    Block {
        extent: 3,
        offset: number,
        length: length(number),
    }
}

/// Length of a message outside of its descriptor; the others have 8 bytes.
fn length(number: u64) -> u64 {
    1 + number % 11
}

fn number(message: &Message<'_>) -> u64 {
    assert_eq!(message.label, label(message.label.weight));
    match message.payload() {
        Payload::Inline(length) => {
            let mut bytes = [0; 8];
            assert_eq!(length, 8);
            message.copy(&mut bytes);
            u64::from_ne_bytes(bytes)
        }
        Payload::Block(block) => {
            assert_eq!(block, outside(block.offset));
            block.offset
        }
    }
}

/// The participant of a number; that of 0 is the first that a process can be.
fn owner(number: u16) -> Owner {
    Owner::new(number + 1).expect("in range")
}

fn record(view: View<'_>, me: Owner) -> IntentRecord<'_> {
    IntentRecord::new(&view.table.participants[me.index()], 0).expect("there is an intent record")
}

fn sweep(view: View<'_>, me: u16, dead: &[u16]) -> Swept {
    let sweeper = view.sweeper(owner(me), SystemFutex);
    let swept = sweeper.sweep(&mut record(view, owner(me)), |other| {
        dead.iter().any(|&index| owner(index) == other)
    });
    swept.expect("undamaged")
}

#[test]
fn a_ring_is_refused_whose_slots_do_not_fit_its_bound() {
    for (slots, maxsize) in [(4, 4), (4, 0), (2, 3)] {
        assert!(Heap::new(1, 1).with_ring(slots, maxsize).rings().is_none());
    }
    assert_eq!((slots_for(1), slots_for(63), slots_for(64)), (64, 64, 128));
}

#[test]
fn a_descriptor_is_claimed_by_its_index_while_it_is_free() {
    let heap = Heap::new(2, 1).with_ring(4, 3);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    let queue = Process::new(view, 0).queue;
    let claim = view.table.claim(1, owner(0)).expect("free");
    assert_eq!((claim.index(), view.table.in_use()), (1, 1));
    assert!(view.table.claim(1, owner(0)).is_none(), "in use");
    assert!(view.table.claim(2, owner(0)).is_none(), "there is none");
    queue.unclaim(claim);
    assert!(view.table.claim(1, owner(0)).is_some());
}

#[test]
fn a_loan_can_be_given_back_once_and_what_was_copied_is_none() {
    let heap = Heap::new(2, 1).with_ring(4, 3);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    let mut process = Process::new(view, 0);
    for (keep, outside, expected) in [
        (Keep::Loan, false, vec![true, false]),
        (Keep::Lease, true, vec![true, false]),
        (Keep::Copy, false, vec![]),
        (Keep::Copy, true, vec![true, false]),
    ] {
        let claim = if outside {
            process.claim_outside(1, 1)
        } else {
            process.claim(1, 1)
        };
        let put = process.queue.put(&mut process.record, claim);
        assert!(matches!(put, Ok(Ok(()))));
        let mut loans = Vec::new();
        let taken = process
            .queue
            .take(&mut process.record, Want::Count(1), keep, &mut |message| {
                assert_eq!(number(&message), 1);
                loans.extend([message.loan(), message.loan()]);
            });
        assert!(taken.is_ok());
        assert_eq!(view.table.in_use(), usize::from(!expected.is_empty()));
        let released: Vec<_> = loans
            .into_iter()
            .flatten()
            .map(|loan| loan.release(&view.table).is_ok())
            .collect();
        assert_eq!(released, expected, "{keep:?}, outside: {outside}");
        assert_eq!(view.table.in_use(), 0);
    }
}

#[test]
fn a_loan_cannot_be_given_back_after_a_sweep() {
    let heap = Heap::new(2, 2).with_ring(4, 3);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    let mut process = Process::new(view, 0);
    assert_eq!(process.put(1), Ok(()));
    let (_, mut loans) = process.take(Want::Count(1), Keep::Loan, &mut Vec::new());
    assert_eq!(sweep(view, 1, &[0]).lost, 1);
    let error = process
        .queue
        .release(loans.remove(0))
        .expect_err("it is gone");
    assert!(error.to_string().contains("its word is Free"), "{error}");
}

#[test]
fn a_descriptor_that_changes_the_ring_is_known_to_have_changed() {
    let heap = Heap::new(1, 1).with_ring(4, 3).with_ring(4, 3);
    let rings = heap.rings().expect("sound");
    let view = heap.view(&rings);
    let mut words = Vec::new();
    for ring in [0, 1] {
        let mut process = Process::of_ring(view, ring, 0, SystemFutex);
        assert_eq!(process.put(1), Ok(()));
        words.push(view.table.descriptors[0].word());
        process.drain(&mut Vec::new());
    }
    assert_ne!(words[0], words[1]);
}
