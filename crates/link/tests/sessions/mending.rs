//! Lines that break between a client and its session, and what becomes of both.

use super::{
    Client, Server, Way, connect, echoes, joins, pem, preface, raw_session, raw_tls, says, server, works,
};
use link::keys::Quota;
use link::{DialError, Refusal, Wires};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::time::Duration;
use testkit::network::Network;

/// A client with a session through a network.
fn through(server: &Server) -> (Network, Client, Wires) {
    let network = Network::before(server.at, 7).unwrap();
    let client = server.client_through(network.at(), "desk");
    let (mut wires, _) = client.dial().unwrap();
    says(&mut wires, "desk");
    (network, client, wires)
}

/// Why a session is lost.
fn loss(wires: &mut Wires) -> String {
    wires.control_in.read_exact(&mut [0]).unwrap_err().to_string()
}

pub fn streams_go_on_where_they_were() {
    let server = server(&Way::default());
    let (network, _client, mut wires) = through(&server);
    let before = network.count();
    network.be_rough(400_000);
    for bytes in [1, 100, 3_000_000, 1_000_003] {
        echoes(&mut wires, bytes);
    }
    let broken = network.count() - before;
    println!("{broken} lines were closed on the way");
    assert!(broken > 40, "{broken}");
    // All at once, and more than fits while there is none: whoever writes waits.
    network.be_fair();
    network.close(0..network.count());
    echoes(&mut wires, 9_000_000);
    drop(wires);
    server.is_left_alone_within(Duration::from_secs(2));
}

pub fn silent_lines_are_made_again() {
    let server = server(&Way::default());
    let (network, _client, mut wires) = through(&server);
    network.freeze();
    echoes(&mut wires, 1_000_003);
}

pub fn a_line_that_is_not_mended_in_time_is_the_end() {
    let server = server(&Way { grace_ms: Some(1500), ..Way::default() });
    let (network, _client, mut wires) = through(&server);
    network.go_down();
    network.close(3..4);
    let why = loss(&mut wires);
    assert!(why.contains("broke, and was not to be had again within 1."), "{why}");
    server.is_left_alone_within(Duration::from_secs(15));
}

/// A client whose machine has closed everything is dead, unless it comes back at once.
pub fn all_lines_closed_is_the_end_at_once() {
    let server = server(&Way::default());
    let (network, _client, mut wires) = through(&server);
    network.go_down();
    network.close(0..network.count());
    server.is_left_alone_within(Duration::from_secs(1));
    // It hears so as soon as there is a way again.
    network.be_fair();
    let why = loss(&mut wires);
    assert!(why.contains("has the session no more"), "{why}");
}

pub fn a_session_that_is_gone_is_lost_at_once() {
    let server = server(&Way { grace_ms: Some(3_600_000), ..Way::default() });
    let client = server.client("desk");
    let (mut wires, _) = client.dial().unwrap();
    works(&mut wires, "desk");
    let session = server.started.lock().unwrap()[0];
    kill_process(Pid::from_raw(session as i32).unwrap(), Signal::KILL).unwrap();
    let why = loss(&mut wires);
    assert!(why.contains("has the session no more"), "{why}");
    // The others, too, and for good.
    assert!(wires.bulk_in[1].read_exact(&mut [0]).is_err() && wires.bulk_out[0].write_all(&[0]).is_err());
}

pub fn without_grace_nothing_is_mended() {
    let server = server(&Way { grace_ms: Some(0), ..Way::default() });
    let (network, _client, mut wires) = through(&server);
    echoes(&mut wires, 100_000);
    network.close(1..2);
    let _ = loss(&mut wires);
    server.is_left_alone_within(Duration::from_secs(2));
}

/// A session whose client is away is one of its sessions, and ends when that is let in no more.
pub fn who_waits_for_a_client_is_not_evaded() {
    let server = server(&Way::default());
    let (network, client, mut wires) = through(&server);
    let quota = Quota { sessions: Some(1), ..Quota::default() };
    server.keys.authorize("desk", client.key(), quota, None).unwrap();
    network.go_down();
    network.close(3..4);
    client.keys.trust(&server.address().machine(), server.key(), None).unwrap();
    let again = Client { server: server.address(), ..client };
    let refused = again.refused();
    assert!(matches!(refused, DialError::Refused { code: Refusal::Sessions, .. }), "{refused}");
    server.keys.revoke("desk").unwrap();
    server.is_left_alone_within(Duration::from_secs(2));
    network.be_fair();
    assert!(!loss(&mut wires).is_empty());
}

/// Of a session that stands, too, a line is made again only with its client's key and token.
pub fn strangers_mend_nothing() {
    let server = server(&Way::default());
    let (desk, other) = (server.client("desk"), server.client("other"));
    let raw = |session, client: &Client| raw_tls(&server, session, Some(&pem(&client.keys)), b"dormouse/1");
    let mut up = raw(0, &desk);
    let (session, token) = raw_session(&mut up);
    let mut lines: Vec<_> = (1..=3).map(|role| (raw(session, &desk), role)).collect();
    lines.iter_mut().for_each(|(line, role)| assert!(joins(line, token, *role)));
    let mut name = [0; 5];
    lines[0].0.read_exact(&mut name).unwrap();
    assert_eq!(&name, b"desk\n");
    for _ in 0..20 {
        assert!(!joins(&mut raw(session, &other), token, 1), "another key is let in");
        assert!(!joins(&mut raw(session, &desk), [7; 32], 1), "another token is let in");
        assert!(!joins(&mut raw(session, &desk), token, 9), "there is such a stream");
    }
    // Nor without TLS; and the stream is where it was.
    let mut plain = connect(&server);
    plain.write_all(&preface(1, session)).unwrap();
    assert!(plain.read_exact(&mut [0; 17]).is_err());
    up.write_all(b"still here").and_then(|()| up.flush()).unwrap();
    let mut back = [0; 10];
    lines[0].0.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"still here");
    assert_eq!(server.running(), 1);
}
