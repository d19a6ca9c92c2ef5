//! Looking at the messages of a queue, and at how it is used.

use super::super::clock::PER_SECOND;
use super::super::descriptor::{Label, Payload};
use super::super::peek::Sight;
use super::{Error, SessionQueue};

/// A copy of a message that is still in its queue, or was so a moment ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// What it says of itself.
    pub label: Label,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// How a queue is used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueStats {
    /// How many messages are in it.
    pub messages: u64,
    /// How many bytes these have.
    pub bytes: u64,
    /// How many were put since it was made; what is delivered again is put again.
    pub puts: u64,
    /// How many were taken.
    pub gets: u64,
    /// Who waits for room: see [`super::super::Queue::waiting`].
    pub producers_waiting: u32,
    /// Who waits for messages.
    pub consumers_waiting: u32,
    /// How many seconds ago the first was written; 0 where there is none. It begins anew at 72
    /// hours.
    pub oldest_s: f64,
}

impl SessionQueue {
    /// Copies the first messages, at most so many, oldest first. All of them stay; what others take
    /// meanwhile is left out.
    ///
    /// # Errors
    ///
    /// Where this process left the session, there is damage, or a message cannot be read now.
    pub fn peek(&self, most: u64) -> Result<Vec<Peeked>, Error> {
        self.session().check_open()?;
        let queue = self.queue();
        let (mut at, end) = queue.span();
        let mut peeked = Vec::new();
        while at != end && (peeked.len() as u64) < most {
            match queue.sight(at)? {
                Sight::Message(glimpse) => {
                    let read = self.bytes_of(glimpse.payload(), glimpse.bytes());
                    if queue.is_there(&glimpse) {
                        let (label, bytes) = (glimpse.label, read?);
                        peeked.push(Peeked { label, bytes });
                    }
                }
                Sight::Gone => (),
                Sight::End => break,
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

    /// How it is used. Each number is of its own moment.
    ///
    /// # Errors
    ///
    /// Where this process left the session, or there is damage.
    pub fn stats(&self) -> Result<QueueStats, Error> {
        self.session().check_open()?;
        let queue = self.queue();
        let before = self.before();
        let (puts, gets) = queue.counts();
        // What went through the ring before it was this queue's is none of it.
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
}
