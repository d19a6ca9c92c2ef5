//! `ShmSession`, the Python class of a session, and `shm_gc`.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use shoal_shm::payload::choose;
use shoal_shm::session::{Error, MemoryPolicy, Session, Settings, clear};

use super::arguments::{
    LARGEST, flag, shown, text, text_or_none, whole, whole_or_none, wrong_value,
};
use super::errors::{bad_value, of_attach, of_create, of_operation, session_closed};
use super::interrupted_gets::InterruptedGets;
use super::peek::add_fields;
use super::per_process::PerProcess;
use crate::convert::Arg;

/// Default maximum number of messages in a queue without `maxsize`.
const BACKLOG: u32 = 65_535;
/// Maximum of `backlog`, and of messages in any queue.
const BACKLOG_LIMIT: u64 = 1 << 20;
/// Maximum pid: a C `int`.
const LARGEST_PID: u64 = i32::MAX.unsigned_abs() as u64;

const POLICIES: [(&str, MemoryPolicy); 3] = [
    ("block", MemoryPolicy::Block),
    ("error", MemoryPolicy::Error),
    ("spill", MemoryPolicy::Spill),
];

/// Memory that the processes of one user on one machine share, with queues in it.
#[pyclass(frozen, subclass, weakref, name = "ShmSession", module = "shoal.shm")]
pub(crate) struct PyShmSession {
    closed: AtomicBool,
    joined: PerProcess<Joined>,
}

/// A session as one process takes part in it.
pub(super) struct Joined {
    pub(super) session: Arc<Session>,
    pub(super) interrupted: Arc<InterruptedGets>,
}

impl Joined {
    fn new(session: Arc<Session>) -> Self {
        Self {
            session,
            interrupted: Arc::default(),
        }
    }
}

impl PyShmSession {
    /// Whether the object was closed.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The session as this process takes part in it. A forked child attaches at its first call.
    #[inline]
    pub(super) fn joined(&self, py: Python<'_>, operation: &str) -> PyResult<&Joined> {
        if self.is_closed() {
            return Err(session_closed(py, operation));
        }
        if let Some(joined) = self.joined.here() {
            return Ok(joined);
        }
        let join = |parent: &Joined| Ok(Joined::new(attach(py, parent.session.token())?));
        self.joined.make_here(join, |second| {
            // It is the last one if the other thread's object was closed meanwhile.
            if second.session.release() {
                py.detach(|| second.session.shut());
            }
        })
    }

    /// The session alone: see [`Self::joined`].
    #[inline]
    pub(super) fn here(&self, py: Python<'_>, operation: &str) -> PyResult<&Arc<Session>> {
        Ok(&self.joined(py, operation)?.session)
    }

    /// Closes this object. Returns the session if this was its last object in the process: the
    /// caller must then shut the session.
    fn let_go(&self) -> Option<&Arc<Session>> {
        if self.closed.swap(true, Ordering::SeqCst) {
            return None;
        }
        let joined = self.joined.here()?;
        joined.interrupted.release();
        joined.session.release().then_some(&joined.session)
    }
}

impl Drop for PyShmSession {
    fn drop(&mut self) {
        if let Some(session) = self.let_go() {
            Python::attach(|py| py.detach(|| session.shut()));
        }
    }
}

/// Opens a session for one object of this process.
fn join(
    py: Python<'_>,
    open: impl Fn() -> Result<Arc<Session>, Error> + Sync + Send,
) -> PyResult<Result<Arc<Session>, Error>> {
    #[expect(
        clippy::redundant_closure_for_method_calls,
        reason = "the method itself has one lifetime only"
    )]
    let interrupt = || Python::attach(|py| py.check_signals());
    py.detach(|| Session::join(open, interrupt))
}

fn attach(py: Python<'_>, token: &str) -> PyResult<Arc<Session>> {
    join(py, || Session::attach(token))?.map_err(|error| of_attach(py, token, &error))
}

/// The checked arguments of a new session.
struct Wanted {
    dir: Option<PathBuf>,
    max_bytes: Option<u64>,
    policy: MemoryPolicy,
    spill_dir: Option<PathBuf>,
    backlog: u32,
    overfill: bool,
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
            overfill: self.overfill,
        };
        join(py, || Session::create(&settings))?.map_err(|error| of_create(py, &error))
    }

    /// The error if no folder can be used: it names the argument that gave the folder, if one did.
    fn refused(&self, py: Python<'_>, error: &Error) -> PyErr {
        if let Error::File(file) = error {
            for (name, path) in [("dir", &self.dir), ("spill_dir", &self.spill_dir)] {
                if path.as_deref() == Some(file.path()) {
                    let path = PyString::new(py, &file.path().to_string_lossy());
                    return wrong_value(&path, name, "a folder that can be written to");
                }
            }
        }
        of_create(py, error)
    }
}

