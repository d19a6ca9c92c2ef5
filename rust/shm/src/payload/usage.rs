//! How the memory of payloads is used: for statistics, and for the texts of errors.

use std::collections::BTreeMap;

use crate::ring::descriptor::{Descriptor, Payload};
use crate::ring::word::State;
use crate::segment::Control;

/// Number of the largest users that are reported.
const TOLD: usize = 3;

/// The memory that the messages of a session use, at about one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Descriptors that are not free.
    pub descriptors: u64,
    /// Bytes of payloads outside of descriptors.
    pub bytes: u64,
    /// Queues whose messages have most of these bytes: the index of each, with the bytes. Messages
    /// that were taken count as long as they are in use.
    pub queues: Vec<(u32, u64)>,
    /// Processes that sent most of these bytes: the number of each, with the bytes. The numbers
    /// come from the messages, so a process may be on another node, or gone.
    pub senders: Vec<(u32, u64)>,
}

impl Usage {
    /// The processes that hold most of the memory, as the end of an error message.
    pub fn holders(&self) -> String {
        let each = self
            .senders
            .iter()
            .enumerate()
            .map(|(at, (process, bytes))| {
                let mark = if at == 0 { ";" } else { "," };
                format!("{mark} process {process} holds {bytes} bytes")
            });
        each.collect()
    }
}

/// Computes how the memory is used. Looks at every descriptor.
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
        // A descriptor that is being filled may still describe its earlier message.
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

/// The largest first; of equal ones, the lowest number first.
fn largest(sums: BTreeMap<u32, u64>) -> Vec<(u32, u64)> {
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|&(number, bytes)| (std::cmp::Reverse(bytes), number));
    sums.truncate(TOLD);
    sums
}
