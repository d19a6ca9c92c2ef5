//! Getting several messages at once: `get_many` and `get_batch`.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::PyList;
use shoal_shm::{Intent, Keep, Label, Loan, Message, Payload, Want};

use super::deferred::{DeferredItem, Rebuilt};
use super::get::{Get, MessageInfo};
use super::message::LeaseInfo;
use super::process_queue::ProcessQueue;
use super::queue::PyShmQueue;
use super::rebuild::{
    Failure, handed_out_deferred, hold, is_ordinary, nothing_taken, taken_message,
};

/// Number of messages, and of bytes in each, for which buffers are allocated at first; it costs
/// little if there are fewer.
const EXPECTED: usize = 64;

/// A message that was taken. Kept small, because there may be many.
enum BatchEntry {
    /// Its payload was copied to `len` bytes at `start` of the batch's `bytes`.
    Copied {
        kind: u32,
        sender: u32,
        start: usize,
        len: usize,
    },
    /// It stays in shared memory, or is leased; with the range of its copied bytes, if any.
    Lent(Box<(MessageInfo, Loan, Range<usize>)>),
}

/// Messages that were taken together, and the bytes of the copied ones.
struct TakenBatch {
    all: Vec<BatchEntry>,
    bytes: Vec<u8>,
}

impl TakenBatch {
    /// Runs in the middle of a queue operation: must be short and must not call Python.
    #[inline]
    fn add(&mut self, message: &Message<'_>) {
        let start = self.bytes.len();
        if let Payload::Inline(len) = message.payload() {
            self.bytes.resize(start + len, 0);
            message.copy(&mut self.bytes[start..]);
        }
        self.all.push(match message.loan() {
            None => BatchEntry::Copied {
                kind: message.label.kind,
                sender: message.label.sender,
                start,
                len: self.bytes.len() - start,
            },
            Some(loan) => {
                let lent = (MessageInfo::of(message), loan, start..self.bytes.len());
                BatchEntry::Lent(Box::new(lent))
            }
        });
    }
}

