//! `CONTEXT_LOCAL_STORAGE`: values that each copy of cudart keeps per context. Asked for in almost every call of the
//! runtime, so it is a table in this process and nothing else.

use std::{
    collections::HashMap,
    ffi::{c_uint, c_void},
    sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError},
    thread,
    time::{Duration, Instant},
};

use cuda_abi::{CuError, CuResult, sys::CUcontext};

use super::slots::{Slot, Table};
use crate::facts;

/// It has no size word.
pub static TABLE: Table<4> = Table([
    Slot::function(put as *const c_void),
    Slot::function(delete as *const c_void),
    Slot::function(get as *const c_void),
    Slot::END,
]);

/// Called when a value's context goes.
type Destructor = unsafe extern "C" fn(context: CUcontext, key: *mut c_void, value: *mut c_void);

struct Entry {
    value: usize,
    destructor: Option<Destructor>,
}

/// Context and key, both as the addresses they are.
type Key = (usize, usize);

type Entries = Option<HashMap<Key, Entry>>;

static ENTRIES: RwLock<Entries> = RwLock::new(None);

/// Keeps a value under a key that has none yet.
unsafe extern "C" fn put(
    context: CUcontext,
    key: *mut c_void,
    value: *mut c_void,
    destructor: Option<Destructor>,
) -> c_uint {
    let put = || -> CuResult {
        let key = (resolve(context)?.addr(), key.addr());
        let mut entries = write()?;
        let entries = entries.get_or_insert_default();
        if entries.contains_key(&key) {
            return Err(CuError::INVALID_HANDLE);
        }
        entries.insert(key, Entry { value: value.expose_provenance(), destructor });
        Ok(())
    };
    put().map_or_else(CuError::code, |()| 0)
}

/// Forgets a value, without calling its destructor.
unsafe extern "C" fn delete(context: CUcontext, key: *mut c_void) -> c_uint {
    let delete = || -> CuResult {
        let key = (resolve(context)?.addr(), key.addr());
        let removed = write()?.as_mut().and_then(|entries| entries.remove(&key));
        removed.map(|_| ()).ok_or(CuError::INVALID_HANDLE)
    };
    delete().map_or_else(CuError::code, |()| 0)
}

/// Gives a value; where there is none, `value` is left as it is.
unsafe extern "C" fn get(value: *mut *mut c_void, context: CUcontext, key: *mut c_void) -> c_uint {
    let get = || -> CuResult {
        let key = (resolve(context)?.addr(), key.addr());
        let entries = read()?;
        let entry = entries.as_ref().and_then(|entries| entries.get(&key)).ok_or(CuError::INVALID_HANDLE)?;
        if value.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not NULL, so the caller's to write to.
        unsafe { value.write(std::ptr::with_exposed_provenance_mut(entry.value)) };
        Ok(())
    };
    get().map_or_else(CuError::code, |()| 0)
}

/// NULL means the current context.
fn resolve(context: CUcontext) -> CuResult<CUcontext> {
    if !context.is_null() {
        return Ok(context);
    }
    let current = facts::get()?.current_context();
    if current.is_null() { Err(CuError::INVALID_CONTEXT) } else { Ok(current) }
}

fn read() -> CuResult<RwLockReadGuard<'static, Entries>> {
    bounded(|| ENTRIES.try_read())
}

fn write() -> CuResult<RwLockWriteGuard<'static, Entries>> {
    bounded(|| ENTRIES.try_write())
}

/// Takes the lock. A child forked while another thread held it finds it locked for ever: it gets an error, as from
/// every call of CUDA in such a child, and can end.
fn bounded<G>(mut attempt: impl FnMut() -> Result<G, TryLockError<G>>) -> CuResult<G> {
    let mut deadline = None;
    loop {
        match attempt() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let now = Instant::now();
                if now > *deadline.get_or_insert(now + Duration::from_secs(1)) {
                    return Err(CuError::NOT_INITIALIZED);
                }
                thread::yield_now();
            }
        }
    }
}

/// Drops what is kept for a context and runs the destructors: call it when a context is destroyed, and when a primary
/// context is reset or released for the last time.
// The handle is a name of ours, which nobody follows.
#[allow(clippy::not_unsafe_ptr_arg_deref)]
pub fn context_gone(context: CUcontext) {
    let Ok(mut entries) = write() else { return };
    let Some(all) = entries.as_mut() else { return };
    let gone: Vec<(Key, Entry)> = all.extract_if(|(owner, _), _| *owner == context.addr()).collect();
    // Destructors may call back.
    drop(entries);
    for ((_, key), entry) in gone {
        if let Some(destructor) = entry.destructor {
            let key = std::ptr::with_exposed_provenance_mut(key);
            let value = std::ptr::with_exposed_provenance_mut(entry.value);
            // SAFETY: the destructor that came with the value, called once with the arguments it was promised.
            unsafe { destructor(context, key, value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{ptr, sync::Mutex};

    use super::*;

    fn handle(number: usize) -> CUcontext {
        ptr::without_provenance_mut(number)
    }

    fn word(number: usize) -> *mut c_void {
        ptr::without_provenance_mut(number)
    }

    fn read(context: usize, key: usize) -> (u32, usize) {
        let mut value = word(7);
        // SAFETY: `value` is there to be written.
        let code = unsafe { get(&raw mut value, handle(context), word(key)) };
        (code, value.addr())
    }

    /// Codes and untouched outputs as driver 580 gives them.
    #[test]
    fn values_are_kept_per_context_and_key() {
        // SAFETY: no pointer is followed.
        unsafe {
            assert_eq!(read(0x100, 1), (400, 7));
            assert_eq!(put(handle(0x100), word(1), word(11), None), 0);
            assert_eq!(put(handle(0x100), word(1), word(12), None), 400);
            assert_eq!(put(handle(0x200), word(1), word(21), None), 0);
            assert_eq!(read(0x100, 1), (0, 11));
            assert_eq!(read(0x200, 1), (0, 21));
            assert_eq!(delete(handle(0x100), word(1)), 0);
            assert_eq!(delete(handle(0x100), word(1)), 400);
            assert_eq!(read(0x100, 1), (400, 7));
            assert_eq!(read(0x200, 1), (0, 21));
        }
    }

    static DESTROYED: Mutex<Vec<(usize, usize, usize)>> = Mutex::new(Vec::new());

    unsafe extern "C" fn destructor(context: CUcontext, key: *mut c_void, value: *mut c_void) {
        // A destructor may use the table.
        assert_eq!(read(context.addr(), key.addr()), (400, 7));
        DESTROYED
            .lock()
            .map(|mut list| list.push((context.addr(), key.addr(), value.addr())))
            .unwrap_or_default();
    }

    #[test]
    fn destructors_run_when_the_context_goes() {
        // SAFETY: no pointer is followed.
        unsafe {
            assert_eq!(put(handle(0x300), word(1), word(31), Some(destructor)), 0);
            assert_eq!(put(handle(0x300), word(2), word(32), None), 0);
            assert_eq!(put(handle(0x400), word(1), word(41), Some(destructor)), 0);
        }
        context_gone(handle(0x300));
        context_gone(handle(0x300));
        assert_eq!(DESTROYED.lock().map(|list| list.clone()).unwrap_or_default(), [(0x300, 1, 31)]);
        assert_eq!(read(0x400, 1), (0, 41));
    }
}
