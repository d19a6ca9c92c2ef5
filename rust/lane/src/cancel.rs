//! `Cancel`: ends a request from another thread, at once.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use shoal_shm::session::Origin;

/// Ends requests that were given it, also later ones. What they wait for, they do not get any more.
#[derive(Debug)]
pub struct Cancel {
    is_cancelled: AtomicBool,
    /// The connection on which a request waits. Locked only briefly.
    stream: Mutex<Weak<TcpStream>>,
    origin: Origin,
}

impl Default for Cancel {
    fn default() -> Self {
        Self {
            is_cancelled: AtomicBool::new(false),
            stream: Mutex::default(),
            origin: Origin::here(),
        }
    }
}

impl Cancel {
    /// Ends the request; does nothing in a child of a fork, because it belongs to the parent.
    ///
    /// The server learns it before it can learn what this thread asks it next.
    pub fn cancel(&self) {
        if !self.origin.is_here() {
            return;
        }
        self.is_cancelled.store(true, Ordering::Release);
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = stream.upgrade() {
            // It fails only if the connection has ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Whether it is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    /// Lets [`Self::cancel`] end a connection for as long as the result lives.
    ///
    /// # Errors
    ///
    /// `Interrupted` if it is cancelled.
    pub(crate) fn watch(&self, stream: &Arc<TcpStream>) -> io::Result<Watch<'_>> {
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(stream);
        let watch = Watch(self);
        // Looked at last: `cancel` sets it first.
        if self.is_cancelled() {
            return Err(ErrorKind::Interrupted.into());
        }
        Ok(watch)
    }
}

/// A request that waits on a connection. When it is dropped, the connection may be used for others.
#[derive(Debug)]
pub(crate) struct Watch<'a>(&'a Cancel);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        *self.0.stream.lock().unwrap_or_else(PoisonError::into_inner) = Weak::new();
    }
}
