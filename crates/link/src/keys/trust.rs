//! Whose keys are taken: clients that a server lets in, servers that a client knows.

use super::KeysError;
use crate::fingerprint::Fingerprint;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, SystemTime};

/// The longest name of a client.
const NAME_MAX: usize = 64;
/// The longest list of devices: 16 by UUID.
pub const DEVICES_MAX: usize = 16 * 41;

/// A time, to the second, as people read it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Moment(pub SystemTime);

impl Moment {
    /// Whether it has come.
    #[must_use]
    pub fn is_over(self) -> bool {
        self.0 <= SystemTime::now()
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", humantime::format_rfc3339_seconds(self.0))
    }
}

impl From<Moment> for String {
    fn from(moment: Moment) -> Self {
        moment.to_string()
    }
}

impl TryFrom<String> for Moment {
    type Error = humantime::TimestampError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        humantime::parse_rfc3339(&text).map(Self)
    }
}

/// A key that is taken, and until when if that ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// The key.
    pub key: Fingerprint,
    /// When it is taken no more: it has a successor.
    #[serde(default)]
    pub until: Option<Moment>,
}

/// Puts a key first; those that were there are taken for `grace` yet.
fn succeed(pins: &mut Vec<Pin>, key: Fingerprint, grace: Duration) {
    let end = Moment(SystemTime::now() + grace);
    pins.retain(|pin| pin.key != key && !pin.until.is_some_and(Moment::is_over));
    pins.iter_mut().for_each(|pin| pin.until = Some(pin.until.map_or(end, |until| until.min(end))));
    pins.insert(0, Pin { key, until: None });
}

/// What a client may have.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Quota {
    /// Most memory of devices that all its sessions have together, bytes.
    pub memory: Option<u64>,
    /// Most sessions at a time. Each process of a program that uses CUDA is one.
    pub sessions: Option<u32>,
    /// Which devices there are for it, as `CUDA_VISIBLE_DEVICES` has them; all of them, if nothing. At most [`DEVICES_MAX`] bytes.
    pub devices: Option<String>,
    /// When it is let in no more.
    pub expires: Option<Moment>,
    /// Whether it may have jobs taken over, which run as the user who does (root, that is).
    pub jobs: bool,
}

/// Somebody who is let in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Client {
    /// What the server calls it.
    pub name: String,
    /// Its keys, the newest first.
    pub keys: Vec<Pin>,
    /// What it may have.
    #[serde(flatten)]
    pub quota: Quota,
    /// Since when it is let in no more. The entry stays, so that it can be told.
    #[serde(default)]
    pub revoked: Option<Moment>,
    /// Keys with which it was revoked before it was let in again with another: they stay out, whoever comes with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub out: Vec<Fingerprint>,
}

/// Why a key is not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Denied {
    /// Nobody knows it.
    Unknown,
    /// It was once, and is no more.
    Revoked,
    /// Its time is over, by the server's list.
    Expired,
}

/// Whom a server lets in.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    clients: Vec<Client>,
}

impl Clients {
    /// All of them, those that were revoked included.
    #[must_use]
    pub fn all(&self) -> &[Client] {
        &self.clients
    }

