//! Kernel launches.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_abi::{CuError, CuResult, sys};
use wire::{Launch, LaunchValue, OccupancyBlocks};

use crate::client::{Call, Callable, with};
use crate::graph::{Captive, Kernel, Size, Target, Work};
use crate::log::{self, Level};

/// The size and the place of a launch.
#[derive(Clone, Copy)]
pub(super) struct Config {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: sys::CUstream,
}

/// Where the parameters are: one of the two, or neither for a function that has none.
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    pub params: *mut *mut c_void,
    pub extra: *mut *mut c_void,
}

/// Launches a kernel.
pub unsafe fn cuLaunchKernel(
    f: sys::CUfunction,
    gridDimX: c_uint,
    gridDimY: c_uint,
    gridDimZ: c_uint,
    blockDimX: c_uint,
    blockDimY: c_uint,
    blockDimZ: c_uint,
    sharedMemBytes: c_uint,
    hStream: sys::CUstream,
    kernelParams: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    let (grid, block) = ([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ]);
    let config = Config { grid, block, shared: sharedMemBytes, stream: hStream };
    // SAFETY: the caller's contract is the same.
    with(|call| unsafe { launch(call, f, config, &[], Arguments { params: kernelParams, extra }) })
}

/// Launches a kernel with attributes.
pub unsafe fn cuLaunchKernelEx(
    config: *const sys::CUlaunchConfig,
    f: sys::CUfunction,
    kernelParams: *mut *mut c_void,
    extra: *mut *mut c_void,
    default_stream: sys::CUstream,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    let (config, attributes) = unsafe { read_config(config, default_stream) }?;
    // SAFETY: the caller's contract is the same.
    with(|call| unsafe { launch(call, f, config, &attributes, Arguments { params: kernelParams, extra }) })
}

/// Launches a kernel whose blocks all run at the same time.
pub unsafe fn cuLaunchCooperativeKernel(
    f: sys::CUfunction,
    gridDimX: c_uint,
    gridDimY: c_uint,
    gridDimZ: c_uint,
    blockDimX: c_uint,
    blockDimY: c_uint,
    blockDimZ: c_uint,
    sharedMemBytes: c_uint,
    hStream: sys::CUstream,
    kernelParams: *mut *mut c_void,
) -> CuResult {
    let (grid, block) = ([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ]);
    let config = Config { grid, block, shared: sharedMemBytes, stream: hStream };
    let mut cooperative = LaunchValue([0; 64]);
    cooperative.0[0] = 1;
    let arguments = Arguments { params: kernelParams, extra: std::ptr::null_mut() };
    // SAFETY: the caller's contract is the same.
    with(|call| unsafe { launch(call, f, config, &[(COOPERATIVE, cooperative)], arguments) })
}

/// In a capture it becomes the edge behind the kernel before.
const EARLY: u32 = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION as u32;
const PRIORITY: u32 = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY as u32;
const COOPERATIVE: u32 = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE as u32;

/// Attributes whose values hold handles or pointers, or that make a handle: not carried yet.
const WITH_HANDLES: [sys::CUlaunchAttributeID; 3] = [
    sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
    sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT,
    sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE,
];

/// Reads the configuration of an extended launch, with the stream that NULL means.
unsafe fn read_config(
    config: *const sys::CUlaunchConfig,
    default_stream: sys::CUstream,
) -> CuResult<(Config, Vec<(u32, LaunchValue)>)> {
    if config.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's; it holds integers and pointers only.
    let config = unsafe { &*config };
    if config.numAttrs > 0 && config.attrs.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    let mut attributes = Vec::with_capacity(config.numAttrs as usize);
    for index in 0..config.numAttrs as usize {
        // SAFETY: the caller gives `numAttrs` elements. The id is read as the integer that it is, because an application may
        // pass any; the value is 64 bytes of plain data.
        let (id, value) = unsafe {
            let attribute = config.attrs.add(index);
            let id = (&raw const (*attribute).id).cast::<u32>().read();
            (id, (&raw const (*attribute).value).cast::<[u8; 64]>().read())
        };
        if WITH_HANDLES.into_iter().any(|known| known as u32 == id) {
            log::message(Level::Warn, format_args!("launch attribute {id} is not supported"));
            return Err(CuError::NOT_SUPPORTED);
        }
        if id != sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE as u32 {
            attributes.push((id, LaunchValue(value)));
        }
    }
    let stream = if config.hStream.is_null() { default_stream } else { config.hStream };
    let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
    let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
    Ok((Config { grid, block, shared: config.sharedMemBytes, stream }, attributes))
}

