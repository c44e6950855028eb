//! Whole jobs: run, checkpointed, broken and continued, through the `dormouse` command.

mod advice;
mod ask;
mod crashes;
mod encryption;
mod endings;
mod gate;
mod lazy;
mod leftovers;
mod marked;
mod mending;
mod migrate;
mod migrate_losses;
mod migrate_refusals;
mod migrate_models;
mod networks;
mod object_storage;
mod on_failure;
mod planning;
mod private_memory;
mod refusals;
mod regular;
mod remote;
mod restarts;
mod suspend;
mod trace;
mod visible;
