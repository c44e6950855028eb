//! The driver's functions over a session whose server is a thread of the test.
#![allow(clippy::unwrap_used)]

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::fake::start;
use cuda_abi::{CuError, sys};
use cuda_shim::api::{
    context::*, copy::*, event::*, host_memory::*, launch::*, library::*, memory::*, module::*, occupancy::*,
    set::*, stream::*, unified::*,
};
use cuda_shim::default_stream::{LEGACY, PER_THREAD};
use wire::{Request, Stream};

fn alloc(bytes: usize) -> u64 {
    let mut address = 0;
    // SAFETY: the pointer is this function's.
    unsafe { cuMemAlloc_v2(&raw mut address, bytes) }.unwrap();
    address
}

fn bytes(count: usize, seed: u8) -> Vec<u8> {
    (0..count)
        .map(|index| (index as u8).wrapping_mul(31).wrapping_add(index as u32 as u8 >> 3).wrapping_add(seed))
        .collect()
}

fn to_device(address: u64, from: &[u8]) -> Result<(), CuError> {
    // SAFETY: a slice.
    unsafe { cuMemcpyHtoD_v2(address, from.as_ptr().cast(), from.len(), LEGACY) }
}

fn from_device(address: u64, count: usize) -> Vec<u8> {
    let mut to = vec![0; count];
    // SAFETY: a slice.
    unsafe { cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), address, count, LEGACY) }.unwrap();
    to
}

fn module() -> sys::CUmodule {
    let mut module = null_mut();
    // SAFETY: PTX, ended by a NUL.
    unsafe { cuModuleLoadData(&raw mut module, c".version 8.0".as_ptr().cast()) }.unwrap();
    module
}

fn function(module: sys::CUmodule) -> sys::CUfunction {
    let mut function = null_mut();
    // SAFETY: the pointers are this function's.
    unsafe { cuModuleGetFunction(&raw mut function, module, c"kernel".as_ptr()) }.unwrap();
    function
}

fn launch(
    function: sys::CUfunction,
    grid: u32,
    block: u32,
    shared: u32,
    params: *mut *mut c_void,
) -> Result<(), CuError> {
    // SAFETY: the parameters are what the function takes.
    unsafe { cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, LEGACY, params, null_mut()) }
}

#[test]
fn copies_of_every_size_arrive() {
    let fake = start();
    for (seed, count) in [1, 7, 4096, 65_536, 65_537, 1 << 20, (5 << 20) + 13].into_iter().enumerate() {
        let address = alloc(count);
        let data = bytes(count, seed as u8);
        to_device(address, &data).unwrap();
        assert!(from_device(address, count) == data, "{count} bytes there and back");
        assert!(fake.device(address, count) == data);
    }
}

#[test]
fn rows_arrive_where_they_belong() {
    start();
    // Width, height, depth; pitches of host and device.
    for (width, height, depth, host_pitch, device_pitch) in [
        (3, 5, 1, 3, 512),
        (100, 40, 3, 128, 512),
        // More slices than a small copy has slots.
        (100, 4, 12, 128, 512),
        (1 << 19, 9, 1, 1 << 19, 1 << 19),
        ((1 << 20) + 4, 3, 2, 1 << 21, 1 << 21),
        // More pieces than slots: each slice is one.
        (32, 32, 5, 32, 512),
        (128, 3, 40, 128, 512),
        (1 << 12, 100, 20, 1 << 12, 1 << 12),
    ] {
        let address = alloc(device_pitch * height * depth);
        let host = bytes(host_pitch * height * depth, width as u8);
        let mut back = vec![0; host.len()];
        let copy = |to_device: bool, host: *mut u8| {
            let (device_kind, host_kind) =
                (sys::CUmemorytype::CU_MEMORYTYPE_DEVICE, sys::CUmemorytype::CU_MEMORYTYPE_HOST);
            // SAFETY: all zeros is a value of this struct but for the two kinds, which are set.
            let mut copy: sys::CUDA_MEMCPY3D = unsafe {
                let mut copy = std::mem::MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
                (&raw mut (*copy.as_mut_ptr()).srcMemoryType).write(host_kind);
                (&raw mut (*copy.as_mut_ptr()).dstMemoryType).write(host_kind);
                copy.assume_init()
            };
            (copy.WidthInBytes, copy.Height, copy.Depth) = (width, height, depth);
            if to_device {
                (copy.srcHost, copy.srcPitch, copy.srcHeight) = (host.cast(), host_pitch, height);
                (copy.dstMemoryType, copy.dstDevice, copy.dstPitch, copy.dstHeight) =
                    (device_kind, address, device_pitch, height);
            } else {
                (copy.dstHost, copy.dstPitch, copy.dstHeight) = (host.cast(), host_pitch, height);
                (copy.srcMemoryType, copy.srcDevice, copy.srcPitch, copy.srcHeight) =
                    (device_kind, address, device_pitch, height);
            }
            // SAFETY: the host side is a slice of that size.
            unsafe { cuMemcpy3D_v2(&raw const copy, LEGACY) }.unwrap();
        };
        copy(true, host.as_ptr().cast_mut());
        copy(false, back.as_mut_ptr());
        for (index, (sent, got)) in host.chunks(host_pitch).zip(back.chunks(host_pitch)).enumerate() {
            assert!(sent[..width] == got[..width], "row {index} of {width} bytes");
            assert!(got[width..].iter().all(|byte| *byte == 0), "what is between rows is left alone");
        }
    }
}

