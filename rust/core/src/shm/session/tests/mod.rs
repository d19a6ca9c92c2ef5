//! Tests of a session with real processes that are killed while they use it.

mod case;
mod hostile;
mod matrix;
mod messages;
mod noticed;
mod refused;
mod victim;
