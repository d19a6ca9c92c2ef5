//! `IntentRecordPool`: hands out the intent records of this process to its threads, for one
//! operation each.

use crate::ring::descriptor::{INTENT_RECORDS, Participant};
use crate::ring::intent::IntentRecord;
use crate::sync::hint::{AtomicU32, Ordering};

/// The intent records of a process; each is held by one thread at a time.
///
/// Each number increases by one when its record is taken, and by one when the record is released:
/// odd is in use. A mutex would do the same, but its release costs a second locked instruction:
/// about 10 ns of the 50 that a put or a take has.
#[derive(Debug, Default)]
pub(crate) struct IntentRecordPool {
    turns: [AtomicU32; INTENT_RECORDS],
}

/// An intent record in use; dropping this releases it.
struct Turn<'a> {
    turn: &'a AtomicU32,
    taken: u32,
}

impl<'a> Turn<'a> {
    #[inline]
    fn take(turn: &'a AtomicU32) -> Option<Self> {
        let free = turn.load(Ordering::Relaxed);
        if is_taken(free) {
            return None;
        }
        let taken = free.wrapping_add(1);
        // ORDER: SeqCst. It acquires what the previous holder did. It also comes before the check
        // whether this process is leaving, as `settle` comes after the store that says so.
        turn.compare_exchange(free, taken, Ordering::SeqCst, Ordering::Relaxed)
            .ok()?;
        Some(Self { turn, taken })
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDER: Release, pairs with the next holder's `take`, and with `settle`. This also runs
        // after a panic: the record may still announce what was begun then, and the next operation
        // overwrites that.
        self.turn
            .store(self.taken.wrapping_add(1), Ordering::Release);
    }
}

fn is_taken(turn: u32) -> bool {
    turn % 2 == 1
}

impl IntentRecordPool {
    /// Runs `work` with an intent record.
    ///
    /// If all records are in use it waits for one, for as long as an operation takes: a thread that
    /// holds a record waits for nothing.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        participant: &Participant,
        work: impl FnOnce(&mut IntentRecord<'_>) -> R,
    ) -> R {
        let (_turn, mut record) = self.first(participant);
        work(&mut record)
    }

    #[inline]
    fn first<'a>(&'a self, participant: &'a Participant) -> (Turn<'a>, IntentRecord<'a>) {
        loop {
            for (number, turn) in self.turns.iter().enumerate() {
                if let Some(turn) = Turn::take(turn)
                    && let Some(record) = IntentRecord::new(participant, number)
                {
                    return (turn, record);
                }
            }
            std::thread::yield_now();
        }
    }

    /// Waits until all operations that now hold a record have ended. A thread that takes a record
    /// later sees what the caller stored before with [`Ordering::SeqCst`].
    pub(crate) fn settle(&self) {
        for turn in &self.turns {
            // ORDER: SeqCst: see `Turn::take`.
            let now = turn.load(Ordering::SeqCst);
            while is_taken(now) && turn.load(Ordering::Acquire) == now {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn each_thread_has_a_record_of_its_own_and_the_ninth_waits() {
        let (records, participant) = (IntentRecordPool::default(), Participant::new());
        let all_in = Barrier::new(INTENT_RECORDS + 1);
        let let_go = Barrier::new(INTENT_RECORDS + 1);
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            for _ in 0..INTENT_RECORDS {
                scope.spawn(|| {
                    records.with(&participant, |_| {
                        all_in.wait();
                        let_go.wait();
                    });
                });
            }
            all_in.wait();
            let ninth = scope.spawn(|| records.with(&participant, |_| sender.send(())));
            assert!(receiver.try_recv().is_err(), "it waits");
            let_go.wait();
            ninth.join().expect("no panic").expect("received");
        });
        assert_eq!(receiver.recv(), Ok(()));
    }
}
