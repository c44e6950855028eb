//! Options of the JIT and the linker.

use cuda_abi::sys::CUjit_option;

/// Options whose values are numbers. The values of others are addresses in the application, which the client deals with: they mean
/// nothing to a server, whose device library would follow them.
const NUMBERS: [CUjit_option; 19] = [
    CUjit_option::CU_JIT_MAX_REGISTERS,
    CUjit_option::CU_JIT_THREADS_PER_BLOCK,
    CUjit_option::CU_JIT_OPTIMIZATION_LEVEL,
    CUjit_option::CU_JIT_TARGET_FROM_CUCONTEXT,
    CUjit_option::CU_JIT_TARGET,
    CUjit_option::CU_JIT_FALLBACK_STRATEGY,
    CUjit_option::CU_JIT_GENERATE_DEBUG_INFO,
    CUjit_option::CU_JIT_LOG_VERBOSE,
    CUjit_option::CU_JIT_GENERATE_LINE_INFO,
    CUjit_option::CU_JIT_CACHE_MODE,
    CUjit_option::CU_JIT_LTO,
    CUjit_option::CU_JIT_FTZ,
    CUjit_option::CU_JIT_PREC_DIV,
    CUjit_option::CU_JIT_PREC_SQRT,
    CUjit_option::CU_JIT_FMA,
    CUjit_option::CU_JIT_POSITION_INDEPENDENT_CODE,
    CUjit_option::CU_JIT_MIN_CTA_PER_SM,
    CUjit_option::CU_JIT_MAX_THREADS_PER_BLOCK,
    CUjit_option::CU_JIT_OVERRIDE_DIRECTIVE_VALUES,
];

/// Whether a JIT option's value is a number, so that a message may carry it.
#[must_use]
pub fn is_jit_number(option: u32) -> bool {
    NUMBERS.into_iter().any(|known| known as u32 == option)
}
