//! Programs whose device is another machine's: `dormouse serve`, and `run --gpu`. Both machines are this one, over its loopback.
#![allow(clippy::unwrap_used)]

use dormouse_tests::planned::finish;
use dormouse_tests::{Failure, PACED, Stage, first_line};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::cost;
use testkit::job::Job;
use testkit::kit::Kit;
use testkit::outcome::Exit;
use testkit::place::{After, Device, Place};
use testkit::proxy::{self, Network};
use testkit::rdmacm;
use testkit::served::Served;
use testkit::tree;

/// One that serves the software device, and whose key is known.
fn trusted(stage: &Stage) -> Served {
    let served = stage.served(Device::Soft, "127.0.0.1").unwrap();
    served.is_trusted().unwrap();
    served
}

#[test]
fn who_polls_memory_that_lies_on_two_machines_is_warned() {
    let stage = Stage::new("polled").unwrap();
    let server = trusted(&stage);
    let said = |managed: &str| {
        let address = server.address.as_str();
        let mut command =
            stage.command_with(&["--gpu", address, "--managed", managed], "vector_loop", &["10", "1"]);
        server.known_to(&mut command);
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let warns = |said: &str| said.contains("additions of both sides to one word are lost");
    assert!(warns(&said("coherent")) && !warns(&said("shadow")));
}

#[test]
fn launches_that_nobody_waits_for_do_not_wait_for_a_slow_network() {
    let stage = Stage::new("slow-network").unwrap();
    let mut served = stage.served(Device::Soft, "127.0.0.1").unwrap();
    let network = Network { delay: Duration::from_millis(10), ..Network::default() };
    let at = proxy::before(served.address.parse().unwrap(), network).unwrap();
    served.is_behind(at.to_string());
    served.is_trusted().unwrap();
    let place = Place { served: Some(&served), ..stage.place() };
    let (bench, args) = (Kit::locate().unwrap().bench("launches"), ["5000", "1"].map(str::to_owned));
    let ended = place.run(&bench, &args).unwrap().finish().unwrap();
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    let said = String::from_utf8_lossy(&ended.stdout);
    let figures = cost::parse(&said, &bench).unwrap();
    let [launches, question] = ["launches", "question"].map(|name| cost::named(&figures, name).unwrap());
    let round_trips = launches / (question / 1e6);
    // One for seven launches would be 700.
    assert!(round_trips < 100.0, "{said}");
}

#[test]
fn a_machine_that_is_not_known_and_one_that_is_not_there_are_told_of_before_the_program_runs() {
    let stage = Stage::new("unknown").unwrap();
    let server = stage.served(Device::Soft, "127.0.0.1").unwrap();
    let failed = |address: &str| {
        let mut command = stage.command_with(&["--gpu", address], "vector_loop", &["10", "1"]);
        server.known_to(&mut command);
        Failure::of(&command.output().unwrap()).unwrap()
    };
    failed(&server.address).expect(125, &["is not known", &server.key, "dormouse keys trust"]);
    failed("127.0.0.1:1").expect(125, &["refused the connection", "dormouse serve"]);
    server.is_trusted().unwrap();
    failed(&format!("{}/1", server.address)).expect(125, &["no device number 1", "there are 1"]);
}

#[test]
fn a_program_has_the_devices_of_another_machine_that_are_asked_for() {
    let stage = Stage::new("chosen").unwrap();
    let server = stage.served_devices(3).unwrap();
    server.is_trusted().unwrap();
    let devices = |which: &str, visible: Option<&str>| {
        let address = format!("{}{which}", server.address);
        let mut command = stage.command_with(&["--gpu", &address], "devices", &["3", "1"]);
        server.known_to(&mut command);
        match visible {
            Some(list) => command.env("CUDA_VISIBLE_DEVICES", list),
            None => command.env_remove("CUDA_VISIBLE_DEVICES"),
        };
        let printed = String::from_utf8(finish(command).unwrap().stdout).unwrap();
        let of_device = |line: &str| Some(line.strip_prefix("device ")?.to_owned());
        printed.lines().filter_map(of_device).collect::<Vec<_>>()
    };
    let all = ["0 at 0000:01:00.0", "1 at 0000:02:00.0", "2 at 0000:03:00.0"];
    assert_eq!(devices("", None), all);
    assert_eq!(devices("/1", None), ["0 at 0000:02:00.0"]);
    assert_eq!(devices("/0", None), ["0 at 0000:01:00.0"]);
    assert_eq!(devices("", Some("2,0")), ["0 at 0000:03:00.0", "1 at 0000:01:00.0"]);
    assert_eq!(devices("/2", Some("0")), ["0 at 0000:03:00.0"]);
}

#[test]
fn devices_of_another_machine_are_listed_as_they_are_there() {
    let stage = Stage::new("listed").unwrap();
    let server = trusted(&stage);
    let listed = |device: &str| -> serde_json::Value {
        let mut command = stage.place().dormouse("devices");
        command.args(["--json", "--device", device]);
        server.known_to(&mut command);
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
    };
    let (here, there) = (listed("soft"), listed(&format!("remote:{}", server.address)));
    for field in ["driver", "cuda"] {
        assert_eq!(there[field], here[field], "{there}");
    }
    assert_eq!(there["devices"][0]["uuid"], here["devices"][0]["uuid"], "{there}");
}

/// With a library that stands in for what makes RDMA: no hardware is here.
#[test]
fn contents_of_memory_go_by_rdma_where_that_is_asked_for_and_nowhere_else() {
    let (stage, folder) = (Stage::new("rdma").unwrap(), tempfile::tempdir().unwrap());
    let library = rdmacm::stand_in(folder.path()).unwrap();
    let server = stage.served_by_rdma(&library).unwrap();
    server.is_trusted().unwrap();
    let run = |server: &Served, library: &Path, address: &str| {
        let mut command = stage.command_with(&["--gpu", address], "vector_loop", &["20", "1"]);
        server.known_to(&mut command);
        command.env("DORMOUSE_RDMACM", library);
        command
    };
    let here = finish(stage.command("vector_loop", &["20", "1"])).unwrap();
    let by_rdma = format!("{}+rdma", server.address);
    for address in [&by_rdma, &server.address] {
        let there = finish(run(&server, &library, address)).unwrap();
        assert_eq!(there.stdout, here.stdout, "{address}");
    }
    let failed = |mut command: Command, words: &[&str]| {
        Failure::of(&command.output().unwrap()).unwrap().expect(125, words);
    };
    let nowhere = Path::new("/nowhere/librdmacm.so.1");
    failed(run(&server, nowhere, &by_rdma), &["no RDMA", "librdmacm1", "/nowhere"]);
    let plain = trusted(&stage);
    failed(run(&plain, &library, &format!("{}+rdma", plain.address)), &["offers no RDMA", "serve --rdma"]);
}

/// From there to another machine that serves, and from there to a device of its own machine.
#[test]
fn an_image_continues_wherever_there_is_a_device() {
    let stage = Stage::new("moving").unwrap();
    let servers = [trusted(&stage), trusted(&stage)];
    let args = ["600"];
    let whole = stage.undisturbed(&args).unwrap().stdout;
    let mut job = stage.held_by(stage.command_at(&servers[0], PACED, &args)).unwrap();
    let mut printed = Vec::new();
    for server in [Some(&servers[1]), None] {
        let image = stage.checkpoint(After::Stop).unwrap();
        printed.extend(job.finish().unwrap().stdout);
        let here = || stage.place().restart_command(&image);
        let restart = server.map_or_else(here, |server| stage.restart_at(server, &image));
        job = first_line(Job::start(restart).unwrap()).unwrap();
    }
    let ended = stage.finish(job).unwrap();
    printed.extend(ended.stdout);
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    assert_eq!(printed, whole);
}

/// A program hears of it at once. What the other machine has for one that has died is free within a second (`docs/remote.md`), for half of which somebody might
/// knock; a machine that does much else may take longer.
#[test]
fn a_session_that_ends_fails_the_program_and_a_program_that_ends_frees_its_session() {
    const WITHIN: Duration = Duration::from_secs(3);
    let stage = Stage::new("lost").unwrap();
    let server = trusted(&stage);
    let begin = || first_line(Job::start(stage.command_at(&server, PACED, &["1000"])).unwrap()).unwrap();
    let job = begin();
    let killed = Instant::now();
    for session in server.sessions() {
        let pid = rustix::process::Pid::from_raw(session).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    let ended = job.finish().unwrap();
    assert!(matches!(ended.exit, Exit::Code(code) if code != 0), "{:?}: {}", ended.exit, ended.stderr);
    assert!(killed.elapsed() < WITHIN, "{:?}", killed.elapsed());
    for words in ["is lost", "lost its session with the other machine"] {
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
    assert!(!ended.stderr.contains("SIGKILL"), "{}", ended.stderr);
    let job = begin();
    assert!(!server.sessions().is_empty());
    stage.place().kill_everything(job).unwrap();
    let ended = Instant::now();
    while !server.sessions().is_empty() {
        assert!(ended.elapsed() < WITHIN, "a session outlives its program");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("gone after {:?}", ended.elapsed());
}

/// The other machine's server is killed under a program that computes there: its session goes with it, and the program hears of it, whoever asks for a new one is refused.
#[test]
fn a_server_that_is_killed_fails_the_program() {
    const WITHIN: Duration = Duration::from_secs(10);
    let stage = Stage::new("server-killed").unwrap();
    let server = trusted(&stage);
    let job = first_line(Job::start(stage.command_at(&server, PACED, &["5000"])).unwrap()).unwrap();
    let sessions = server.sessions();
    assert!(!sessions.is_empty());
    tree::kill_all(&[server.front().cast_signed()]);
    let killed = Instant::now();
    let ended = job.finish().unwrap();
    assert!(matches!(ended.exit, Exit::Code(code) if code != 0), "{:?}: {}", ended.exit, ended.stderr);
    assert!(killed.elapsed() < WITHIN, "{:?}", killed.elapsed());
    assert!(ended.stderr.contains("lost its session with the other machine"), "{}", ended.stderr);
    tree::wait_until_gone(&sessions, killed, WITHIN).unwrap();
    let refused = stage.command_at(&server, PACED, &["1"]).output().unwrap();
    Failure::of(&refused).unwrap().expect(125, &["refused the connection"]);
}
