//! Both ends of a session.

use backend_soft::SoftBackend;
use remote::{Quota, RemoteBackend, Wires, serve};
use std::ffi::OsStr;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::sync::Arc;

/// Where the far end connects to: a port, or a path.
pub const PLACE: &str = "DORMOUSE_REMOTE_TEST_PLACE";
/// How much device memory it lets its client have, and how many objects.
const MEMORY: &str = "DORMOUSE_REMOTE_TEST_MEMORY";
const OBJECTS: &str = "DORMOUSE_REMOTE_TEST_OBJECTS";
/// Connections of a session.
pub const CONNECTIONS: usize = 4;

/// What the binary does as the far end.
pub fn far_end(place: &OsStr) {
    let place = place.to_str().unwrap();
    let wires = match place.parse::<u16>() {
        Ok(port) => Wires::of_tcp(connections(|| TcpStream::connect(("127.0.0.1", port)).unwrap())),
        Err(_) => Wires::of_unix(connections(|| UnixStream::connect(place).unwrap())),
    };
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let mut quota = Quota { memory: number(MEMORY), ..Quota::default() };
    quota.objects = number(OBJECTS).unwrap_or(quota.objects);
    match serve(wires.unwrap(), Arc::new(SoftBackend::default()), quota) {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("far end: {error}");
            std::process::exit(1);
        }
    }
}

fn connections<S>(connect: impl Fn() -> S) -> Vec<S> {
    (0..CONNECTIONS).map(|_| connect()).collect()
}

/// The far end, killed at the end of a test.
pub struct Far(pub Child);

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(place: &str, limits: &[(&str, u64)]) -> Far {
    let mut far = Command::new(std::env::current_exe().unwrap());
    far.env(PLACE, place);
    for (name, value) in limits {
        far.env(name, value.to_string());
    }
    Far(far.spawn().unwrap())
}

/// A session over TCP: its connections at this end.
pub fn tcp(limits: &[(&str, u64)]) -> (Far, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = start(&listener.local_addr().unwrap().port().to_string(), limits);
    let sockets = connections(|| listener.accept().unwrap().0);
    (far, sockets)
}

pub fn over_tcp() -> (Far, RemoteBackend) {
    let (far, sockets) = tcp(&[]);
    (far, connect(Wires::of_tcp(sockets).unwrap()))
}

pub fn over_unix() -> (Far, RemoteBackend) {
    let path = std::env::temp_dir().join(format!("dormouse-remote-{}-{:?}", std::process::id(), std::thread::current().id()));
    let listener = UnixListener::bind(&path).unwrap();
    let far = start(path.to_str().unwrap(), &[]);
    let sockets = connections(|| listener.accept().unwrap().0);
    std::fs::remove_file(&path).unwrap();
    (far, connect(Wires::of_unix(sockets).unwrap()))
}

pub fn connect(wires: Wires) -> RemoteBackend {
    RemoteBackend::connect(wires, |_| {}).unwrap()
}
