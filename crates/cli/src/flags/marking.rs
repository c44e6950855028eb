//! Flags of what compiles marked kernels.

use clap::Args;
use std::ffi::OsString;

/// `dormouse nvcc`
#[derive(Args, Debug)]
#[command(
    disable_version_flag = true,
    after_help = "A line `#pragma CPT` in a kernel, in the loop that takes its time, marks where it may stop half-way:\n\n  for (int i = 0; i < steps; i++) {\n      …\n  #pragma CPT\n  }\n\nThe arguments are nvcc's, and so are output and exit code. Where nvcc would keep machine code alone, it is told to keep the PTX, too: it is what has the marks. nvcc is the one that DORMOUSE_NVCC names, else that of PATH, of CUDA_HOME or CUDA_PATH, or of /usr/local/cuda.\n\nFor build systems that want a compiler to be a program, there is `dormouse-nvcc` beside `dormouse`:\n  cmake -DCMAKE_CUDA_COMPILER=$(command -v dormouse-nvcc) …\n\nFor other compilers, and NVRTC, dormouse.cuh has DORMOUSE_CPT(). Where to put marks and what they cost: docs/kernel-authors.md"
)]
pub struct Nvcc {
    /// What nvcc is to be called with
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    pub args: Vec<OsString>,
}

/// `dormouse nvcc-step`
#[derive(Args, Debug)]
pub struct NvccStep {
    /// Which
    pub phase: mark::Phase,
    /// What is compiled has no PTX in the end
    #[arg(long)]
    pub no_ptx: bool,
    /// The phase's command
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
