//! Flags of what makes this machine's devices another's: serving, and the keys of both sides.

use super::values::device_size;
use super::{Device, Json};
use clap::{Args, Subcommand};
use link::keys::DEVICES_MAX;
use link::{Address, Fingerprint, User};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

/// `dormouse serve`
#[derive(Args, Debug)]
#[command(
    after_help = "Only clients whose keys are authorised are let in, over TLS 1.3:\n  dormouse keys new                       # on both machines, once\n  dormouse keys authorize desk SHA256:…   # here, what `dormouse keys show` prints on the client\n  dormouse serve --listen 0.0.0.0\nand on the client:\n  dormouse keys trust gpu1 SHA256:…       # what `dormouse keys show` prints here"
)]
pub struct Serve {
    /// Where to listen: an address, or an address and a port
    #[arg(long, value_name = "ADDRESS[:PORT]", default_value = "127.0.0.1:7070", value_parser = listen)]
    pub listen: SocketAddr,
    /// Whose devices: `gpu`, the software device (`soft`), or whichever there are
    #[arg(long, value_enum, default_value_t, env = "DORMOUSE_DEVICE")]
    pub device: Device,
    /// Most memory of each device that one session may take; a client's own limit is kept, too [default: all there is]
    #[arg(long, value_name = "SIZE", value_parser = device_size)]
    pub device_memory: Option<u64>,
    /// End a session that has asked for nothing for so long, while its device had nothing to do [default: never; one whose client is gone ends at once]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub idle: Option<Duration>,
    /// Keep what a client has for so long when its connections break, for it to come back: to it that is a pause; 0s to keep nothing
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = grace)]
    pub grace: Duration,
    /// Most sessions at a time: each process of a program that uses CUDA is one
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_clients: u16,
    /// Whom sessions' processes become, when root serves: a name, or UID:GID [default: each a user of its own, who has no rights]
    #[arg(long, value_name = "USER")]
    pub user: Option<User>,
    /// Let clients that ask for it send and get contents of memory by RDMA (librdmacm is needed; sessions' processes then make whatever system calls they like)
    #[arg(long)]
    pub rdma: bool,
    /// Let anybody on this machine in without a key, and without TLS: for tests
    #[arg(long)]
    pub insecure_loopback: bool,
}

/// `dormouse far-end`; the socket to the process that accepts connections is standard input.
#[derive(Args, Debug)]
pub struct FarEnd {
    /// Where calls go
    #[arg(long, value_enum)]
    pub device: Device,
    /// The most memory of each device, bytes
    #[arg(long)]
    pub device_memory: Option<u64>,
    /// The longest silence, milliseconds
    #[arg(long)]
    pub idle_ms: Option<u64>,
    /// How long it is kept without its client, milliseconds
    #[arg(long)]
    pub grace_ms: u64,
    /// Whom to become
    #[arg(long)]
    pub user: Option<User>,
    /// Whether RDMA may be asked for
    #[arg(long)]
    pub rdma: bool,
    /// Whether this machine's clients may come without TLS
    #[arg(long)]
    pub insecure_loopback: bool,
}

/// `dormouse keys`
#[derive(Args, Debug)]
#[command(
    after_help = "Keys lie in $DORMOUSE_KEYS [default: /etc/dormouse for root, else ~/.config/dormouse]. Nothing of them but fingerprints is ever shown."
)]
pub struct MachineKeys {
    /// What to do
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// `dormouse keys` …
#[derive(Subcommand, Debug)]
pub enum KeysCommand {
    /// Make this machine's key
    New(KeysNew),
    /// Show its fingerprint, to be given to the other side
    Show(KeysShow),
    /// Let a client use this machine's devices
    Authorize(KeysAuthorize),
    /// Remember the key of a machine that serves
    Trust(KeysTrust),
    /// List clients and servers
    List(KeysList),
    /// Let a client in no more, whose sessions end within a second; or forget a server
    Revoke(KeysRevoke),
    /// Make a new key; the old one is good for a while yet
    Rotate(KeysRotate),
}

/// `dormouse keys new`
#[derive(Args, Debug)]
pub struct KeysNew {
    /// For how long it is good
    #[arg(long, value_name = "TIME", default_value = "1y", value_parser = time)]
    pub expires: Duration,
}

/// `dormouse keys show`
#[derive(Args, Debug)]
pub struct KeysShow {
    #[command(flatten)]
    pub json: Json,
}

/// `dormouse keys authorize`
#[derive(Args, Debug)]
pub struct KeysAuthorize {
    /// What to call the client here
    pub name: String,
    /// Its key: what `dormouse keys show` prints there
    pub key: Fingerprint,
    /// Most device memory that all its sessions have together. One session has no more than --device-memory of `dormouse serve` says, either [default: without a limit]
    #[arg(long, value_name = "SIZE", value_parser = device_size)]
    pub memory: Option<u64>,
    /// Most sessions that it may have at a time [default: as --max-clients of serve says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub sessions: Option<u32>,
    /// Which of this machine's devices there are for it, in this order: their numbers or UUIDs, as CUDA_VISIBLE_DEVICES has them [default: all]
    #[arg(long, value_name = "LIST", value_parser = devices)]
    pub devices: Option<String>,
    /// For how long it is let in: a time such as 30d, or a moment such as 2027-01-31T00:00:00Z [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub expires: Option<SystemTime>,
    /// Let it have jobs taken over by `dormouse receive`, which run as the user who runs that: root, mostly. Who may that can do whatever root can; --memory and --devices do not bind such jobs
    #[arg(long)]
    pub jobs: bool,
    #[command(flatten)]
    pub succession: Succession,
}

/// `dormouse keys trust`
#[derive(Args, Debug)]
pub struct KeysTrust {
    /// The machine, as it will be named: HOST or HOST:PORT
    pub host: Address,
    /// Its key: what `dormouse keys show` prints there
    pub key: Fingerprint,
    #[command(flatten)]
    pub succession: Succession,
}

/// What becomes of the key that was there.
#[derive(Args, Debug)]
pub struct Succession {
    /// Take the place of another key
    #[arg(long)]
    pub replace: bool,
    /// With --replace: for how long the other key is taken, too
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = grace)]
    pub grace: Duration,
}

