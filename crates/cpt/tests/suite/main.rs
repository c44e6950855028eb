//! The pass, and kernels that it has made, stopped and launched again on the software device.
#![allow(clippy::unwrap_used)]

mod device;
mod fuzz;
mod generate;
mod golden;
mod keeping;
mod random;
mod reference;
mod refusing;
mod stopping;

/// Marked kernels.
const KERNELS: &str = include_str!("kernels.ptx");

fn rewritten() -> cpt::Rewritten {
    cpt::rewrite(&ptx::parse(KERNELS).unwrap()).unwrap().unwrap()
}
