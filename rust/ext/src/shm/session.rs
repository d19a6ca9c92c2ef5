//! `ShmSession`.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use shoal_core::shm::payload::choose;
use shoal_core::shm::session::{Error, MemoryPolicy, Session, Settings, clear};

use super::arguments::{LARGEST, shown, text, text_or_none, whole, whole_or_none, wrong_value};
use super::errors::{bad_value, of_attach, of_create, of_operation, session_closed};
use super::hosts;
use crate::convert::Arg;

/// How many messages a queue without `maxsize` holds at most, if nothing is said.
const BACKLOG: u32 = 65_535;
/// A queue can have no more.
const BACKLOG_LIMIT: u64 = 1 << 20;
/// Numbers of processes are C's `int`.
const LARGEST_PID: u64 = i32::MAX.unsigned_abs() as u64;

const POLICIES: [(&str, MemoryPolicy); 3] = [
    ("block", MemoryPolicy::Block),
    ("error", MemoryPolicy::Error),
    ("spill", MemoryPolicy::Spill),
];

/// Memory that processes of one user on one host share, with queues in it.
#[pyclass(frozen, subclass, weakref, name = "ShmSession", module = "shoal.shm")]
pub(crate) struct PyShmSession {
    closed: AtomicBool,
    place: Place,
}

/// What the object stands for in one process, and in the children that this one forks.
struct Place {
    session: Arc<Session>,
    in_child: OnceLock<Box<Self>>,
}

impl Place {
    fn new(session: Arc<Session>) -> Self {
        Self {
            session,
            in_child: OnceLock::new(),
        }
    }
}

impl PyShmSession {
    /// Whether the object was closed.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The session, as this process takes part in it: from its first call on, for a child.
    #[inline]
    pub(super) fn here(&self, py: Python<'_>, operation: &str) -> PyResult<&Arc<Session>> {
        if self.is_closed() {
            return Err(session_closed(py, operation));
        }
        if self.place.session.origin().is_here() {
            return Ok(&self.place.session);
        }
        self.in_child(py)
    }

    #[cold]
    fn in_child(&self, py: Python<'_>) -> PyResult<&Arc<Session>> {
        let mut place = &self.place;
        while !place.session.origin().is_here() {
            if place.in_child.get().is_none() {
                let session = attach(py, place.session.token())?;
                // Another thread may have been faster, with the same session.
                if let Err(second) = place.in_child.set(Box::new(Place::new(session))) {
                    hosts::remove(&second.session);
                }
            }
            match place.in_child.get() {
                Some(next) => place = next,
                None => break,
            }
        }
        Ok(&place.session)
    }

    /// The session of this process, if it takes part in it.
    fn session_here(&self) -> Option<&Arc<Session>> {
        let mut place = &self.place;
        while !place.session.origin().is_here() {
            place = place.in_child.get()?;
        }
        Some(&place.session)
    }

    /// Whether this was the last object of the process for the session, which is to be shut then.
    fn let_go(&self) -> Option<&Arc<Session>> {
        if self.closed.swap(true, Ordering::SeqCst) {
            return None;
        }
        self.session_here().filter(|session| hosts::remove(session))
    }
}

impl Drop for PyShmSession {
    fn drop(&mut self) {
        if let Some(session) = self.let_go() {
            Python::attach(|py| hosts::shut(py, session));
        }
    }
}

fn attach(py: Python<'_>, token: &str) -> PyResult<Arc<Session>> {
    hosts::join(py, || Session::attach(token))?.map_err(|error| of_attach(py, token, &error))
}

/// The arguments of a session that is made, checked.
struct Wanted {
    dir: Option<PathBuf>,
    max_bytes: Option<u64>,
    policy: MemoryPolicy,
    spill_dir: Option<PathBuf>,
    backlog: u32,
}

impl Wanted {
    fn create(self, py: Python<'_>) -> PyResult<Arc<Session>> {
        let folder = match &self.dir {
            Some(dir) => Some(dir.clone()),
            None => folder_of_environment(py)?,
        };
        let chosen =
            py.detach(|| choose(folder.as_deref(), self.spill_dir.as_deref(), self.max_bytes));
        let chosen = chosen.map_err(|error| self.refused(py, &error))?;
        if let Some(warning) = chosen.warning {
            let class = py.get_type::<PyRuntimeWarning>();
            PyErr::warn(py, &class, &CString::new(warning)?, 2)?;
        }
        let settings = Settings {
            folder: chosen.folder,
            disk: chosen.disk,
            payload_on_disk: chosen.payload_on_disk,
            max_bytes: chosen.max_bytes,
            backlog: self.backlog,
            memory_policy: self.policy,
        };
        // What crashed jobs left takes the room that this one needs.
        py.detach(|| clear(&settings.folder));
        hosts::join(py, || Session::create(&settings))?.map_err(|error| of_create(py, &error))
    }