impl Succession {
    /// For how long, if at all.
    pub fn grace(&self) -> Option<Duration> {
        self.replace.then_some(self.grace)
    }
}

/// `dormouse keys list`
#[derive(Args, Debug)]
pub struct KeysList {
    #[command(flatten)]
    pub json: Json,
}

/// `dormouse keys revoke`
#[derive(Args, Debug)]
pub struct KeysRevoke {
    /// The client's name, or the server's: HOST or HOST:PORT
    pub name: String,
}

/// `dormouse keys rotate`
#[derive(Args, Debug)]
pub struct KeysRotate {
    /// For how long the new key is good
    #[arg(long, value_name = "TIME", default_value = "1y", value_parser = time)]
    pub expires: Duration,
    /// For how long others may take the old key yet
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = grace)]
    pub grace: Duration,
}

/// An address of this machine, with the usual port or another.
fn listen(text: &str) -> Result<SocketAddr, String> {
    listen_on(text, link::address::DEFAULT_PORT)
}

pub(super) fn listen_for_jobs(text: &str) -> Result<SocketAddr, String> {
    listen_on(text, link::address::JOBS_PORT)
}

fn listen_on(text: &str, port: u16) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok((address, port).into());
    }
    text.parse().map_err(|_| {
        "expected an IP address of this machine, such as 0.0.0.0, and a port after a colon if need be"
            .to_owned()
    })
}

/// A time of a second or more, and of a century at most.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let time = grace(text)?;
    if time < Duration::from_secs(1) { Err("a second is the least".to_owned()) } else { Ok(time) }
}

/// The same, or none.
pub(super) fn grace(text: &str) -> Result<Duration, String> {
    let time =
        humantime::parse_duration(text).map_err(|error| format!("{error}; give a time such as 30d"))?;
    if time > 100 * link::keys::YEAR { Err("a century is the most".to_owned()) } else { Ok(time) }
}

fn devices(text: &str) -> Result<String, String> {
    let is_device = |entry: &str| {
        let is_uuid = entry.len() > "GPU-".len() && entry.starts_with("GPU-");
        is_uuid || !entry.is_empty() && entry.bytes().all(|byte| byte.is_ascii_digit())
    };
    if let Some(entry) = text.split(',').map(str::trim).find(|entry| !is_device(entry)) {
        return Err(format!("`{entry}` is neither a device's number nor its UUID (GPU-…)"));
    }
    if text.len() > DEVICES_MAX {
        return Err(format!("it is longer than {DEVICES_MAX} bytes: numbers are shorter than UUIDs"));
    }
    Ok(text.to_owned())
}

fn moment(text: &str) -> Result<SystemTime, String> {
    match humantime::parse_rfc3339(text) {
        Ok(moment) => Ok(moment),
        Err(_) => time(text).map(|time| SystemTime::now() + time),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn where_to_listen() {
        for (text, shown) in [
            ("127.0.0.1", "127.0.0.1:7070"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("::1", "[::1]:7070"),
            ("[::]", "[::]:7070"),
            ("[::1]:0", "[::1]:0"),
        ] {
            assert_eq!(listen(text).unwrap().to_string(), shown);
        }
        assert!(listen("gpu1").is_err() && listen(":80").is_err() && listen("").is_err());
    }

    #[test]
    fn times() {
        assert!(time("0s").is_err() && time("101y").is_err() && time("x").is_err());
        assert_eq!(grace("0s"), Ok(Duration::ZERO));
        assert_eq!(
            moment("2001-09-09T01:46:40Z").unwrap(),
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
        );
        assert!(moment("1h").unwrap() > SystemTime::now());
    }
}
