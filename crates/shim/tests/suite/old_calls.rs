//! Calls that have newer forms, and the driver's error log, over a session whose server is a thread of the test.
#![allow(clippy::unwrap_used)]

use std::ffi::{c_char, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

use crate::fake::start;
use cuda_abi::{CuError, sys};
use cuda_shim::api::{context::*, coredump::*, launch::*, logs::*, module::*};
use wire::{Request, Stream};

const INVALID: Result<(), CuError> = Err(CuError::INVALID_VALUE);

fn function() -> sys::CUfunction {
    let (mut module, mut function) = (null_mut(), null_mut());
    // SAFETY: PTX, ended by a NUL; the pointers are this function's.
    unsafe {
        cuModuleLoadData(&raw mut module, c".version 8.0".as_ptr().cast()).unwrap();
        cuModuleGetFunction(&raw mut function, module, c"kernel".as_ptr()).unwrap();
    }
    function
}

#[test]
fn a_launch_takes_what_was_set_before() {
    let fake = start();
    let function = function();
    let mut pointer = 0x1122_3344_5566_7788u64;
    let launches = |fake: &crate::fake::Fake| {
        let seen = fake.seen.lock().unwrap();
        let launch = |request: &Request| match request {
            Request::Launch(launch) => Some(launch.clone()),
            _ => None,
        };
        seen.iter().filter_map(|(_, request)| launch(request)).collect::<Vec<_>>()
    };
    // SAFETY: a function of this process's session; the pointer is to 8 bytes.
    unsafe {
        assert_eq!(cuLaunch(function), INVALID, "a block has no size yet");
        cuFuncSetBlockShape(function, 64, 2, 1).unwrap();
        assert_eq!(cuLaunch(function), INVALID, "there are no parameters yet");
        cuFuncSetSharedSize(function, 512).unwrap();
        cuParamSetv(function, 0, (&raw mut pointer).cast(), 8).unwrap();
        cuParamSeti(function, 8, 77).unwrap();
        cuParamSetSize(function, 12).unwrap();
        cuLaunchGrid(function, 3, 5).unwrap();
        cuParamSetf(function, 8, 0.5).unwrap();
        cuLaunch(function).unwrap();
        for (x, y) in [(0, 1), (-1, 1), (1, -1)] {
            assert_eq!(cuLaunchGrid(function, x, y), INVALID, "{x} by {y} blocks");
            assert_eq!(cuFuncSetBlockShape(function, x, y, 1), INVALID);
        }
        assert_eq!(cuParamSetSize(function, 4097), INVALID);
        assert_eq!(cuParamSeti(function, -4, 1), INVALID);
        assert_eq!(cuParamSeti(function, 4093, 1), INVALID);
        assert_eq!(cuParamSetv(function, 0, null_mut(), 8), INVALID);
        cuLaunchGridAsync(function, 1, 1, null_mut()).unwrap();
        cuCtxSynchronize().unwrap();
    }
    let launches = launches(fake);
    let [grid, one, last] = &launches[..] else { panic!("{launches:?}") };
    assert_eq!(
        (grid.grid, grid.block, grid.shared, grid.stream),
        ([3, 5, 1], [64, 2, 1], 512, Stream::Legacy)
    );
    let params = |last: [u8; 4]| [pointer.to_le_bytes().as_slice(), &last].concat();
    assert_eq!(grid.params.0, params(77u32.to_le_bytes()));
    assert_eq!((one.grid, &one.params.0), ([1, 1, 1], &params(0.5f32.to_le_bytes())));
    assert_eq!(last.params, one.params, "what was set stays set");
}

#[test]
fn the_last_user_of_a_context_destroys_it() {
    start();
    let (mut primary, mut context, mut same) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the pointers are this test's.
    unsafe {
        cuCtxGetCurrent(&raw mut primary).unwrap();
        assert_eq!(cuCtxAttach(&raw mut same, 0), Err(CuError::INVALID_CONTEXT), "a primary context");
        cuCtxCreate_v2(&raw mut context, 0, 0).unwrap();
        assert_eq!(cuCtxAttach(&raw mut same, 1), INVALID);
        cuCtxAttach(&raw mut same, 0).unwrap();
        assert_eq!(same, context);
        assert_eq!(cuCtxDetach(primary), Err(CuError::INVALID_CONTEXT), "it is not current");
        cuCtxDetach(context).unwrap();
        cuCtxGetCurrent(&raw mut same).unwrap();
        assert_eq!(same, context, "one user is left");
        cuCtxDetach(context).unwrap();
        cuCtxGetCurrent(&raw mut same).unwrap();
        assert_eq!(same, primary);
        assert_eq!(cuCtxPushCurrent_v2(context), Err(CuError::INVALID_CONTEXT));
    }
}

static HEARD: Mutex<Vec<(usize, c_uint, String)>> = Mutex::new(Vec::new());

unsafe extern "C" fn hear(data: *mut c_void, level: sys::CUlogLevel, text: *mut c_char, length: usize) {
    // SAFETY: a text of that length.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    HEARD.lock().unwrap().push((data.addr(), level as c_uint, String::from_utf8(bytes.to_vec()).unwrap()));
}

#[test]
fn messages_of_the_driver_are_told_and_kept() {
    let fake = start();
    let (mut callback, mut place, mut function) = (null_mut(), 0, null_mut());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let mut buffer = [1 as c_char; 4096];
    // SAFETY: the pointers are this test's, and as large as it says.
    unsafe {
        assert_eq!(cuLogsRegisterCallback(None, null_mut(), &raw mut callback), INVALID);
        let data = std::ptr::without_provenance_mut(7);
        cuLogsRegisterCallback(Some(hear), data, &raw mut callback).unwrap();
        cuLogsCurrent(&raw mut place, 0).unwrap();
        assert_eq!(cuLogsCurrent(&raw mut place, 1), INVALID);
        let mut size = buffer.len();
        cuLogsDumpToMemory(&raw mut place, buffer.as_mut_ptr(), &raw mut size, 0).unwrap();
        assert_eq!((size, buffer[0]), (0, 0), "nothing has been said since");

        // A call that fails with a reason.
        let mut module = null_mut();
        cuModuleLoadData(&raw mut module, c".version 8.0".as_ptr().cast()).unwrap();
        fake.failing.lock().unwrap().insert("ModuleGetFunction", CuError::NOT_FOUND);
        let found = cuModuleGetFunction(&raw mut function, module, c"gone".as_ptr());
        fake.failing.lock().unwrap().clear();
        assert_eq!(found, Err(CuError::NOT_FOUND));
        let heard = HEARD.lock().unwrap().clone();
        let [(data, level, text)] = &heard[..] else { panic!("{heard:?}") };
        assert_eq!((*data, *level), (7, 0));
        assert!(text.contains("ModuleGetFunction"), "{text}");

        let mut whole = place;
        cuLogsDumpToFile(&raw mut whole, name.as_ptr(), 0).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("[CUDA][E] {text}\n"));
        let mut size = 8;
        assert_eq!(cuLogsDumpToMemory(&raw mut place, buffer.as_mut_ptr(), &raw mut size, 0), INVALID);
        assert_eq!(size, 0);
        let mut size = buffer.len();
        cuLogsDumpToMemory(&raw mut place, buffer.as_mut_ptr(), &raw mut size, 0).unwrap();
        assert_eq!((size, place), (text.len() + 11, whole));
        assert_eq!(cuLogsDumpToFile(null_mut(), c"/nowhere/log".as_ptr(), 0), INVALID);

        cuLogsUnregisterCallback(callback).unwrap();
        assert_eq!(cuLogsUnregisterCallback(callback), INVALID);
    }
}