#[test]
fn pinned_memory_is_copied_by_its_address() {
    let fake = start();
    let mut pinned = null_mut();
    // SAFETY: the pointers are this test's.
    unsafe {
        cuMemHostAlloc(&raw mut pinned, 200_000, 0).unwrap();
        pinned.cast::<u8>().copy_from_nonoverlapping(bytes(200_000, 9).as_ptr(), 200_000);
        let address = alloc(200_000);
        cuMemcpyHtoDAsync_v2(address, pinned, 200_000, LEGACY).unwrap();
        cuStreamSynchronize(LEGACY).unwrap();
        assert!(fake.device(address, 200_000) == bytes(200_000, 9));
        let sent = fake.picked(|(_, request)| match request {
            Request::Copy(copy) if copy.dst == address => Some(copy.src),
            _ => None,
        });
        assert_eq!(sent, [pinned as u64], "one message, no bytes");

        let mut flags = 0;
        cuMemHostGetFlags(&raw mut flags, pinned.add(100)).unwrap();
        assert_eq!(flags, 2);
        let mut kind = 0u32;
        cuPointerGetAttribute((&raw mut kind).cast(), 2, pinned as u64 + 5).unwrap();
        assert_eq!(kind, 1, "host memory");
        assert_eq!(cuMemFreeHost(pinned.add(1)), Err(CuError::INVALID_VALUE));
        cuMemFreeHost(pinned).unwrap();
        assert_eq!(cuMemFreeHost(pinned), Err(CuError::INVALID_VALUE));
    }
}

#[test]
fn memory_is_filled_as_asked() {
    let fake = start();
    let address = alloc(4096);
    // SAFETY: no host memory is involved.
    unsafe {
        cuMemsetD8_v2(address, 0xab, 4096, LEGACY).unwrap();
        cuMemsetD32Async(address + 8, 0x0403_0201, 2, LEGACY).unwrap();
        cuMemsetD2D16_v2(address + 100, 64, 0x0605, 3, 2, LEGACY).unwrap();
        cuStreamSynchronize(LEGACY).unwrap();
        assert_eq!(cuMemsetD32_v2(address + 2, 0, 1, LEGACY), Err(CuError::INVALID_VALUE), "misaligned");
        assert_eq!(cuMemsetD8_v2(address, 0, 5000, LEGACY), Err(CuError::INVALID_VALUE), "too long");
        assert_eq!(cuMemsetD2D8_v2(address, 3, 0, 4, 2, LEGACY), Err(CuError::INVALID_VALUE), "rows overlap");
    }
    let got = fake.device(address, 200);
    assert_eq!(got[6..18], [0xab, 0xab, 1, 2, 3, 4, 1, 2, 3, 4, 0xab, 0xab]);
    assert_eq!(got[99..107], [0xab, 5, 6, 5, 6, 5, 6, 0xab]);
    assert_eq!(got[163..171], [0xab, 5, 6, 5, 6, 5, 6, 0xab]);
}

