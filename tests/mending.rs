//! Programs whose device is another machine's, over a network that breaks.
#![allow(clippy::unwrap_used)]

use dormouse_tests::planned::finish;
use dormouse_tests::{Stage, first_line};
use testkit::job::Job;
use testkit::network::Network;
use testkit::outcome::Exit;
use testkit::place::Device;

/// Each line is closed again and again, at any byte: the program prints what it prints here.
#[test]
fn a_program_only_waits_for_lines_that_break() {
    let stage = Stage::new("mending").unwrap();
    let mut server = stage.served(Device::Soft, "127.0.0.1").unwrap();
    let network = Network::before(server.address.parse().unwrap(), 3).unwrap();
    server.address = network.at().to_string();
    server.is_trusted().unwrap();
    let args = ["600", "10"];
    let here = finish(stage.command("vector_loop", &args)).unwrap();
    let job = first_line(Job::start(stage.command_at(&server, "vector_loop", &args)).unwrap()).unwrap();
    let before = network.count();
    network.be_rough(40_000);
    let there = job.finish().unwrap();
    assert_eq!((there.exit, &there.stdout), (here.exit, &here.stdout), "{}", there.stderr);
    assert_eq!(there.exit, Exit::Code(0));
    let broken = network.count() - before;
    assert!(broken > 3, "{broken} lines broke");
}
