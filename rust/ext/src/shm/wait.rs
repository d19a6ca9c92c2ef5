//! Waiting in a call of Python: detached from the interpreter while it sleeps, attached in between.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyFloat;
use shoal_shm::blocking::{Deadline, Pause, SLICE, Until};
use shoal_shm::session::Shortage;

use super::arguments::{deadline, wrong_type};
use super::errors::refused;

/// The thread of a call that waits: it handles signals between its sleeps, and calls `waiting`.
pub(super) struct Attached<'a> {
    py: Python<'a>,
    /// Called about once in each slice.
    waiting: Option<&'a Py<PyAny>>,
    /// When the first sleep began, or `waiting` was called last.
    called: Option<Instant>,
    /// The exception of a signal handler or of `waiting`, which ends the wait.
    raised: Option<PyErr>,
}

/// Handles signals, and calls `waiting` if it is time.
fn handle(
    py: Python<'_>,
    waiting: Option<&Py<PyAny>>,
    called: &mut Option<Instant>,
) -> PyResult<()> {
    py.check_signals()?;
    let now = Instant::now();
    if let Some(waiting) = waiting
        && now.duration_since(*called.get_or_insert(now)) >= SLICE
    {
        *called = Some(now);
        waiting.call0(py)?;
    }
    Ok(())
}

impl Pause for Attached<'_> {
    /// Detaching and attaching again takes about as long as this many looks.
    const LOOKS: u32 = 64;

    fn go_on(&mut self) -> bool {
        self.raised = handle(self.py, self.waiting, &mut self.called).err();
        self.raised.is_none()
    }

    fn sleep<T: Send>(&mut self, sleep: impl FnOnce() -> T + Send) -> T {
        self.py.detach(sleep)
    }
}

/// The time limit of a call. Small, because most calls do not wait.
pub(super) struct Limit<'a, 'py> {
    /// The argument as the caller gave it, for error messages.
    given: Option<&'a Bound<'py, PyAny>>,
    /// Called about once in each slice of the wait.
    waiting: Option<&'a Bound<'py, PyAny>>,
    deadline: Deadline,
}

impl<'a, 'py> Limit<'a, 'py> {
    /// The limit of a call that does not wait.
    #[inline]
    pub(super) fn now() -> Self {
        Self {
            given: None,
            waiting: None,
            deadline: Deadline::Now,
        }
    }

    /// Reads a `timeout`: seconds, None or infinity for no limit; and `waiting`, which is called
    /// about once in each slice of the wait.
    #[inline]
    pub(super) fn new(
        given: Option<&'a Bound<'py, PyAny>>,
        waiting: Option<&'a Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let mut limit = Self {
            given,
            waiting,
            deadline: Deadline::Never,
        };
        if given.is_some() || waiting.is_some() {
            limit.read()?;
        }
        Ok(limit)
    }

    fn read(&mut self) -> PyResult<()> {
        if let Some(given) = self.given {
            self.deadline = deadline(given)?;
        }
        match self.waiting {
            Some(waiting) if !waiting.is_callable() => {
                Err(wrong_type(waiting, "waiting", "a callable or None"))
            }
            _ => Ok(()),
        }
    }

    /// A limit that starts when the call first has to wait.
    #[inline]
    pub(super) fn within(limit: Duration) -> Self {
        Self {
            deadline: Deadline::After(limit),
            ..Self::now()
        }
    }

    /// Runs an operation that may wait until the limit.
    ///
    /// # Errors
    ///
    /// The exception of a signal handler or of `waiting`, which ended the wait.
    pub(super) fn wait<T>(
        &mut self,
        py: Python<'_>,
        operate: impl FnOnce(&mut Until<Attached<'_>>) -> T,
    ) -> PyResult<T> {
        let pause = Attached {
            py,
            waiting: self.waiting.map(Bound::as_unbound),
            called: None,
            raised: None,
        };
        let mut until = Until::new(self.deadline, pause);
        let end = operate(&mut until);
        // From here on the limit has an end, if it began with the wait.
        self.deadline = until.deadline;
        until.pause.raised.map_or(Ok(end), Err)
    }

    /// Runs an operation that waits by itself until the limit, detached from the interpreter. It calls
    /// the function that it gets about once in each slice, and ends if that returns false.
    ///
    /// # Errors
    ///
    /// The exception of a signal handler or of `waiting`, which ended the wait.
    pub(super) fn wait_detached<T: Send>(
        &mut self,
        py: Python<'_>,
        operate: impl FnOnce(Deadline, &mut dyn FnMut() -> bool) -> T + Send,
    ) -> PyResult<T> {
        let waiting = self.waiting.map(Bound::as_unbound);
        // A call whose time is over already does not wait, however the clocks of the nodes differ.
        let deadline = match self.deadline {
            Deadline::At(end) if end <= Instant::now() => Deadline::Now,
            deadline => deadline,
        };
        let mut raised = None;
        let mut called = None;
        let end = py.detach(|| {
            operate(deadline, &mut || {
                raised = Python::attach(|py| handle(py, waiting, &mut called).err());
                raised.is_none()
            })
        });
        raised.map_or(Ok(end), Err)
    }

    /// How long ago the limit ended.
    pub(super) fn over(&self) -> Duration {
        match self.deadline {
            Deadline::At(deadline) => deadline.elapsed(),
            Deadline::Now | Deadline::Never | Deadline::After(_) => Duration::ZERO,
        }
    }

    /// The exception of a call on the queue `name` that gave up: of this class if it does not wait.
    #[cold]
    pub(super) fn gave_up(
        &self,
        py: Python<'_>,
        class: &str,
        operation: &str,
        name: &str,
        why: &Shortage,
    ) -> PyErr {
        match self.seconds(py) {
            Err(error) => error,
            Ok(None) => refused(py, class, why.text(operation, name), why),
            Ok(Some(seconds)) => {
                let message = why.timeout_text(operation, name, &seconds);
                refused(py, "ShoalTimeoutError", message, why)
            }
        }
    }

    /// The given seconds, formatted as Python formats a number; None if the call does not wait.
    fn seconds(&self, py: Python<'_>) -> PyResult<Option<String>> {
        if self.deadline == Deadline::Now {
            return Ok(None);
        }
        let given = match self.given {
            Some(given) => given.extract::<f64>().unwrap_or(f64::INFINITY),
            None => f64::INFINITY,
        };
        PyFloat::new(py, given)
            .call_method1("__format__", ("g",))?
            .extract()
            .map(Some)
    }
}
