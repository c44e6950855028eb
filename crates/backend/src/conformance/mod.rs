//! The suite every backend must pass: the same body for the real driver and the software device.
//!
//! A backend's own test calls [`run`] once and asserts that nothing failed. Cases share one context, as programs do; those that
//! break a context have one of their own and come last.

mod code;
mod errors;
mod memory;
mod rig;
mod streams;

use crate::Backend;
use rig::Rig;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Case = (&'static str, fn(&Rig<'_>));

const CASES: &[Case] = &[
    ("devices have facts", memory::devices_have_facts),
    ("blocks come and go", memory::blocks_come_and_go),
    ("copies reach every kind of memory", memory::copies_reach_every_kind_of_memory),
    ("pitched copies move only the box", memory::pitched_copies_move_only_the_box),
    ("fills of every width", memory::fills_of_every_width),
    ("modules tell their functions", code::modules_tell_their_functions),
    ("launches compute", code::launches_compute),
    ("globals and constants can be copied", code::globals_and_constants_can_be_copied),
    ("device code sees the address that is told", code::device_code_sees_the_address_that_is_told),
    ("replayed modules land where they were", code::replayed_modules_land_where_they_were),
    ("what cannot be loaded is said", code::what_cannot_be_loaded_is_said),
    ("occupancy is plausible", code::occupancy_is_plausible),
    ("printf arrives in order", code::printf_arrives_in_order),
    ("a stream runs in order", streams::a_stream_runs_in_order),
    ("the legacy stream waits for blocking streams", streams::the_legacy_stream_waits_for_blocking_streams),
    ("events order streams", streams::events_order_streams),
    ("events measure time", streams::events_measure_time),
    ("host functions run in their place", streams::host_functions_run_in_their_place),
    ("queries tell what is under way", streams::queries_tell_what_is_under_way),
    ("mapped host memory is seen by running kernels", streams::mapped_host_memory_is_seen_by_running_kernels),
    ("limits can be read and set", errors::limits_can_be_read_and_set),
    ("wrong launches are told at once", errors::wrong_launches_are_told_at_once),
    ("registered memory outlives contexts", errors::registered_memory_outlives_contexts),
    ("a bad address breaks its context for good", errors::a_bad_address_breaks_its_context_for_good),
];

/// Runs every case on device 0; tells the names of those that passed, and of those that failed with why.
///
/// # Panics
/// When not even a context and memory can be had.
pub fn run(backend: &dyn Backend) -> (Vec<&'static str>, Vec<(&'static str, String)>) {
    let rig = Rig::new(backend);
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    for (name, case) in CASES {
        match catch_unwind(AssertUnwindSafe(|| case(&rig))) {
            Ok(()) => passed.push(*name),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let why = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                failed.push((*name, why.unwrap_or_default()));
            }
        }
    }
    (passed, failed)
}