impl PyShmQueue {
    /// Takes several messages; all are taken and copied before the first object is rebuilt.
    pub(super) fn get_objects<'py>(
        &self,
        py: Python<'py>,
        get: &mut Get<'_, '_>,
    ) -> PyResult<Bound<'py, PyList>> {
        if let Some(item) = self.deferred.take() {
            return self.get_many_deferred(py, item, get);
        }
        let here = self.process_queue(py, get.operation)?;
        let expected = match get.want {
            Want::Count(count) => EXPECTED.min(count as usize),
            Want::Weight { .. } => EXPECTED,
        };
        let mut batch = TakenBatch {
            all: Vec::with_capacity(expected),
            bytes: Vec::with_capacity(expected * EXPECTED),
        };
        self.take(py, here, get, &mut |message| batch.add(&message))?;
        let TakenBatch { all, bytes } = batch;
        let (mut objects, mut errors) = (Vec::with_capacity(all.len()), Vec::new());
        let mut all = all.into_iter();
        while let Some(entry) = all.next() {
            match self.object(py, here, entry, &bytes, get.keep) {
                Ok(object) => objects.push(object),
                Err(Failure::Spoilt(error)) => errors.push(DeferredItem::Error(error)),
                Err(Failure::Interrupted(error, kept)) => {
                    if is_ordinary(py, &error) && !objects.is_empty() {
                        let rest = all.map(|entry| deferred(here, entry, &bytes));
                        let left = errors.into_iter().chain([DeferredItem::Message(*kept)]);
                        self.deferred.add(left.chain(rest).collect::<Vec<_>>());
                        return listed(py, objects, get.keep);
                    }
                    let done = objects.into_iter().map(DeferredItem::Object);
                    let rest = all.map(|entry| deferred(here, entry, &bytes));
                    let kept = [DeferredItem::Message(*kept)];
                    let left = errors.into_iter().chain(done).chain(kept).chain(rest);
                    self.deferred.add(left.collect::<Vec<_>>());
                    return Err(error);
                }
            }
        }
        let mut errors = errors.into_iter();
        if objects.is_empty() {
            let first = errors.next();
            self.deferred.add(errors);
            return match first {
                Some(DeferredItem::Error(error)) => Err(error),
                _ => Err(nothing_taken()),
            };
        }
        if errors.len() > 0 {
            self.deferred.add(errors);
        }
        listed(py, objects, get.keep)
    }

    #[inline]
    fn object(
        &self,
        py: Python<'_>,
        here: &ProcessQueue,
        entry: BatchEntry,
        bytes: &[u8],
        keep: Keep,
    ) -> Result<Rebuilt, Failure> {
        let (info, loan, bytes) = parts(entry, bytes);
        let held = hold(here, info, loan);
        // Without a lease, the object itself keeps the memory that it needs.
        let lease = if keep == Keep::Lease {
            held.clone()
        } else {
            None
        };
        let object = self.rebuild(py, info, held, bytes)?;
        Ok(Rebuilt {
            object: object.unbind(),
            lease_info: LeaseInfo::of(info),
            held: lease,
        })
    }

    /// Returns messages that earlier gets left, as many as are wanted: they were taken from the
    /// queue already.
    #[cold]
    fn get_many_deferred<'py>(
        &self,
        py: Python<'py>,
        first: DeferredItem,
        get: &mut Get<'_, '_>,
    ) -> PyResult<Bound<'py, PyList>> {
        let most = match get.want {
            Want::Count(count) => count,
            Want::Weight { .. } => Intent::MAX_TAKE,
        };
        let mut objects = Vec::new();
        let mut next = Some(first);
        while let Some(later) = next {
            match self.rebuild_deferred(py, later) {
                Ok(rebuilt) => objects.push(rebuilt),
                Err(failure) if objects.is_empty() => return Err(self.raised(failure)),
                Err(Failure::Spoilt(error)) => {
                    self.deferred.put_back(DeferredItem::Error(error));
                    break;
                }
                Err(Failure::Interrupted(interruption, kept)) => {
                    self.deferred.put_back(DeferredItem::Message(*kept));
                    if is_ordinary(py, &interruption) {
                        break;
                    }
                    for rebuilt in objects.into_iter().rev() {
                        self.deferred.put_back(DeferredItem::Object(rebuilt));
                    }
                    return Err(interruption);
                }
            }
            let more = u32::try_from(objects.len()).is_ok_and(|count| count < most);
            next = more.then(|| self.deferred.take_message()).flatten();
        }
        listed(py, objects, get.keep)
    }
}

/// The objects, or their leases, as a list for the caller.
fn listed(py: Python<'_>, objects: Vec<Rebuilt>, keep: Keep) -> PyResult<Bound<'_, PyList>> {
    let each = objects.into_iter();
    let objects = each.map(|rebuilt| handed_out_deferred(py, rebuilt, keep));
    PyList::new(py, objects.collect::<PyResult<Vec<_>>>()?)
}

/// A message to be left for the next get.
fn deferred(here: &ProcessQueue, entry: BatchEntry, bytes: &[u8]) -> DeferredItem {
    let (info, loan, bytes) = parts(entry, bytes);
    DeferredItem::Message(taken_message(info, hold(here, info, loan), bytes))
}

/// The properties of a message, its loan, and its bytes if they were copied.
#[inline]
fn parts(entry: BatchEntry, bytes: &[u8]) -> (MessageInfo, Option<Loan>, &[u8]) {
    let (info, loan, range) = match entry {
        BatchEntry::Lent(lent) => {
            let (info, loan, range) = *lent;
            (info, Some(loan), range)
        }
        BatchEntry::Copied {
            kind,
            sender,
            start,
            len,
        } => {
            let info = MessageInfo {
                label: Label {
                    weight: 0,
                    kind,
                    sender,
                },
                payload: Payload::Inline(len),
                redelivered: false,
            };
            (info, None, start..start + len)
        }
    };
    (info, loan, bytes.get(range).unwrap_or_default())
}