    /// Why no place was found: a folder that was named, or the system.
    fn refused(&self, py: Python<'_>, error: &Error) -> PyErr {
        let named = [("dir", &self.dir), ("spill_dir", &self.spill_dir)];
        if let Error::File(file) = error {
            for (name, path) in named {
                if let Some(path) = path
                    && path == file.path()
                {
                    let shown = PyString::new(py, &path.to_string_lossy()).repr();
                    return shown.map_or_else(
                        |error| error,
                        |shown| {
                            let expected = "a folder that can be written to";
                            bad_value(py, format!("{name}={shown}: expected {expected}"))
                        },
                    );
                }
            }
        }
        of_create(py, error)
    }
}

/// The folder that the environment names, where it names one.
fn folder_of_environment(py: Python<'_>) -> PyResult<Option<PathBuf>> {
    let environment = py.import("os")?.getattr("environ")?;
    let named: Option<String> = environment
        .call_method1("get", ("SHOAL_SHM_DIR",))?
        .extract()?;
    Ok(named.filter(|name| !name.is_empty()).map(PathBuf::from))
}

#[pymethods]
impl PyShmSession {
    #[new]
    #[pyo3(
        signature = (
            token = None,
            *,
            dir = None,
            max_bytes = None,
            memory_policy = Arg::Default,
            spill_dir = None,
            backlog = Arg::Default,
        ),
        text_signature = "(token=None, *, dir=None, max_bytes=None, memory_policy='block', spill_dir=None, backlog=65535)"
    )]
    fn new(
        py: Python<'_>,
        token: Option<&Bound<'_, PyAny>>,
        dir: Option<&Bound<'_, PyAny>>,
        max_bytes: Option<&Bound<'_, PyAny>>,
        memory_policy: Arg<'_>,
        spill_dir: Option<&Bound<'_, PyAny>>,
        backlog: Arg<'_>,
    ) -> PyResult<Self> {
        let token = text_or_none(token, "token")?;
        let path = |value, name| PyResult::Ok(text_or_none(value, name)?.map(PathBuf::from));
        let wanted = Wanted {
            dir: path(dir, "dir")?,
            max_bytes: whole_or_none(max_bytes, "max_bytes", 1, LARGEST)?,
            policy: memory_policy.or(MemoryPolicy::Block, policy)?,
            spill_dir: path(spill_dir, "spill_dir")?,
            backlog: backlog.or(BACKLOG, |value| {
                Ok(u32::try_from(whole(value, "backlog", 1, BACKLOG_LIMIT)?)?)
            })?,
        };
        let session = match token {
            None => {
                if let Some(dir) = spill_dir
                    && wanted.policy != MemoryPolicy::Spill
                {
                    let message =
                        format!("spill_dir={}: it needs memory_policy='spill'", shown(dir)?);
                    return Err(bad_value(py, message));
                }
                wanted.create(py)?
            }
            Some(token) => {
                let given = [
                    ("dir", wanted.dir.is_some()),
                    ("max_bytes", wanted.max_bytes.is_some()),
                    ("memory_policy", wanted.policy != MemoryPolicy::Block),
                    ("spill_dir", wanted.spill_dir.is_some()),
                    ("backlog", wanted.backlog != BACKLOG),
                ];
                if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
                    let message = format!("{name} with a token: the session has its own");
                    return Err(bad_value(py, message));
                }
                attach(py, &token)?
            }
        };
        Ok(Self {
            closed: AtomicBool::new(false),
            place: Place::new(session),
        })
    }

    /// What another process attaches with.
    #[getter]
    fn token(&self) -> String {
        self.place.session.token().to_string()
    }

    /// Whether this object was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    /// Whether `close_queues` was called, by any process.
    #[getter]
    fn sealed(&self, py: Python<'_>) -> PyResult<bool> {
        let sealed = self.here(py, "sealed")?.is_sealed();
        sealed.map_err(|error| of_operation(py, "sealed", "the session", &error))
    }

    /// Refuse further puts to all queues, everywhere: those that are there, and those to come.
    fn close_queues(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.here(py, "close_queues")?;
        let closed = py.detach(|| session.close_queues());
        closed.map_err(|error| of_operation(py, "close_queues", "the session", &error))
    }

    /// Leave the session where it is when this process leaves it as the last one.
    fn keep(&self, py: Python<'_>) -> PyResult<()> {
        self.here(py, "keep")?.keep();
        Ok(())
    }

    /// Have the session spared for ten seconds, as long as a process lives that starts others.
    fn spare(&self, py: Python<'_>, pid: &Bound<'_, PyAny>) -> PyResult<()> {
        let pid = u32::try_from(whole(pid, "pid", 1, LARGEST_PID)?)?;
        let session = self.here(py, "spare")?;
        let spared = py.detach(|| session.spare(pid));
        spared.map_err(|error| of_operation(py, "spare", "the session", &error))
    }

    /// Remove what the session has in the file system: nobody can join it any more.
    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.here(py, "remove")?;
        let removed = py.detach(|| session.remove());
        removed.map_err(|error| of_operation(py, "remove", "the session", &error))
    }

    /// Give back the memory that no message is in, whichever process keeps it for more.
    fn trim(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.here(py, "trim")?;
        py.detach(|| session.trim_all());
        Ok(())
    }

    /// Return how the session is used.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.here(py, "stats")?;
        let stats = py.detach(|| session.stats());
        let stats = stats.map_err(|error| of_operation(py, "stats", "the session", &error))?;
        counts(
            py,
            &[
                ("messages", stats.messages),
                ("descriptors_in_use", stats.descriptors_in_use),
                ("bytes_in_use", stats.bytes_in_use),
                ("bytes_reserved", stats.bytes_reserved),
                ("max_bytes", stats.max_bytes),
                ("participants", stats.participants),
                ("queues", stats.queues),
                ("lost_messages", stats.lost_messages),
                ("recovered", stats.recovered),
                ("dropped_messages", stats.dropped_messages),
            ],
        )
    }

    /// Clean up after the dead now rather than when somebody waits.
    fn sweep<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.here(py, "sweep")?;
        let found = py.detach(|| session.sweep());
        let found = found.map_err(|error| of_operation(py, "sweep", "the session", &error))?;
        counts(
            py,
            &[
                ("dead", found.dead),
                ("recovered", found.recovered),
                ("redelivered", found.redelivered),
                ("lost", found.lost),
            ],
        )
    }

    /// Leave the session with this object; again is nothing.
    fn close(&self, py: Python<'_>) {
        if let Some(session) = self.let_go() {
            hosts::shut(py, session);
        }
    }
}

