//! Sessions over loopback, honest and otherwise. This program is also the process of each session, and a client to be killed: what a session's process
//! gives up cannot be had back.
#![allow(clippy::unwrap_used)]

#[path = "sessions/mending.rs"]
mod mending;
#[path = "sessions/rdma.rs"]
mod rdma;

use libtest_mimic::{Arguments, Trial};
use link::keys::{GRACE, Identity, Quota, YEAR};
use link::{
    Address, Confinement, DialError, DialOptions, Fingerprint, Front, FrontError, FrontOptions, Keys,
    KeysError, Refusal, Service, Trust, User, Welcome, Wires, dial, far_end,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

const TESTS: &[(&str, fn())] = &[
    ("known_clients_have_sessions", known_clients_have_sessions),
    ("strangers_have_none", strangers_have_none),
    ("no_certificate_no_session", no_certificate_no_session),
    ("revoked_clients_are_out_at_once", revoked_clients_are_out_at_once),
    ("expired_certificates", expired_certificates),
    ("a_server_with_another_key_is_told_of_loudly", a_server_with_another_key_is_told_of_loudly),
    ("garbage_is_dropped", garbage_is_dropped),
    ("garbage_at_any_state_opens_no_session", garbage_at_any_state_opens_no_session),
    ("other_services_are_told_from_ours", other_services_are_told_from_ours),
    ("hellos_are_bounded", hellos_are_bounded),
    ("half_open_connections_keep_nobody_out", half_open_connections_keep_nobody_out),
    ("a_hundred_clients_at_once", a_hundred_clients_at_once),
    ("a_key_has_so_many_sessions", a_key_has_so_many_sessions),
    ("a_key_has_so_much_memory_in_all_its_sessions", a_key_has_so_much_memory_in_all_its_sessions),
    ("sessions_share_no_user_and_no_network", sessions_share_no_user_and_no_network),
    ("a_server_has_so_many_clients", a_server_has_so_many_clients),
    ("a_client_that_vanishes_leaves_nothing", a_client_that_vanishes_leaves_nothing),
    ("a_token_opens_one_session", a_token_opens_one_session),
    ("another_key_joins_no_session", another_key_joins_no_session),
    ("keys_are_rotated_on_both_sides", keys_are_rotated_on_both_sides),
    ("without_tls_on_loopback_only", without_tls_on_loopback_only),
    ("what_cannot_be_had_is_refused", what_cannot_be_had_is_refused),
    ("a_session_without_all_its_connections_ends", a_session_without_all_its_connections_ends),
    ("the_software_device_needs_no_more", the_software_device_needs_no_more),
    ("a_server_out_of_descriptors_goes_on", a_server_out_of_descriptors_goes_on),
    ("streams_go_on_where_they_were", mending::streams_go_on_where_they_were),
    ("silent_lines_are_made_again", mending::silent_lines_are_made_again),
    ("a_line_that_is_not_mended_in_time_is_the_end", mending::a_line_that_is_not_mended_in_time_is_the_end),
    ("all_lines_closed_is_the_end_at_once", mending::all_lines_closed_is_the_end_at_once),
    ("a_session_that_is_gone_is_lost_at_once", mending::a_session_that_is_gone_is_lost_at_once),
    ("without_grace_nothing_is_mended", mending::without_grace_nothing_is_mended),
    ("who_waits_for_a_client_is_not_evaded", mending::who_waits_for_a_client_is_not_evaded),
    ("strangers_mend_nothing", mending::strangers_mend_nothing),
    ("bulk_goes_by_rdma", rdma::bulk_goes_by_rdma),
    ("rdma_streams_go_on_where_they_were", rdma::rdma_streams_go_on_where_they_were),
    ("rdma_that_breaks_is_made_again", rdma::rdma_that_breaks_is_made_again),
    ("a_client_of_rdma_that_vanishes_leaves_nothing", rdma::a_client_that_vanishes_leaves_nothing),
    ("rdma_is_for_who_has_the_ticket", rdma::it_is_for_who_has_the_ticket),
    ("rdma_that_is_not_to_be_had_is_told_of", rdma::what_is_not_to_be_had_is_told_of),
    ("rdma_that_leads_nowhere_is_told_of", rdma::what_leads_nowhere_is_told_of),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("far-end") => serve_session(args[2] == "insecure", &args[3], args[4] == "rdma"),
        Some("rdma") => {
            rdma::run(&args[2]);
            ExitCode::SUCCESS
        }
        Some("client") => be_a_client(&args[2], &args[3]),
        Some("descriptors") => {
            run_out_of_descriptors();
            ExitCode::SUCCESS
        }
        _ => {
            let trials = TESTS.iter().map(|(name, test)| {
                Trial::test(*name, || {
                    test();
                    Ok(())
                })
            });
            libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
        }
    }
}

