//! `dormouse ps`

use crate::flags::Ps;
use crate::output::{Show, table, time};
use checkpoint::Failure;
use checkpoint::runtime::{self, JobFacts};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
#[serde(transparent)]
pub struct Jobs(Vec<JobFacts>);

/// Lists running jobs.
pub fn run(_: &Ps) -> Result<Jobs, Failure> {
    runtime::list(&runtime::root()).map(Jobs)
}

impl Show for Jobs {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut rows =
            vec![["JOB", "SUPERVISOR", "STARTED (UTC)", "DEVICE", "COMMAND"].map(String::from).to_vec()];
        rows.extend(self.0.iter().map(|job| {
            vec![
                job.job.clone(),
                job.supervisor.to_string(),
                time(job.started_ns),
                job.device.clone(),
                job.command.join(" "),
            ]
        }));
        table(out, &rows)
    }
}
