//! Settings of GPU core dumps. They are kept and told; a dump itself cannot be switched on, since it would be one of the server.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use cuda_abi::{CuError, CuResult};
use wire::ContextId;

use crate::client::{out, session, with};

/// `CUCoredumpGenerationFlags`: all, the ones of a light dump, and the one to keep the process alive.
const FLAGS: u32 = 0x3f;
const LIGHT: u32 = 0x2f;
const SKIP_ABORT: u32 = 0x10;
/// The room for a text, with its NUL.
const TEXT: usize = 1024;

/// What is set, for all contexts or for one.
#[derive(Default)]
struct Settings {
    flags: Option<u32>,
    file: Option<Vec<u8>>,
    pipe: Option<Vec<u8>>,
}

/// By context; `None` is for all.
static SETTINGS: LazyLock<Mutex<HashMap<Option<ContextId>, Settings>>> = LazyLock::new(Mutex::default);

fn settings() -> MutexGuard<'static, HashMap<Option<ContextId>, Settings>> {
    SETTINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `CUcoredumpSettings`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attribute {
    OnException,
    TriggerHost,
    Light,
    UserTrigger,
    File,
    Pipe,
    Flags,
}

impl Attribute {
    fn from_number(number: u32) -> CuResult<Self> {
        let all = [
            Self::OnException,
            Self::TriggerHost,
            Self::Light,
            Self::UserTrigger,
            Self::File,
            Self::Pipe,
            Self::Flags,
        ];
        let index = (number as usize).checked_sub(1).ok_or(CuError::INVALID_VALUE)?;
        all.get(index).copied().ok_or(CuError::INVALID_VALUE)
    }

    /// How large a value is.
    fn bytes(self) -> usize {
        match self {
            Self::OnException | Self::TriggerHost | Self::Light | Self::UserTrigger => 1,
            Self::Flags => size_of::<u32>(),
            Self::File | Self::Pipe => TEXT,
        }
    }
}

/// The name that a dump or a pipe has if nobody says another.
fn default_name(kind: &str) -> Vec<u8> {
    let mut host = [0u8; 256];
    // SAFETY: the buffer has that many bytes, one more than are written.
    unsafe { libc::gethostname(host.as_mut_ptr().cast(), host.len() - 1) };
    let host = host.split(|byte| *byte == 0).next().unwrap_or_default();
    format!("{kind}.cuda.{}.{}", String::from_utf8_lossy(host), std::process::id()).into_bytes()
}

/// The value of an attribute in a context.
fn value(of: Option<ContextId>, attribute: Attribute) -> Vec<u8> {
    let settings = settings();
    let set = [of, None].into_iter().filter_map(|key| settings.get(&key)).collect::<Vec<_>>();
    let flags = set.iter().find_map(|set| set.flags).unwrap_or(0);
    match attribute {
        Attribute::OnException | Attribute::UserTrigger => vec![0],
        Attribute::TriggerHost => vec![u8::from(flags & SKIP_ABORT == 0)],
        Attribute::Light => vec![u8::from(flags & LIGHT == LIGHT)],
        Attribute::Flags => flags.to_ne_bytes().to_vec(),
        Attribute::File => {
            let mut text =
                set.iter().find_map(|set| set.file.clone()).unwrap_or_else(|| default_name("core"));
            text.push(0);
            text
        }
        Attribute::Pipe => {
            let text = set.iter().find_map(|set| set.pipe.clone());
            let mut text = text.unwrap_or_else(|| default_name("corepipe"));
            text.push(0);
            text
        }
    }
}

/// Gives a value, or only how large it is.
unsafe fn get(of: Option<ContextId>, attribute: u32, to: *mut c_void, size: *mut usize) -> CuResult {
    let attribute = Attribute::from_number(attribute)?;
    let told = out(size)?;
    if to.is_null() {
        // SAFETY: the caller's to write to.
        unsafe { told.set(attribute.bytes()) };
        return Ok(());
    }
    let value = value(of, attribute);
    // SAFETY: not NULL, so the caller's to read.
    if unsafe { size.read() } < value.len() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller has as many bytes there as it says, which are enough.
    unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to.cast(), value.len()) };
    Ok(())
}

/// Sets a value.
unsafe fn set(of: Option<ContextId>, attribute: u32, from: *const c_void, size: *const usize) -> CuResult {
    let attribute = Attribute::from_number(attribute)?;
    if from.is_null() || size.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's to read.
    let bytes = unsafe { size.read() };
    let is_text = matches!(attribute, Attribute::File | Attribute::Pipe);
    if bytes > attribute.bytes() || (!is_text && bytes < attribute.bytes()) {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller has as many bytes there as it says.
    let value = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
    let text = || value.iter().copied().take_while(|byte| *byte != 0).collect::<Vec<u8>>();
    let is_on = value.first().is_some_and(|byte| *byte != 0);
    let mut all = settings();
    let before = [of, None].into_iter().find_map(|key| all.get(&key)?.flags).unwrap_or(0);
    let set = all.entry(of).or_default();
    let with = |bits: u32, on: bool| if on { before | bits } else { before & !bits };
    match attribute {
        Attribute::OnException | Attribute::UserTrigger if is_on => return Err(CuError::NOT_SUPPORTED),
        Attribute::OnException | Attribute::UserTrigger => {}
        Attribute::TriggerHost => set.flags = Some(with(SKIP_ABORT, !is_on)),
        Attribute::Light => set.flags = Some(with(LIGHT, is_on)),
        Attribute::Flags => {
            let flags = value.iter().rev().fold(0, |flags, byte| flags << 8 | u32::from(*byte));
            if flags & !FLAGS != 0 {
                return Err(CuError::INVALID_VALUE);
            }
            set.flags = Some(flags);
        }
        Attribute::File => set.file = Some(text()),
        Attribute::Pipe => set.pipe = Some(text()),
    }
    Ok(())
}

/// Gives a setting of the current context.
pub unsafe fn cuCoredumpGetAttribute(attrib: u32, value: *mut c_void, size: *mut usize) -> CuResult {
    let ctx = with(|call| Ok(call.context()?.id))?;
    // SAFETY: the caller's contract is the same.
    unsafe { get(Some(ctx), attrib, value, size) }
}

/// Gives a setting of all contexts that have none of their own.
pub unsafe fn cuCoredumpGetAttributeGlobal(attrib: u32, value: *mut c_void, size: *mut usize) -> CuResult {
    session()?;
    // SAFETY: the caller's contract is the same.
    unsafe { get(None, attrib, value, size) }
}

/// Sets it for the current context.
pub unsafe fn cuCoredumpSetAttribute(attrib: u32, value: *mut c_void, size: *mut usize) -> CuResult {
    let ctx = with(|call| Ok(call.context()?.id))?;
    // SAFETY: the caller's contract is the same.
    unsafe { set(Some(ctx), attrib, value, size) }
}

/// Sets it for all contexts that have none of their own.
pub unsafe fn cuCoredumpSetAttributeGlobal(attrib: u32, value: *mut c_void, size: *mut usize) -> CuResult {
    session()?;
    // SAFETY: the caller's contract is the same.
    unsafe { set(None, attrib, value, size) }
}
