//! Sessions whose bulk streams go by RDMA, which is a stand-in here (`testkit::rdmacm`): nothing of this has met hardware.

use super::{
    Client, Server, Way, asks_to_join, echoes, is_let_in, joins, options, pem, raw_session_over, raw_tls,
    says, server, vanishes, works,
};
use link::rdma::LIBRARY_VARIABLE;
use link::{DialError, Refusal, Trust, Wires, dial};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testkit::network::Network;

/// How a test is run in a process of its own, whose library is the stand-in.
const CASES: &[(&str, fn())] = &[
    ("bulk", bulk),
    ("lines", lines),
    ("streams", streams),
    ("vanishing", vanishing),
    ("tickets", tickets),
    ("refusals", refusals),
    ("nowhere", nowhere),
];

pub fn run(case: &str) {
    CASES.iter().find(|(name, _)| *name == case).unwrap().1();
}

/// Each process reads the library's name once.
fn alone(case: &str, variables: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    let library = testkit::rdmacm::stand_in(folder.path()).unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["rdma", case]).env(LIBRARY_VARIABLE, &library).envs(variables.iter().copied());
    assert!(process.status().unwrap().success());
}

pub fn bulk_goes_by_rdma() {
    alone("bulk", &[]);
}

pub fn rdma_streams_go_on_where_they_were() {
    alone("lines", &[]);
}

pub fn rdma_that_breaks_is_made_again() {
    alone("streams", &[("RDMACM_BREAKS", "1000000")]);
}

pub fn a_client_that_vanishes_leaves_nothing() {
    alone("vanishing", &[]);
}

pub fn it_is_for_who_has_the_ticket() {
    alone("tickets", &[]);
}

pub fn what_is_not_to_be_had_is_told_of() {
    alone("refusals", &[]);
    alone("refusals", &[(LIBRARY_VARIABLE, "/nowhere/librdmacm.so.1")]);
}

pub fn what_leads_nowhere_is_told_of() {
    alone("nowhere", &[("RDMACM_NOWHERE", "1")]);
}

fn with_rdma() -> Server {
    server(&Way { rdma: true, ..Way::default() })
}

/// The same client, which asks for RDMA.
fn asking(client: Client) -> Client {
    let server = format!("{}+rdma", client.server).parse().unwrap();
    Client { server, ..client }
}

/// Bytes that the stand-in has sent and received in this process.
fn carried() -> (usize, usize) {
    let library = std::env::var_os(LIBRARY_VARIABLE).unwrap();
    // SAFETY: it is loaded already, and begins with nothing; both are counters as wide as a `usize`, which stay.
    unsafe {
        let library = libloading::Library::new(library).unwrap();
        let count = |name: &[u8]| {
            let counter = library.get::<*const AtomicUsize>(name).unwrap();
            (**counter).load(Ordering::SeqCst)
        };
        (count(b"rdmacm_sent"), count(b"rdmacm_received"))
    }
}

fn bulk() {
    let server = with_rdma();
    let client = server.client("desk");
    works(&mut client.dial().unwrap().0, "desk");
    let client = asking(client);
    let (mut wires, _) = client.dial().unwrap();
    assert!(carried().1 < 10_000, "{:?}", carried());
    works(&mut wires, "desk");
    // Two streams of three, each way, and what TLS adds.
    let (sent, received) = carried();
    let expected = 2_000_006..2_500_000;
    assert!(expected.contains(&sent) && expected.contains(&received), "{sent} {received}");
    drop(wires);
    server.is_left_alone_within(Duration::from_secs(1));
    // Without TLS, too.
    let insecure = super::server(&Way { insecure: true, rdma: true, ..Way::default() });
    let address = format!("{}+rdma", insecure.at).parse().unwrap();
    works(&mut dial(&address, Trust::InsecureLoopback, &options()).unwrap().0, "this machine");
    assert!(carried().0 > 2 * sent - 200_000);
}

