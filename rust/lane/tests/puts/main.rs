//! Puts from another node, as processes of it make them: what arrives, what fails and how, and what
//! becomes of both when connections are cut and processes die.

mod cuts;
mod deaths;
mod outcomes;
mod support;
mod waits;