/// The same as a message that is not sent: what occupancy queries are asked about.
pub(in crate::api) unsafe fn described(
    call: &mut Call<'_>,
    function: sys::CUfunction,
    config: *const sys::CUlaunchConfig,
) -> CuResult<Launch> {
    // SAFETY: the caller's contract is the same.
    let (config, attributes) = unsafe { read_config(config, crate::default_stream::LEGACY) }?;
    let callee = call.callable(function)?.callee;
    let (stream, ctx) = call.any_stream(config.stream)?;
    let Config { grid, block, shared, .. } = config;
    Ok(Launch { ctx, stream, callee, grid, block, shared, attributes, params: wire::Bytes::default() })
}

/// Checks a launch and sends it.
pub(super) unsafe fn launch(
    call: &mut Call<'_>,
    function: sys::CUfunction,
    config: Config,
    attributes: &[(u32, LaunchValue)],
    arguments: Arguments,
) -> CuResult {
    let captured = call.capture_of(config.stream)?;
    let (stream, ctx) = call.any_stream(config.stream)?;
    let current = call.context()?;
    if ctx != current.id {
        return Err(CuError::INVALID_HANDLE);
    }
    let device = current.device.0 as usize;
    let callable = Arc::clone(call.callable(function)?);
    if callable.owner().is_some_and(|owner| owner.context.id != ctx) {
        return Err(CuError::INVALID_HANDLE);
    }
    check_size(call, device, &callable, config)?;
    if attributes.iter().any(|(id, value)| *id == COOPERATIVE && value.0[..4] != [0; 4]) {
        check_cooperative(call, device, &callable, config, ctx)?;
    }
    let message = &mut call.thread.launch;
    (message.ctx, message.stream, message.callee) = (ctx, stream, callable.callee);
    (message.grid, message.block, message.shared) = (config.grid, config.block, config.shared);
    message.attributes.clear();
    message.attributes.extend_from_slice(attributes);
    // SAFETY: the caller gives the parameters that the function takes.
    unsafe { copy_params(&callable, arguments, &mut message.params.0) }?;
    match captured {
        None => call.submit_launch(),
        Some(target) => capture(call, target, callable, config, attributes),
    }
}

/// A launch as a node: its function, and the context for a kernel that is bound to none (NULL: the current one).
///
/// # Errors
/// As a launch.
pub(in crate::api) unsafe fn kernel_node(
    call: &mut Call<'_>,
    function: sys::CUfunction,
    ctx: sys::CUcontext,
    size: Size,
    (params, extra): (*mut *mut c_void, *mut *mut c_void),
) -> CuResult<Kernel> {
    let callable = Arc::clone(call.callable(function)?);
    let context = match (callable.owner(), ctx.is_null()) {
        (Some(owner), _) => Arc::clone(&owner.context),
        (None, true) => Arc::clone(call.context()?),
        (None, false) => call.session.context(ctx)?,
    };
    let Size { grid, block, shared } = size;
    let config = Config { grid, block, shared, stream: std::ptr::null_mut() };
    check_size(call, context.device.0 as usize, &callable, config)?;
    let mut bytes = Vec::new();
    // SAFETY: the caller gives the parameters that the function takes.
    unsafe { copy_params(&callable, Arguments { params, extra }, &mut bytes) }?;
    Ok(Kernel::new(callable, context.id, size, Vec::new(), &bytes))
}

/// Captures the launch that the thread has made.
fn capture(
    call: &mut Call<'_>,
    target: Target,
    callable: Arc<Callable>,
    config: Config,
    attributes: &[(u32, LaunchValue)],
) -> CuResult {
    let (early, mut rest): (Vec<_>, Vec<_>) = attributes.iter().copied().partition(|(id, _)| *id == EARLY);
    let early = early.iter().any(|(_, value)| value.0[..4] != [0; 4]);
    // A node has the priority of the stream that it was captured in.
    if let wire::Stream::Created(id) = target.stream.name()
        && let Some(priority) =
            call.session.streams.get(id.0).map(|stream| stream.priority.load(Ordering::Relaxed))
        && priority != 0
        && !rest.iter().any(|(id, _)| *id == PRIORITY)
    {
        let mut value = LaunchValue([0; 64]);
        value.0[..4].copy_from_slice(&priority.to_ne_bytes());
        rest.push((PRIORITY, value));
    }
    let size = Size { grid: config.grid, block: config.block, shared: config.shared };
    let kernel = Kernel::new(callable, target.ctx, size, rest, &call.thread.launch.params.0);
    let work = Work::Kernel(Arc::new(kernel));
    call.capture(target, if early { Captive::Early(work) } else { Captive::Work(work) })
}