/// Sends back what comes; the first line on the control stream is the client's name, and where its memory is counted whether it has had [`TAKEN`] of it.
fn serve_session(insecure_loopback: bool, grace_ms: &str, rdma: bool) -> ExitCode {
    let options = link::far_end::FarEndOptions {
        service: Service::Devices,
        insecure_loopback,
        confinement: Some(Confinement { user: None, network: rdma, system_calls: !rdma }),
        rdma,
        grace: Duration::from_millis(grace_ms.parse().unwrap()),
    };
    let served = far_end(link::far_end::control().unwrap(), &options, |facts| {
        if facts.device > 0 {
            return Err("there is no such device".to_owned());
        }
        let had = facts
            .memory
            .as_ref()
            .map_or("", |memory| if memory.take(TAKEN) { " has it" } else { " has none" });
        let (name, memory) = (format!("{}{had}", facts.name), facts.memory.clone());
        Ok(move |mut wires: Wires| {
            if name == CONFORMANCE {
                return show_behaviours(&mut *wires.control_in, &mut *wires.control_out);
            }
            // What was given up.
            let users = [User::of_this_process(), User::nobody()].map(User::uid);
            assert!(users.contains(&rustix::process::geteuid().as_raw()));
            assert!(rdma || fs::read("/etc/passwd").is_err());
            let mut threads = Vec::new();
            for (mut from, mut to) in wires.bulk_in.into_iter().zip(wires.bulk_out) {
                threads.push(thread::spawn(move || echo(&mut *from, &mut *to)));
            }
            writeln!(wires.control_out, "{name}").unwrap();
            echo(&mut *wires.control_in, &mut *wires.control_out);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            drop(memory);
        })
    });
    served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

/// How much memory a session takes at its beginning, bytes.
const TAKEN: u64 = 3 << 30;

/// The client for whom the software device is tried.
const CONFORMANCE: &str = "conformance";

/// Runs the suite that every device passes, and writes which behaviours were not shown, to who is there until that is read.
fn show_behaviours(from: &mut dyn Read, to: &mut dyn Write) {
    let device = backend_soft::SoftBackend::new(backend_soft::Options::default());
    let mut failed = String::new();
    for (name, behaviour) in backend::conformance::BEHAVIOURS {
        let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| behaviour(&device)));
        if shown.is_err() {
            failed.push_str(&format!(" {name}"));
        }
    }
    writeln!(to, "{}:{failed}", backend::conformance::BEHAVIOURS.len()).unwrap();
    // What is on its way to somebody is lost with the process that has sent it.
    let _ = from.read(&mut [0]);
    std::process::exit(0);
}

fn echo(from: &mut dyn Read, to: &mut dyn Write) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
}

/// Has a session until it is killed.
fn be_a_client(folder: &str, address: &str) -> ExitCode {
    let keys = Keys::new(folder.into());
    let session = dial(&address.parse().unwrap(), Trust::Keys(&keys), &options());
    println!("{}", if session.is_ok() { "ready" } else { "failed" });
    thread::sleep(Duration::from_secs(60));
    ExitCode::FAILURE
}

/// A server for one test, and who may use it.
struct Server {
    _folder: TempDir,
    keys: Keys,
    at: SocketAddr,
    /// The processes that it has started.
    started: Arc<Mutex<Vec<u32>>>,
}

/// What differs from test to test.
#[derive(Default)]
struct Way {
    insecure: bool,
    max_clients: Option<usize>,
    half_open: Option<usize>,
    grace_ms: Option<u64>,
    rdma: bool,
    /// What the server has in place of the library of RDMA.
    rdmacm: Option<&'static str>,
}

fn in_a_year() -> SystemTime {
    SystemTime::now() + YEAR
}

fn options() -> DialOptions {
    DialOptions { service: Service::Devices, bulk: 2, timeout: Duration::from_secs(20) }
}

fn server(way: &Way) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys::new(folder.path().to_owned());
    if !way.insecure {
        keys.create(in_a_year()).unwrap();
    }
    let front = Front::bind(FrontOptions {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        keys: keys.clone(),
        insecure_loopback: way.insecure,
        max_clients: way.max_clients.unwrap_or(200),
        half_open: way.half_open.unwrap_or(64),
    })
    .unwrap();
    let at = front.local_addr().unwrap();
    let started = Arc::new(Mutex::new(Vec::new()));
    let list = started.clone();
    let (insecure, grace) = (way.insecure, way.grace_ms.unwrap_or(30_000).to_string());
    let (rdma, rdmacm) = (way.rdma, way.rdmacm);
    thread::spawn(move || {
        front.run(move |control| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.arg("far-end").arg(if insecure { "insecure" } else { "tls" });
            command.arg(&grace).arg(if rdma { "rdma" } else { "tcp" });
            command.envs(rdmacm.map(|file| (link::rdma::LIBRARY_VARIABLE, file)));
            let child = command.stdin(control).stdout(Stdio::null()).spawn()?;
            list.lock().unwrap().push(child.id());
            Ok(child)
        })
    });
    Server { _folder: folder, keys, at, started }
}

impl Server {
    fn key(&self) -> Fingerprint {
        self.keys.identity().unwrap().fingerprint()
    }

    fn address(&self) -> Address {
        self.at.to_string().parse().unwrap()
    }

    /// A client that knows this server and is known to it.
    fn client(&self, name: &str) -> Client {
        self.client_through(self.at, name)
    }

    /// One that reaches it through something else.
    fn client_through(&self, at: SocketAddr, name: &str) -> Client {
        let client = Client { server: at.to_string().parse().unwrap(), ..self.stranger() };
        client.keys.trust(&client.server.machine(), self.key(), None).unwrap();
        self.keys.authorize(name, client.key(), Quota::default(), None).unwrap();
        client
    }

