//! `dormouse nvcc`, also called as `dormouse-nvcc`.

use crate::exit::OWN_FAILURE;
use crate::flags::NvccStep;
use crate::output::complain;
use checkpoint::{Failure, Kind, quoted};
use mark::Nvcc;
use std::convert::Infallible;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// The name under which this program is nvcc.
const NAME: &str = "dormouse-nvcc";

/// The arguments for nvcc, when this program is called by that name.
pub fn called() -> Option<Vec<OsString>> {
    let mut args = std::env::args_os();
    let is_it = Path::new(&args.next()?).file_name().is_some_and(|name| name == NAME);
    is_it.then(|| args.collect())
}

/// Becomes nvcc.
pub fn run(args: &[OsString]) -> ExitCode {
    let Err((failure, code)) = start(args);
    complain(&failure);
    ExitCode::from(code)
}

fn start(args: &[OsString]) -> Result<Infallible, (Failure, u8)> {
    let nvcc = Nvcc::find().map_err(|error| (Failure::new(Kind::NotFound, error.to_string()), 127))?;
    let own = std::env::current_exe()
        .map_err(|error| (Failure::of("cannot find this program", &error), OWN_FAILURE))?;
    let Some(own) = own.to_str() else {
        let message = format!("nvcc cannot be told of {}, which is no text", own.display());
        return Err((Failure::new(Kind::Failed, message), OWN_FAILURE));
    };
    let error = nvcc.compile(args, &format!("{} nvcc-step", quoted(own)));
    Err((Failure::of("cannot start nvcc", &error), 126))
}

/// Becomes a phase of nvcc.
pub fn step(flags: NvccStep) -> ExitCode {
    let failed = mark::step(flags.phase, flags.command, |source| {
        if flags.no_ptx {
            tracing::warn!(
                "{source}: its marked kernels will not stop half-way: what is made of them has no PTX: have nvcc keep it (-gencode arch=compute_90,code=compute_90)"
            );
        }
    });
    complain(&Failure::new(Kind::Failed, checkpoint::Chain(&failed).to_string()));
    ExitCode::FAILURE
}