fn policy(value: &Bound<'_, PyAny>) -> PyResult<MemoryPolicy> {
    let text = text(value, "memory_policy")?;
    let found = POLICIES.iter().find(|(name, _)| *name == text);
    found.map(|(_, policy)| *policy).ok_or_else(|| {
        let names = POLICIES.map(|(name, _)| name).join(", ");
        wrong_value(value, "memory_policy", &format!("one of {names}"))
    })
}

fn counts<'py>(py: Python<'py>, named: &[(&str, u64)]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, count) in named {
        dict.set_item(name, count)?;
    }
    Ok(dict)
}

/// Remove the sessions of this backend and user in which nobody is alive any more.
#[pyfunction]
#[pyo3(signature = (dir = None), text_signature = "(dir=None)")]
pub(crate) fn shm_gc(py: Python<'_>, dir: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let dir = text_or_none(dir, "dir")?.map(PathBuf::from);
    if let Some(dir) = &dir
        && !dir.is_dir()
    {
        let shown = PyString::new(py, &dir.to_string_lossy()).repr()?;
        return Err(bad_value(py, format!("dir={shown}: expected a folder")));
    }
    let folders = match dir {
        Some(dir) => vec![dir],
        None => default_folders(py)?,
    };
    let removed = py.detach(|| {
        let cleared = folders.iter().flat_map(|folder| clear(folder));
        cleared.map(|path| path.display().to_string()).collect()
    });
    Ok(removed)
}

/// Where sessions are made if nothing is said.
fn default_folders(py: Python<'_>) -> PyResult<Vec<PathBuf>> {
    let mut folders: Vec<PathBuf> = Vec::new();
    let defaults = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    for folder in folder_of_environment(py)?.into_iter().chain(defaults) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    Ok(folders)
}