    fn stranger(&self) -> Client {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::new(folder.path().to_owned());
        keys.create(in_a_year()).unwrap();
        Client { _folder: folder, keys, server: self.address() }
    }

    fn running(&self) -> usize {
        let started = self.started.lock().unwrap();
        started.iter().filter(|pid| fs::exists(format!("/proc/{pid}")).unwrap()).count()
    }

    /// Waits until no process of a session is left.
    fn is_left_alone_within(&self, limit: Duration) {
        let end = Instant::now() + limit;
        while self.running() > 0 {
            assert!(Instant::now() < end, "{} processes are left after {limit:?}", self.running());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

struct Client {
    _folder: TempDir,
    keys: Keys,
    server: Address,
}

impl Client {
    fn key(&self) -> Fingerprint {
        self.keys.identity().unwrap().fingerprint()
    }

    fn dial(&self) -> Result<(Wires, Welcome), DialError> {
        dial(&self.server, Trust::Keys(&self.keys), &options())
    }

    fn refused(&self) -> DialError {
        match self.dial() {
            Ok(_) => panic!("there is a session"),
            Err(error) => error,
        }
    }
}

/// The client's name comes first, and then everything back that is sent.
fn works(wires: &mut Wires, name: &str) {
    says(wires, name);
    echoes(wires, 1_000_003);
}

fn says(wires: &mut Wires, name: &str) {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        wires.control_in.read_exact(&mut byte).unwrap();
        line.extend(byte);
    }
    assert_eq!(String::from_utf8(line).unwrap().trim(), name);
}

/// Sends so many bytes through each stream, and gets them back.
fn echoes(wires: &mut Wires, bytes: u32) {
    let pattern: Vec<u8> = (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let check = |out: &mut Box<dyn Write + Send>, back: &mut Box<dyn Read + Send>| {
        thread::scope(|scope| {
            scope.spawn(|| out.write_all(&pattern).and_then(|()| out.flush()).unwrap());
            let mut came = vec![0; pattern.len()];
            back.read_exact(&mut came).unwrap();
            assert!(came == pattern, "other bytes came back");
        });
    };
    check(&mut wires.control_out, &mut wires.control_in);
    wires.bulk_out.iter_mut().zip(&mut wires.bulk_in).for_each(|(out, back)| check(out, back));
}

fn known_clients_have_sessions() {
    let server = server(&Way::default());
    let client = server.client("desk");
    let quota = Quota { memory: Some(7 << 30), ..Quota::default() };
    server.keys.authorize("desk", client.key(), quota, None).unwrap();
    let (mut wires, welcome) = client.dial().unwrap();
    assert_eq!((welcome.memory, welcome.new_key), (Some(7 << 30), None));
    works(&mut wires, "desk has it");
    drop(wires);
    server.is_left_alone_within(Duration::from_secs(1));
}

fn strangers_have_none() {
    let server = server(&Way::default());
    let client = server.stranger();
    let refused = client.refused();
    let (machine, key) = (server.address().machine(), server.key());
    assert!(matches!(refused, DialError::UnknownServer { .. }), "{refused}");
    assert!(refused.to_string().contains(&format!("dormouse keys trust {machine} {key}")), "{refused}");
    client.keys.trust(&machine, server.key(), None).unwrap();
    let refused = client.refused();
    assert!(matches!(refused, DialError::NotAuthorised { .. }), "{refused}");
    assert!(
        refused.to_string().contains(&format!("dormouse keys authorize NAME {}", client.key())),
        "{refused}"
    );
    server.keys.authorize("x", client.key(), Quota::default(), None).unwrap();
    client.dial().unwrap();
    server.is_left_alone_within(Duration::from_secs(1));
}

/// Takes any server.
#[derive(Debug)]
struct Any;

impl rustls::client::danger::ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ED25519]
    }
}

type Tls = rustls::StreamOwned<rustls::ClientConnection, TcpStream>;

fn preface(kind: u16, session: u64) -> Vec<u8> {
    [&b"DRMS\x03\0"[..], &kind.to_le_bytes(), &session.to_le_bytes()].concat()
}

fn connect(server: &Server) -> TcpStream {
    let socket = TcpStream::connect(server.at).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    socket
}

/// TLS without the checks of an honest client, with the certificate of this file if any.
fn raw_tls(server: &Server, session: u64, pem: Option<&str>, alpn: &[u8]) -> Tls {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Any));
    let mut config = match pem {
        None => builder.with_no_client_auth(),
        Some(pem) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap(),
            )
            .unwrap(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    let name = ServerName::try_from("dormouse").unwrap();
    let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = connect(server);
    socket.write_all(&preface(0, session)).unwrap();
    rustls::StreamOwned::new(connection, socket)
}

fn pem(keys: &Keys) -> String {
    fs::read_to_string(keys.folder().join("identity.pem")).unwrap()
}

/// The alert that a server answers with.
fn alert(mut tls: Tls) -> rustls::AlertDescription {
    let error = match tls.write_all(b"x").and_then(|()| tls.read_exact(&mut [0])) {
        Ok(()) => panic!("it is let in"),
        Err(error) => error,
    };
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => *alert,
        _ => panic!("no alert: {error}"),
    }
}

