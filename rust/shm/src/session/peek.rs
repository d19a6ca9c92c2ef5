//! Copies of queued messages without taking them, and statistics of a queue.

use super::{Error, SessionQueue};
use crate::ring::clock::PER_SECOND;
use crate::ring::descriptor::{Label, Payload};
use crate::ring::error::Corrupt;
use crate::ring::peek::PeekOutcome;
use crate::ring::queue::Queue;
use crate::ring::wait::Futex;

/// A copy of a message that is still in its queue, or was a moment ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// The message's label.
    pub label: Label,
    /// The message's bytes.
    pub bytes: Vec<u8>,
}

/// How a queue is used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueStats {
    /// Messages in the queue.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Messages that were put since it was made; one that is delivered again counts again.
    pub puts: u64,
    /// Messages that were taken.
    pub gets: u64,
    /// Producers that wait for room: see `Queue::waiting` of the ring.
    pub producers_waiting: u32,
    /// Consumers that wait for messages.
    pub consumers_waiting: u32,
    /// Age of the oldest message in seconds; 0 if there is none. It wraps around to 0 after 72
    /// hours.
    pub oldest_s: f64,
}

impl SessionQueue {
    /// Copies the first `most` messages, oldest first. All of them stay in the queue; messages that
    /// others take meanwhile are left out.
    ///
    /// # Errors
    ///
    /// If this process left the session, there is damage, or a message cannot be read now.
    pub fn peek(&self, most: u64) -> Result<Vec<Peeked>, Error> {
        self.session().check_open()?;
        let queue = self.queue();
        let (mut at, end) = queue.span();
        let mut peeked = Vec::new();
        while at != end && (peeked.len() as u64) < most {
            match queue.peek_at(at)? {
                PeekOutcome::Message(copy) => {
                    let read = self.bytes_of(copy.payload(), copy.bytes());
                    if queue.is_there(&copy) {
                        let (label, bytes) = (copy.label, read?);
                        peeked.push(Peeked { label, bytes });
                    }
                }
                PeekOutcome::Gone => (),
                PeekOutcome::End => break,
            }
            at = at.wrapping_add(1);
        }
        Ok(peeked)
    }

    fn bytes_of(&self, payload: Payload, inline: &[u8]) -> Result<Vec<u8>, Error> {
        let Payload::Block(block) = payload else {
            return Ok(inline.to_vec());
        };
        self.session().read(&block)
    }

    /// How the queue is used. Each number is of its own moment.
    ///
    /// # Errors
    ///
    /// If this process left the session, or there is damage.
    pub fn stats(&self) -> Result<QueueStats, Error> {
        self.session().check_open()?;
        Ok(stats_of(self.queue(), self.before())?)
    }
}

/// How a queue is used; `before` is the number of messages that went through its ring before the
/// ring was this queue's.
pub(super) fn stats_of<F: Futex>(queue: &Queue<'_, F>, before: u64) -> Result<QueueStats, Corrupt> {
    let (puts, gets) = queue.counts();
    let [puts, gets] = [puts, gets].map(|count| count.wrapping_sub(before));
    let (bytes, age) = queue.load()?;
    let (producers_waiting, consumers_waiting) = queue.waiting();
    Ok(QueueStats {
        messages: puts.wrapping_sub(gets),
        bytes,
        puts,
        gets,
        producers_waiting,
        consumers_waiting,
        oldest_s: f64::from(age) / f64::from(PER_SECOND),
    })
}
