//! CUDA graphs as a data structure: nodes, edges with their data, child graphs, clones, user objects; the order in which nodes can
//! run; and the comparison that an update of an executable graph begins with. What a node does is the caller's (`W`).
#![forbid(unsafe_code)]

mod clone;
mod compare;
mod edit;
mod ids;
mod model;
mod objects;
mod order;

pub use compare::Difference;
pub use ids::{GraphId, NodeId, ObjectId};
pub use model::{Body, Edge, EdgeData, Error, Graphs, Node};
pub use objects::Released;
pub use order::{Step, Steps, What};
