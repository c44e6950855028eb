//! Another machine that serves its device, or takes over jobs: a `dormouse serve` or `receive` on this one, and the keys of a client that it lets in.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};

use crate::kit::Kit;
use crate::place::Device;

/// Where `dormouse` finds keys.
const KEYS: &str = "DORMOUSE_KEYS";

/// The machine; it is gone when this is dropped.
#[derive(Debug)]
pub struct Served {
    front: Child,
    dormouse: PathBuf,
    /// `HOST:PORT`.
    pub address: String,
    /// The server's public key.
    pub key: String,
    server: PathBuf,
    client: PathBuf,
}

impl Served {
    /// Serves a device at an address of this machine. The keys are in `folder`; the client does not know the server's yet. `also` says what else the
    /// command is given.
    ///
    /// # Errors
    /// When `dormouse keys` or `dormouse serve` fails.
    pub fn begin(
        kit: &Kit,
        device: Device,
        (folder, listen): (&Path, &str),
        also: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Self> {
        let serve = |command: &mut Command| {
            command.args(["serve", "--device", device.flag()]);
            also(command);
        };
        Self::listening(kit, serve, &[], folder, listen)
    }

    /// Takes over jobs, whose images come into the folder `store`, and whose output into `output` beside it; of a client that has these `rights`. `also`
    /// says what else the command is given.
    ///
    /// # Errors
    /// When `dormouse keys` or `dormouse receive` fails.
    pub fn receiving(
        kit: &Kit,
        store: &Path,
        rights: &[&str],
        (folder, listen): (&Path, &str),
        also: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Self> {
        let output = store.with_file_name("output");
        let receive = |command: &mut Command| {
            command.arg("receive").arg("--store").arg(store).arg("--output").arg(output);
            also(command);
        };
        Self::listening(kit, receive, rights, folder, listen)
    }

    fn listening(
        kit: &Kit,
        words: impl FnOnce(&mut Command),
        rights: &[&str],
        folder: &Path,
        listen: &str,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().tempdir_in(folder).context("cannot make a folder")?.keep();
        let dormouse = kit.dormouse();
        let [server, client] = ["server", "client"].map(|side| folder.join(side));
        keys(&dormouse, &server, &["new"])?;
        keys(&dormouse, &client, &["new"])?;
        let shown = keys(&dormouse, &client, &["show"])?;
        keys(&dormouse, &server, &[&["authorize", "client", &shown], rights].concat())?;
        let mut serve = Command::new(&dormouse);
        words(&mut serve);
        serve.env(KEYS, &server).args(["--listen", &format!("{listen}:0")]);
        let (front, address) = listens(&mut serve)?;
        let key = keys(&dormouse, &server, &["show"])?;
        Ok(Self { front, dormouse, address, key, server, client })
    }

    /// Has the machine fail.
    pub fn fail(&mut self) {
        let _ = self.front.kill();
        let _ = self.front.wait();
    }

    /// Serves a device again, at the same address with the same keys.
    ///
    /// # Errors
    /// When `dormouse serve` fails.
    pub fn serve_again(&mut self, device: Device) -> anyhow::Result<()> {
        let mut serve = Command::new(&self.dormouse);
        serve.env(KEYS, &self.server).args(["serve", "--device", device.flag(), "--listen", &self.address]);
        (self.front, _) = listens(&mut serve)?;
        Ok(())
    }

    /// Has the client come by another way: through what listens at `address`.
    pub fn is_behind(&mut self, address: String) {
        self.address = address;
    }

    /// Makes the server's key known to the client.
    ///
    /// # Errors
    /// When `dormouse keys trust` fails.
    pub fn is_trusted(&self) -> anyhow::Result<()> {
        keys(&self.dormouse, &self.client, &["trust", &self.address, &self.key]).map(drop)
    }

    /// What a `dormouse` command takes to use its device.
    pub fn used_by(&self, command: &mut Command) {
        command.args(["--gpu", &self.address]);
        // The server has those that it names already, and counts from there.
        command.env_remove("CUDA_VISIBLE_DEVICES");
        self.known_to(command);
    }

    /// Gives a command the client's keys, and nothing else.
    pub fn known_to(&self, command: &mut Command) {
        command.env(KEYS, &self.client);
    }

    /// The process that accepts connections.
    #[must_use]
    pub fn front(&self) -> u32 {
        self.front.id()
    }

    /// The processes that have a session each.
    #[must_use]
    pub fn sessions(&self) -> Vec<i32> {
        let children = format!("/proc/{0}/task/{0}/children", self.front.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.front.kill();
        let _ = self.front.wait();
    }
}

/// Begins what listens, and tells where.
fn listens(command: &mut Command) -> anyhow::Result<(Child, String)> {
    let mut front =
        command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot run dormouse")?;
    let mut said = String::new();
    if let Some(stderr) = front.stderr.take() {
        let mut lines = BufReader::new(stderr);
        lines.read_line(&mut said).context("whoever is to serve says nothing")?;
        // What it says later is nobody's business.
        std::thread::spawn(move || lines.lines().for_each(drop));
    }
    let address = said.split_once(" on ").and_then(|(_, rest)| rest.split_once(';'));
    let address = address.with_context(|| format!("whoever is to serve says: {said}"))?.0.to_owned();
    Ok((front, address))
}

/// `dormouse keys`; what it prints.
fn keys(dormouse: &Path, of: &Path, words: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(dormouse)
        .arg("keys")
        .args(words)
        .env(KEYS, of)
        .output()
        .context("cannot run dormouse")?;
    ensure!(output.status.success(), "dormouse keys {}: {output:?}", words.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
