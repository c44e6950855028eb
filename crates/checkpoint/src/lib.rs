//! The supervisor of a job: it starts or restarts it, gives each of its processes that uses CUDA a GPU server, and takes
//! the cut when asked. `ARCHITECTURE.md` tells the order of the steps and why.

pub mod admin;
mod asks;
mod beside;
mod broker;
mod cut;
mod differences;
mod error;
mod facts;
mod filling;
mod folder;
pub mod gpus;
mod hand_over;
mod interrupt;
pub mod libraries;
mod lineage;
mod lock;
pub mod machine;
mod record;
mod regular;
pub mod restart;
pub mod runtime;
mod server_process;
mod sessions;
pub mod starting;
mod steer;
mod stores;
pub mod supervisor;
mod suspend;
mod trace;
mod way_back;
mod work;

pub use error::{Chain, Failure, Kind};
pub use folder::read_failure;
pub use hand_over::Moved;
pub use interrupt::Preparing;
pub use record::JobRecord;
pub use regular::{Regularly, When};
pub use server_process::LOST_MACHINE;
pub use steer::Watching;
pub use stores::{
    Removing, check_store, copy_failure, existing_store, find_image, kept_kind, open_failure,
    open_or_create_store, open_store, prune_images, removal_failure, remove_images,
};
pub use way_back::{Newest, quoted};
