//! The files of a session, and the memory that processes share through them.
//!
//! | module | purpose |
//! |---|---|
//! | `map` | maps files, and gives views of them; all unsafe code is here |
//! | `file` | makes, opens and extends files |
//! | `layout` | the tables of the control segment, and the orderings of their words |
//! | `control` | the control segment as a process has it: mapped, checked, viewed as its tables |
//! | `settings` | the choices of the session's maker, which the control segment records |
//! | `error`, `file_error` | why a session is not available; why a call on a file failed |

mod control;
mod error;
pub mod file;
mod file_error;
pub(crate) mod layout;
pub(crate) mod map;
mod settings;

pub(crate) use control::Control;
pub use error::Error;
pub use file_error::FileError;
pub(crate) use map::Shared;
pub use map::{Mapping, Outside};
pub use settings::{MemoryPolicy, Settings};
