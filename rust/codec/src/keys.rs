//! The keys of dicts, which are cached for all decoders of the process.

use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::prelude::*;
use pyo3::types::PyString;
use shoal_format::Cached;

/// Number of uses after which a key is interned, as keys in source code are. Not at once: some
/// versions of Python never free interned strings, and keys may be random.
const INTERNED_AFTER: u8 = 16;

pub(crate) type Keys = shoal_format::Keys<Py<PyString>>;

/// One cache for the process, because a thread that ends cannot release Python objects.
static KEYS: Mutex<Keys> = Mutex::new(Keys::new());

/// Locks the cache for one message. None if it is in use: by another thread, or by a decoding in
/// which a finalizer runs that decodes this message.
pub(crate) fn keys() -> Option<MutexGuard<'static, Keys>> {
    match KEYS.try_lock() {
        Ok(keys) => Some(keys),
        Err(TryLockError::Poisoned(keys)) => Some(keys.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The str of these UTF-8 bytes.
#[inline]
pub(crate) fn text<'py>(
    keys: &mut Keys,
    py: Python<'py>,
    utf8: &[u8],
) -> PyResult<Bound<'py, PyString>> {
    match keys.find(utf8) {
        Cached::Found(text, used) => {
            if used == INTERNED_AFTER {
                *text = PyString::intern(py, text.bind(py).to_str()?).unbind();
            }
            Ok(text.bind(py).clone())
        }
        Cached::Missing(vacancy) => {
            let text = PyString::from_bytes(py, utf8)?;
            vacancy.fill(text.clone().unbind());
            Ok(text)
        }
        Cached::TooLong => PyString::from_bytes(py, utf8),
    }
}
