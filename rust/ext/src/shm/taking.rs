//! Taking messages from a queue, and waiting for them.

use pyo3::prelude::*;
use shoal_shm::session::SessionQueue;
use shoal_shm::{Keep, Label, Message, Payload, Taken, Vigil, Want};

use super::arguments::Limit;
use super::errors::{closed, empty, timed_out};
use super::here::Here;
use super::queue::PyShmQueue;
use super::{SLICE, SPINS};

/// A get: the operation's name for errors, the wanted messages, whether they are leased, and the
/// time limit; without a limit it does not wait.
pub(super) struct Get<'a, 'py> {
    pub(super) operation: &'static str,
    pub(super) want: Want,
    pub(super) keep: Keep,
    pub(super) limit: Option<Limit<'a, 'py>>,
}

/// The properties of a message that was taken.
#[derive(Clone, Copy)]
pub(super) struct Took {
    pub(super) label: Label,
    pub(super) payload: Payload,
    pub(super) redelivered: bool,
}

impl Took {
    #[inline]
    pub(super) fn of(message: &Message<'_>) -> Self {
        Self {
            label: message.label,
            payload: message.payload(),
            redelivered: message.redelivered,
        }
    }
}

/// A consumer that waits. When it stops, for whatever reason, the next one is woken.
struct Waiter<'a> {
    queue: &'a SessionQueue,
    want: Want,
    vigil: Vigil,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let vigil = std::mem::take(&mut self.vigil);
        self.queue.done_taking(self.want, vigil);
    }
}

impl PyShmQueue {
    /// Takes messages, waiting for them if necessary, and hands them to `out`: see
    /// [`SessionQueue::take`].
    ///
    /// No signal is handled once a message was taken.
    #[inline]
    pub(super) fn take(
        &self,
        py: Python<'_>,
        here: &Here,
        get: &Get<'_, '_>,
        out: &mut impl FnMut(Message<'_>),
    ) -> PyResult<()> {
        let taken = here.queue.take(get.want, get.keep, out);
        if matches!(taken, Ok(Taken::Messages { .. })) {
            return Ok(());
        }
        let ended = |taken| match taken {
            Ok(Taken::Closed) => {
                let (operation, name) = (get.operation, &self.name);
                let message = format!("{operation}: {name} is closed and empty");
                Err(closed(py, message))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(self.failed(py, get.operation, &error)),
        };
        ended(taken)?;
        let mut waiter = Waiter {
            queue: &here.queue,
            want: get.want,
            vigil: Vigil::default(),
        };
        loop {
            self.wait_for_messages(py, get, &mut waiter)?;
            let taken = here.queue.take(get.want, get.keep, out);
            if matches!(taken, Ok(Taken::Messages { .. })) {
                return Ok(());
            }
            ended(taken)?;
        }
    }

    /// Sleeps for a slice of the time, or until the wanted messages may be there.
    ///
    /// Returns an error if the time is over, or if a signal handler raised one.
    #[cold]
    fn wait_for_messages(
        &self,
        py: Python<'_>,
        get: &Get<'_, '_>,
        waiter: &mut Waiter<'_>,
    ) -> PyResult<()> {
        let Waiter { queue, want, vigil } = waiter;
        let (queue, want) = (*queue, *want);
        let slice = match &get.limit {
            Some(limit) => {
                py.check_signals()?;
                limit.slice(SLICE)
            }
            None => None,
        };
        let Some(slice) = slice else {
            return Err(self.nothing(py, queue, get));
        };
        let failed = |error| self.failed(py, get.operation, &error);
        for _ in 0..SPINS {
            if queue.is_takeable(want).map_err(failed)? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let waited = py.detach(|| {
            queue.session().tend();
            queue.wait_to_take(want, vigil, slice).map(drop)
        });
        waited.map_err(failed)
    }

    #[cold]
    fn nothing(&self, py: Python<'_>, queue: &SessionQueue, get: &Get<'_, '_>) -> PyErr {
        let (operation, name) = (get.operation, &self.name);
        let seconds = match get.limit.as_ref().map(|limit| limit.seconds(py)) {
            None => return empty(py, format!("{operation}: {name} is empty")),
            Some(Ok(seconds)) => seconds,
            Some(Err(error)) => return error,
        };
        let message = match get.want {
            Want::Count(_) => {
                format!("{operation}: no message in {name} within {seconds} s")
            }
            Want::Weight { target, least, .. } => format!(
                "{operation}: {name} did not reach weight {} within {seconds} s: it holds {} messages",
                least.map_or(target, |least| least.min(target)),
                queue.len()
            ),
        };
        timed_out(py, message)
    }
}
