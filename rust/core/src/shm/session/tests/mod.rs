//! Tests of a whole session, most of them with real processes that are killed while they use it.

mod case;
mod forgotten;
mod growth;
mod hostile;
mod matrix;
mod messages;
mod noticed;
mod refused;
mod two_mappings;
mod victim;