    /// The one of this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Client> {
        self.clients.iter().find(|client| client.name == name)
    }

    /// The one that has this key.
    ///
    /// # Errors
    /// Why it is not let in.
    pub fn admit(&self, key: Fingerprint) -> Result<&Client, Denied> {
        let Some((client, pin)) = self.holder(key) else {
            return Err(if self.was_revoked_as(key).is_some() { Denied::Revoked } else { Denied::Unknown });
        };
        if client.revoked.is_some() {
            return Err(Denied::Revoked);
        }
        let is_over = |end: Option<Moment>| end.is_some_and(Moment::is_over);
        if is_over(pin.until) || is_over(client.quota.expires) { Err(Denied::Expired) } else { Ok(client) }
    }

    fn holder(&self, key: Fingerprint) -> Option<(&Client, &Pin)> {
        self.clients.iter().find_map(|client| Some((client, client.keys.iter().find(|pin| pin.key == key)?)))
    }

    /// The client with which a key was revoked.
    fn was_revoked_as(&self, key: Fingerprint) -> Option<&Client> {
        let is_out = |client: &&Client| {
            let has = client.keys.iter().any(|pin| pin.key == key);
            client.out.contains(&key) || client.revoked.is_some() && has
        };
        self.clients.iter().find(is_out)
    }

    pub(super) fn authorize(
        &mut self,
        name: &str,
        key: Fingerprint,
        quota: Quota,
        replace: Option<Duration>,
    ) -> Result<(), KeysError> {
        let is_of_names = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let is_name = (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_of_names);
        if !is_name || name.starts_with('-') {
            return Err(KeysError::BadName(name.to_owned()));
        }
        // Under its own name it is let in again by whoever says that name and that key.
        if let Some(client) = self.was_revoked_as(key).filter(|client| client.name != name) {
            return Err(KeysError::Taken(format!(
                "the key {key} was revoked as the client {}; `dormouse keys rotate` on the client's machine makes another",
                client.name
            )));
        }
        if let Some((holder, _)) = self.holder(key).filter(|(holder, _)| holder.name != name) {
            return Err(KeysError::Taken(format!("the key {key} is that of the client {}", holder.name)));
        }
        let Some(client) = self.clients.iter_mut().find(|client| client.name == name) else {
            let keys = vec![Pin { key, until: None }];
            let out = Vec::new();
            self.clients.push(Client { name: name.to_owned(), keys, quota, revoked: None, out });
            return Ok(());
        };
        if client.revoked.take().is_some() {
            // Nothing comes back of what was revoked but what is said now: no key, and no right.
            client.out.extend(client.keys.drain(..).map(|pin| pin.key));
            client.quota = Quota::default();
        }
        let others = client.keys.iter().any(|pin| pin.key != key);
        match replace {
            None if others && client.keys.first().is_none_or(|pin| pin.key != key) => {
                return Err(KeysError::Taken(format!(
                    "the client {name} has another key; with --replace this one is its successor"
                )));
            }
            None if others => {}
            grace => succeed(&mut client.keys, key, grace.unwrap_or_default()),
        }
        client.out.retain(|out| *out != key);
        client.quota = match replace {
            None => quota,
            // What is not said of a successor stays.
            Some(_) => Quota {
                memory: quota.memory.or(client.quota.memory),
                sessions: quota.sessions.or(client.quota.sessions),
                devices: quota.devices.or(client.quota.devices.take()),
                expires: quota.expires.or(client.quota.expires),
                jobs: quota.jobs || client.quota.jobs,
            },
        };
        Ok(())
    }

    pub(super) fn revoke(&mut self, name: &str) -> bool {
        let client = self.clients.iter_mut().find(|client| client.name == name);
        client.map(|client| client.revoked.get_or_insert(Moment(SystemTime::now()))).is_some()
    }
}

/// A server that is known.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// As [`Address::machine`](crate::Address::machine) has it.
    pub machine: String,
    /// Its keys, the newest first.
    pub keys: Vec<Pin>,
}

/// Which servers a client knows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Servers {
    servers: Vec<Server>,
}

impl Servers {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Server] {
        &self.servers
    }

    /// The keys of a machine that are taken now, the newest first; none for a stranger.
    #[must_use]
    pub fn keys(&self, machine: &str) -> Vec<Fingerprint> {
        let server = self.servers.iter().find(|server| server.machine == machine);
        let pins = server.map_or(&[][..], |server| &server.keys);
        pins.iter().filter(|pin| !pin.until.is_some_and(Moment::is_over)).map(|pin| pin.key).collect()
    }

    pub(super) fn trust(
        &mut self,
        machine: &str,
        key: Fingerprint,
        replace: Option<Duration>,
    ) -> Result<(), KeysError> {
        let known = self.keys(machine);
        if replace.is_none() && known.first().is_some_and(|known| *known != key) {
            return Err(KeysError::Taken(format!(
                "another key of {machine} is known; if somebody there says that it has changed, --replace makes this one its successor"
            )));
        }
        if replace.is_none() && !known.is_empty() {
            return Ok(());
        }
        match self.servers.iter_mut().find(|server| server.machine == machine) {
            Some(server) => succeed(&mut server.keys, key, replace.unwrap_or_default()),
            None => self
                .servers
                .push(Server { machine: machine.to_owned(), keys: vec![Pin { key, until: None }] }),
        }
        Ok(())
    }

    pub(super) fn forget(&mut self, machine: &str) -> bool {
        let before = self.servers.len();
        self.servers.retain(|server| server.machine != machine);
        self.servers.len() < before
    }
}
