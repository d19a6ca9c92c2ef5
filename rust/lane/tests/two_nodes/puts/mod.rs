//! Puts from another node.

mod cuts;
mod deaths;
mod outcomes;
mod waits;
