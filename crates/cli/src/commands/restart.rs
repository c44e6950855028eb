//! `dormouse restart`

use super::{device, store_dir};
use crate::exit::{self, OWN_FAILURE};
use crate::flags::{Device, Restart};
use crate::output::complain;
use checkpoint::Failure;
use checkpoint::restart;
use checkpoint::supervisor::Settings;
use std::process::ExitCode;

/// Continues a job from an image and ends as it does.
pub fn run(flags: Restart) -> ExitCode {
    let check = flags.check;
    match start(flags) {
        Ok(Some(ending)) => ending.exit_like_it(),
        Ok(None) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&failure);
            if check { exit::of(&failure) } else { ExitCode::from(OWN_FAILURE) }
        }
    }
}

fn start(flags: Restart) -> Result<Option<host::Ending>, Failure> {
    let io = |error: std::io::Error| Failure::of("cannot prepare the job", &error);
    // Before any thread exists: signals are waited for, not handled.
    let signals = host::signals::Forwarder::block().map_err(io)?;
    let stdio = host::Stdio::take().map_err(io)?;
    let store = store_dir(&flags.store);
    let restart = restart::Restart::open(&store, &flags.image)?;
    // Without a wish the job goes back to the sort of device it was on.
    let device = match flags.machine.device {
        Device::Auto => restart.device().to_owned(),
        asked => device(asked).to_owned(),
    };
    if flags.check {
        println!("this image of job {} can be restarted here", restart.job());
        return Ok(None);
    }
    let settings = Settings {
        name: flags.name.unwrap_or_else(|| restart.job().to_owned()),
        device,
        store,
        shared_memory: flags.machine.shared_memory,
    };
    restart.run(settings, stdio, signals).map(Some)
}
