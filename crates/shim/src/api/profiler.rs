//! The switches of external profilers. None runs under Dormouse, and without one they do nothing.

use cuda_abi::CuResult;

/// Starts collecting in an attached profiler; there is none.
pub unsafe fn cuProfilerStart() -> CuResult {
    Ok(())
}

/// Stops collecting in an attached profiler; there is none.
pub unsafe fn cuProfilerStop() -> CuResult {
    Ok(())
}
