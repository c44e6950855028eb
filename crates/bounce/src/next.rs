//! The C library's own functions, which those of this library stand before.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

macro_rules! names {
    ($($name:ident)*) => {
        /// A function that there is here and in the C library.
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types)]
        pub enum Name { $($name),* }

        const NAMES: [&CStr; [$(Name::$name),*].len()] =
            [$(terminated(concat!(stringify!($name), "\0").as_bytes())),*];
    };
}

names! {
    read __read_chk pread pread64 __pread_chk __pread64_chk write pwrite pwrite64
    readv preadv preadv64 preadv2 preadv64v2 writev pwritev pwritev64 pwritev2 pwritev64v2
    recv __recv_chk recvfrom __recvfrom_chk recvmsg send sendto sendmsg
    fread fread_unlocked __fread_chk __fread_unlocked_chk fwrite fwrite_unlocked
    __read __write __pread64 __pwrite64
    getrandom getentropy arc4random_buf
}

const fn terminated(bytes: &'static [u8]) -> &'static CStr {
    match CStr::from_bytes_with_nul(bytes) {
        Ok(name) => name,
        Err(_) => panic!("one zero, at its end"),
    }
}

/// Where each is, as far as that is known: looked up when the library is loaded, not later, when the loader may be busy or a signal be handled.
pub static TABLE: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(null_mut()) }; NAMES.len()];

#[used]
#[unsafe(link_section = ".init_array")]
static FILL: extern "C" fn() = fill;

extern "C" fn fill() {
    for (entry, name) in TABLE.iter().zip(NAMES) {
        entry.store(look_up(name), Ordering::Relaxed);
    }
    // What an older C library has not is nobody's error.
    // SAFETY: it takes nothing.
    unsafe { libc::dlerror() };
}

fn look_up(name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends with a zero.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Where the C library's function is; `None` if it has none of that name.
pub fn find(name: Name) -> Option<*mut c_void> {
    let known = TABLE[name as usize].load(Ordering::Relaxed);
    // Whoever is loaded may call before this library is told that it has been.
    let found = if known.is_null() { look_up(NAMES[name as usize]) } else { known };
    (!found.is_null()).then_some(found)
}

/// Calls the C library's function that has this name, of these types. Where it has none such the call fails with `ENOSYS`.
macro_rules! next {
    ($name:ident($($argument:expr => $type:ty),*) -> $result:ty) => {
        match $crate::next::find($crate::next::Name::$name) {
            Some(found) => {
                // SAFETY: the C library's function of this name has this type, and is called as whoever has called this one would.
                let function = unsafe {
                    std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($type),*) -> $result>(found)
                };
                // SAFETY: as above.
                unsafe { function($($argument),*) }
            }
            None => $crate::next::missing() as $result,
        }
    };
}
pub(crate) use next;

/// The answer of a function that the C library has not.
pub fn missing() -> isize {
    set_errno(libc::ENOSYS);
    -1
}

pub fn errno() -> c_int {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(errno: c_int) {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Defines a function: it jumps to the C library's, unless the address in a register is one of a device's memory, or `decides`, which takes what it
/// takes, says that one is; then it is `slow` that is called. So is it while the C library's is not known.
macro_rules! entry {
    ($name:ident if $register:literal => $slow:path) => {
        $crate::next::entry!(@define $name, $slow,
            concat!("mov rax, ", $register),
            "shr rax, 44",
            "sub rax, {first}",
            "cmp rax, {count}",
            "jb 2f";
            first = const $crate::buffer::DEVICE.start >> 44,
            count = const ($crate::buffer::DEVICE.end - $crate::buffer::DEVICE.start) >> 44,
        );
    };
    ($name:ident if $decides:path => $slow:path) => {
        $crate::next::entry!(@define $name, $slow,
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "push r9",
            // The stack is aligned as a call needs it.
            "sub rsp, 8",
            "call {decides}",
            "add rsp, 8",
            "pop r9",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "test al, al",
            "jne 2f";
            decides = sym $decides,
        );
    };
    (@define $name:ident, $slow:path, $($line:expr),*; $($operand:tt)*) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                $($line,)*
                "mov r11, [rip + {table} + {offset}]",
                "test r11, r11",
                "je 2f",
                "jmp r11",
                "2:",
                "jmp {slow}",
                table = sym $crate::next::TABLE,
                offset = const $crate::next::Name::$name as usize * size_of::<usize>(),
                slow = sym $slow,
                $($operand)*
            )
        }
    };
}
pub(crate) use entry;
