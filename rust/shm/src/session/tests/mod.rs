//! Tests of a whole session, most of them with real processes that are killed while they use it.

mod case;
mod forgotten;
mod hostile;
mod matrix;
mod messages;
mod noticed;
mod refused;
mod ring_growth;
mod two_mappings;
mod victim;
