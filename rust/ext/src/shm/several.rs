//! Getting several messages at once.

use pyo3::prelude::*;
use pyo3::types::PyList;
use shoal_core::shm::{Intent, Keep, Label, Loan, Message, Payload, Want};

use super::aside::Later;
use super::getting::{Failure, hold, is_ordinary, kept_of, nothing_taken};
use super::here::Here;
use super::queue::PyShmQueue;
use super::taking::{Get, Took};

/// So many messages, and so many bytes of each, are expected; it costs little where there are fewer.
const EXPECTED: usize = 64;

/// A message that was taken. There may be many.
enum Caught {
    /// It was copied: to where, and how many bytes.
    Copied {
        kind: u32,
        sender: u32,
        start: usize,
        len: usize,
    },
    /// It is where it was.
    Lent(Box<(Took, Loan)>),
}

/// Messages that were taken together, and the bytes of those that were copied.
struct Catch {
    all: Vec<Caught>,
    bytes: Vec<u8>,
}

impl Catch {
    /// Runs in the middle of an operation: it is short, and knows nothing of Python.
    #[inline]
    fn add(&mut self, message: &Message<'_>) {
        if let Some(loan) = message.loan() {
            let lent = Box::new((Took::of(message), loan));
            self.all.push(Caught::Lent(lent));
        } else if let Payload::Inline(len) = message.payload() {
            let start = self.bytes.len();
            self.bytes.resize(start + len, 0);
            message.copy(&mut self.bytes[start..]);
            self.all.push(Caught::Copied {
                kind: message.label.kind,
                sender: message.label.sender,
                start,
                len,
            });
        }
    }
}

impl PyShmQueue {
    /// Takes several: all are copied before the first is rebuilt.
    pub(super) fn get_several<'py>(
        &self,
        py: Python<'py>,
        get: &Get<'_, '_>,
    ) -> PyResult<Bound<'py, PyList>> {
        if let Some(later) = self.aside.take() {
            return self.get_several_later(py, later, get.want);
        }
        let here = self.here(py, get.operation)?;
        let expected = match get.want {
            Want::Count(count) => EXPECTED.min(count as usize),
            Want::Weight { .. } => EXPECTED,
        };
        let mut catch = Catch {
            all: Vec::with_capacity(expected),
            bytes: Vec::with_capacity(expected * EXPECTED),
        };
        self.take(py, here, get, &mut |message| catch.add(&message))?;
        let Catch { all, bytes } = catch;
        let (mut objects, mut errors) = (Vec::with_capacity(all.len()), Vec::new());
        let mut all = all.into_iter();
        while let Some(caught) = all.next() {
            match self.object(py, here, caught, &bytes) {
                Ok(object) => objects.push(object),
                Err(Failure::Spoilt(error)) => errors.push(Later::Error(error)),
                Err(Failure::Interrupted(error, kept)) => {
                    if is_ordinary(py, &error) && !objects.is_empty() {
                        let rest = all.map(|caught| later(here, caught, &bytes));
                        let left = errors.into_iter().chain([Later::Message(*kept)]);
                        self.aside.add(left.chain(rest).collect::<Vec<_>>());
                        return PyList::new(py, objects);
                    }
                    let done = objects.into_iter().map(Bound::unbind).map(Later::Object);
                    let rest = all.map(|caught| later(here, caught, &bytes));
                    let kept = [Later::Message(*kept)];
                    let left = errors.into_iter().chain(done).chain(kept).chain(rest);
                    self.aside.add(left.collect::<Vec<_>>());
                    return Err(error);
                }
            }
        }
        let mut errors = errors.into_iter();
        if objects.is_empty() {
            let first = errors.next();
            self.aside.add(errors);
            return match first {
                Some(Later::Error(error)) => Err(error),
                _ => Err(nothing_taken()),
            };
        }
        if errors.len() > 0 {
            self.aside.add(errors);
        }
        PyList::new(py, objects)
    }

    #[inline]
    fn object<'py>(
        &self,
        py: Python<'py>,
        here: &Here,
        caught: Caught,
        bytes: &[u8],
    ) -> Result<Bound<'py, PyAny>, Failure> {
        match caught {
            Caught::Copied { .. } => {
                let (took, bytes) = copied(&caught, bytes);
                self.rebuild(py, took, None, bytes)
            }
            Caught::Lent(lent) => {
                let (took, loan) = *lent;
                let held = hold(here, took, Some(loan));
                self.rebuild(py, took, held, &[])
            }
        }
    }

    /// What earlier gets left, as many as are wanted: they were taken together already.
    #[cold]
    fn get_several_later<'py>(
        &self,
        py: Python<'py>,
        first: Later,
        want: Want,
    ) -> PyResult<Bound<'py, PyList>> {
        let most = match want {
            Want::Count(count) => count,
            Want::Weight { .. } => Intent::MAX_TAKE,
        };
        let list = PyList::empty(py);
        let mut next = Some(first);
        while let Some(later) = next {
            match self.get_later(py, later, Keep::Copy) {
                Ok(object) => list.append(object)?,
                Err(failure) if list.is_empty() => return Err(self.raised(failure)),
                Err(Failure::Spoilt(error)) => {
                    self.aside.put_back(Later::Error(error));
                    break;
                }
                Err(Failure::Interrupted(interruption, kept)) => {
                    self.aside.put_back(Later::Message(*kept));
                    if is_ordinary(py, &interruption) {
                        break;
                    }
                    for at in (0..list.len()).rev() {
                        let object = list.get_item(at)?.unbind();
                        self.aside.put_back(Later::Object(object));
                    }
                    return Err(interruption);
                }
            }
            let more = u32::try_from(list.len()).is_ok_and(|count| count < most);
            next = more.then(|| self.aside.take_message()).flatten();
        }
        Ok(list)
    }
}

/// A message that is left for the next get.
fn later(here: &Here, caught: Caught, bytes: &[u8]) -> Later {
    Later::Message(match caught {
        Caught::Copied { .. } => {
            let (took, bytes) = copied(&caught, bytes);
            kept_of(took, None, bytes)
        }
        Caught::Lent(lent) => {
            let (took, loan) = *lent;
            kept_of(took, hold(here, took, Some(loan)), &[])
        }
    })
}

/// What a message that was copied says of itself, and its bytes.
#[inline]
fn copied<'a>(caught: &Caught, bytes: &'a [u8]) -> (Took, &'a [u8]) {
    let (kind, sender, start, len) = match caught {
        Caught::Copied {
            kind,
            sender,
            start,
            len,
        } => (*kind, *sender, *start, *len),
        Caught::Lent(_) => (0, 0, 0, 0),
    };
    let took = Took {
        label: Label {
            weight: 0,
            kind,
            sender,
        },
        payload: Payload::Inline(len),
        redelivered: false,
    };
    (took, bytes.get(start..start + len).unwrap_or_default())
}