fn no_certificate_no_session() {
    use rustls::AlertDescription::{CertificateRequired, NoApplicationProtocol};
    let server = server(&Way::default());
    let client = server.client("desk");
    assert_eq!(alert(raw_tls(&server, 0, None, b"dormouse/1")), CertificateRequired);
    let mine = pem(&client.keys);
    assert_eq!(alert(raw_tls(&server, 0, Some(&mine), b"http/1.1")), NoApplicationProtocol);
    server.is_left_alone_within(Duration::from_secs(2));
    client.dial().unwrap();
}

fn revoked_clients_are_out_at_once() {
    let server = server(&Way::default());
    let (client, other) = (server.client("desk"), server.client("other"));
    let (mut wires, _) = client.dial().unwrap();
    let (mut others, _) = other.dial().unwrap();
    works(&mut wires, "desk");
    server.keys.revoke("desk").unwrap();
    let since = Instant::now();
    let mut byte = [0];
    assert!(wires.control_in.read_exact(&mut byte).is_err());
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    let refused = client.refused();
    assert!(matches!(refused, DialError::Revoked { .. }), "{refused}");
    works(&mut others, "other");
}

fn expired_certificates() {
    use rustls::AlertDescription::CertificateExpired;
    let server = server(&Way::default());
    let client = server.client("desk");
    let old = tempfile::tempdir().unwrap();
    let old = Keys::new(old.path().to_owned());
    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    let expired = old.create(yesterday).unwrap();
    // A client's: it sees so itself, and a server does if it does not.
    server.keys.authorize("old", expired.fingerprint(), Quota::default(), None).unwrap();
    let by_itself = dial(&server.address(), Trust::Keys(&old), &options()).err().unwrap();
    assert!(matches!(by_itself, DialError::OwnKeys(KeysError::Expired(_))), "{by_itself}");
    assert_eq!(alert(raw_tls(&server, 0, Some(&pem(&old)), b"dormouse/1")), CertificateExpired);
    // By the server's list.
    let over = Quota { expires: Some(link::keys::Moment(yesterday)), ..Quota::default() };
    server.keys.authorize("desk", client.key(), over, None).unwrap();
    let refused = client.refused();
    assert!(matches!(refused, DialError::AuthorisationExpired { .. }), "{refused}");
    server.keys.authorize("desk", client.key(), Quota::default(), None).unwrap();
    client.dial().unwrap();
    // A server's.
    fs::copy(old.folder().join("identity.pem"), server.keys.folder().join("identity.pem")).unwrap();
    client.keys.trust(&server.address().machine(), expired.fingerprint(), Some(GRACE)).unwrap();
    let refused = client.refused();
    assert!(matches!(refused, DialError::ServerExpired { .. }), "{refused}");
    let refused = Front::bind(FrontOptions {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        keys: old,
        insecure_loopback: false,
        max_clients: 1,
        half_open: 1,
    });
    assert!(matches!(refused, Err(FrontError::Keys(KeysError::Expired(_)))));
}

fn a_server_with_another_key_is_told_of_loudly() {
    let server = server(&Way::default());
    let client = server.client("desk");
    let known = Identity::new(in_a_year()).unwrap().fingerprint();
    client.keys.trust(&server.address().machine(), known, Some(Duration::ZERO)).unwrap();
    let refused = client.refused();
    assert!(matches!(refused, DialError::ServerChanged { .. }), "{refused}");
    let said = refused.to_string();
    assert!(said.contains("HAS CHANGED") && said.contains(&known.to_string()), "{said}");
    assert!(said.contains(&server.key().to_string()), "{said}");
}

fn garbage_is_dropped() {
    let server = server(&Way::default());
    let client = server.client("desk");
    let half = preface(0, 0)[..9].to_vec();
    let garbage = [preface(0, 0), vec![0x17; 4000]].concat();
    let long_record = [preface(0, 0), vec![0x16, 3, 1, 0xff, 0xff], vec![1; 70_000]].concat();
    let gifts: [&[u8]; 6] =
        [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", &half, &garbage, &long_record, b"DRMS"];
    for gift in gifts {
        let mut socket = connect(&server);
        // It may have been closed by then.
        let _ = socket.write_all(gift);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
        assert!(rest.len() < 100, "{} bytes for {gift:?}", rest.len());
    }
    // Of another version, or of no session.
    for (asked, notice) in
        [([b"DRMS\x09\0\0\0".as_slice(), &[0; 8]].concat(), 0x100_u16), (preface(0, 99), 0x102)]
    {
        let mut socket = connect(&server);
        socket.write_all(&asked).unwrap();
        let mut said = [0; 16];
        socket.read_exact(&mut said).unwrap();
        assert_eq!(said[..], preface(notice, 0));
    }
    // And the silent ones, in the end.
    let mut silent = connect(&server);
    silent.write_all(&preface(0, 0)).unwrap();
    let mut slow = connect(&server);
    slow.write_all(b"D").unwrap();
    client.dial().unwrap();
    let since = Instant::now();
    for mut socket in [silent, slow] {
        let _ = socket.read_to_end(&mut Vec::new());
    }
    assert!(since.elapsed() < Duration::from_secs(8), "{:?}", since.elapsed());
    server.is_left_alone_within(Duration::from_secs(3));
}

/// What somebody on the way makes of one direction of one connection, from some byte on.
#[derive(Clone, Copy)]
struct Garbling {
    connection: usize,
    to_server: bool,
    from: usize,
    sort: Sort,
}

#[derive(Clone, Copy)]
enum Sort {
    OneBit,
    Garbage,
    End,
}

/// Garbles connections to a server: where to connect to, and how many bytes each connection has carried, to it and back.
fn somebody_on_the_way(at: SocketAddr, garbling: Option<Garbling>) -> (Address, Carried) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let carried = Carried::default();
    let counts = carried.clone();
    thread::spawn(move || {
        for (connection, near) in listener.incoming().enumerate() {
            let (near, far) = (near.unwrap(), TcpStream::connect(at).unwrap());
            counts.lock().unwrap().push([0; 2]);
            for to_server in [true, false] {
                let [mut from, mut to] = [&near, &far].map(|socket| socket.try_clone().unwrap());
                if !to_server {
                    std::mem::swap(&mut from, &mut to);
                }
                let garbling = garbling
                    .filter(|garbling| (garbling.connection, garbling.to_server) == (connection, to_server));
                let counts = counts.clone();
                let count = move |bytes| {
                    let sum = &mut counts.lock().unwrap()[connection][usize::from(to_server)];
                    *sum += bytes;
                    *sum - bytes
                };
                thread::spawn(move || carry(from, to, garbling, count));
            }
        }
    });
    (address, carried)
}

