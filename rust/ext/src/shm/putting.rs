//! Putting one message into a queue, and waiting for room.

use pyo3::prelude::*;
use shoal_shm::session::{Error, SessionQueue};
use shoal_shm::{Label, Refusal, Vigil};

use super::arguments::Limit;
use super::errors::{closed, full, no_memory, timed_out};
use super::here::{Cargo, Here, Tried, try_put};
use super::queue::PyShmQueue;
use super::{SLICE, SPINS};

/// A put: the operation's name for errors, and its time limit; without a limit it does not wait.
pub(super) struct Put<'a, 'py> {
    pub(super) operation: &'static str,
    pub(super) limit: Option<Limit<'a, 'py>>,
}

/// The resource that a put lacks.
#[derive(Clone, Copy)]
pub(super) enum Lack {
    /// Room in the queue.
    Room,
    /// Memory of the session.
    Memory,
}

/// A producer that waits. When it stops, for whatever reason, the next one is woken.
pub(super) struct Waiter<'a> {
    queue: &'a SessionQueue,
    vigil: Vigil,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(queue: &'a SessionQueue) -> Self {
        let vigil = Vigil::default();
        Self { queue, vigil }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.queue.done_putting(std::mem::take(&mut self.vigil));
    }
}

impl PyShmQueue {
    /// Puts one message. If that fails, a message that was written stays in `cargo`.
    #[inline]
    pub(super) fn put_cargo(
        &self,
        py: Python<'_>,
        here: &Here,
        put: &Put<'_, '_>,
        label: Label,
        cargo: &mut Cargo<'_>,
    ) -> PyResult<()> {
        self.check_fits(py, here, put, cargo.len())?;
        match try_put(py, &here.queue, label, cargo) {
            Ok(Tried::Put) => Ok(()),
            tried => {
                let lack = self.lack(py, put, tried)?;
                self.put_later(py, here, put, label, cargo, lack)
            }
        }
    }

    #[cold]
    fn put_later(
        &self,
        py: Python<'_>,
        here: &Here,
        put: &Put<'_, '_>,
        label: Label,
        cargo: &mut Cargo<'_>,
        mut lack: Lack,
    ) -> PyResult<()> {
        let mut waiter = Waiter::new(&here.queue);
        loop {
            self.wait_for_room(py, put, cargo.len(), lack, &mut waiter)?;
            match try_put(py, &here.queue, label, cargo) {
                Ok(Tried::Put) => return Ok(()),
                tried => lack = self.lack(py, put, tried)?,
            }
        }
    }

    /// The resource that a failed try lacks; an error if waiting cannot help.
    pub(super) fn lack(
        &self,
        py: Python<'_>,
        put: &Put<'_, '_>,
        tried: Result<Tried, Error>,
    ) -> PyResult<Lack> {
        match tried {
            Ok(Tried::NoMemory | Tried::Refused(Refusal::NoSlot)) => Ok(Lack::Memory),
            Ok(Tried::Put | Tried::Refused(Refusal::Full)) => Ok(Lack::Room),
            Ok(Tried::Refused(Refusal::Closed)) => {
                let message = format!("{}: {} is closed", put.operation, self.name);
                Err(closed(py, message))
            }
            Err(error) => Err(self.failed(py, put.operation, &error)),
        }
    }

    /// Sleeps for a slice of the time, or until there may be room for a message of `length` bytes.
    ///
    /// Returns an error if the time is over, or if a signal handler raised one.
    pub(super) fn wait_for_room(
        &self,
        py: Python<'_>,
        put: &Put<'_, '_>,
        length: u64,
        lack: Lack,
        waiter: &mut Waiter<'_>,
    ) -> PyResult<()> {
        let queue = waiter.queue;
        let slice = match &put.limit {
            Some(limit) => {
                py.check_signals()?;
                limit.slice(SLICE)
            }
            None => None,
        };
        let Some(slice) = slice else {
            return Err(self.no_room(py, queue, put, length, lack));
        };
        let failed = |error| self.failed(py, put.operation, &error);
        if matches!(lack, Lack::Room) {
            for _ in 0..SPINS {
                if queue.is_puttable(length).map_err(failed)? {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        let vigil = &mut waiter.vigil;
        let waited = py.detach(|| {
            queue.session().tend();
            match lack {
                Lack::Room => queue.wait_to_put(length, vigil, slice).map(drop),
                Lack::Memory => {
                    // Consumers that wait for a weight then take the messages that are there, which
                    // frees memory. Reported only now that this put waits: a put that gives up must
                    // not stop consumers from waiting for more.
                    queue.tell_no_room();
                    queue.session().wait_for_memory(slice);
                    Ok(())
                }
            }
        });
        waited.map_err(failed)
    }

    /// Refuses a message that can never fit into the queue.
    #[inline]
    pub(super) fn check_fits(
        &self,
        py: Python<'_>,
        here: &Here,
        put: &Put<'_, '_>,
        length: u64,
    ) -> PyResult<()> {
        let limit = here.queue.max_bytes();
        if limit == 0 || length <= limit {
            return Ok(());
        }
        let (operation, name) = (put.operation, &self.name);
        Err(no_memory(
            py,
            format!(
                "{operation}: a message of {length} bytes never fits into {name}: max_bytes={limit}"
            ),
        ))
    }

    #[cold]
    fn no_room(
        &self,
        py: Python<'_>,
        queue: &SessionQueue,
        put: &Put<'_, '_>,
        length: u64,
        lack: Lack,
    ) -> PyErr {
        let (operation, name) = (put.operation, &self.name);
        let why = why(queue, length, lack);
        match put.limit.as_ref().map(|limit| limit.seconds(py)) {
            None => full(py, format!("{operation}: no room in {name}: {why}")),
            Some(Ok(seconds)) => timed_out(
                py,
                format!("{operation}: no room in {name} within {seconds} s: {why}"),
            ),
            Some(Err(error)) => error,
        }
    }
}

/// Why there is no room for a message of `length` bytes now: the state may have changed since the
/// try.
fn why(queue: &SessionQueue, length: u64, lack: Lack) -> String {
    if matches!(lack, Lack::Memory) {
        let stats = queue.session().stats().unwrap_or_default();
        return used_up(stats.bytes_reserved, stats.max_bytes, length);
    }
    let (count, bound, max_bytes) = (queue.len(), queue.bound(), queue.max_bytes());
    if max_bytes > 0 && count < bound {
        let held = queue.bytes().unwrap_or(max_bytes);
        return format!(
            "it holds {held} bytes of max_bytes={max_bytes}, and this message has {length}"
        );
    }
    match queue.maxsize() {
        0 => format!("it holds {bound} messages, as many as the session's backlog allows"),
        maxsize => {
            format!("it holds {maxsize} messages, as many as maxsize={maxsize} allows")
        }
    }
}

/// Why there is no memory for a message of `length` bytes.
pub(super) fn used_up(used: u64, limit: u64, length: u64) -> String {
    format!(
        "the session's memory is used up ({used} of {limit} bytes), and this message has {length}"
    )
}
