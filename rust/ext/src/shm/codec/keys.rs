//! The strings that dicts have been decoded with, kept to be used again.
//!
//! Messages of one program have few different keys. To find one by its bytes takes a fraction of
//! making it, and it brings its hash with it.

use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::prelude::*;
use pyo3::types::PyString;

/// So many are kept, a power of two.
const SLOTS: usize = 512;

/// Longer ones are made anew each time.
const LONGEST: usize = 39;

/// After so many uses a key is interned, as the keys are that a program writes down. Not at once:
/// some versions of Python keep what is interned for ever, and keys may be random.
const INTERNED_AFTER: u8 = 16;

struct Key {
    length: u8,
    bytes: [u8; LONGEST],
    used: u8,
    text: Py<PyString>,
}

/// Keys, by a hash of their bytes.
#[derive(Default)]
pub(super) struct Keys(Vec<Option<Key>>);

/// Of the process, because a thread that ends cannot give back what belongs to Python.
static KEYS: Mutex<Keys> = Mutex::new(Keys(Vec::new()));

/// The keys, for one message; None where they are in use: by another thread, or by the message in
/// the middle of whose decoding a finalizer gets this one.
pub(super) fn keys() -> Option<MutexGuard<'static, Keys>> {
    match KEYS.try_lock() {
        Ok(keys) => Some(keys),
        Err(TryLockError::Poisoned(keys)) => Some(keys.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Keys {
    /// The str of these bytes.
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

/// Where a key is kept: its length, first and last bytes, mixed.
fn slot(bytes: &[u8]) -> usize {
    let (first, last) = if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk())
    {
        (u64::from_le_bytes(*first), u64::from_le_bytes(*last))
    } else {
        // Shifted together: to write bytes and read them as a word takes longer.
        let shift = |word, byte: &u8| word << 8 | u64::from(*byte);
        (bytes.iter().fold(0, shift), bytes.len() as u64)
    };
    let mixed = (first ^ last.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let shift = u64::BITS - SLOTS.trailing_zeros();
    usize::try_from(mixed >> shift).unwrap_or(0)
}
