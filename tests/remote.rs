//! Programs whose device is another machine's: `dormouse serve`, and `run --gpu`. Both machines are this one, over its loopback.
#![allow(clippy::unwrap_used)]

use dormouse_tests::planned::finish;
use dormouse_tests::{Failure, Stage, first_line};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use testkit::job::Job;
use testkit::kit::Kit;
use testkit::manifest::Guest;
use testkit::outcome::Exit;
use testkit::place::After;

const KEYS: &str = "DORMOUSE_KEYS";

/// A machine that serves the software device, and the keys of one that it lets in.
pub(crate) struct Server {
    front: Child,
    pub(crate) address: String,
    key: String,
    client: PathBuf,
}

impl Server {
    pub(crate) fn begin(stage: &Stage) -> Self {
        Self::begin_at(stage, "127.0.0.1")
    }

    /// Which listens at an address of its machine.
    pub(crate) fn begin_at(stage: &Stage, listen: &str) -> Self {
        let folder = tempfile::Builder::new().tempdir_in(stage.place().folder).unwrap().keep();
        let [server, client] = ["server", "client"].map(|side| folder.join(side));
        let keys = |of: &PathBuf, words: &[&str]| {
            let output = stage.place().dormouse("keys").args(words).env(KEYS, of).output().unwrap();
            assert!(output.status.success(), "{words:?}: {output:?}");
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        keys(&server, &["new"]);
        keys(&client, &["new"]);
        keys(&server, &["authorize", "client", &keys(&client, &["show"])]);
        let mut serve = stage.place().dormouse("serve");
        serve.args(["--device", "soft", "--listen", &format!("{listen}:0")]).env(KEYS, &server);
        let mut front = serve.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut lines = BufReader::new(front.stderr.take().unwrap());
        lines.read_line(&mut said).unwrap();
        // What it says later is nobody's business.
        std::thread::spawn(move || lines.lines().for_each(drop));
        let address = said.split_once(" on ").and_then(|(_, rest)| rest.split_once(';')).unwrap().0;
        Self { front, address: address.to_owned(), key: keys(&server, &["show"]), client }
    }

    /// With the server's key known to the client.
    fn trusted(stage: &Stage) -> Self {
        let this = Self::begin(stage);
        this.is_trusted(stage);
        this
    }

    /// Makes the server's key known to the client.
    pub(crate) fn is_trusted(&self, stage: &Stage) {
        let mut trust = stage.place().dormouse("keys");
        let trusted =
            trust.args(["trust", &self.address, &self.key]).env(KEYS, &self.client).output().unwrap();
        assert!(trusted.status.success(), "{trusted:?}");
    }

    /// A guest whose device is there.
    pub(crate) fn command(&self, stage: &Stage, guest: &str, args: &[&str]) -> Command {
        let mut command = stage.command_with(&["--gpu", &self.address], guest, args);
        command.env(KEYS, &self.client);
        command
    }

    /// An image, continued with a device there.
    pub(crate) fn restart_command(&self, stage: &Stage, image: &str) -> Command {
        let mut restart = stage.place().restart_command(image);
        restart.args(["--gpu", &self.address]).env(KEYS, &self.client);
        restart
    }

    /// The processes that have a session each.
    fn sessions(&self) -> Vec<u32> {
        let children = format!("/proc/{0}/task/{0}/children", self.front.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.front.kill();
        let _ = self.front.wait();
    }
}

/// What a guest prints there is what it prints here.
pub(crate) fn the_same(stage: &Stage, server: &Server, guests: &[&str]) {
    let manifest = Kit::locate().unwrap().manifest().unwrap();
    for name in guests {
        let guest: &Guest = manifest.guest(name).unwrap();
        let args: Vec<&str> = guest.args(false).iter().map(String::as_str).collect();
        let here = finish(stage.command(guest.program(), &args)).unwrap();
        let there = Job::start(server.command(stage, guest.program(), &args)).unwrap().finish().unwrap();
        assert_eq!((there.exit, &there.stdout), (here.exit, &here.stdout), "{name}: {}", there.stderr);
    }
}

fn on_another_machine(guests: &[&str]) {
    let stage = Stage::new("remote").unwrap();
    the_same(&stage, &Server::trusted(&stage), guests);
}

#[test]
fn programs_compute_the_same_on_another_machine() {
    on_another_machine(&[
        "reduction",
        "stencil",
        "textures",
        "streams",
        "host_threads",
        "symbols",
        "vmm",
        "batches",
    ]);
}

#[test]
fn programs_with_graphs_and_memory_of_the_host_do_too() {
    on_another_machine(&[
        "graphs",
        "graph_nodes",
        "conditional",
        "pinned",
        "host_register",
        "device_printf",
        "managed_shadow",
    ]);
}

#[test]
fn a_machine_that_is_not_known_and_one_that_is_not_there_are_told_of_before_the_program_runs() {
    let stage = Stage::new("unknown").unwrap();
    let server = Server::begin(&stage);
    let failed = |address: &str| {
        let mut command = stage.command_with(&["--gpu", address], "vector_loop", &["10", "1"]);
        Failure::of(&command.env(KEYS, &server.client).output().unwrap()).unwrap()
    };
    failed(&server.address).expect(125, &["is not known", &server.key, "dormouse keys trust"]);
    failed("127.0.0.1:1").expect(125, &["refused the connection", "dormouse serve"]);
    failed(&format!("{}/1", server.address)).expect(125, &["cannot be asked for"]);
}

/// From there to another machine that serves, and from there to a device of its own machine.
#[test]
fn an_image_continues_wherever_there_is_a_device() {
    let stage = Stage::new("moving").unwrap();
    let servers = [Server::trusted(&stage), Server::trusted(&stage)];
    let args = ["600", "40"];
    let whole = finish(stage.command("vector_loop", &args)).unwrap().stdout;
    let mut job = first_line(Job::start(servers[0].command(&stage, "vector_loop", &args)).unwrap()).unwrap();
    let mut printed = Vec::new();
    for server in [Some(&servers[1]), None] {
        let image = stage.checkpoint(After::Stop).unwrap();
        printed.extend(job.finish().unwrap().stdout);
        let here = || stage.place().restart_command(&image);
        let restart = server.map_or_else(here, |server| server.restart_command(&stage, &image));
        job = first_line(Job::start(restart).unwrap()).unwrap();
    }
    let ended = job.finish().unwrap();
    printed.extend(ended.stdout);
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    assert_eq!(printed, whole);
}

/// A program hears of it within a second, and the other machine has nothing left of it.
#[test]
fn a_session_that_ends_fails_the_program_and_a_program_that_ends_frees_its_session() {
    let stage = Stage::new("lost").unwrap();
    let server = Server::trusted(&stage);
    let begin =
        || first_line(Job::start(server.command(&stage, "vector_loop", &["4000", "40"])).unwrap()).unwrap();
    let job = begin();
    let killed = Instant::now();
    for session in server.sessions() {
        let pid = rustix::process::Pid::from_raw(session as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    let ended = job.finish().unwrap();
    assert!(matches!(ended.exit, Exit::Code(code) if code != 0), "{:?}: {}", ended.exit, ended.stderr);
    assert!(killed.elapsed() < Duration::from_secs(3), "{:?}", killed.elapsed());
    assert!(ended.stderr.contains("is lost"), "{}", ended.stderr);
    let job = begin();
    assert!(!server.sessions().is_empty());
    stage.place().kill_everything(job).unwrap();
    let ended = Instant::now();
    while !server.sessions().is_empty() {
        assert!(ended.elapsed() < Duration::from_secs(3), "a session outlives its program");
        std::thread::sleep(Duration::from_millis(20));
    }
}
