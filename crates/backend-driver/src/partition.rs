//! Green contexts. Drivers have them since CUDA 12.4, so their functions are looked for, not insisted on.
//!
//! The driver describes a set of multiprocessors by bytes of its own, which mean nothing in another process: a set is come to
//! anew each time, by the steps that the application has taken.

use crate::api::{check, find};
use crate::driver::Driver;
use backend::{Partitions, RawContext, RawGreen, RawStream, Result};
use cudarc::driver::sys;
use std::ffi::{c_int, c_uint};
use wire::{CuError, SM_REMAINDER, SmCount, SmSplit, SmStep};

/// `CU_DEV_RESOURCE_TYPE_SM`.
const SM: c_uint = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM as c_uint;
/// `CU_GREEN_CTX_DEFAULT_STREAM`, which is required.
const DEFAULT_STREAM: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`, likewise.
const NON_BLOCKING: c_uint = 1;

/// `CUdevResource`, of which this module reads a few words; the type may be any number.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Set {
    kind: c_uint,
    private: [u8; 92],
    count: u32,
    minimum: u32,
    alignment: u32,
    rest: [u32; 9],
}
const _: () = assert!(size_of::<Set>() == size_of::<sys::CUdevResource>());

const NOTHING: Set = Set { kind: 0, private: [0; 92], count: 0, minimum: 0, alignment: 0, rest: [0; 9] };

impl Set {
    fn told(&self) -> SmCount {
        match self.kind {
            SM => SmCount { count: self.count, minimum: self.minimum, alignment: self.alignment },
            _ => SmCount::default(),
        }
    }
}

macro_rules! functions {
    ($($name:ident($($ty:ty as $bound:ty),*);)*) => {
        /// The driver's functions.
        #[allow(non_snake_case)]
        pub struct Functions {
            $($name: unsafe extern "C" fn($($ty),*) -> c_uint,)*
        }

        $(const _: unsafe fn($($bound),*) -> sys::CUresult = sys::$name;)*

        impl Functions {
            /// Looks for them; `None` in an older driver.
            pub fn of(library: &libloading::Library) -> Option<Self> {
                Some(Self {
                    // SAFETY: the signatures are those of cuda.h, as the constants above check, but for types that are as large:
                    // numbers in place of enumerations, and `Set`.
                    $($name: unsafe { find(library, stringify!($name)) }.ok()?,)*
                })
            }
        }
    };
}

type Green = sys::CUgreenCtx;

functions! {
    cuDeviceGetDevResource(sys::CUdevice as sys::CUdevice, *mut Set as *mut sys::CUdevResource, c_uint as sys::CUdevResourceType);
    cuGreenCtxGetDevResource(Green as Green, *mut Set as *mut sys::CUdevResource, c_uint as sys::CUdevResourceType);
    cuDevSmResourceSplitByCount(
        *mut Set as *mut sys::CUdevResource, *mut c_uint as *mut c_uint, *const Set as *const sys::CUdevResource,
        *mut Set as *mut sys::CUdevResource, c_uint as c_uint, c_uint as c_uint
    );
    cuDevResourceGenerateDesc(
        *mut sys::CUdevResourceDesc as *mut sys::CUdevResourceDesc, *mut Set as *mut sys::CUdevResource, c_uint as c_uint
    );
    cuGreenCtxCreate(*mut Green as *mut Green, sys::CUdevResourceDesc as sys::CUdevResourceDesc, sys::CUdevice as sys::CUdevice, c_uint as c_uint);
    cuGreenCtxDestroy(Green as Green);
    cuGreenCtxStreamCreate(*mut sys::CUstream as *mut sys::CUstream, Green as Green, c_uint as c_uint, c_int as c_int);
}

/// A green context on the way to a set: what is split has to come from one.
struct OnTheWay<'a> {
    functions: &'a Functions,
    green: Green,
}

impl Drop for OnTheWay<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `Functions::create`, and nobody else has it.
        if let Err(error) = check(unsafe { (self.functions.cuGreenCtxDestroy)(self.green) }) {
            tracing::warn!(%error, "a green context stays");
        }
    }
}

impl Functions {
    fn create(&self, device: sys::CUdevice, parts: &mut [Set]) -> Result<Green> {
        let mut desc: sys::CUdevResourceDesc = std::ptr::null_mut();
        // SAFETY: the parts are the driver's own answers, and as many as it is told.
        check(unsafe {
            (self.cuDevResourceGenerateDesc)(&raw mut desc, parts.as_mut_ptr(), parts.len() as c_uint)
        })?;
        let mut green: Green = std::ptr::null_mut();
        // SAFETY: the description was just made.
        check(unsafe { (self.cuGreenCtxCreate)(&raw mut green, desc, device, DEFAULT_STREAM) })?;
        Ok(green)
    }

    fn split(&self, of: &Set, split: SmSplit) -> Result<(Vec<Set>, Set)> {
        let mut groups = vec![NOTHING; split.groups as usize];
        let mut made = split.groups;
        let mut rest = NOTHING;
        // SAFETY: as many results as the driver is told; `of` is its own answer.
        check(unsafe {
            (self.cuDevSmResourceSplitByCount)(
                groups.as_mut_ptr(),
                &raw mut made,
                &raw const *of,
                &raw mut rest,
                split.flags,
                split.minimum,
            )
        })?;
        groups.truncate(made as usize);
        Ok((groups, rest))
    }

    /// Comes to a set.
    fn reach(&self, device: sys::CUdevice, of: &[SmStep]) -> Result<Reached<'_>> {
        let mut all = NOTHING;
        // SAFETY: writes the resource.
        check(unsafe { (self.cuDeviceGetDevResource)(device, &raw mut all, SM) })?;
        let mut reached = Reached { functions: self, device, parts: vec![all], way: Vec::new() };
        for (index, step) in of.iter().enumerate() {
            let input = if index == 0 { all } else { reached.joined()? };
            let (groups, rest) = self.split(&input, step.split)?;
            let taken = step.taken.iter().map(|part| match *part {
                SM_REMAINDER => Some(rest),
                part => groups.get(part as usize).copied(),
            });
            let taken = taken.collect::<Option<Vec<_>>>().filter(|taken| !taken.is_empty());
            reached.parts = taken.ok_or(CuError::INVALID_RESOURCE_CONFIGURATION)?;
        }
        Ok(reached)
    }
}

/// A set that one has come to: its parts, and the green contexts that they are split from.
struct Reached<'a> {
    functions: &'a Functions,
    device: sys::CUdevice,
    parts: Vec<Set>,
    way: Vec<OnTheWay<'a>>,
}

impl Reached<'_> {
    /// All parts as one that can be split, which takes a green context.
    fn joined(&mut self) -> Result<Set> {
        let green = self.functions.create(self.device, &mut self.parts)?;
        self.way.push(OnTheWay { functions: self.functions, green });
        let mut set = NOTHING;
        // SAFETY: the green context was just made; writes the resource.
        check(unsafe { (self.functions.cuGreenCtxGetDevResource)(green, &raw mut set, SM) })?;
        Ok(set)
    }

    /// The parts as one, without a green context where there is only one.
    fn whole(&mut self) -> Result<Set> {
        match *self.parts.as_slice() {
            [only] => Ok(only),
            _ => self.joined(),
        }
    }
}

impl Driver {
    fn partitions(&self) -> Result<&Functions> {
        self.api.partitions.as_ref().ok_or(CuError::NOT_SUPPORTED)
    }
}

impl Partitions for Driver {
    fn sm_count(&self, device: usize, of: &[SmStep]) -> Result<SmCount> {
        let mut reached = self.partitions()?.reach(self.device(device)?, of)?;
        Ok(reached.whole()?.told())
    }

    fn sm_split(&self, device: usize, of: &[SmStep], split: SmSplit) -> Result<(Vec<SmCount>, SmCount)> {
        let functions = self.partitions()?;
        let mut reached = functions.reach(self.device(device)?, of)?;
        let input = if of.is_empty() { reached.whole()? } else { reached.joined()? };
        let (groups, rest) = functions.split(&input, split)?;
        Ok((groups.iter().map(Set::told).collect(), rest.told()))
    }

    fn green_create(&self, device: usize, of: &[SmStep]) -> Result<RawGreen> {
        let (functions, device) = (self.partitions()?, self.device(device)?);
        let mut reached = functions.reach(device, of)?;
        Ok(RawGreen(functions.create(device, &mut reached.parts)? as u64))
    }

    fn green_destroy(&self, green: RawGreen) -> Result<()> {
        // SAFETY: the server destroys what it made, once.
        check(unsafe { (self.partitions()?.cuGreenCtxDestroy)(green.0 as Green) })
    }

    fn green_stream_create(&self, ctx: RawContext, green: RawGreen, priority: i32) -> Result<RawStream> {
        self.enter(ctx)?;
        let mut made: sys::CUstream = std::ptr::null_mut();
        let create = self.partitions()?.cuGreenCtxStreamCreate;
        // SAFETY: the green context is there; writes the stream.
        check(unsafe { create(&raw mut made, green.0 as Green, NON_BLOCKING, priority) })?;
        Ok(RawStream(made as u64))
    }
}
