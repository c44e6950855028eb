//! `dormouse keys`: this machine's key, and whose it takes.

use super::serve::keys_failure;
use crate::flags::{KeysAuthorize, KeysCommand, KeysTrust};
use crate::output::{self, Show, table};
use checkpoint::Failure;
use indicatif::BinaryBytes;
use link::keys::{Client, Moment, Pin, Server};
use link::{Address, Fingerprint, Keys, KeysError, Quota};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// This machine's key.
#[derive(Serialize)]
pub struct Own {
    key: Fingerprint,
    expires: Moment,
    /// The one before, while it is good.
    previous: Option<Fingerprint>,
    previous_expires: Option<Moment>,
    folder: String,
}

/// Whom it lets in, and whom it knows.
#[derive(Serialize)]
pub struct All {
    clients: Vec<OneClient>,
    servers: Vec<OneServer>,
}

#[derive(Serialize)]
struct OneClient {
    name: String,
    keys: Vec<OneKey>,
    memory: Option<u64>,
    sessions: Option<u32>,
    devices: Option<String>,
    expires: Option<Moment>,
    jobs: bool,
    revoked: Option<Moment>,
}

#[derive(Serialize)]
struct OneServer {
    machine: String,
    keys: Vec<OneKey>,
}

#[derive(Serialize)]
struct OneKey {
    key: Fingerprint,
    until: Option<Moment>,
}

/// Does one of them.
pub fn run(command: KeysCommand) -> ExitCode {
    let keys = Keys::default();
    let from_now = |time: Duration| SystemTime::now() + time;
    let done =
        |done: Result<(), KeysError>| output::finish(false, done.map_err(|error| keys_failure(&error)));
    match command {
        KeysCommand::New(flags) => {
            output::finish(false, own(&keys, keys.create(from_now(flags.expires)).map(drop)))
        }
        KeysCommand::Rotate(flags) => {
            let rotated = keys.rotate(from_now(flags.expires), flags.grace).map(drop);
            output::finish(false, own(&keys, rotated))
        }
        KeysCommand::Show(flags) => output::finish(flags.json.json, own(&keys, Ok(()))),
        KeysCommand::List(flags) => output::finish(flags.json.json, list(&keys)),
        KeysCommand::Authorize(flags) => done(authorize(&keys, &flags)),
        KeysCommand::Trust(flags) => done(trust(&keys, &flags)),
        KeysCommand::Revoke(flags) => done(revoke(&keys, &flags.name)),
    }
}

/// This machine's key, after something was done.
pub fn own(keys: &Keys, done: Result<(), KeysError>) -> Result<Own, Failure> {
    let read = || {
        done?;
        let own = keys.identity()?;
        let previous = keys.previous()?;
        Ok(Own {
            key: own.fingerprint(),
            expires: Moment(own.expires()),
            previous: previous.as_ref().map(link::keys::Identity::fingerprint),
            previous_expires: previous.map(|previous| Moment(previous.expires())),
            folder: keys.folder().display().to_string(),
        })
    };
    read().map_err(|error: KeysError| keys_failure(&error))
}

/// Clients and servers.
pub fn list(keys: &Keys) -> Result<All, Failure> {
    let read = || {
        Ok(All {
            clients: keys.clients()?.all().iter().map(OneClient::from).collect(),
            servers: keys.servers()?.all().iter().map(OneServer::from).collect(),
        })
    };
    read().map_err(|error: KeysError| keys_failure(&error))
}

fn authorize(keys: &Keys, flags: &KeysAuthorize) -> Result<(), KeysError> {
    let quota = Quota {
        memory: flags.memory,
        sessions: flags.sessions,
        devices: flags.devices.clone(),
        expires: flags.expires.map(Moment),
        jobs: flags.jobs,
    };
    keys.authorize(&flags.name, flags.key, quota, flags.succession.grace())
}

