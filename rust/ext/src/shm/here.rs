//! A queue as one process uses it, and attempts to put without waiting.

use std::sync::OnceLock;

use pyo3::prelude::*;
use shoal_shm::session::{Draft, Error, Offer, SessionQueue};
use shoal_shm::{Descriptor, Label, Refusal};

use super::codec::Encoded;
use super::errors::{no_memory, of_operation};
use super::putting::used_up;
use super::queue::{PyShmQueue, other_bounds};

/// A queue as one process uses it, and as the children that it forks do.
pub(super) struct Here {
    pub(super) queue: SessionQueue,
    /// The pid of this process, sent with each message.
    pid: u32,
    in_child: OnceLock<Box<Self>>,
}

impl Here {
    pub(super) fn new(queue: SessionQueue) -> Self {
        Self {
            queue,
            pid: std::process::id(),
            in_child: OnceLock::new(),
        }
    }

    /// Whether it belongs to this process.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.queue.session().origin().is_here()
    }

    /// The queue as a forked child of this process uses it; `make` opens it if necessary.
    pub(super) fn in_child(
        &self,
        make: impl FnOnce() -> PyResult<SessionQueue>,
    ) -> PyResult<&Self> {
        if let Some(next) = self.in_child.get() {
            return Ok(next);
        }
        let next = Box::new(Self::new(make()?));
        // Another thread may be faster and open the same queue.
        Ok(self.in_child.get_or_init(|| next))
    }

    /// The label of a message that this process makes.
    #[inline]
    pub(super) fn label(&self, weight: u64, kind: u32) -> Label {
        Label {
            weight,
            kind,
            sender: self.pid,
        }
    }

    /// The label of an encoded message; a parcel keeps its sender.
    #[inline]
    pub(super) fn label_of(&self, weight: u64, encoded: &Encoded) -> Label {
        Label {
            sender: encoded.sender().unwrap_or(self.pid),
            ..self.label(weight, encoded.kind())
        }
    }
}

impl PyShmQueue {
    /// The queue as this process uses it. A forked child opens it at its first call.
    #[inline]
    pub(super) fn here(&self, py: Python<'_>, operation: &str) -> PyResult<&Here> {
        if self.here.is_here() {
            return Ok(&self.here);
        }
        self.in_child(py, operation)
    }

    #[cold]
    fn in_child(&self, py: Python<'_>, operation: &str) -> PyResult<&Here> {
        let mut here = &self.here;
        while !here.is_here() {
            here = here.in_child(|| {
                let session = self.session.get().here(py, operation)?;
                // The parent may have released the queue; then it is created again.
                let opened = py.detach(|| session.queue(&self.key, self.bounds()));
                opened.map_err(|error| {
                    let other = other_bounds(py, &self.name, &error);
                    other.unwrap_or_else(|| self.failed(py, operation, &error))
                })
            })?;
        }
        Ok(here)
    }

    /// The Python error for a failed operation.
    #[cold]
    pub(super) fn failed(&self, py: Python<'_>, operation: &str, error: &Error) -> PyErr {
        if let Error::MemoryUsedUp {
            length,
            reserved,
            limit,
        } = error
        {
            let why = used_up(*reserved, *limit, *length);
            let holders = self.holders(py, operation);
            return no_memory(py, format!("{operation}: {why}{holders}"));
        }
        if let Error::TooLarge { length, limit } = error {
            // Report the configured limit: the memory itself may be a little larger.
            let asked = self.here.queue.session().stats();
            let limit = asked.map_or(*limit, |stats| stats.max_bytes.min(*limit));
            let message = format!(
                "{operation}: a message of {length} bytes never fits into the session: max_bytes={limit}"
            );
            return no_memory(py, message);
        }
        of_operation(py, operation, &self.name, error)
    }

    /// The processes that hold most of the session's memory, as the end of an error message.
    fn holders(&self, py: Python<'_>, operation: &str) -> String {
        let Ok(here) = self.here(py, operation) else {
            return String::new();
        };
        let senders = here.queue.session().usage().senders;
        let each = senders.iter().enumerate().map(|(at, (process, bytes))| {
            let mark = if at == 0 { ";" } else { "," };
            format!("{mark} process {process} holds {bytes} bytes")
        });
        each.collect()
    }
}

/// A message on its way into a queue.
pub(super) enum Cargo<'a> {
    /// It fits into a descriptor.
    Small(&'a [u8]),
    /// It is not written to shared memory yet.
    Large(&'a Encoded),
    /// It is written to shared memory; None once it was put.
    Written(Option<Draft>),
}

impl<'a> Cargo<'a> {
    #[inline]
    pub(super) fn of(encoded: &'a Encoded) -> Self {
        match encoded.plain() {
            Some(plain) if plain.len() <= Descriptor::INLINE => Self::Small(plain),
            _ => Self::Large(encoded),
        }
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Small(bytes) => bytes.len() as u64,
            Self::Large(encoded) => encoded.total_len() as u64,
            Self::Written(draft) => draft.as_ref().map_or(0, Draft::len),
        }
    }
}

/// The outcome of a try to put.
pub(super) enum Tried {
    Put,
    Refused(Refusal),
    /// The session's memory is used up.
    NoMemory,
}

impl From<Refusal> for Tried {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoSlot => Self::NoMemory,
            refusal => Self::Refused(refusal),
        }
    }
}

/// Tries to put a message; a message that was written to shared memory stays there if that fails.
#[inline]
pub(super) fn try_put(
    py: Python<'_>,
    queue: &SessionQueue,
    label: Label,
    cargo: &mut Cargo<'_>,
) -> Result<Tried, Error> {
    if let Cargo::Small(bytes) = cargo {
        return Ok(match queue.offer(label, bytes)? {
            Offer::Put => Tried::Put,
            Offer::Refused(refusal) => refusal.into(),
            Offer::NoMemory => Tried::NoMemory,
        });
    }
    if let Cargo::Large(encoded) = cargo {
        match write(py, queue, encoded)? {
            Some(draft) => *cargo = Cargo::Written(Some(draft)),
            None => return Ok(Tried::NoMemory),
        }
    }
    let Cargo::Written(slot) = cargo else {
        return Ok(Tried::NoMemory);
    };
    let Some(draft) = slot.take() else {
        return Ok(Tried::Put);
    };
    Ok(match queue.put(draft, label)? {
        Ok(()) => Tried::Put,
        Err((draft, refusal)) => {
            *slot = Some(draft);
            if refusal == Refusal::NoSlot && queue.grow()? {
                return try_put(py, queue, label, cargo);
            }
            refusal.into()
        }
    })
}

/// Writes a message into shared memory; None if no memory is free now.
pub(super) fn write(
    py: Python<'_>,
    queue: &SessionQueue,
    encoded: &Encoded,
) -> Result<Option<Draft>, Error> {
    if encoded.is_long() {
        py.detach(|| copy(queue, encoded))
    } else {
        copy(queue, encoded)
    }
}

fn copy(queue: &SessionQueue, encoded: &Encoded) -> Result<Option<Draft>, Error> {
    let Some(draft) = queue.draft(encoded.total_len() as u64)? else {
        return Ok(None);
    };
    let mut written = Ok(());
    encoded.write_into(&mut |at, bytes| {
        if written.is_ok() {
            written = draft.write(at as u64, bytes);
        }
    });
    written.map(|()| Some(draft))
}
