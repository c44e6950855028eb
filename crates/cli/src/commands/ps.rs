//! `dormouse ps`

use crate::flags::Ps;
use crate::output::{Show, command_line, table, time};
use checkpoint::Failure;
use checkpoint::runtime::{self, JobFacts};
use indicatif::HumanBytes;
use serde::Serialize;
use server::memory::Managed;
use std::io::{self, Write};
use store::report::rfc3339;

#[derive(Serialize)]
pub struct Jobs {
    jobs: Vec<Job>,
}

/// One of them.
#[derive(Serialize)]
struct Job {
    job: String,
    lineage: String,
    supervisor: u32,
    started: String,
    #[serde(skip)]
    started_ns: u64,
    device: String,
    managed: Managed,
    store: String,
    command: Vec<String>,
    restarted_from: Option<String>,
    filled: Option<u64>,
    to_fill: Option<u64>,
    suspended: Option<String>,
    asleep_bytes: Option<u64>,
    asleep_stored: Option<u64>,
}

/// Lists running jobs.
pub fn run(_: &Ps) -> Result<Jobs, Failure> {
    Ok(runtime::list(&runtime::root())?.into())
}

impl From<Vec<JobFacts>> for Jobs {
    fn from(jobs: Vec<JobFacts>) -> Self {
        Self { jobs: jobs.into_iter().map(Job::from).collect() }
    }
}

impl From<JobFacts> for Job {
    fn from(facts: JobFacts) -> Self {
        Self {
            job: facts.job,
            lineage: facts.lineage.to_string(),
            supervisor: facts.supervisor,
            started: rfc3339(facts.started_ns),
            started_ns: facts.started_ns,
            device: facts.device,
            managed: facts.managed,
            store: facts.store.to_string(),
            command: facts.command,
            restarted_from: facts.restarted_from,
            filled: facts.filling.map(|filling| filling.done),
            to_fill: facts.filling.map(|filling| filling.total),
            suspended: facts.sleep.as_ref().map(|sleep| rfc3339(sleep.since_ns)),
            asleep_bytes: facts.sleep.as_ref().map(|sleep| sleep.bytes),
            asleep_stored: facts.sleep.as_ref().map(|sleep| sleep.stored),
        }
    }
}

impl Show for Jobs {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut rows =
            vec![["JOB", "SUPERVISOR", "STARTED (UTC)", "DEVICE", "COMMAND"].map(String::from).to_vec()];
        rows.extend(self.jobs.iter().map(|job| {
            vec![
                job.job.clone(),
                job.supervisor.to_string(),
                time(job.started_ns),
                job.device.clone(),
                command_line(&job.command),
            ]
        }));
        table(out, &rows)?;
        for Job { job, suspended, asleep_bytes, asleep_stored, .. } in &self.jobs {
            if let (Some(since), Some(bytes), Some(stored)) = (suspended, asleep_bytes, asleep_stored) {
                let (bytes, whose) = match stored {
                    0 => (bytes, "this machine's"),
                    stored => (stored, "its store"),
                };
                let bytes = HumanBytes(*bytes);
                writeln!(
                    out,
                    "{job}: suspended since {since}, with {bytes} of its device memory in {whose}"
                )?;
            }
        }
        self.jobs.iter().filter_map(|job| Some((&job.job, job.filled?, job.to_fill?))).try_for_each(
            |(job, filled, all)| {
                let (filled, all) = (HumanBytes(filled), HumanBytes(all));
                writeln!(out, "{job}: {filled} of {all} of its device memory are filled")
            },
        )
    }
}