/// What CUDA refuses at the call.
fn check_size(call: &Call<'_>, device: usize, callable: &Callable, config: Config) -> CuResult {
    let limits = call.session.devices.get(device).ok_or(CuError::INVALID_DEVICE)?.limits;
    let threads = config.block.iter().try_fold(1u32, |product, dim| product.checked_mul(*dim));
    let fits =
        |dims: [u32; 3], most: [u32; 3]| dims.iter().zip(most).all(|(dim, most)| (1..=most).contains(dim));
    let sized = fits(config.grid, limits.grid) && fits(config.block, limits.block);
    match threads {
        Some(threads) if sized && threads <= limits.threads => {
            if threads > callable.max_threads().unsigned_abs() {
                return Err(CuError::LAUNCH_OUT_OF_RESOURCES);
            }
        }
        _ => return Err(CuError::INVALID_VALUE),
    }
    if config.shared > callable.max_dynamic_shared().unsigned_abs() {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(())
}

/// A cooperative grid must fit on the device at once.
fn check_cooperative(
    call: &mut Call<'_>,
    device: usize,
    callable: &Callable,
    config: Config,
    ctx: wire::ContextId,
) -> CuResult {
    let block = config.block.iter().product();
    let message =
        OccupancyBlocks { ctx, callee: callable.callee, block, shared: config.shared.into(), flags: 0 };
    let resident = u64::from(call.ask(&message)?.unsigned_abs());
    let multiprocessors = call.session.devices.get(device).map_or(0, |device| device.limits.multiprocessors);
    let blocks = config.grid.iter().fold(1u64, |product, dim| product.saturating_mul((*dim).into()));
    if blocks > resident.saturating_mul(multiprocessors.into()) {
        return Err(CuError::COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    Ok(())
}

/// Lays the parameters out as the function takes them.
unsafe fn copy_params(callable: &Callable, from: Arguments, to: &mut Vec<u8>) -> CuResult {
    to.clear();
    match (from.params.is_null(), from.extra.is_null()) {
        (true, true) if callable.params.is_empty() => Ok(()),
        (true, true) | (false, false) => Err(CuError::INVALID_VALUE),
        (false, true) => {
            to.resize(callable.param_bytes, 0);
            for (index, param) in callable.params.iter().enumerate() {
                // SAFETY: the caller gives a pointer for each parameter.
                let value = unsafe { from.params.add(index).read() };
                let place = to.get_mut(param.offset as usize..(param.offset + param.size) as usize);
                let place = place.filter(|_| !value.is_null()).ok_or(CuError::INVALID_VALUE)?;
                // SAFETY: each points to as many bytes as the parameter has; `place` is a buffer of ours of that length.
                unsafe { std::ptr::copy_nonoverlapping(value.cast(), place.as_mut_ptr(), place.len()) };
            }
            Ok(())
        }
        // SAFETY: the caller's contract is the same.
        (true, false) => unsafe { copy_extra(callable, from.extra, to) },
    }
}

/// The other way to pass parameters: names and values, ended by NULL. A buffer may be longer or shorter than the function's
/// parameters: what is missing is zero.
unsafe fn copy_extra(callable: &Callable, extra: *mut *mut c_void, to: &mut Vec<u8>) -> CuResult {
    /// `CU_LAUNCH_PARAM_BUFFER_POINTER`, `CU_LAUNCH_PARAM_BUFFER_SIZE`.
    const POINTER: usize = 1;
    const SIZE: usize = 2;
    let (mut buffer, mut size) = (std::ptr::null_mut::<u8>(), 0);
    let mut at = extra;
    loop {
        // SAFETY: the list goes on until a NULL, and each name has a value.
        let name = unsafe { at.read() }.addr();
        if name == 0 {
            break;
        }
        // SAFETY: as above.
        let value = unsafe { at.add(1).read() };
        match name {
            POINTER => buffer = value.cast(),
            // SAFETY: the value of this name points to a size.
            SIZE if !value.is_null() => size = unsafe { value.cast::<usize>().read() },
            _ => return Err(CuError::INVALID_VALUE),
        }
        // SAFETY: as above.
        at = unsafe { at.add(2) };
    }
    let count = size.min(callable.param_bytes);
    if buffer.is_null() && count > 0 {
        return Err(CuError::INVALID_VALUE);
    }
    to.resize(callable.param_bytes, 0);
    if count > 0 {
        // SAFETY: the caller says that the buffer has `size` bytes, and `count` is no more.
        unsafe { std::ptr::copy_nonoverlapping(buffer, to.as_mut_ptr(), count) };
    }
    Ok(())
}
