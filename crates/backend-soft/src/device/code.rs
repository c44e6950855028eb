//! Device code: linking it, and why it is not loaded.

use backend::{LinkInput, LoadError};
use wire::CuError;

use crate::module::{Kernel, Module, ModuleError, Selected};

/// What a module's refusal is to the application.
pub(super) fn load_error(error: &ModuleError) -> LoadError {
    let code = match error {
        ModuleError::NoPtx(..) | ModuleError::Units(_) => CuError::NO_BINARY_FOR_GPU,
        ModuleError::Image(_) | ModuleError::Decompress(_) => CuError::INVALID_IMAGE,
        ModuleError::Memory(_) => CuError::OUT_OF_MEMORY,
        _ => CuError::INVALID_PTX,
    };
    LoadError { code, detail: error.to_string() }
}

/// Whether the JIT is asked to say more than what is wrong.
pub(super) fn is_verbose(options: &[(u32, u64)]) -> bool {
    const VERBOSE: u32 = cudarc::driver::sys::CUjit_option::CU_JIT_LOG_VERBOSE as u32;
    // Of the value, an `int` is meant.
    options.iter().any(|(option, value)| *option == VERBOSE && *value as u32 != 0)
}

/// What there is to say of a module that was loaded.
pub(super) fn told_of(module: &Module) -> String {
    let mut kernels: Vec<_> = module.kernels.values().collect();
    kernels.sort_by_key(|kernel| kernel.index);
    let told = kernels.into_iter().map(|kernel| {
        let Kernel { name, registers, static_shared, local_bytes, .. } = &**kernel;
        format!("{name}: {registers} registers, {static_shared} bytes of shared and {local_bytes} of local memory\n")
    });
    told.collect()
}

/// Makes one module of several, as text, for a device of this compute capability.
pub(super) fn link_ptx(inputs: &[LinkInput<'_>], capability: u32) -> std::result::Result<Vec<u8>, LoadError> {
    let mut units = Vec::with_capacity(inputs.len());
    for input in inputs {
        let parse = || Ok(ptx::parse(&Selected::of(input.data, capability)?.text)?);
        units.push(parse().map_err(|error: ModuleError| {
            let LoadError { code, detail } = load_error(&error);
            LoadError { code, detail: format!("{}: {detail}", input.name) }
        })?);
    }
    let linked = ptx::link(units);
    let linked =
        linked.map_err(|error| LoadError { code: CuError::INVALID_PTX, detail: error.to_string() })?;
    Ok(format!("{linked}\0").into_bytes())
}
