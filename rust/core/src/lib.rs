//! The core of shoal without Python, in two parts.
//!
//! [`address`]: the names of workers.
//!
//! ```
//! use shoal_core::WorkerAddress;
//!
//! let address: WorkerAddress = "rollout:3:0".parse()?;
//! assert_eq!(address.parent(), Some("rollout:3".parse()?));
//! # Ok::<(), shoal_core::AddressError>(())
//! ```
//!
//! [`placement`]: the node and the hardware of each process.
//!
//! ```
//! use std::sync::Arc;
//!
//! use shoal_core::placement::{NodeGroup, NodeResources, parse_placement};
//!
//! let nodes = vec![NodeResources::new(0, 8, 8, "NV_GPU")];
//! let groups = [Arc::new(NodeGroup::new("a800", Some("Accelerator"), nodes))];
//! let ranks = parse_placement("0-3:0-1", &groups, "actor")?;
//! assert!(ranks.iter().eq([[0, 1], [2, 3]]));
//! # Ok::<(), shoal_core::PlacementError>(())
//! ```

pub mod address;
pub mod placement;
pub mod text;

pub use address::{AddressError, WorkerAddress};
pub use placement::PlacementError;
