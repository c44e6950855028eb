//! The suite every backend must pass: the same body for the real driver and the software device.
//!
//! Each behaviour is one function over a backend; [`conformance_tests!`](crate::conformance_tests) makes a test of each,
//! with its name, and [`BEHAVIOURS`] lists them for a program that runs them where there is no test harness. A behaviour
//! that is not shown panics with what was seen. Behaviours that leave a context failed come last in the list, and each
//! makes contexts of its own.

// A suite says what it saw by panicking.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

mod arrays;
mod code;
mod contexts;
mod copies;
mod errors;
mod events;
mod graph_nodes;
mod graphs;
mod memory;
mod operations;
mod partitions;
mod placement;
mod rig;
mod sharing;
mod streams;
mod textures;
mod virtual_memory;

use crate::Backend;

/// A behaviour and its name.
pub type Behaviour = (&'static str, fn(&dyn Backend));

macro_rules! behaviours {
    ($($chapter:ident: $($name:ident)*;)*) => {
        /// Every behaviour, in an order that one process can run them in.
        pub const BEHAVIOURS: &[Behaviour] = &[$($((concat!(stringify!($chapter), "::", stringify!($name)), $chapter::$name)),*),*];

        $($(
            #[doc = concat!("See [`BEHAVIOURS`]: `", stringify!($chapter), "::", stringify!($name), "`.")]
            pub fn $name(backend: &dyn Backend) {
                $chapter::$name(backend);
            }
        )*)*

        /// Makes a test of every behaviour. The argument is an expression that gives a `&dyn Backend`.
        #[macro_export]
        macro_rules! conformance_tests {
            ($backend:expr) => {
                $($(
                    #[test]
                    fn $name() {
                        $crate::conformance::$name($backend);
                    }
                )*)*
            };
        }
    };
}

behaviours! {
    contexts: says_what_it_is contexts_come_and_go limits_are_kept;
    memory: blocks_hold_what_is_written blocks_lie_side_by_side a_range_is_reserved_once memory_is_counted
        host_memory_is_shared;
    virtual_memory: one_piece_is_mapped_twice pieces_keep_what_is_in_them
        compressible_pieces_hold_what_is_written a_mapped_piece_outlives_every_context
        a_piece_of_the_host_takes_none_of_the_device;
    sharing: a_block_is_exported_and_imported a_piece_is_exported_and_imported an_event_for_others_is_an_event;
    copies: copies_go_every_way host_memory_is_read_at_once the_last_copy_to_a_place_is_what_is_there
        pitched_copies_move_boxes fills_have_elements fills_have_rows;
    arrays: arrays_hold_boxes arrays_of_every_shape_hold_all_they_should levels_are_arrays objects_have_values
        wrong_arrays_are_told;
    textures: points_are_the_texel_they_lie_in axes_go_on_as_asked texels_are_mixed channels_are_told_as_asked
        memory_is_read_as_a_texture layers_and_faces_are_apart levels_are_chosen surfaces_are_read_and_written
        surfaces_are_read_in_wider_pieces_than_their_elements;
    code: kernels_run parameters_are_told attributes_are_set variables_are_found variables_start_initialised
        managed_variables_lie_where_they_are_put modules_are_apart shared_memory_is_dynamic what_is_printed_comes_out occupancy_makes_sense
        modules_list_their_kernels;
    streams: a_stream_keeps_its_order a_busy_stream_is_told the_legacy_stream_waits_for_blocking_ones
        non_blocking_streams_go_on a_destroyed_stream_finishes attributes_are_kept host_functions_run_in_turn;
    operations: words_are_written_in_turn a_stream_waits_for_a_word words_that_are_not_there_are_refused;
    partitions: multiprocessors_are_split green_streams_are_in_order_with_others;
    events: events_mark_a_place events_hold_streams_back times_are_taken untimed_events_tell_no_time
        an_event_never_recorded_is_complete;
    graphs: graphs_run_in_order graphs_copy_rows_and_registered_memory graphs_call_the_host_each_time
        graphs_record_and_await_events graphs_are_updated nodes_are_disabled launches_of_a_graph_are_in_turn
        wrong_graphs_are_told_at_once;
    graph_nodes: graphs_copy_arrays graphs_operate_on_words conditions_choose_what_runs
        conditions_are_inside_of_one_another;
    placement: made_again_in_the_same_place given_back_ranges_are_told;
    errors: no_module_from_garbage no_function_of_that_name wrong_launches_are_told_at_once
        a_wild_access_is_sticky host_functions_are_told_of_failure;
}