/// A client by its name; a server by host, as it was trusted, or host and port, as it is listed.
fn revoke(keys: &Keys, name: &str) -> Result<(), KeysError> {
    match keys.revoke(name) {
        Err(unknown @ KeysError::Unknown(_)) => match name.parse::<Address>() {
            Ok(address) if address.machine() != name => keys.revoke(&address.machine()),
            _ => Err(unknown),
        },
        done => done,
    }
}

fn trust(keys: &Keys, flags: &KeysTrust) -> Result<(), KeysError> {
    keys.trust(&flags.host.machine(), flags.key, flags.succession.grace())
}

impl From<&Client> for OneClient {
    fn from(client: &Client) -> Self {
        let Quota { memory, sessions, devices, expires, jobs } = client.quota.clone();
        let keys = client.keys.iter().map(OneKey::from).collect();
        let (name, revoked) = (client.name.clone(), client.revoked);
        Self { name, keys, memory, sessions, devices, expires, jobs, revoked }
    }
}

impl From<&Server> for OneServer {
    fn from(server: &Server) -> Self {
        let keys = server.keys.iter().map(OneKey::from).collect();
        Self { machine: server.machine.clone(), keys }
    }
}

impl From<&Pin> for OneKey {
    fn from(pin: &Pin) -> Self {
        Self { key: pin.key, until: pin.until }
    }
}

impl Show for Own {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        // By itself on standard output, for scripts.
        writeln!(out, "{}", self.key)?;
        out.flush()?;
        eprintln!("dormouse: good until {}, in {}", self.expires, self.folder);
        if let (Some(previous), Some(until)) = (self.previous, self.previous_expires) {
            eprintln!("dormouse: the one before, {previous}, is good until {until}");
        }
        Ok(())
    }
}

impl Show for All {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let heads = ["", "KEY", "MEMORY", "SESSIONS", "DEVICES", "JOBS", "UNTIL"].map(String::from).to_vec();
        let mut rows = vec![heads];
        for client in &self.clients {
            for key in &client.keys {
                let until = match (client.revoked, key.until.into_iter().chain(client.expires).min()) {
                    (Some(revoked), _) => format!("revoked {revoked}"),
                    (None, until) => shown(until),
                };
                let memory = shown(client.memory.map(BinaryBytes));
                rows.push(vec![
                    format!("client {}", client.name),
                    key.key.to_string(),
                    memory,
                    shown(client.sessions),
                    shown(client.devices.as_ref()),
                    if client.jobs { "yes" } else { "-" }.to_owned(),
                    until,
                ]);
            }
        }
        for server in &self.servers {
            for key in &server.keys {
                let none = || "-".to_owned();
                let machine = format!("server {}", server.machine);
                let (key, until) = (key.key.to_string(), shown(key.until));
                rows.push(vec![machine, key, none(), none(), none(), none(), until]);
            }
        }
        table(out, &rows)
    }
}

fn shown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::new(folder.path().join("keys"));
        assert_eq!(own(&keys, Ok(())).err().unwrap().kind, checkpoint::Kind::NotFound);
        keys.create(SystemTime::now() + Duration::from_secs(9)).unwrap();
        let own = super::own(&keys, Ok(())).unwrap();
        let quota = Quota { memory: Some(40 << 30), devices: Some("1,3".into()), ..Quota::default() };
        keys.authorize("desk", own.key, quota, None).unwrap();
        keys.trust("gpu1:7070", own.key, None).unwrap();
        keys.authorize("gone", link::Fingerprint::of(b"x"), Quota::default(), None).unwrap();
        revoke(&keys, "gone").unwrap();
        keys.trust("gpu2:7070", own.key, None).unwrap();
        revoke(&keys, "gpu2").unwrap();
        assert!(matches!(revoke(&keys, "gpu2"), Err(KeysError::Unknown(_))));
        let mut text = Vec::new();
        list(&keys).unwrap().show(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for word in ["client desk", "server gpu1:7070", "40.00 GiB", "1,3", "revoked 2", &own.key.to_string()]
        {
            assert!(text.contains(word), "{word} in {text}");
        }
    }
}
