//! Flags of what moves jobs.

use super::remote::{grace, listen_for_jobs, time};
use super::{Compress, Json, Keys, Patience, Store, job_name};
use clap::Args;
use link::Address;
use link::address::JOBS_PORT;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// `dormouse migrate`
#[derive(Args, Debug)]
#[command(
    after_help = "Images of the job are taken while it runs, and what the other side lacks of them is copied there; then it is tried there whether the job can go on. \
Only then the job stands still, the rest follows, and it goes on there. If it cannot, it goes on here. Files that the program has open are not copied: they have to be \
there under the same names.\n\nTo another device of this machine:\n  dormouse migrate train --to here -- --visible-devices 1\n  dormouse migrate train --to here -- --device soft"
)]
pub struct Migrate {
    /// The job
    #[arg(value_parser = job_name)]
    pub job: String,
    /// Where it is to go on: the machine on which `dormouse receive` runs, or `here`, with other options
    #[arg(long, value_name = "HOST[:PORT]|here")]
    pub to: Destination,
    /// Name of the job there [default: the one it has]
    #[arg(short, long, value_parser = job_name)]
    pub name: Option<String>,
    /// How many images to take while the job runs, at most; fewer where a further one would not make the last one smaller
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// How long it may take there until the program may run, while it stands still here: then it is given up there, and goes on here
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    pub start_within: Duration,
    /// The other side opens the job's own store, which it has under the same name (s3://…, or a folder that both have mounted): nothing is copied
    #[arg(long)]
    pub shared_store: bool,
    /// With --to here: the folder for what the program writes to its standard output and standard error from then on, JOB.out and JOB.err
    #[arg(long, value_name = "FOLDER", default_value = "/var/log/dormouse")]
    pub output: PathBuf,
    #[command(flatten)]
    pub patience: Patience,
    /// How to compress
    #[arg(long, value_enum, default_value_t)]
    pub compress: Compress,
    #[command(flatten)]
    pub keys: Keys,
    #[command(flatten)]
    pub json: Json,
    /// Options of `dormouse restart`, with which it goes on there
    #[arg(last = true, value_name = "OPTIONS")]
    pub options: Vec<String>,
}

/// `dormouse receive`
#[derive(Args, Debug)]
#[command(
    after_help = "Only clients whose keys are authorised for that are let in, over TLS 1.3:\n  dormouse keys new                              # on both machines, once\n  \
dormouse keys authorize node1 --jobs SHA256:…  # here, what `dormouse keys show` prints on node1\n  dormouse receive --listen 0.0.0.0\nand on node1:\n  \
dormouse keys trust node2:7071 SHA256:…        # what `dormouse keys show` prints here\n  dormouse migrate train --to node2"
)]
pub struct Receive {
    /// Where to listen: an address, or an address and a port
    #[arg(long, value_name = "ADDRESS[:PORT]", default_value = "127.0.0.1:7071", value_parser = listen_for_jobs)]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub arrivals: Arrivals,
    /// Wait for so long for a client whose connections break
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = grace)]
    pub grace: Duration,
}

/// Where jobs that arrive have what they bring, and leave what they write.
#[derive(Args, Debug)]
pub struct Arrivals {
    /// The store that images of jobs come into, a folder, in which `dormouse` finds them afterwards
    #[command(flatten)]
    pub store: Store,
    /// The folder for what programs write to their standard output and standard error, JOB.out and JOB.err
    #[arg(long, value_name = "FOLDER", default_value = "/var/log/dormouse")]
    pub output: PathBuf,
}

/// `dormouse arrival`; the socket to the process that accepts connections is standard input.
#[derive(Args, Debug)]
pub struct Arrival {
    #[command(flatten)]
    pub arrivals: Arrivals,
    /// How long it is kept without its client, milliseconds
    #[arg(long)]
    pub grace_ms: u64,
}

/// Where a job is to go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Destination {
    /// On this machine.
    Here,
    /// On another.
    There(Address),
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "here" => Ok(Self::Here),
            _ => match Address::with_port(text, JOBS_PORT).map_err(|error| error.to_string())? {
                address if address.device().is_none() => Ok(Self::There(address)),
                _ => Err("a job is not sent to a device: say --visible-devices after --".to_owned()),
            },
        }
    }
}
