//! Tests of a session's members with real processes, which are stopped and killed.

mod child;
mod deaths;
pub(super) mod leaving;
pub(super) mod process;

use std::ffi::OsStr;

use process::{Process, eventually};

/// The variable that names the folder of a child's session.
const FOLDER: &str = "SHOAL_TEST_SESSION_FOLDER";

/// Starts a process that can take part in a session; it kills itself at a crash point, if given.
fn start(folder: &(impl AsRef<OsStr> + ?Sized), crash_point: Option<&str>) -> Process {
    let mut variables = vec![(FOLDER, folder.as_ref())];
    variables.extend(crash_point.map(|point| (crate::crash_point::POINT, point.as_ref())));
    Process::start(concat!(module_path!(), "::child::runs"), &variables)
}
