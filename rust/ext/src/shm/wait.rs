//! Waiting in a call of Python: detached from the interpreter while it sleeps, attached in between.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyFloat;
use shoal_shm::blocking::{Deadline, Pause, SLICE, Until};

use super::arguments::{deadline, wrong_type};

/// The thread of a call that waits: it handles signals between its sleeps, and calls `waiting`.
pub(super) struct Attached<'a, 'py> {
    py: Python<'py>,
    /// Called about once in each slice.
    waiting: Option<&'a Bound<'py, PyAny>>,
    /// When the first sleep began, or `waiting` was called last.
    called: Option<Instant>,
    /// The exception of a signal handler or of `waiting`, which ends the wait.
    raised: Option<PyErr>,
}

impl Attached<'_, '_> {
    fn handle(&mut self) -> PyResult<()> {
        self.py.check_signals()?;
        let Some(waiting) = self.waiting else {
            return Ok(());
        };
        let now = Instant::now();
        let called = *self.called.get_or_insert(now);
        if now.duration_since(called) >= SLICE {
            self.called = Some(now);
            waiting.call0()?;
        }
        Ok(())
    }
}

impl Pause for Attached<'_, '_> {
    /// Detaching and attaching again takes about as long as this many looks.
    const LOOKS: u32 = 64;

    fn go_on(&mut self) -> bool {
        self.raised = self.handle().err();
        self.raised.is_none()
    }

    fn sleep<T: Send>(&mut self, sleep: impl FnOnce() -> T + Send) -> T {
        self.py.detach(sleep)
    }
}

/// The time limit of a call.
pub(super) struct Limit<'a, 'py> {
    /// The argument as the caller gave it, for error messages.
    given: Option<&'a Bound<'py, PyAny>>,
    /// How to wait for the rest of the time.
    pub(super) until: Until<Attached<'a, 'py>>,
}

impl<'a, 'py> Limit<'a, 'py> {
    #[inline]
    fn until(
        py: Python<'py>,
        given: Option<&'a Bound<'py, PyAny>>,
        waiting: Option<&'a Bound<'py, PyAny>>,
        deadline: Deadline,
    ) -> Self {
        let pause = Attached {
            py,
            waiting,
            called: None,
            raised: None,
        };
        Self {
            given,
            until: Until::new(deadline, pause),
        }
    }

    /// Reads a `timeout`: seconds, None or infinity for no limit; and `waiting`, which is called
    /// about once in each slice of the wait.
    #[inline]
    pub(super) fn new(
        py: Python<'py>,
        given: Option<&'a Bound<'py, PyAny>>,
        waiting: Option<&'a Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        if let Some(waiting) = waiting
            && !waiting.is_callable()
        {
            return Err(wrong_type(waiting, "waiting", "a callable or None"));
        }
        let deadline = given.map_or(Ok(Deadline::Never), deadline)?;
        Ok(Self::until(py, given, waiting, deadline))
    }

    /// The limit of a call that does not wait.
    #[inline]
    pub(super) fn now(py: Python<'py>) -> Self {
        Self::until(py, None, None, Deadline::Now)
    }

    /// A limit that starts when the call first has to wait.
    #[inline]
    pub(super) fn within(py: Python<'py>, limit: Duration) -> Self {
        Self::until(py, None, None, Deadline::After(limit))
    }

    /// How long ago the limit ended.
    pub(super) fn over(&self) -> Duration {
        match self.until.deadline {
            Deadline::At(deadline) => deadline.elapsed(),
            Deadline::Now | Deadline::Never | Deadline::After(_) => Duration::ZERO,
        }
    }

    /// The error of the caller's code that ended the wait, if any.
    pub(super) fn raised(&mut self) -> PyResult<()> {
        self.until.pause.raised.take().map_or(Ok(()), Err)
    }

    /// The given seconds, formatted as Python formats a number; None if the call does not wait.
    pub(super) fn seconds(&self) -> PyResult<Option<String>> {
        if self.until.deadline == Deadline::Now {
            return Ok(None);
        }
        let given = match self.given {
            Some(given) => given.extract::<f64>().unwrap_or(f64::INFINITY),
            None => f64::INFINITY,
        };
        PyFloat::new(self.until.pause.py, given)
            .call_method1("__format__", ("g",))?
            .extract()
            .map(Some)
    }
}