type Carried = Arc<Mutex<Vec<[usize; 2]>>>;

fn carry(mut from: TcpStream, mut to: TcpStream, garbling: Option<Garbling>, count: impl Fn(usize) -> usize) {
    let mut bytes = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        let mut bytes = &mut bytes[..read];
        let before = count(read);
        if let Some(Garbling { from, sort, .. }) = garbling
            && before + read > from
        {
            let at = from.saturating_sub(before);
            match sort {
                Sort::OneBit if before <= from => bytes[at] ^= 1,
                Sort::OneBit => {}
                Sort::Garbage => bytes[at..].fill(0xa5),
                Sort::End => bytes = &mut bytes[..at],
            }
        }
        if to.write_all(bytes).is_err() || bytes.len() < read {
            break;
        }
    }
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

/// In the preface, anywhere in the handshake, in the hello and its answer, of the first connection and of one that joins it.
fn garbage_at_any_state_opens_no_session() {
    let server = server(&Way::default());
    let client = server.client("desk");
    let through = |garbling| {
        let (address, carried) = somebody_on_the_way(server.at, garbling);
        client.keys.trust(&address.machine(), server.key(), None).unwrap();
        let session = dial(&address, Trust::Keys(&client.keys), &options());
        let carried = carried.lock().unwrap().clone();
        (session, carried)
    };
    let (session, carried) = through(None);
    works(&mut session.unwrap().0, "desk");
    for connection in [0, carried.len() - 1] {
        for to_server in [true, false] {
            // Lengths of numbers and of what is encrypted differ a little from session to session.
            let whole = carried[connection][usize::from(to_server)] - 16;
            for (number, from) in (0..16).step_by(5).chain((16..whole).step_by(whole / 7)).enumerate() {
                let sort = [Sort::OneBit, Sort::Garbage, Sort::End][number % 3];
                let (session, _) = through(Some(Garbling { connection, to_server, from, sort }));
                assert!(session.is_err(), "connection {connection}, to the server {to_server}, byte {from}");
            }
        }
    }
    works(&mut client.dial().unwrap().0, "desk");
    server.is_left_alone_within(Duration::from_secs(20));
}

fn other_services_are_told_from_ours() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys::new(folder.path().to_owned());
    keys.create(in_a_year()).unwrap();
    type Expected = fn(&DialError) -> bool;
    let said: [(&[u8], Expected); 6] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", |error| matches!(error, DialError::NotDormouse { .. })),
        (b"DRMS\x07\0\0\x01\0\0\0\0\0\0\0\0", |error| matches!(error, DialError::Version { theirs: 7, .. })),
        (b"DRMS\x02\0\0\x01\0\0\0\0\0\0\0\0", |error| matches!(error, DialError::Version { theirs: 2, .. })),
        (b"DRMS\x03\0\x01\x01\0\0\0\0\0\0\0\0", |error| matches!(error, DialError::Busy { .. })),
        (b"DRMS", |error| matches!(error, DialError::Broken { .. })),
        (b"", |error| matches!(error, DialError::Broken { .. })),
    ];
    for (gift, expected) in said {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let other = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut first = [0; 100];
            let _ = socket.read(&mut first);
            socket.write_all(gift).unwrap();
            drop(socket);
        });
        let error = dial(&address, Trust::Keys(&keys), &options()).err().unwrap();
        assert!(expected(&error), "{error:?}");
        other.join().unwrap();
    }
    // Nobody listens, nobody answers, nobody is called so.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let short = DialOptions { timeout: Duration::from_millis(300), ..options() };
    let error = dial(&address, Trust::Keys(&keys), &short).err().unwrap();
    assert!(matches!(error, DialError::TimedOut { .. }), "{error:?}");
    drop(listener);
    let error = dial(&address, Trust::Keys(&keys), &options()).err().unwrap();
    assert!(matches!(error, DialError::ConnectionRefused { .. }), "{error:?}");
    let error = dial(&"nowhere.invalid".parse().unwrap(), Trust::Keys(&keys), &options()).err().unwrap();
    assert!(matches!(error, DialError::NotResolved { .. }), "{error:?}");
}