#[test]
fn launches_carry_their_parameters_and_bad_ones_are_refused() {
    let fake = start();
    let function = function(module());
    let (mut pointer, mut number) = (0x1122_3344_5566_7788u64, 0x0a0b_0c0du32);
    let mut params = [(&raw mut pointer).cast::<c_void>(), (&raw mut number).cast()];
    launch(function, 7, 128, 64, params.as_mut_ptr()).unwrap();
    let mut packed = [pointer.to_le_bytes().to_vec(), number.to_le_bytes().to_vec()].concat();
    let mut size = packed.len();
    let mut extra = [
        std::ptr::without_provenance_mut(1),
        packed.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(2),
        (&raw mut size).cast(),
        null_mut(),
    ];
    // SAFETY: the buffer has the size that is said.
    unsafe { cuLaunchKernel(function, 8, 1, 1, 1, 1, 1, 0, LEGACY, null_mut(), extra.as_mut_ptr()) }.unwrap();
    // SAFETY: no pointers.
    unsafe { cuCtxSynchronize() }.unwrap();
    let sent = fake.picked(|(_, request)| match request {
        Request::Launch(launch) if [7, 8].contains(&launch.grid[0]) => Some(launch.params.0.clone()),
        _ => None,
    });
    assert_eq!(sent, [packed.clone(), packed]);

    let refused = |result, grid, block, shared| {
        assert_eq!(launch(function, grid, block, shared, params.as_ptr().cast_mut()), Err(result))
    };
    refused(CuError::INVALID_VALUE, 0, 1, 0);
    refused(CuError::INVALID_VALUE, 1, 0, 0);
    refused(CuError::INVALID_VALUE, 1, 1025, 0);
    refused(CuError::LAUNCH_OUT_OF_RESOURCES, 1, 513, 0);
    refused(CuError::INVALID_VALUE, 1, 1, 4097);
    assert_eq!(launch(function, 1, 1, 0, null_mut()), Err(CuError::INVALID_VALUE), "no parameters");
    assert_eq!(launch(null_mut(), 1, 1, 0, null_mut()), Err(CuError::INVALID_HANDLE));
    // SAFETY: no pointers but the parameters.
    unsafe {
        let wide = cuLaunchCooperativeKernel(function, 17, 1, 1, 512, 1, 1, 0, LEGACY, params.as_mut_ptr());
        assert_eq!(
            wide,
            Err(CuError::COOPERATIVE_LAUNCH_TOO_LARGE),
            "four multiprocessors hold sixteen such blocks"
        );
        cuLaunchCooperativeKernel(function, 16, 1, 1, 512, 1, 1, 0, LEGACY, params.as_mut_ptr()).unwrap();
    }
}

#[test]
fn what_the_compiler_says_goes_to_the_log_that_asks_for_it() {
    start();
    use sys::CUjit_option::{
        CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER,
        CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_LOG_VERBOSE,
    };
    let mut options = [
        CU_JIT_INFO_LOG_BUFFER,
        CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        CU_JIT_ERROR_LOG_BUFFER,
        CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        CU_JIT_LOG_VERBOSE,
    ]
    .map(|option| option as u32);
    // The fake server says how many options it was sent: the buffers stay here.
    for (room, said) in [(64, "1 options"), (4, "1 o")] {
        let (mut info, mut errors, mut module) = ([b'x'; 64], [b'x'; 64], null_mut());
        let number = std::ptr::without_provenance_mut::<c_void>;
        let mut values =
            [info.as_mut_ptr().cast(), number(room), errors.as_mut_ptr().cast(), number(64), number(1)];
        // SAFETY: PTX, ended by a NUL; as many options as values, and buffers of those sizes.
        unsafe {
            let image = c".version 8.0".as_ptr().cast();
            cuModuleLoadDataEx(&raw mut module, image, 5, options.as_mut_ptr(), values.as_mut_ptr())
        }
        .unwrap();
        assert_eq!((&info[..said.len()], info[said.len()]), (said.as_bytes(), 0));
        assert_eq!((values[1].addr(), values[3].addr(), errors[0]), (said.len() + 1, 0, 0));
    }
}

