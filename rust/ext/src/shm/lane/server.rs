//! `LaneServer`: lets processes of other nodes use the queues of a session.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use shoal_lane::server::{Limits, Server, Usage};

use super::super::arguments::whole;
use super::super::session::PyShmSession;
use super::{ip, secret, tls};
use crate::convert::Arg;
use crate::errors::shoal_error;

/// A server beside a session. It ends with `stop`, or with the object.
#[pyclass(frozen, name = "LaneServer", module = "shoal._backend")]
pub(crate) struct PyLaneServer {
    /// The IP address and the port.
    #[pyo3(get)]
    address: (String, u16),
    /// None once it is stopped.
    server: Mutex<Option<Server>>,
}

impl PyLaneServer {
    fn server(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it is used: not at all once it is stopped.
    fn usage(&self) -> Usage {
        self.server()
            .as_ref()
            .map(Server::usage)
            .unwrap_or_default()
    }
}

#[pymethods]
impl PyLaneServer {
    #[new]
    #[pyo3(
        signature = (session, ip, key, tls = None, port = Arg::Default),
        text_signature = "(session, ip, key, tls=None, port=0)"
    )]
    fn new(
        py: Python<'_>,
        session: &Bound<'_, PyShmSession>,
        ip: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        tls: Option<&Bound<'_, PyAny>>,
        port: Arg<'_>,
    ) -> PyResult<Self> {
        let port = port.or(0, |port| whole(port, "port", 0, u16::MAX.into()))?;
        let (here, key, tls) = (self::ip(ip)?, secret(key)?, self::tls(tls)?);
        let address = SocketAddr::new(here, u16::try_from(port)?);
        let session = Arc::clone(session.get().here(py, "lane")?);
        let started = py.detach(|| Server::start(session, address, key, Limits::default(), tls));
        let server = started.map_err(|error| {
            let message = format!("no server can listen on {here}: {error}");
            shoal_error(py, "TransportError", message, None)
        })?;
        let address = server.address();
        Ok(Self {
            address: (address.ip().to_string(), address.port()),
            server: Mutex::new(Some(server)),
        })
    }

    /// The number of connections.
    #[getter]
    fn connections(&self) -> usize {
        self.usage().connections
    }

    /// The number of messages that gets have taken and not confirmed yet.
    #[getter]
    fn lent(&self) -> usize {
        self.usage().lent
    }

    /// The number of messages on lease.
    #[getter]
    fn leases(&self) -> usize {
        self.usage().leases
    }

    /// End all connections. A put that waits for room puts nothing. Idempotent.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| {
            let server = self.server().take();
            drop(server);
        });
    }
}

impl Drop for PyLaneServer {
    fn drop(&mut self) {
        if let Some(server) = self.server().take() {
            Python::attach(|py| py.detach(|| drop(server)));
        }
    }
}