/// The process of a session that gets this hello ends, and nothing comes back.
fn closed_after(server: &Server, hello: &[u8]) {
    let mut socket = connect(server);
    socket.write_all(&preface(1, 0)).unwrap();
    let _ = socket.write_all(hello);
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest);
    assert_eq!(rest, b"", "{hello:?}");
}

fn hellos_are_bounded() {
    let server = server(&Way { insecure: true, ..Way::default() });
    let long = [&[0xff, 0xff][..], &vec![0; 70_000]].concat();
    closed_after(&server, &long);
    closed_after(&server, &[0x01, 0x04, 0, 0]);
    closed_after(&server, &[0, 0]);
    // No variant, no service, a device of too many bits, no bulk connection, too many, neither with RDMA nor without, one byte too many, a token where none can be.
    for hello in [
        &[9, 0, 0, 1, 0][..],
        &[0, 9, 0, 1, 0],
        &[0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0],
        &[0, 0, 0, 0, 0],
        &[0, 0, 0, 17, 0],
        &[0, 0, 0, 1, 2],
        &[0, 0, 0, 1, 0, 1],
        &[&[1][..], &[0; 33]].concat(),
    ] {
        closed_after(&server, &[&(hello.len() as u16).to_le_bytes()[..], hello].concat());
    }
    server.is_left_alone_within(Duration::from_secs(1));
    let (mut wires, _) = dial(&server.address(), Trust::InsecureLoopback, &options()).unwrap();
    works(&mut wires, "this machine");
}

fn half_open_connections_keep_nobody_out() {
    let server = server(&Way::default());
    let client = server.client("desk");
    let before = Instant::now();
    let mut silent: Vec<TcpStream> = (0..400).map(|_| connect(&server)).collect();
    // Those that want a session are worse: each is a process for a second.
    silent.extend((0..100).map(|_| {
        let mut socket = connect(&server);
        socket.write_all(&preface(0, 0)).unwrap();
        socket
    }));
    let flood = before.elapsed();
    let (mut wires, _) = client.dial().unwrap();
    works(&mut wires, "desk");
    let honest = before.elapsed() - flood;
    println!("500 half-open connections in {flood:?}; an honest client after {honest:?}");
    assert!(honest < Duration::from_secs(4), "{honest:?}");
    assert!(server.running() <= 40, "{}", server.running());
    drop(wires);
    drop(silent);
    server.is_left_alone_within(Duration::from_secs(8));
}

fn a_hundred_clients_at_once() {
    let server = server(&Way::default());
    let clients: Vec<Client> = (0..100).map(|number| server.client(&format!("client-{number}"))).collect();
    let since = Instant::now();
    let dialled: Vec<_> = thread::scope(|scope| {
        let all: Vec<_> = clients.iter().map(|client| scope.spawn(|| client.dial())).collect();
        all.into_iter().map(|each| each.join().unwrap()).collect()
    });
    println!("100 clients have sessions after {:?}", since.elapsed());
    let mut wires: Vec<Wires> = dialled.into_iter().map(|session| session.unwrap().0).collect();
    assert_eq!(server.running(), 100);
    wires.iter_mut().enumerate().for_each(|(number, wires)| works(wires, &format!("client-{number}")));
    drop(wires);
    server.is_left_alone_within(Duration::from_secs(5));
}

fn a_key_has_so_many_sessions() {
    let server = server(&Way::default());
    let (client, other) = (server.client("desk"), server.client("other"));
    let quota = Quota { sessions: Some(2), ..Quota::default() };
    server.keys.authorize("desk", client.key(), quota, None).unwrap();
    let first = client.dial().unwrap();
    let _second = client.dial().unwrap();
    let refused = client.refused();
    assert!(matches!(refused, DialError::Refused { code: Refusal::Sessions, .. }), "{refused}");
    assert!(refused.to_string().contains("desk may have 2 at a time"), "{refused}");
    let _others = other.dial().unwrap();
    drop(first);
    let end = Instant::now() + Duration::from_secs(2);
    while client.dial().is_err() {
        assert!(Instant::now() < end);
    }
}

fn a_key_has_so_much_memory_in_all_its_sessions() {
    let server = server(&Way::default());
    let (client, other) = (server.client("desk"), server.client("other"));
    let quota = Quota { memory: Some(2 * TAKEN), ..Quota::default() };
    server.keys.authorize("desk", client.key(), quota.clone(), None).unwrap();
    server.keys.authorize("other", other.key(), quota, None).unwrap();
    let session = |client: &Client, said: &str| {
        let mut wires = client.dial().unwrap().0;
        says(&mut wires, said);
        wires
    };
    let first = session(&client, "desk has it");
    let _second = session(&client, "desk has it");
    let _third = session(&client, "desk has none");
    let _others = session(&other, "other has it");
    // Killed or not, what a session had goes with its process.
    let killed = server.started.lock().unwrap()[0];
    testkit::tree::kill_all(&[killed.cast_signed()]);
    let end = Instant::now() + Duration::from_secs(2);
    loop {
        let mut said = String::new();
        let mut wires = client.dial().unwrap().0;
        BufReader::new(&mut *wires.control_in).read_line(&mut said).unwrap();
        match said.trim() {
            "desk has it" => break,
            none => assert!(none == "desk has none" && Instant::now() < end, "{none}"),
        }
    }
    drop(first);
}

