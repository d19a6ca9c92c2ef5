//! Cache of the strings that were decoded as keys of dicts.
//!
//! Messages of one program have few different keys. Finding a string by its bytes takes a fraction
//! of the time that making it takes, and a cached string has its hash already.

use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::prelude::*;
use pyo3::types::PyString;

/// Number of cached keys, a power of two.
const SLOTS: usize = 512;

/// Maximum length in bytes of a cached key.
const LONGEST: usize = 39;

/// Number of uses after which a key is interned, as keys in source code are. Not at once: some
/// versions of Python never free interned strings, and keys may be random.
const INTERNED_AFTER: u8 = 16;

struct Key {
    length: u8,
    bytes: [u8; LONGEST],
    used: u8,
    text: Py<PyString>,
}

/// Keys in slots chosen by a hash of their bytes.
#[derive(Default)]
pub(super) struct Keys(Vec<Option<Key>>);

/// One cache for the process, because a thread that ends cannot release Python objects.
static KEYS: Mutex<Keys> = Mutex::new(Keys(Vec::new()));

/// Locks the cache for one message. None if it is in use: by another thread, or by a decoding in
/// which a finalizer runs that decodes this message.
pub(super) fn keys() -> Option<MutexGuard<'static, Keys>> {
    match KEYS.try_lock() {
        Ok(keys) => Some(keys),
        Err(TryLockError::Poisoned(keys)) => Some(keys.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Keys {
    /// The str of these UTF-8 bytes.
    pub(super) fn text<'py>(
        &mut self,
        py: Python<'py>,
        bytes: &[u8],
    ) -> PyResult<Bound<'py, PyString>> {
        if bytes.len() > LONGEST {
            return PyString::from_bytes(py, bytes);
        }
        if self.0.is_empty() {
            self.0.resize_with(SLOTS, || None);
        }
        let slot = &mut self.0[slot(bytes)];
        if let Some(key) = slot
            && key.bytes.get(..usize::from(key.length)) == Some(bytes)
        {
            key.used = key.used.saturating_add(1);
            if key.used == INTERNED_AFTER {
                key.text = PyString::intern(py, key.text.bind(py).to_str()?).unbind();
            }
            return Ok(key.text.bind(py).clone());
        }
        let text = PyString::from_bytes(py, bytes)?;
        let mut key = Key {
            length: 0,
            bytes: [0; LONGEST],
            used: 0,
            text: text.clone().unbind(),
        };
        key.length = u8::try_from(bytes.len())?;
        key.bytes[..bytes.len()].copy_from_slice(bytes);
        *slot = Some(key);
        Ok(text)
    }
}

/// The slot of a key: a hash of its length, first and last bytes.
fn slot(bytes: &[u8]) -> usize {
    let (first, last) = if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk())
    {
        (u64::from_le_bytes(*first), u64::from_le_bytes(*last))
    } else {
        // Shifting is faster than writing bytes to memory and reading them as a word.
        let shift = |word, byte: &u8| word << 8 | u64::from(*byte);
        (bytes.iter().fold(0, shift), bytes.len() as u64)
    };
    let mixed = (first ^ last.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let shift = u64::BITS - SLOTS.trailing_zeros();
    usize::try_from(mixed >> shift).unwrap_or(0)
}