#[test]
fn what_is_gone_has_no_handle() {
    start();
    let (mut stream, mut event, module) = (null_mut(), null_mut(), module());
    let function = function(module);
    let address = alloc(100);
    // SAFETY: the pointers are this test's.
    unsafe {
        cuStreamCreate(&raw mut stream, 1).unwrap();
        cuEventCreate(&raw mut event, 0).unwrap();
        assert_eq!(cuStreamQuery(stream), Err(CuError::NOT_READY));
        cuEventQuery(event).unwrap();
        let mut time = 0.0;
        assert_eq!(
            cuEventElapsedTime_v2(&raw mut time, event, event),
            Err(CuError::INVALID_HANDLE),
            "never recorded"
        );
        cuEventRecord(event, stream).unwrap();
        cuEventElapsedTime_v2(&raw mut time, event, event).unwrap();
        assert_eq!(time, 1.5);
        assert_eq!(cuEventQuery(event), Err(CuError::NOT_READY));
        cuEventSynchronize(event).unwrap();
        cuEventQuery(event).unwrap();
        cuEventRecord(event, stream).unwrap();
        assert_eq!(cuEventQuery(event), Err(CuError::NOT_READY), "recorded anew");

        assert_eq!(cuStreamSynchronize(event.cast()), Err(CuError::INVALID_HANDLE), "another kind of handle");
        assert_eq!(cuStreamDestroy_v2(LEGACY), Err(CuError::INVALID_HANDLE));
        cuStreamDestroy_v2(stream).unwrap();
        assert_eq!(cuStreamDestroy_v2(stream), Err(CuError::INVALID_HANDLE));
        assert_eq!(cuStreamSynchronize(stream), Err(CuError::INVALID_HANDLE));
        cuEventDestroy_v2(event).unwrap();
        assert_eq!(cuEventRecord(event, LEGACY), Err(CuError::INVALID_HANDLE));
        cuModuleUnload(module).unwrap();
        assert_eq!(cuModuleUnload(module), Err(CuError::INVALID_HANDLE));
        assert_eq!(launch(function, 1, 1, 0, null_mut()), Err(CuError::INVALID_HANDLE));
        cuMemFree_v2(0).unwrap();
        assert_eq!(cuMemFree_v2(address + 8), Err(CuError::INVALID_VALUE));
        cuMemFree_v2(address).unwrap();
        assert_eq!(cuMemFree_v2(address), Err(CuError::INVALID_VALUE));
        assert_eq!(to_device(address, b"x"), Err(CuError::INVALID_VALUE));
        assert_eq!(cuMemAlloc_v2(null_mut(), 1), Err(CuError::INVALID_VALUE));
        let mut nothing = 0;
        assert_eq!(cuMemAlloc_v2(&raw mut nothing, 0), Err(CuError::INVALID_VALUE));
    }
}

#[test]
fn contexts_take_their_own_with_them() {
    start();
    let (mut context, mut popped, mut stream) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the pointers are this test's.
    unsafe {
        cuCtxCreate_v2(&raw mut context, 0, 0).unwrap();
        let address = alloc(64);
        cuStreamCreate(&raw mut stream, 0).unwrap();
        let mut of = null_mut();
        cuStreamGetCtx(stream, &raw mut of).unwrap();
        assert_eq!(of, context);
        let module = module();
        cuCtxPopCurrent_v2(&raw mut popped).unwrap();
        assert_eq!(popped, context);
        let function = function(module);
        assert_eq!(
            launch(function, 1, 1, 0, [null_mut(); 2].as_mut_ptr()),
            Err(CuError::INVALID_HANDLE),
            "another context's"
        );
        cuCtxPushCurrent_v2(context).unwrap();
        cuCtxDestroy_v2(context).unwrap();
        assert_eq!(cuCtxPushCurrent_v2(context), Err(CuError::INVALID_CONTEXT));
        assert_eq!(cuStreamSynchronize(stream), Err(CuError::INVALID_HANDLE));
        assert_eq!(cuMemFree_v2(address), Err(CuError::INVALID_VALUE));
        assert_eq!(cuModuleUnload(module), Err(CuError::INVALID_HANDLE));
        let mut current = null_mut();
        cuCtxGetCurrent(&raw mut current).unwrap();
        assert_ne!(current, context, "it was popped");
        assert_eq!(
            cuCtxCreate_v2(&raw mut context, 3, 0),
            Err(CuError::INVALID_VALUE),
            "two ways to schedule"
        );
        assert_eq!(cuCtxCreate_v2(&raw mut context, 0, 7), Err(CuError::INVALID_DEVICE));
    }
    std::thread::spawn(|| {
        // SAFETY: the pointer is this test's.
        let without = unsafe { cuMemAlloc_v2(&mut 0, 1) };
        assert_eq!(without, Err(CuError::INVALID_CONTEXT));
    })
    .join()
    .unwrap();
}

