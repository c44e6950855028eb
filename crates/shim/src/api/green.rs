//! Green contexts: parts of a device's multiprocessors, and streams whose kernels run on them.
//!
//! A green context converts to its primary context "with the resources of the green one": modules, memory and events made while it is
//! current are the primary context's, and so are they here. What is its own are streams, the default one among them.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use cuda_abi::{CuError, CuResult, sys};
use wire::{
    ContextRecordEvent, ContextWaitEvent, Device, EventQuery, GreenCreate, GreenDestroy, GreenId, ResourceId,
    SM_GROUPS_MAX, SM_REMAINDER, SmCount, SmResource, SmResourceSplit, SmSet, SmSplit, SmStep,
};

use super::stream::{create, green_of};
use crate::client::{Call, Context, Owner, Stream, context_gone, handle, out, with};

/// `CU_DEV_RESOURCE_TYPE_SM`.
const SM: c_uint = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM as c_uint;
/// `CU_GREEN_CTX_DEFAULT_STREAM`, which is required.
const DEFAULT_STREAM: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`, likewise.
const NON_BLOCKING: c_uint = 1;

/// A `CUdevResource`: the library's own bytes hold a number here, of a set that the session knows.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Resource {
    kind: c_uint,
    number: u32,
    /// Whether it may be split: what comes out of a split has to become a green context's first.
    whole: u32,
    private: [u32; 21],
    count: u32,
    minimum: u32,
    alignment: u32,
    rest: [u32; 9],
}
const _: () = assert!(size_of::<Resource>() == size_of::<sys::CUdevResource>());

impl Resource {
    /// A set as the application holds it; one without multiprocessors is of no type.
    fn new(call: &Call<'_>, device: Device, set: SmSet, count: SmCount, whole: bool) -> Self {
        let SmCount { count, minimum, alignment } = count;
        let (kind, number) = if count == 0 { (0, 0) } else { (SM, call.session.sm_sets.number(device, set)) };
        Self { kind, number, whole: whole.into(), private: [0; 21], count, minimum, alignment, rest: [0; 9] }
    }

    /// The set that the application means.
    unsafe fn read(from: *const sys::CUdevResource, call: &Call<'_>) -> CuResult<(Self, Device, SmSet)> {
        if from.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not NULL, so the caller's to read: numbers, as many bytes as it has; nothing is said of its alignment.
        let resource = unsafe { from.cast::<Self>().read_unaligned() };
        if resource.kind != SM {
            return Err(CuError::INVALID_RESOURCE_TYPE);
        }
        let (device, set) = call.session.sm_sets.get(resource.number).ok_or(CuError::INVALID_VALUE)?;
        Ok((resource, device, set))
    }

    /// Writes it out.
    unsafe fn write(self, to: *mut sys::CUdevResource) {
        // SAFETY: the caller's to write to, as many bytes as it has.
        unsafe { to.cast::<Self>().write_unaligned(self) };
    }
}

/// The green context of a handle, and what it converts to; NULL is none.
fn green(call: &Call<'_>, handle: sys::CUgreenCtx) -> CuResult<Arc<Context>> {
    let id = GreenId::from_handle(handle.addr() as u64).ok_or(CuError::INVALID_CONTEXT)?;
    let found = call.session.contexts.get(id.0).filter(|context| context.green.is_some());
    found.ok_or(CuError::CONTEXT_IS_DESTROYED)
}

/// Tells of a set that can be split.
unsafe fn give_whole(
    resource: *mut sys::CUdevResource,
    kind: c_uint,
    set: impl FnOnce(&Call<'_>) -> CuResult<(Device, SmSet)>,
) -> CuResult {
    out(resource)?;
    if kind != SM {
        return Err(CuError::INVALID_RESOURCE_TYPE);
    }
    let found = with(|call| {
        let (device, of) = set(call)?;
        let count = call.ask(&SmResource { device, of: of.clone() })?;
        Ok(Resource::new(call, device, of, count, true))
    })?;
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { found.write(resource) };
    Ok(())
}

/// Tells of a device's multiprocessors.
pub unsafe fn cuDeviceGetDevResource(
    device: sys::CUdevice,
    resource: *mut sys::CUdevResource,
    type_: c_uint,
) -> CuResult {
    let all = |call: &Call<'_>| call.session.device(device).map(|_| (Device(device as u32), SmSet::new()));
    // SAFETY: the caller's contract is the same.
    unsafe { give_whole(resource, type_, all) }
}

/// Tells of those that a context has.
pub unsafe fn cuCtxGetDevResource(
    hCtx: sys::CUcontext,
    resource: *mut sys::CUdevResource,
    type_: c_uint,
) -> CuResult {
    let of = |call: &Call<'_>| {
        let context = call.session.any_context(hCtx)?;
        Ok((context.device, context.green.as_ref().map_or_else(SmSet::new, |green| green.of.clone())))
    };
    // SAFETY: the caller's contract is the same.
    unsafe { give_whole(resource, type_, of) }
}

/// Tells of those that a green context has.
pub unsafe fn cuGreenCtxGetDevResource(
    hCtx: sys::CUgreenCtx,
    resource: *mut sys::CUdevResource,
    type_: c_uint,
) -> CuResult {
    let of = |call: &Call<'_>| {
        let context = green(call, hCtx)?;
        Ok((context.device, context.green.as_ref().map_or_else(SmSet::new, |green| green.of.clone())))
    };
    // SAFETY: the caller's contract is the same.
    unsafe { give_whole(resource, type_, of) }
}

/// Splits a set into groups that are alike, and what is left.
pub unsafe fn cuDevSmResourceSplitByCount(
    result: *mut sys::CUdevResource,
    nbGroups: *mut c_uint,
    input: *const sys::CUdevResource,
    remaining: *mut sys::CUdevResource,
    useFlags: c_uint,
    minCount: c_uint,
) -> CuResult {
    let made = out(nbGroups)?;
    // SAFETY: not NULL, so the caller's to read.
    let asked = unsafe { nbGroups.read() };
    let room = if result.is_null() { SM_GROUPS_MAX } else { asked };
    if room == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let split = SmSplit { groups: room.min(SM_GROUPS_MAX), minimum: minCount, flags: useFlags };
    let (groups, rest) = with(|call| {
        // SAFETY: the caller's contract is the same.
        let (from, device, of) = unsafe { Resource::read(input, call)? };
        if from.whole == 0 {
            return Err(CuError::INVALID_RESOURCE_CONFIGURATION);
        }
        let (groups, rest) = call.ask(&SmResourceSplit { device, of: of.clone(), split })?;
        let part = |count: SmCount, part: u32| {
            let step = SmStep { split, taken: vec![part] };
            Resource::new(call, device, of.iter().cloned().chain([step]).collect(), count, false)
        };
        let groups: Vec<_> = groups.into_iter().zip(0..).map(|(count, index)| part(count, index)).collect();
        Ok((groups, part(rest, SM_REMAINDER)))
    })?;
    let count = groups.len().min(room as usize);
    if !result.is_null() {
        for (index, group) in groups.into_iter().take(count).enumerate() {
            // SAFETY: the caller gives as many elements as it says, and `count` is at most that.
            unsafe { group.write(result.add(index)) };
        }
    }
    if !remaining.is_null() {
        // SAFETY: the caller's to write to.
        unsafe { rest.write(remaining) };
    }
    // SAFETY: the caller's to write to.
    unsafe { made.set(count as c_uint) };
    Ok(())
}

/// Describes what a green context is to have: parts of one split, or a whole set.
pub unsafe fn cuDevResourceGenerateDesc(
    phDesc: *mut sys::CUdevResourceDesc,
    resources: *mut sys::CUdevResource,
    nbResources: c_uint,
) -> CuResult {
    let phDesc = out(phDesc)?;
    if resources.is_null() || nbResources == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let number = with(|call| {
        let mut all: Option<(Device, SmSet)> = None;
        for index in 0..nbResources as usize {
            // SAFETY: the caller gives as many elements.
            let (_, device, set) = unsafe { Resource::read(resources.add(index), call)? };
            all = Some(match all {
                None => (device, set),
                Some(all) => joined(all, (device, set)).ok_or(CuError::INVALID_RESOURCE_CONFIGURATION)?,
            });
        }
        let (device, set) = all.ok_or(CuError::INVALID_VALUE)?;
        Ok(call.session.sm_sets.number(device, set))
    })?;
    // SAFETY: the caller's to write to.
    unsafe { phDesc.set(handle(ResourceId(number).handle())) };
    Ok(())
}

/// Two sets as one: parts of the same split of the same device, none of them twice.
fn joined((device, mut all): (Device, SmSet), (other, mut set): (Device, SmSet)) -> Option<(Device, SmSet)> {
    let (into, from) = (all.pop()?, set.pop()?);
    let fits = device == other && all == set && into.split == from.split;
    if !fits || from.taken.iter().any(|part| into.taken.contains(part)) {
        return None;
    }
    let taken = into.taken.into_iter().chain(from.taken).collect();
    all.push(SmStep { taken, ..into });
    Some((device, all))
}

/// Makes a green context; the primary context is retained by it.
pub unsafe fn cuGreenCtxCreate(
    phCtx: *mut sys::CUgreenCtx,
    desc: sys::CUdevResourceDesc,
    dev: sys::CUdevice,
    flags: c_uint,
) -> CuResult {
    let phCtx = out(phCtx)?;
    if flags != DEFAULT_STREAM {
        return Err(CuError::INVALID_VALUE);
    }
    let id = with(|call| {
        call.session.device(dev)?;
        let number = ResourceId::from_handle(desc.addr() as u64).ok_or(CuError::INVALID_VALUE)?;
        let (device, of) = call.session.sm_sets.get(number.0).ok_or(CuError::INVALID_VALUE)?;
        if device != Device(dev as u32) {
            return Err(CuError::INVALID_VALUE);
        }
        let base = call.session.retain_primary(call, dev)?;
        let id = GreenId(call.session.next_id());
        if let Err(error) = call.ask(&GreenCreate { ctx: base.id, green: id, of: of.clone() }) {
            call.session.release_primary(call, dev, false)?;
            return Err(error);
        }
        let context = Arc::new(Context::of_green(id, &base, of));
        context.begin();
        call.session.contexts.insert(id.0, Arc::clone(&context));
        // NULL means it while the green context is current.
        let default = Stream {
            owner: Owner::new(&base),
            green: Some(context),
            flags: 0,
            priority: AtomicI32::new(0),
            gone: AtomicBool::new(false),
        };
        call.session.streams.insert(id.0, Arc::new(default));
        Ok(id)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { phCtx.set(handle(id.handle())) };
    Ok(())
}

/// Destroys a green context, with its streams; the primary context is released.
pub unsafe fn cuGreenCtxDestroy(hCtx: sys::CUgreenCtx) -> CuResult {
    let (context, primary) = with(|call| {
        let context = green(call, hCtx)?;
        let done = call.ask(&GreenDestroy { green: GreenId(context.id.0) });
        context.end();
        call.session.streams.sweep();
        call.session.contexts.sweep();
        // Nothing is retained any more after a reset.
        let primary = call.session.release_primary(call, context.device.0 as c_int, false).unwrap_or(None);
        done.map(|()| (context, primary))
    })?;
    context_gone(context.handle());
    primary.into_iter().for_each(context_gone);
    Ok(())
}

/// Gives the context to be made current, or named where a context is.
pub unsafe fn cuCtxFromGreenCtx(pContext: *mut sys::CUcontext, hCtx: sys::CUgreenCtx) -> CuResult {
    let pContext = out(pContext)?;
    let context = with(|call| green(call, hCtx))?;
    // SAFETY: the caller's to write to.
    unsafe { pContext.set(context.handle()) };
    Ok(())
}

/// Gives a number that no other context has; NULL is the current green context.
pub unsafe fn cuGreenCtxGetId(greenCtx: sys::CUgreenCtx, greenCtxId: *mut c_ulonglong) -> CuResult {
    let greenCtxId = out(greenCtxId)?;
    let id = with(|call| match greenCtx.is_null() {
        true => call.green().map(|green| green.id.0).ok_or(CuError::INVALID_CONTEXT),
        false => Ok(green(call, greenCtx)?.id.0),
    })?;
    // SAFETY: the caller's to write to.
    unsafe { greenCtxId.set(id.into()) };
    Ok(())
}

/// Makes a stream in a green context, whichever is current.
pub unsafe fn cuGreenCtxStreamCreate(
    phStream: *mut sys::CUstream,
    greenCtx: sys::CUgreenCtx,
    flags: c_uint,
    priority: c_int,
) -> CuResult {
    let phStream = out(phStream)?;
    if flags != NON_BLOCKING {
        return Err(CuError::INVALID_VALUE);
    }
    let id = with(|call| {
        let context = green(call, greenCtx)?;
        let base = Arc::clone(Context::base(&context));
        create(call, &base, Some(context), flags, priority)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { phStream.set(handle(id.handle())) };
    Ok(())
}

/// Gives the green context that a stream is in, or NULL.
pub unsafe fn cuStreamGetGreenCtx(hStream: sys::CUstream, phCtx: *mut sys::CUgreenCtx) -> CuResult {
    let phCtx = out(phCtx)?;
    let green = green_of(hStream)?.map_or(0, GreenId::handle);
    // SAFETY: the caller's to write to.
    unsafe { phCtx.set(handle(green)) };
    Ok(())
}

/// Records what all streams of a context have been given.
fn record(call: &mut Call<'_>, context: &Arc<Context>, event: sys::CUevent) -> CuResult {
    let (ctx, green) = (Context::base(context).id, context.green.as_ref().map(|green| green.id));
    call.refuse_captured_context(ctx)?;
    let (id, event) = call.event(event)?;
    let event = Arc::clone(event);
    if event.owner.context.id != ctx {
        return Err(CuError::INVALID_HANDLE);
    }
    event.captured.clear();
    call.submit(&ContextRecordEvent { ctx, green, event: id })?;
    if event.is_interprocess() {
        // Whoever is told of it by this process may wait for it at once: what is asked now is answered behind the record.
        return call.ask(&EventQuery { event: id }).map(|_| ());
    }
    event.records.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// Has all streams of a context wait.
fn wait(call: &mut Call<'_>, context: &Arc<Context>, event: sys::CUevent) -> CuResult {
    let (ctx, green) = (Context::base(context).id, context.green.as_ref().map(|green| green.id));
    call.refuse_captured_context(ctx)?;
    let (id, event) = call.event(event)?;
    if event.captured.capture().is_some() {
        return Err(CuError::STREAM_CAPTURE_UNSUPPORTED);
    }
    if event.pending().is_none() {
        return Ok(());
    }
    call.submit(&ContextWaitEvent { ctx, green, event: id })
}

/// Records what all streams of a context, its green ones included, have been given.
pub unsafe fn cuCtxRecordEvent(hCtx: sys::CUcontext, hEvent: sys::CUevent) -> CuResult {
    with(|call| {
        let context = call.session.any_context(hCtx)?;
        record(call, &context, hEvent)
    })
}

/// Has all streams of a context, its green ones included, wait.
pub unsafe fn cuCtxWaitEvent(hCtx: sys::CUcontext, hEvent: sys::CUevent) -> CuResult {
    with(|call| {
        let context = call.session.any_context(hCtx)?;
        wait(call, &context, hEvent)
    })
}

/// Records what the streams of a green context have been given.
pub unsafe fn cuGreenCtxRecordEvent(hCtx: sys::CUgreenCtx, hEvent: sys::CUevent) -> CuResult {
    with(|call| {
        let context = green(call, hCtx)?;
        record(call, &context, hEvent)
    })
}

/// Has the streams of a green context wait.
pub unsafe fn cuGreenCtxWaitEvent(hCtx: sys::CUgreenCtx, hEvent: sys::CUevent) -> CuResult {
    with(|call| {
        let context = green(call, hCtx)?;
        wait(call, &context, hEvent)
    })
}
