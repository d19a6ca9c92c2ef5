//! Random numbers that a peer cannot guess.

use std::io;

/// Random bytes of the system.
///
/// # Errors
///
/// The system has none.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}
