//! What profilers hook into, as far as cudart and the libraries use it without a profiler.

use std::{
    cell::UnsafeCell,
    ffi::{c_int, c_uint, c_void},
    ptr,
};

use cuda_abi::{
    CuError, CuResult, FunctionId,
    sys::{CUcontext, CUfunction, CUmodule, CUstream},
};

use super::slots::Table;
use crate::{api::stream::stream_number, default_stream, exports, facts};

/// `TOOLS_RUNTIME_CALLBACK_HOOKS`.
pub static CALLBACK_HOOKS: Table<7> =
    Table::new::<1>(&[(2, runtime_switches as *const c_void), (6, driver_switches as *const c_void)]);

/// `TOOLS_TLS`.
pub static TLS: Table<3> = Table::new::<2>(&[(2, current_context as *const c_void)]);

/// The table of contexts.
pub static CONTEXT: Table<93> = Table::new::<5>(&[
    (4, context_id as *const c_void),
    (39, stream_id as *const c_void),
    (51, stream_of as *const c_void),
]);

/// The table of functions and modules.
pub static FUNCTIONS: Table<99> = Table::new::<6>(&[(7, for_each_function as *const c_void)]);

/// What CUPTI asks for before it tells its version, as JAX has it do; it calls nothing in it then.
pub static PROFILER: Table<67> = Table::new::<7>(&[]);

/// What cuBLASLt asks for.
pub static CUBLAS_LT: Table<17> = Table::new::<8>(&[(4, processor_groups as *const c_void)]);

/// Tells which of the device's groups of processors each processor is in. cuBLASLt does without.
extern "C" fn processor_groups() -> c_uint {
    CuError::NOT_SUPPORTED.code()
}

/// The switches that a profiler would set to have calls reported: all off.
#[repr(C, align(64))]
struct Switches(UnsafeCell<[u8; 4096]>);

// SAFETY: this process only hands out the address; whoever writes through it, a profiler, synchronises that itself.
unsafe impl Sync for Switches {}

static RUNTIME_SWITCHES: Switches = Switches(UnsafeCell::new([0; 4096]));
static DRIVER_SWITCHES: Switches = Switches(UnsafeCell::new([0; 4096]));

unsafe extern "C" fn runtime_switches(buffer: *mut *mut c_void, count: *mut usize) {
    // SAFETY: the caller's contract is the same.
    unsafe { give_switches(&RUNTIME_SWITCHES, 1024, buffer, count) }
}

unsafe extern "C" fn driver_switches(buffer: *mut *mut c_void, count: *mut usize) {
    // SAFETY: the caller's contract is the same.
    unsafe { give_switches(&DRIVER_SWITCHES, 14, buffer, count) }
}

/// Gives the switches and how many there are; there is room for more, whatever their size.
unsafe fn give_switches(
    switches: &'static Switches,
    how_many: usize,
    buffer: *mut *mut c_void,
    count: *mut usize,
) {
    if !buffer.is_null() && !count.is_null() {
        // SAFETY: neither is NULL, so they are the caller's to write to.
        unsafe {
            buffer.write(switches.0.get().cast());
            count.write(how_many);
        }
    }
}

unsafe extern "C" fn current_context(context: *mut CUcontext) -> c_uint {
    let give = || -> CuResult {
        let current = facts::get()?.current_context();
        if context.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not NULL, so the caller's to write to.
        unsafe { context.write(current) };
        Ok(())
    };
    give().map_or_else(CuError::code, |()| 0)
}

/// As `cuCtxGetId`; 0 for no context.
unsafe extern "C" fn context_id(context: CUcontext, id: *mut u64) -> c_uint {
    let give = || -> CuResult {
        let number = if context.is_null() { 0 } else { facts::get()?.context_id(context)? };
        if id.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not NULL, so the caller's to write to.
        unsafe { id.write(number) };
        Ok(())
    };
    give().map_or_else(CuError::code, |()| 0)
}

/// Gives what the driver knows a stream by, here its handle: that of a default stream, where the handle is NULL. cuBLAS asks before it takes
/// a workspace for a stream.
unsafe extern "C" fn stream_of(
    _context: CUcontext,
    stream: CUstream,
    known: *mut CUstream,
    per_thread: c_int,
) -> c_uint {
    let give = || -> CuResult {
        let stream = match stream.addr() {
            0 if per_thread != 0 => default_stream::PER_THREAD,
            0 => default_stream::LEGACY,
            _ => stream,
        };
        stream_number(stream)?;
        if known.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not NULL, so the caller's to write to.
        unsafe { known.write(stream) };
        Ok(())
    };
    give().map_or_else(CuError::code, |()| 0)
}

/// As `cuStreamGetId`, of what [`stream_of`] gave.
unsafe extern "C" fn stream_id(_context: CUcontext, stream: CUstream, id: *mut u64) -> c_uint {
    let give = || -> CuResult {
        let number = stream_number(stream)?;
        if id.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not NULL, so the caller's to write to.
        unsafe { id.write(number) };
        Ok(())
    };
    give().map_or_else(CuError::code, |()| 0)
}

type FunctionCallback = unsafe extern "C" fn(user: *mut c_void, function: CUfunction, index: u64);

/// Calls `callback` for each function of a module, and answers how many there are.
unsafe extern "C" fn for_each_function(
    _context: CUcontext,
    module: CUmodule,
    callback: Option<FunctionCallback>,
    user: *mut c_void,
) -> c_int {
    type GetCount = unsafe extern "C" fn(*mut c_uint, CUmodule) -> c_uint;
    type Enumerate = unsafe extern "C" fn(*mut CUfunction, c_uint, CUmodule) -> c_uint;
    // SAFETY: the addresses of these functions, and where they are not supported of ones that look at no arguments.
    let (get_count, enumerate): (GetCount, Enumerate) = unsafe {
        (
            std::mem::transmute::<*const c_void, GetCount>(exports::address(
                FunctionId::cuModuleGetFunctionCount,
            )),
            std::mem::transmute::<*const c_void, Enumerate>(exports::address(
                FunctionId::cuModuleEnumerateFunctions,
            )),
        )
    };
    let mut count: c_uint = 0;
    // SAFETY: `count` is there to be written.
    if unsafe { get_count(&raw mut count, module) } != 0 {
        return 0;
    }
    let mut functions = vec![ptr::null_mut(); count as usize];
    // SAFETY: there is room for as many functions as asked for.
    if unsafe { enumerate(functions.as_mut_ptr(), count, module) } != 0 {
        return 0;
    }
    if let Some(callback) = callback {
        for (index, function) in functions.iter().enumerate() {
            // SAFETY: the caller's callback, with the caller's own argument.
            unsafe { callback(user, *function, index as u64) };
        }
    }
    count.cast_signed()
}