fn lines() {
    let server = with_rdma();
    let network = Network::before(server.at, 7).unwrap();
    let client = asking(server.client_through(network.at(), "desk"));
    let (mut wires, _) = client.dial().unwrap();
    says(&mut wires, "desk");
    for _ in 0..10 {
        echoes(&mut wires, 300_000);
        let before = network.count();
        network.close(0..before);
        // More than fits while there is none.
        echoes(&mut wires, 9_000_000);
        assert!(network.count() >= before + 6);
    }
    network.be_rough(300_000);
    echoes(&mut wires, 1_000_003);
    drop(wires);
    server.is_left_alone_within(Duration::from_secs(2));
}

fn streams() {
    let server = with_rdma();
    let client = asking(server.client("desk"));
    let (mut wires, _) = client.dial().unwrap();
    works(&mut wires, "desk");
    echoes(&mut wires, 3_000_000);
    assert!(carried().0 > 8_000_000);
    drop(wires);
    server.is_left_alone_within(Duration::from_secs(2));
}

fn vanishing() {
    let server = with_rdma();
    vanishes(&server, &asking(server.client("desk")));
}

fn tickets() {
    let server = with_rdma();
    let desk = server.client("desk");
    let raw = |session| raw_tls(&server, session, Some(&pem(&desk.keys)), b"dormouse/1");
    let mut control = raw(0);
    let (session, token) = raw_session_over(&mut control, true);
    let mut down = raw(session);
    assert!(joins(&mut down, token, 1), "control streams go as they always do");
    let mut line = raw(session);
    assert!(asks_to_join(&mut line, token, 2));
    // Which answer, the port in groups of seven bits, and the ticket.
    let mut len = [0; 2];
    line.read_exact(&mut len).unwrap();
    let mut told = vec![0; u16::from_le_bytes(len).into()];
    line.read_exact(&mut told).unwrap();
    let (head, ticket) = told.split_at(told.len() - 32);
    let groups = head[1..].iter().rev();
    let port = groups.fold(0, |port, group| port << 7 | u16::from(group & 0x7f));
    assert_eq!(head[0], 3);
    let knock = |ticket: &[u8]| {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.write_all(ticket).unwrap();
        stream
    };
    // Whoever says nothing does not hold it up for long; whoever says something else is put out.
    let silent = knock(&[]);
    let mut other = knock(&[7; 32]);
    let since = Instant::now();
    assert!(matches!(other.read(&mut [0]), Ok(0) | Err(_)));
    let _stream = knock(ticket);
    assert!(is_let_in(&mut line), "whoever has the ticket is let in");
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
    drop(silent);
}

/// With the library on this side, and without.
fn refusals() {
    let refusal = |way: Way| {
        let server = server(&Way { rdmacm: Some("/nowhere/there.so"), ..way });
        let client = server.client("desk");
        let refused = asking(client).refused();
        server.is_left_alone_within(Duration::from_secs(1));
        refused
    };
    let [not_offered, not_there] = [false, true].map(|rdma| refusal(Way { rdma, ..Way::default() }));
    if std::env::var(LIBRARY_VARIABLE).unwrap().starts_with("/nowhere") {
        for error in [not_offered, not_there] {
            let text = error.to_string();
            assert!(matches!(error, DialError::NoRdma { .. }), "{text}");
            assert!(text.contains("librdmacm1") && text.contains("/nowhere/librdmacm.so.1"), "{text}");
        }
        return;
    }
    for (error, why) in [(not_offered, "dormouse serve --rdma"), (not_there, "/nowhere/there.so")] {
        assert!(matches!(error, DialError::Refused { code: Refusal::Request, .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

fn nowhere() {
    let server = with_rdma();
    let client = server.client("desk");
    let (mut plain, _): (Wires, _) = client.dial().unwrap();
    let error = asking(client).refused();
    assert!(matches!(error, DialError::NoRdma { .. }), "{error}");
    assert!(error.to_string().contains("unreachable"), "{error}");
    // What does not ask for it goes on.
    works(&mut plain, "desk");
    drop(plain);
    server.is_left_alone_within(Duration::from_secs(2));
}
