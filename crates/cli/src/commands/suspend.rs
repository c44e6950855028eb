//! `dormouse suspend` and `dormouse resume`

use super::checkpoint::{ask, unexpected};
use super::free;
use crate::flags::{Resume, Suspend};
use crate::output::Show;
use checkpoint::admin::{Event, Request, ResumeOptions, ResumeReport, SuspendOptions, SuspendReport};
use checkpoint::{Failure, runtime};
use indicatif::HumanBytes;
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
#[serde(transparent)]
pub struct Suspended(SuspendReport);

#[derive(Serialize)]
#[serde(transparent)]
pub struct Resumed(ResumeReport);

/// Has a job stand still and give up its devices.
pub fn suspend(flags: &Suspend) -> Result<Suspended, Failure> {
    let root = runtime::root();
    let job = runtime::find(&root, &flags.job)?;
    let options = SuspendOptions {
        to_store: flags.to_store,
        gate_deadline_ms: flags.patience.gate_deadline_ms(),
        retries: flags.patience.retries,
    };
    match ask(&root, &job.job, &Request::Suspend(options), !flags.json.json)? {
        Event::Suspended(report) => Ok(Suspended(report)),
        other => Err(unexpected(&other)),
    }
}

/// Has it go on.
pub fn resume(flags: &Resume) -> Result<Resumed, Failure> {
    let root = runtime::root();
    let job = runtime::find(&root, &flags.job)?;
    let had = job.sleep.as_ref().and_then(|sleep| sleep.gpus.as_deref());
    let options = ResumeOptions { gpus: free::these(flags.visible.devices.as_ref(), &job.device, had)? };
    match ask(&root, &job.job, &Request::Resume(options), !flags.json.json)? {
        Event::Resumed(report) => Ok(Resumed(report)),
        other => Err(unexpected(&other)),
    }
}

impl Show for Suspended {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let SuspendReport { job, total_ms, drain_ms, copy_ms, device_bytes, warnings, .. } = &self.0;
        writeln!(
            out,
            "job {job} is suspended, and has nothing on a device: `dormouse resume {job}` has it go on"
        )?;
        writeln!(
            out,
            "{} of device memory take {} of {}; after {total_ms:.0} ms (drain {drain_ms:.0}, copying {copy_ms:.0})",
            HumanBytes(*device_bytes),
            HumanBytes(self.0.host_bytes + self.0.store_bytes),
            if self.0.store_bytes > 0 { "its store" } else { "this machine's" },
        )?;
        warnings.iter().try_for_each(|warning| writeln!(out, "warning: {warning}"))
    }
}

impl Show for Resumed {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let ResumeReport { job, asleep_ms, total_ms, gpus, .. } = &self.0;
        let seconds = asleep_ms / 1e3;
        writeln!(
            out,
            "job {job} goes on{}, {total_ms:.0} ms after it was asked to; it was suspended for {seconds:.1} s",
            gpus.as_ref().map_or_else(String::new, |gpus| format!(" with GPU {gpus}"))
        )
    }
}
