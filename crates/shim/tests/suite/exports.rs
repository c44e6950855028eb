//! The built library, as a program's loader sees it.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    ffi::{CString, c_char, c_int, c_uint, c_void},
    path::PathBuf,
    process::Command,
    ptr,
};

use cuda_abi::FunctionId;

/// Cargo builds the library beside this test.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libcuda_shim.so")
}

fn tool(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).arg(library()).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_functions_of_the_lists_are_exported_and_nothing_else() {
    let symbols = tool("nm", &["--dynamic", "--defined-only", "--format=just-symbols"]);
    let exported: BTreeSet<&str> = symbols.lines().collect();
    let mut expected: BTreeSet<&str> = FunctionId::all().map(FunctionId::symbol).collect();
    let nvml = cuda_shim::nvml::ANSWERED.iter().chain(cuda_shim::nvml::REFUSED);
    expected.extend(nvml.chain(&["nvmlErrorString"]));
    // By which a GPU server tells it from the driver.
    expected.insert("dormouse_shim");
    expected.insert("dormouse_shim_exclude");
    assert_eq!(exported, expected);
}

#[test]
fn it_is_known_as_the_driver_and_needs_only_the_c_library() {
    let dynamic = tool("readelf", &["--dynamic", "--wide"]);
    assert!(dynamic.contains("Library soname: [libcuda.so.1]"), "{dynamic}");
    for line in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        let known = [
            "libc.so.6",
            "libgcc_s.so.1",
            "ld-linux-x86-64.so.2",
            "libpthread.so.0",
            "libdl.so.2",
            "libm.so.6",
        ];
        assert!(known.iter().any(|name| line.contains(&format!("[{name}]"))), "{line}");
    }
}

type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_uint) -> c_uint;

/// Opens the library as cudart does; it stays open.
fn open() -> *mut c_void {
    let path = CString::new(library().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: a C string; the library's constructors do nothing.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{} cannot be loaded", library().display());
    handle
}

fn symbol(handle: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    // SAFETY: an open library and a C string.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// Release, flags → result, status, symbol; recorded from driver 580.159.04, with 77 for what it leaves alone.
#[test]
fn get_proc_address_answers_as_a_real_driver() {
    let handle = open();
    // SAFETY: the address of the function of this prototype.
    let get: GetProcAddress = unsafe { std::mem::transmute(symbol(handle, "cuGetProcAddress_v2")) };
    let untouched = ptr::without_provenance_mut(77);
    for (name, version, flags, result, status, found) in [
        ("", 0, 0, 0, 1, None),
        ("cuMemAlloc", 1000, 0, 0, 2, None),
        ("cuMemAlloc", 2000, 0, 0, 0, Some("cuMemAlloc")),
        ("cuMemAlloc", 3020, 0, 0, 0, Some("cuMemAlloc_v2")),
        ("cuMemAlloc_v2", 12000, 0, 0, 1, None),
        ("cuNoSuch", 12000, 0, 0, 1, None),
        ("cuMemcpy", 4000, 2, 0, 2, None),
        ("cuMemcpy", 7000, 2, 0, 0, Some("cuMemcpy_ptds")),
        ("cuMemcpy", 7000, 1, 0, 0, Some("cuMemcpy")),
        ("cuMemcpy", 7000, 3, 0, 0, Some("cuMemcpy_ptds")),
        ("cuMemcpy", 7000, 4, 1, 77, Some("77")),
        ("cuCtxSynchronize", 13010, 0, 1, 77, Some("77")),
        ("cuCtxSynchronize", 13000, 0, 0, 0, Some("cuCtxSynchronize_v2")),
        ("cuCtxSynchronize", 0, 0, 0, 2, None),
        ("cuCtxSynchronize", -1, 0, 0, 0, Some("cuCtxSynchronize_v2")),
    ] {
        let expected = match found {
            None => ptr::null_mut(),
            Some("77") => untouched,
            Some(symbol_name) => symbol(handle, symbol_name),
        };
        let c_name = CString::new(name).unwrap();
        let (mut address, mut answer) = (untouched, 77);
        // SAFETY: a C string, and two places to write to.
        let code = unsafe { get(c_name.as_ptr(), &raw mut address, version, flags, &raw mut answer) };
        assert_eq!((code, answer, address), (result, status, expected), "{name} {version} {flags}");
    }
}

#[test]
fn an_unsupported_function_says_so_whatever_its_arguments() {
    let handle = open();
    // SAFETY: the address of the function of this prototype.
    let launch: unsafe extern "C" fn(*mut c_void) -> c_uint =
        unsafe { std::mem::transmute(symbol(handle, "cuTexRefDestroy")) };
    // SAFETY: the function looks at no argument.
    assert_eq!(unsafe { launch(ptr::null_mut()) }, 801);
}