#[test]
fn settings_of_core_dumps_are_kept() {
    start();
    let (light, trigger, flags, file) = (3, 2, 7, 5);
    let number = |get: unsafe fn(u32, *mut c_void, *mut usize) -> Result<(), CuError>, which| {
        let (mut value, mut size) = (0u32, 4);
        // SAFETY: four bytes.
        unsafe { get(which, (&raw mut value).cast(), &raw mut size) }.unwrap();
        value
    };
    let (here, everywhere) = (cuCoredumpGetAttribute, cuCoredumpGetAttributeGlobal);
    // SAFETY: the pointers are this test's, and as large as it says.
    unsafe {
        let (mut on, mut one, mut four, mut size) = (true, 1, 4, 0);
        let on: *mut c_void = (&raw mut on).cast();
        assert_eq!(cuCoredumpSetAttribute(1, on, &raw mut one), Err(CuError::NOT_SUPPORTED));
        assert_eq!((number(here, 1), number(here, trigger), number(everywhere, flags)), (0, 1, 0));
        cuCoredumpSetAttributeGlobal(light, on, &raw mut one).unwrap();
        assert_eq!((number(everywhere, flags), number(here, light)), (0x2f, 1));
        let mut value = 0x10u32;
        cuCoredumpSetAttribute(flags, (&raw mut value).cast(), &raw mut four).unwrap();
        assert_eq!((number(here, trigger), number(everywhere, trigger), number(here, light)), (0, 1, 0));
        value = 0x40;
        assert_eq!(cuCoredumpSetAttribute(flags, (&raw mut value).cast(), &raw mut four), INVALID);
        assert_eq!(cuCoredumpSetAttribute(flags, (&raw mut value).cast(), &raw mut one), INVALID);
        cuCoredumpGetAttribute(file, null_mut(), &raw mut size).unwrap();
        assert_eq!(size, 1024);
        let mut name = [0u8; 1024];
        cuCoredumpGetAttribute(file, name.as_mut_ptr().cast(), &raw mut size).unwrap();
        assert!(name.starts_with(b"core.cuda."));
        let mut chosen = *b"dump\0";
        let mut length = chosen.len();
        cuCoredumpSetAttribute(file, chosen.as_mut_ptr().cast(), &raw mut length).unwrap();
        cuCoredumpGetAttribute(file, name.as_mut_ptr().cast(), &raw mut size).unwrap();
        assert!(name.starts_with(b"dump\0"));
        assert_eq!(cuCoredumpGetAttribute(file, name.as_mut_ptr().cast(), &raw mut four), INVALID);
        assert_eq!(cuCoredumpGetAttribute(8, name.as_mut_ptr().cast(), &raw mut size), INVALID);
        assert_eq!(cuCoredumpGetAttributeGlobal(0, name.as_mut_ptr().cast(), &raw mut size), INVALID);
    }
}