fn sessions_share_no_user_and_no_network() {
    let server = server(&Way::default());
    let client = server.client("desk");
    let _sessions = [client.dial().unwrap(), client.dial().unwrap()];
    let started = server.started.lock().unwrap();
    let of = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let users = status.lines().filter(|line| line.starts_with("Uid:") || line.starts_with("Gid:"));
        (users.collect::<String>(), fs::read_link(format!("/proc/{pid}/ns/net")).unwrap())
    };
    let [first, second, own] = [started[0], started[1], std::process::id()].map(of);
    assert!(first.0 != second.0 && first.0 != own.0 && second.0 != own.0, "{first:?} {second:?} {own:?}");
    assert!(first.1 != second.1 && first.1 != own.1 && second.1 != own.1, "{first:?} {second:?} {own:?}");
}

fn a_server_has_so_many_clients() {
    let server = server(&Way { max_clients: Some(1), ..Way::default() });
    let (client, other) = (server.client("desk"), server.client("other"));
    let _one = client.dial().unwrap();
    let refused = other.refused();
    assert!(matches!(refused, DialError::Busy { .. }), "{refused}");
}

fn a_client_that_vanishes_leaves_nothing() {
    let server = server(&Way::default());
    vanishes(&server, &server.client("desk"));
}

/// A client, which is killed, and its session.
fn vanishes(server: &Server, client: &Client) {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .arg("client")
        .arg(client.keys.folder())
        .arg(client.server.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!((said.as_str(), server.running()), ("ready\n", 1));
    process.kill().unwrap();
    let since = Instant::now();
    server.is_left_alone_within(Duration::from_secs(1));
    println!("gone after {:?}", since.elapsed());
    process.wait().unwrap();
}

/// Opens a session by hand: its number and token.
fn raw_session(stream: &mut (impl Read + Write)) -> (u64, [u8; 32]) {
    raw_session_over(stream, false)
}

/// The same, with or without RDMA.
fn raw_session_over(stream: &mut (impl Read + Write), rdma: bool) -> (u64, [u8; 32]) {
    stream.write_all(&[5, 0, 0, 0, 0, 1, rdma.into()]).unwrap();
    stream.flush().unwrap();
    let mut len = [0; 2];
    stream.read_exact(&mut len).unwrap();
    let mut answer = vec![0; u16::from_le_bytes(len).into()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], 0, "{answer:?}");
    let (mut session, mut at) = (0, 1);
    loop {
        session |= u64::from(answer[at] & 0x7f) << (7 * (at - 1));
        at += 1;
        if answer[at - 1] < 0x80 {
            break;
        }
    }
    (session, answer[at..at + 32].try_into().unwrap())
}

/// Joins by hand, as the control stream that comes down (1) or a bulk stream (2, 3), with nothing arrived: whether it is let in.
fn joins(stream: &mut (impl Read + Write), token: [u8; 32], role: u8) -> bool {
    asks_to_join(stream, token, role) && is_let_in(stream)
}

fn asks_to_join(stream: &mut impl Write, token: [u8; 32], role: u8) -> bool {
    let rest: &[u8] = if role == 1 { &[1, 0] } else { &[role, 0, 0] };
    let hello = [&[(33 + rest.len()) as u8, 0, 1][..], &token, rest].concat();
    stream.write_all(&hello).and_then(|()| stream.flush()).is_ok()
}

fn is_let_in(stream: &mut impl Read) -> bool {
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).is_ok_and(|()| answer == [2, 0, 1, 0])
}

fn a_token_opens_one_session() {
    let server = server(&Way { insecure: true, ..Way::default() });
    let open = |session: u64| {
        let mut socket = connect(&server);
        socket.write_all(&preface(1, session)).unwrap();
        socket
    };
    let (mut one, mut two) = (open(0), open(0));
    let (first, second) = (raw_session(&mut one), raw_session(&mut two));
    assert!(first.0 != second.0 && first.1 != second.1);
    assert!(!joins(&mut open(first.0), second.1, 1), "with another session's token");
    assert!(!joins(&mut open(first.0), [0; 32], 1), "with none");
    assert!(!joins(&mut open(first.0 ^ 1), first.1, 1), "into a session that is not there");
    assert!(joins(&mut open(first.0), first.1, 1) && joins(&mut open(second.0), second.1, 1));
}

fn another_key_joins_no_session() {
    let server = server(&Way::default());
    let (desk, other) = (server.client("desk"), server.client("other"));
    let raw = |session, client: &Client| raw_tls(&server, session, Some(&pem(&client.keys)), b"dormouse/1");
    let mut tls = raw(0, &desk);
    let (session, token) = raw_session(&mut tls);
    assert!(!joins(&mut raw(session, &other), token, 1), "somebody else is in");
    assert!(joins(&mut raw(session, &desk), token, 1));
}

