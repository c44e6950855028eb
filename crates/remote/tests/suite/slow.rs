//! A program on a slow network: it pays for what it waits for, and for nothing else.

use super::common::{Program, connect, tcp};
use backend::{Backend, StreamArg};
use libtest_mimic::{Failed, Trial};
use remote::Wires;
use std::time::{Duration, Instant};
use testkit::proxy::{Network, between};

const DELAY: Duration = Duration::from_millis(1);

pub fn trials() -> Vec<Trial> {
    vec![Trial::test("slow::launches_do_not_wait_for_the_network", launches_do_not_wait_for_the_network)]
}

fn launches_do_not_wait_for_the_network() -> Result<(), Failed> {
    const LAUNCHES: u32 = 100_000;
    let (_far, sockets) = tcp(&[]);
    let (near, _) = between(sockets, Network { delay: DELAY, ..Network::default() })?;
    let backend = connect(Wires::of_tcp(near)?);
    let program = Program::new(&backend)?;
    let begun = Instant::now();
    for number in 0..LAUNCHES {
        program.store(number)?;
    }
    let event = backend.event_create(program.ctx, 2)?;
    backend.event_record(program.ctx, event, StreamArg::Legacy, 0)?;
    backend.event_synchronize(program.ctx, event)?;
    let took = begun.elapsed();
    assert_eq!(program.read()?, LAUNCHES - 1);
    // A round trip for each would be 200 seconds.
    assert!(took < Duration::from_secs(20), "{took:?}");
    println!("{LAUNCHES} launches at {DELAY:?} each way: {took:?}");
    Ok(())
}
