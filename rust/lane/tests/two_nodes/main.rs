//! Puts and takes from another node, as processes of it make them: what arrives, what fails and how,
//! and what becomes of both when connections are cut and processes die.

mod cancel;
mod certificates;
mod processes;
mod puts;
mod support;
mod takes;
mod tls;

use shoal_lane::tls::{Files, Tls};