#[test]
fn pointers_are_told_apart() {
    start();
    let address = alloc(1000);
    let (mut base, mut size) = (0, 0);
    let (mut kind, mut device, mut pointer) = (9u32, 9i32, 9u64);
    let mut attributes = [2, 9, 3];
    let mut data = [(&raw mut kind).cast::<c_void>(), (&raw mut device).cast(), (&raw mut pointer).cast()];
    // SAFETY: the pointers are this test's.
    unsafe {
        cuMemGetAddressRange_v2(&raw mut base, &raw mut size, address + 999).unwrap();
        assert_eq!((base, size), (address, 1000));
        assert_eq!(
            cuMemGetAddressRange_v2(&raw mut base, null_mut(), address + 1000),
            Err(CuError::NOT_FOUND)
        );
        cuPointerGetAttributes(3, attributes.as_mut_ptr(), data.as_mut_ptr(), address + 10).unwrap();
        assert_eq!((kind, device, pointer), (2, 0, address + 10));
        let own = 5u8;
        cuPointerGetAttributes(3, attributes.as_mut_ptr(), data.as_mut_ptr(), &raw const own as u64).unwrap();
        assert_eq!((kind, device, pointer), (0, -2, 0), "memory that CUDA does not know");
        assert_eq!(cuPointerGetAttribute(data[0], 2, &raw const own as u64), Err(CuError::INVALID_VALUE));
    }
}

static CALLED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn callback(data: *mut c_void) {
    // SAFETY: the pointer is this function's.
    assert_eq!(unsafe { cuMemAlloc_v2(&mut 0, 1) }, Err(CuError::NOT_PERMITTED));
    CALLED.fetch_add(data as u32, Ordering::Relaxed);
}

#[test]
fn host_functions_run_before_what_comes_after_them() {
    start();
    for count in 1..=20u32 {
        // SAFETY: the callback follows no pointer.
        unsafe {
            cuLaunchHostFunc(LEGACY, Some(callback), std::ptr::without_provenance_mut(1)).unwrap();
            cuStreamSynchronize(LEGACY).unwrap();
        }
        assert_eq!(CALLED.load(Ordering::Relaxed), count);
    }
}

#[test]
fn many_threads_each_have_their_own_order() {
    let fake = start();
    const THREADS: usize = 16;
    const ROUNDS: u32 = 100;
    let function = function(module()) as usize;
    let mut context = null_mut();
    // SAFETY: the pointer is this test's.
    unsafe { cuCtxGetCurrent(&raw mut context) }.unwrap();
    let context = context as usize;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                // SAFETY: a handle.
                unsafe { cuCtxSetCurrent(context as sys::CUcontext) }.unwrap();
                for round in 0..ROUNDS {
                    let (mut pointer, mut number) = (thread as u64, round);
                    let mut params = [(&raw mut pointer).cast::<c_void>(), (&raw mut number).cast()];
                    launch(function as sys::CUfunction, 1000 + thread as u32, 1, 0, params.as_mut_ptr())
                        .unwrap();
                    if round % 10 == 9 {
                        let data = bytes(100, round as u8);
                        let address = alloc(100);
                        to_device(address, &data).unwrap();
                        assert_eq!(from_device(address, 100), data);
                    }
                }
                // SAFETY: no pointers.
                unsafe { cuCtxSynchronize() }.unwrap();
            });
        }
    });
    for thread in 0..THREADS as u32 {
        let rounds = fake.picked(|(_, request)| match request {
            Request::Launch(launch) if launch.grid[0] == 1000 + thread => {
                Some(u32::from_le_bytes(launch.params.0[8..12].try_into().unwrap()))
            }
            _ => None,
        });
        assert_eq!(rounds, (0..ROUNDS).collect::<Vec<_>>());
    }
}