/// The folder that `SHOAL_SHM_DIR` names, if it is set.
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
            overfill = Arg::Default,
        ),
        text_signature = "(token=None, *, dir=None, max_bytes=None, memory_policy='block', spill_dir=None, backlog=65535, overfill=False)"
    )]
    #[allow(clippy::too_many_arguments, reason = "the arguments of the contract")]
    fn new(
        py: Python<'_>,
        token: Option<&Bound<'_, PyAny>>,
        dir: Option<&Bound<'_, PyAny>>,
        max_bytes: Option<&Bound<'_, PyAny>>,
        memory_policy: Arg<'_>,
        spill_dir: Option<&Bound<'_, PyAny>>,
        backlog: Arg<'_>,
        overfill: Arg<'_>,
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
            overfill: overfill.or(false, |value| flag(value, "overfill"))?,
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
                    ("overfill", wanted.overfill),
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
            joined: PerProcess::new(Joined::new(session)),
        })
    }

    /// The argument with which another process attaches.
    #[getter]
    fn token(&self) -> String {
        self.joined.value.session.token().to_string()
    }

    /// Whether this object was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    /// Whether any process called `close_queues`.
    #[getter]
    fn sealed(&self, py: Python<'_>) -> PyResult<bool> {
        let sealed = self.here(py, "sealed")?.is_sealed();
        sealed.map_err(|error| of_operation(py, "sealed", "the session", &error))
    }

    /// Close all queues in all processes, existing and future ones: they refuse further puts.
    fn close_queues(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.here(py, "close_queues")?;
        let closed = py.detach(|| session.close_queues());
        closed.map_err(|error| of_operation(py, "close_queues", "the session", &error))
    }

    /// Keep the session's files when this process leaves as the last participant.
    fn keep(&self, py: Python<'_>) -> PyResult<()> {
        self.here(py, "keep")?.keep();
        Ok(())
    }

    /// Do not count the session as a leftover for ten seconds, even if all participants died.
    fn spare(&self, py: Python<'_>, pid: &Bound<'_, PyAny>) -> PyResult<()> {
        let pid = u32::try_from(whole(pid, "pid", 1, LARGEST_PID)?)?;
        let session = self.here(py, "spare")?;
        let spared = py.detach(|| session.spare(pid));
        spared.map_err(|error| of_operation(py, "spare", "the session", &error))
    }

    /// Remove the session's files: no process can attach any more.
    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.here(py, "remove")?;
        let removed = py.detach(|| session.remove());
        removed.map_err(|error| of_operation(py, "remove", "the session", &error))
    }

    /// Release the memory that no message uses, including what other processes keep for reuse.
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
        let dict = PyDict::new(py);
        add_fields! { dict, stats: messages, descriptors_in_use, bytes_in_use, bytes_reserved }
        add_fields! { dict, stats: max_bytes, participants, queues, lost_messages, recovered }
        add_fields! { dict, stats: dropped_messages }
        Ok(dict)
    }

    /// Clean up after dead processes now, not only when a call waits.
    fn sweep<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.here(py, "sweep")?;
        let found = py.detach(|| session.sweep());
        let found = found.map_err(|error| of_operation(py, "sweep", "the session", &error))?;
        let dict = PyDict::new(py);
        add_fields! { dict, found: dead, recovered, redelivered, lost }
        Ok(dict)
    }

    /// Close this object. Idempotent.
    fn close(&self, py: Python<'_>) {
        if let Some(session) = self.let_go() {
            py.detach(|| session.shut());
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

/// Remove this user's sessions of this backend whose participants are all dead.
#[pyfunction]
#[pyo3(signature = (dir = None), text_signature = "(dir=None)")]
pub(crate) fn shm_gc(py: Python<'_>, dir: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let path = text_or_none(dir, "dir")?.map(PathBuf::from);
    if let (Some(dir), Some(path)) = (dir, &path)
        && !path.is_dir()
    {
        return Err(wrong_value(dir, "dir", "a folder"));
    }
    let folders = match path {
        Some(dir) => vec![dir],
        None => default_folders(py)?,
    };
    let removed = py.detach(|| {
        let cleared = folders.iter().flat_map(|folder| clear(folder));
        cleared.map(|path| path.display().to_string()).collect()
    });
    Ok(removed)
}

/// The folders in which sessions are created by default.
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
