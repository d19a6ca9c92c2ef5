//! What uses the memory: for statistics, and for the texts of errors.

use std::collections::BTreeMap;

use super::super::descriptor::{Descriptor, Payload};
use super::super::session::Control;
use super::super::word::State;

/// How many of the largest are told.
const TOLD: usize = 3;

/// What the messages of a session use, at about one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Descriptors that are not free.
    pub descriptors: u64,
    /// Bytes of payloads outside of descriptors.
    pub bytes: u64,
    /// The queues whose messages have most of these bytes, by their index, with how many; of
    /// messages that were taken too, as long as they are in use.
    pub queues: Vec<(u32, u64)>,
    /// The processes that sent most of these bytes, by their number, with how many: by what the
    /// messages say, so that one may be of another host, or gone.
    pub senders: Vec<(u32, u64)>,
}

/// What the messages of a session use. It looks at every descriptor.
pub(crate) fn usage(control: &Control) -> Usage {
    let mut usage = Usage::default();
    let mut queues = BTreeMap::new();
    let mut senders = BTreeMap::new();
    for (index, descriptor) in (0..).zip(control.descriptors()) {
        let state = descriptor.word().state();
        if state == Some(State::Free) {
            continue;
        }
        usage.descriptors += 1;
        // One that is being filled may say still what it said before.
        if state == Some(State::Writing) {
            continue;
        }
        let bytes = outside(descriptor, index);
        if bytes > 0 {
            usage.bytes = usage.bytes.saturating_add(bytes);
            add(&mut queues, descriptor.ring(), bytes);
            add(&mut senders, descriptor.label().sender, bytes);
        }
    }
    usage.queues = largest(queues);
    usage.senders = largest(senders);
    usage
}

fn outside(descriptor: &Descriptor, index: u32) -> u64 {
    match descriptor.payload(index) {
        Ok(Payload::Block(block)) => block.length,
        _ => 0,
    }
}

fn add(to: &mut BTreeMap<u32, u64>, key: u32, bytes: u64) {
    let sum = to.entry(key).or_default();
    *sum = sum.saturating_add(bytes);
}

/// The largest first; of those that are equal, the lowest number.
fn largest(sums: BTreeMap<u32, u64>) -> Vec<(u32, u64)> {
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|&(number, bytes)| (std::cmp::Reverse(bytes), number));
    sums.truncate(TOLD);
    sums
}
