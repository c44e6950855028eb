//! Functions: attributes, checks, and what makes a launch of a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use backend::Launch;
use cudarc::driver::sys::{CUfunction_attribute as F, CUlaunchAttributeID as LaunchAttribute};
use wire::{CuError, FunctionFacts, Param};

use super::facts::{MAX_BLOCK, MAX_GRID, MULTIPROCESSORS, SHARED_OPTIN, SHARED_PER_BLOCK};
use super::occupancy;
use crate::module::{Kernel, Module};

/// A kernel of a loaded module.
pub struct Function {
    /// The module.
    pub module: Arc<Module>,
    /// Handle of the module.
    pub module_handle: u64,
    /// The kernel.
    pub kernel: Arc<Kernel>,
    max_dynamic: AtomicI32,
    carveout: AtomicI32,
}

/// What a launch's attributes ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// All blocks resident at once.
    pub cooperative: bool,
}

impl Function {
    /// A function with the attributes it has at first.
    pub fn new(module: Arc<Module>, module_handle: u64, kernel: Arc<Kernel>) -> Self {
        let max_dynamic = SHARED_PER_BLOCK.saturating_sub(kernel.static_shared) as i32;
        Self { module, module_handle, kernel, max_dynamic: max_dynamic.into(), carveout: AtomicI32::new(-1) }
    }

    /// Every attribute and its value.
    pub fn attributes(&self) -> Vec<(i32, i32)> {
        let kernel = &self.kernel;
        let int = |value: u64| i32::try_from(value).unwrap_or(i32::MAX);
        let version = |value: u32| value as i32;
        [
            (F::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel.max_threads as i32),
            (F::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, int(kernel.static_shared)),
            (F::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, int(kernel.constant_bytes)),
            (F::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, int(kernel.local_bytes)),
            (F::CU_FUNC_ATTRIBUTE_NUM_REGS, kernel.registers as i32),
            (F::CU_FUNC_ATTRIBUTE_PTX_VERSION, version(kernel.ptx_version)),
            (F::CU_FUNC_ATTRIBUTE_BINARY_VERSION, version(kernel.binary_version)),
            (F::CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, 0),
            (F::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, self.max_dynamic.load(Ordering::Relaxed)),
            (F::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, self.carveout.load(Ordering::Relaxed)),
            (F::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, 0),
            (F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 0),
            (F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, 0),
            (F::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, 0),
            (F::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 0),
            (F::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, 0),
        ]
        .map(|(attribute, value)| (attribute as i32, value))
        .to_vec()
    }

    /// One attribute.
    ///
    /// # Errors
    /// When there is no such attribute.
    pub fn attribute(&self, attribute: i32) -> Result<i32, CuError> {
        let all = self.attributes();
        all.iter().find(|(id, _)| *id == attribute).map(|(_, value)| *value).ok_or(CuError::INVALID_VALUE)
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// When it cannot be set, or not to that.
    pub fn set_attribute(&self, attribute: i32, value: i32) -> Result<(), CuError> {
        if attribute == F::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as i32 {
            let most = SHARED_OPTIN.saturating_sub(self.kernel.static_shared);
            if u64::try_from(value).is_ok_and(|value| value <= most) {
                self.max_dynamic.store(value, Ordering::Relaxed);
                return Ok(());
            }
        } else if attribute == F::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as i32 {
            if (-1..=100).contains(&value) {
                self.carveout.store(value, Ordering::Relaxed);
                return Ok(());
            }
        } else if attribute == F::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED as i32
            || attribute == F::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE as i32
        {
            return Ok(());
        }
        Err(CuError::INVALID_VALUE)
    }

    /// What the client is told.
    pub fn facts(&self) -> FunctionFacts {
        let param = |p: &crate::module::KernelParam| Param { offset: p.offset as u32, size: p.size as u32 };
        FunctionFacts {
            name: self.kernel.name.clone(),
            params: self.kernel.params.iter().map(param).collect(),
            attributes: self.attributes(),
        }
    }

    /// Dynamic shared memory that a launch may ask for.
    pub fn max_dynamic(&self) -> u64 {
        u64::try_from(self.max_dynamic.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Blocks of a launch that are resident at once.
    pub fn resident(&self, threads: u32, dynamic: u64) -> u64 {
        u64::from(occupancy::blocks(&self.kernel, threads, dynamic) * MULTIPROCESSORS)
    }

    /// Checks a launch as `cuLaunchKernelEx` does before it submits anything.
    ///
    /// # Errors
    /// What CUDA answers.
    pub fn check(&self, launch: &Launch<'_>) -> Result<Asked, CuError> {
        let kernel = &self.kernel;
        let within =
            |dims: [u32; 3], most: [u32; 3]| dims.iter().zip(most).all(|(&n, most)| (1..=most).contains(&n));
        let threads = launch.block.iter().try_fold(1u32, |all, n| all.checked_mul(*n)).unwrap_or(u32::MAX);
        if !within(launch.grid, MAX_GRID)
            || !within(launch.block, MAX_BLOCK)
            || threads > kernel.max_threads
            || kernel.required.is_some_and(|required| required != launch.block)
            || u64::from(launch.shared) > self.max_dynamic()
            || (launch.params.len() as u64) < kernel.param_bytes
        {
            return Err(CuError::INVALID_VALUE);
        }
        let mut asked = Asked::default();
        for (id, value) in launch.attributes {
            let word = |at: usize| {
                value.0[at..at + 4].iter().rev().fold(0u32, |all, byte| all << 8 | u32::from(*byte))
            };
            if *id == LaunchAttribute::CU_LAUNCH_ATTRIBUTE_COOPERATIVE as u32 {
                asked.cooperative = word(0) != 0;
            } else if *id == LaunchAttribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION as u32
                && (0..3).any(|axis| word(4 * axis) > 1)
            {
                return Err(CuError::NOT_SUPPORTED);
            }
        }
        let blocks: u64 = launch.grid.iter().map(|&n| u64::from(n)).product();
        if asked.cooperative && blocks > self.resident(threads, launch.shared.into()) {
            return Err(CuError::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        Ok(asked)
    }
}
