//! The lanes of this process, handed out to its threads for one operation each.

use std::sync::{Mutex, PoisonError, TryLockError};

use super::super::descriptor::{LANES, Participant};
use super::super::lane::Lane;

/// The lanes of a process: each is in the hands of one thread at a time.
///
/// With them goes the list that a take writes its descriptors into, so that it is made once.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    hands: [Mutex<Vec<u32>>; LANES],
}

impl Lanes {
    /// Does something with a lane.
    ///
    /// Where all are in use it waits for one, for as long as an operation takes: nobody who has a
    /// lane waits for anything.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        participant: &Participant,
        work: impl FnOnce(&mut Lane<'_>) -> R,
    ) -> R {
        for (number, hand) in self.hands.iter().enumerate() {
            match hand.try_lock() {
                Ok(mut hand) => return on(participant, number, &mut hand, work),
                // A panic in the middle of an operation is a bug. The lane may still announce it;
                // the next operation overwrites that.
                Err(TryLockError::Poisoned(hand)) => {
                    return on(participant, number, &mut hand.into_inner(), work);
                }
                Err(TryLockError::WouldBlock) => (),
            }
        }
        let mut hand = self.hands[0].lock().unwrap_or_else(PoisonError::into_inner);
        on(participant, 0, &mut hand, work)
    }

    /// Waits until what is being done with a lane is over. Who gets one later sees what the caller
    /// did before.
    pub(crate) fn settle(&self) {
        for hand in &self.hands {
            drop(hand.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

#[inline]
fn on<R>(
    participant: &Participant,
    number: usize,
    hand: &mut Vec<u32>,
    work: impl FnOnce(&mut Lane<'_>) -> R,
) -> R {
    let mut lane = Lane::with_hand(participant, number, std::mem::take(hand));
    let result = work(&mut lane);
    *hand = lane.hand;
    result
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn each_thread_has_a_lane_of_its_own_and_the_ninth_waits() {
        let (lanes, participant) = (Lanes::default(), Participant::new());
        let all_in = Barrier::new(LANES + 1);
        let let_go = Barrier::new(LANES + 1);
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            for _ in 0..LANES {
                scope.spawn(|| {
                    lanes.with(&participant, |lane| {
                        lane.hand.push(7);
                        all_in.wait();
                        let_go.wait();
                    });
                });
            }
            all_in.wait();
            let ninth =
                scope.spawn(|| lanes.with(&participant, |lane| sender.send(lane.hand.len())));
            assert!(receiver.try_recv().is_err(), "it waits");
            let_go.wait();
            ninth.join().expect("no panic").expect("received");
        });
        assert_eq!(receiver.recv(), Ok(1), "the list of the one before");
    }
}