#[test]
fn block_sizes_are_found_and_streams_named() {
    let fake = start();
    let function = function(module());
    let (mut grid, mut block) = (0, 0);
    // SAFETY: the pointers are this test's.
    unsafe {
        cuOccupancyMaxPotentialBlockSize(&raw mut grid, &raw mut block, function, None, 0, 0).unwrap();
        assert_eq!((grid, block), (16, 512), "as many threads as the function may have");
        let function_null = cuModuleGetFunction(&mut null_mut(), null_mut(), c"x".as_ptr());
        assert_eq!(function_null, Err(CuError::INVALID_HANDLE));
        assert_eq!(cuModuleGetFunction(&mut null_mut(), module(), null()), Err(CuError::INVALID_VALUE));
        let mut info = (0, 0);
        cuFuncGetParamInfo(function, 1, &raw mut info.0, &raw mut info.1).unwrap();
        assert_eq!(info, (8, 4));
        assert_eq!(cuFuncGetParamInfo(function, 2, &raw mut info.0, null_mut()), Err(CuError::INVALID_VALUE));

        let address = alloc(64);
        cuMemsetD8Async(address, 1, 64, cuda_shim::default_stream::PER_THREAD).unwrap();
        cuStreamSynchronize(cuda_shim::default_stream::PER_THREAD).unwrap();
        let streams = fake.picked(|(_, request)| match request {
            Request::Fill(fill) if fill.dst == address => Some(fill.stream),
            _ => None,
        });
        assert_eq!(streams, [Stream::PerThread]);
    }
}

/// cuBLAS asks the table of contexts what a stream is known by, and for that one's number.
#[test]
fn the_private_table_knows_streams_as_the_public_function_does() {
    type StreamOf =
        unsafe extern "C" fn(sys::CUcontext, sys::CUstream, *mut sys::CUstream, std::ffi::c_int) -> u32;
    type StreamId = unsafe extern "C" fn(sys::CUcontext, sys::CUstream, *mut u64) -> u32;
    start();
    let table = 0x21318c60_97143248_8ca641ff_7324c8f2_u128.to_be_bytes();
    let table = cuda_shim::private::table(table).unwrap().cast::<*const c_void>();
    // SAFETY: the table has 93 words; these are functions of these types.
    let (stream_of, stream_id) = unsafe {
        (
            std::mem::transmute::<*const c_void, StreamOf>(table.add(51).read()),
            std::mem::transmute::<*const c_void, StreamId>(table.add(39).read()),
        )
    };
    let mut created = null_mut();
    // SAFETY: the pointer is this function's.
    unsafe { cuStreamCreate(&raw mut created, 0) }.unwrap();
    let number = |stream: sys::CUstream| {
        let mut id = 0;
        // SAFETY: the pointer is this function's.
        unsafe { cuStreamGetId(stream, &raw mut id) }.unwrap();
        id
    };
    let known = |stream: sys::CUstream, per_thread| {
        let (mut known, mut id) = (null_mut(), 0);
        // SAFETY: the pointers are this function's.
        let codes = unsafe {
            let code = stream_of(null_mut(), stream, &raw mut known, per_thread);
            (code, stream_id(null_mut(), known, &raw mut id))
        };
        (codes, id)
    };
    assert_eq!(known(created, 0), ((0, 0), number(created)));
    assert_eq!(known(null_mut(), 0), ((0, 0), number(LEGACY)));
    assert_eq!(known(null_mut(), 1), ((0, 0), number(PER_THREAD)));
    assert_eq!(known(PER_THREAD, 1), ((0, 0), number(PER_THREAD)));
    // SAFETY: a live stream.
    unsafe { cuStreamDestroy_v2(created) }.unwrap();
    assert_eq!(known(created, 0).0.0, CuError::INVALID_HANDLE.code());
}

#[test]
fn more_threads_than_rings_share_one() {
    start();
    let mut context = null_mut();
    // SAFETY: the pointer is this test's.
    unsafe { cuCtxGetCurrent(&raw mut context) }.unwrap();
    let context = context as usize;
    const THREADS: usize = transport::MAX_RINGS + 20;
    // All of them have made a call before the first one ends.
    let all = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let all = &all;
            let run = move || {
                // SAFETY: a handle.
                unsafe { cuCtxSetCurrent(context as sys::CUcontext) }.unwrap();
                let data = bytes(70_000, thread as u8);
                let address = alloc(data.len());
                to_device(address, &data).unwrap();
                all.wait();
                to_device(address, &data[1..]).unwrap();
                assert!(from_device(address, 69_999) == data[1..]);
                // SAFETY: no host memory.
                unsafe { cuMemFree_v2(address) }.unwrap();
            };
            std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, run).unwrap();
        }
    });
}

static SOURCE: std::sync::Mutex<[u8; 4]> = std::sync::Mutex::new([0; 4]);

unsafe extern "C" fn fill_source(data: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_millis(20));
    // SAFETY: the test's buffer, which nobody touches meanwhile.
    unsafe { data.cast::<[u8; 4]>().write([1, 2, 3, 4]) };
}

