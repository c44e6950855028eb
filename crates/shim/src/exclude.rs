//! What `libdormouse` asks of the shim, where the program has loaded it: whether device memory is saved (`docs/self-checkpoint.md`).

use std::ffi::{c_int, c_uint};

use wire::Exclude;

use crate::client::with;

/// Has the contents of a range of device memory left out of images, or saved again. Answers a `CUresult`: `NOT_SUPPORTED` of memory that is always
/// saved, `OUT_OF_MEMORY` when there are too many ranges, `INVALID_VALUE` or, without a session, `NOT_INITIALIZED` where it is no device memory of this
/// process. What earlier work has failed with is left for the program's next call.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_shim_exclude(address: u64, bytes: u64, exclude: c_int) -> c_uint {
    let done = with(|call| call.ask_all_the_same(&Exclude { address, bytes, exclude: exclude != 0 }));
    done.map_or_else(|error| error.code(), |()| 0)
}