fn keys_are_rotated_on_both_sides() {
    let server = server(&Way::default());
    let client = server.client("desk");
    let machine = server.address().machine();
    // The client's: the old one is taken until the server knows the new one.
    let old = client.key();
    let new = client.keys.rotate(in_a_year(), GRACE).unwrap().fingerprint();
    works(&mut client.dial().unwrap().0, "desk");
    server.keys.authorize("desk", new, Quota::default(), Some(Duration::ZERO)).unwrap();
    assert!(server.keys.clients().unwrap().admit(old).is_err());
    works(&mut client.dial().unwrap().0, "desk");
    // The server's: it shows the key that is asked for, and says that there is a newer one.
    let old = server.key();
    server.keys.rotate(in_a_year(), GRACE).unwrap();
    let (mut wires, welcome) = client.dial().unwrap();
    works(&mut wires, "desk");
    assert_eq!(welcome.new_key, Some(server.key()));
    client.keys.trust(&machine, server.key(), Some(GRACE)).unwrap();
    let (mut wires, welcome) = client.dial().unwrap();
    works(&mut wires, "desk");
    assert_eq!(welcome.new_key, None);
    // And then no more.
    server.keys.rotate(in_a_year(), Duration::ZERO).unwrap();
    let refused = client.refused();
    assert!(matches!(refused, DialError::ServerChanged { .. }), "{refused}");
    assert_ne!(old, server.key());
}

fn without_tls_on_loopback_only() {
    let secure = server(&Way::default());
    let refused = dial(&secure.address(), Trust::InsecureLoopback, &options()).err().unwrap();
    assert!(matches!(refused, DialError::NotPlain { .. }), "{refused:?}");
    let elsewhere = "192.0.2.1".parse().unwrap();
    let refused = dial(&elsewhere, Trust::InsecureLoopback, &options()).err().unwrap();
    assert!(matches!(refused, DialError::NotLoopback { .. }), "{refused:?}");
    let everywhere = FrontOptions {
        listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
        keys: secure.keys.clone(),
        insecure_loopback: true,
        max_clients: 1,
        half_open: 1,
    };
    assert!(matches!(Front::bind(everywhere), Err(FrontError::InsecureBeyondLoopback(_))));
    let insecure = server(&Way { insecure: true, ..Way::default() });
    works(&mut dial(&insecure.address(), Trust::InsecureLoopback, &options()).unwrap().0, "this machine");
    // It has no key to do it otherwise.
    let error = secure.client("desk");
    let error = dial(&insecure.address(), Trust::Keys(&error.keys), &options()).err().unwrap();
    assert!(matches!(error, DialError::Broken { .. }), "{error:?}");
    let no_key = Keys::new(tempfile::tempdir().unwrap().path().join("none"));
    let error = dial(&insecure.address(), Trust::Keys(&no_key), &options()).err().unwrap();
    assert!(matches!(error, DialError::OwnKeys(KeysError::None { .. })), "{error:?}");
}

fn what_cannot_be_had_is_refused() {
    let server = server(&Way::default());
    let client = server.client("desk");
    let third: Address = format!("{}/3", server.at).parse().unwrap();
    let refused = dial(&third, Trust::Keys(&client.keys), &options()).err().unwrap();
    assert!(matches!(refused, DialError::Refused { code: Refusal::Request, .. }), "{refused:?}");
    assert!(refused.to_string().ends_with("there is no such device"), "{refused}");
    server.is_left_alone_within(Duration::from_secs(1));
}

fn a_session_without_all_its_connections_ends() {
    let server = server(&Way { insecure: true, ..Way::default() });
    let mut socket = connect(&server);
    socket.write_all(&preface(1, 0)).unwrap();
    raw_session(&mut socket);
    assert_eq!(server.running(), 1);
    // As soon as the first is gone, or after a while.
    drop(socket);
    server.is_left_alone_within(Duration::from_secs(15));
}

fn the_software_device_needs_no_more() {
    let server = server(&Way::default());
    let (wires, _) = server.client(CONFORMANCE).dial().unwrap();
    let mut said = String::new();
    BufReader::new(wires.control_in).read_line(&mut said).unwrap();
    assert_eq!(said.trim(), format!("{}:", backend::conformance::BEHAVIOURS.len()));
}

fn a_server_out_of_descriptors_goes_on() {
    // The limit is a process's: other tests may be in this one.
    let alone = Command::new(std::env::current_exe().unwrap()).arg("descriptors").status().unwrap();
    assert!(alone.success());
}

fn run_out_of_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let server = server(&Way { half_open: Some(1000), ..Way::default() });
    let client = server.client("desk");
    // The server is a thread here, so they are taken here, and the limit put where it bites.
    let before = getrlimit(Resource::Nofile);
    let held: Vec<TcpStream> = (0..100).map(|_| connect(&server)).collect();
    let now = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let tight = Rlimit { current: Some(now + 4), maximum: before.maximum };
    setrlimit(Resource::Nofile, tight).unwrap();
    let more: Vec<io::Result<TcpStream>> = (0..10).map(|_| TcpStream::connect(server.at)).collect();
    assert!(more.iter().any(Result::is_err));
    thread::sleep(Duration::from_millis(500));
    setrlimit(Resource::Nofile, before).unwrap();
    drop((held, more));
    works(&mut client.dial().unwrap().0, "desk");
}