#[test]
fn a_copy_reads_what_a_host_function_before_it_has_written() {
    let fake = start();
    let mut guard = SOURCE.lock().unwrap();
    let source: *mut [u8; 4] = &raw mut *guard;
    let address = alloc(8);
    // SAFETY: the buffer is this test's, and stays.
    unsafe {
        cuLaunchHostFunc(LEGACY, Some(fill_source), source.cast()).unwrap();
        cuMemcpyHtoD_v2(address, source.cast(), 4, LEGACY).unwrap();
        cuStreamSynchronize(LEGACY).unwrap();
        assert_eq!(fake.device(address, 4), [1, 2, 3, 4]);

        source.write([0; 4]);
        // Where the server has something of its own, it stays where it is.
        let failing = fake.fail("HostRegister", CuError::MAP_FAILED);
        cuMemHostRegister_v2(source.cast(), 4, 0).unwrap();
        drop(failing);
        assert_eq!(
            cuMemHostRegister_v2(source.cast::<u8>().add(3).cast(), 4, 0),
            Err(CuError::HOST_MEMORY_ALREADY_REGISTERED)
        );
        let failed = fake.fail("StreamQuery", CuError::ILLEGAL_ADDRESS);
        assert_eq!(cuMemHostRegister_v2(source.cast(), 4, 0), Err(CuError::ILLEGAL_ADDRESS));
        drop(failed);
        cuLaunchHostFunc(LEGACY, Some(fill_source), source.cast()).unwrap();
        cuMemcpyHtoDAsync_v2(address + 4, source.cast(), 4, LEGACY).unwrap();
        cuStreamSynchronize(LEGACY).unwrap();
        assert_eq!(fake.device(address + 4, 4), [1, 2, 3, 4]);
        assert_eq!(cuMemHostGetDevicePointer_v2(&mut 0, source.cast(), 0), Err(CuError::NOT_SUPPORTED));
        // Whoever runs the job is told by name.
        cuStreamSynchronize(LEGACY).unwrap();
        let told = fake.picked(|(_, request)| match request {
            Request::Notice(notice) => Some(notice.text.clone()),
            _ => None,
        });
        assert!(told.iter().any(|text| text.starts_with("cuMemHostGetDevicePointer_v2 is not")), "{told:?}");
        assert_eq!(cuMemFreeHost(source.cast()), Err(CuError::INVALID_VALUE));
        cuMemHostUnregister(source.cast()).unwrap();
        assert_eq!(cuMemHostUnregister(source.cast()), Err(CuError::HOST_MEMORY_NOT_REGISTERED));
    }
}

#[test]
fn lists_longer_than_an_answer_are_put_together() {
    let fake = start();
    let module = module();
    let (mut count, mut found) = (0, [null_mut(); 4]);
    // SAFETY: the pointers are this test's, and `found` has as many elements as are asked for.
    unsafe {
        cuModuleGetFunctionCount(&raw mut count, module).unwrap();
        cuModuleEnumerateFunctions(found.as_mut_ptr(), 2, module).unwrap();
        assert!(count == 3 && !found[1].is_null() && found[2].is_null(), "{count} {found:?}");
        cuModuleEnumerateFunctions(found.as_mut_ptr(), 4, module).unwrap();
    }
    let mut library = null_mut();
    // SAFETY: PTX, ended by a NUL.
    unsafe {
        let code = c".version 8.0".as_ptr().cast();
        cuLibraryLoadData(&raw mut library, code, null_mut(), null_mut(), 0, null_mut(), null_mut(), 0)
            .unwrap();
    }
    let mut kernels = [null_mut(); 4];
    // SAFETY: as above.
    unsafe {
        cuLibraryGetKernelCount(&raw mut count, library).unwrap();
        cuLibraryEnumerateKernels(kernels.as_mut_ptr(), 4, library).unwrap();
    }
    assert_eq!(count, 3);
    for (found, kernel) in found.iter().zip(&kernels).take(3) {
        assert!(!found.is_null() && !kernel.is_null());
    }
    assert!(found[3].is_null() && kernels[3].is_null());
    let names = fake.picked(|(_, request)| match request {
        Request::LibraryGetKernel(get) => Some(get.name.clone()),
        _ => None,
    });
    assert_eq!(names, ["first", "second", "third"]);
}
