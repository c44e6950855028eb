//! Stands between a client and a server, and makes trouble.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use anyhow::Context;

/// A request, before its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Such as `PUT`.
    pub method: String,
    /// The path and the query.
    pub target: String,
    /// The length of its body.
    pub len: usize,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It is passed on, and its answer back.
    None,
    /// The server does not see it; the answer is an error with this status.
    Answer(u16),
    /// The connection is lost when half of its body has come, and the server does not see it.
    LostRequest,
    /// It is taken and never answered.
    Stall,
    /// The server does as it is asked, but the connection is lost before it has answered.
    LostAnswer,
}

/// A proxy on a port of its own, for as long as the process lives.
#[derive(Debug)]
pub struct Proxy {
    address: String,
}

impl Proxy {
    /// One that asks `plan` about each request.
    pub fn start(
        server: &str,
        plan: impl Fn(&Request) -> Trouble + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
        let address = listener.local_addr()?.to_string();
        let (server, plan) = (server.to_owned(), Arc::new(plan));
        thread::spawn(move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                let (server, plan) = (server.clone(), plan.clone());
                // A connection that ends in the middle of something is what this is for.
                thread::spawn(move || drop(exchange(stream, &server, &*plan)));
            }
        });
        Ok(Self { address })
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The environment that leads to it.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        super::env(&self.address)
    }
}

/// One request and its answer; then the connection ends.
fn exchange(mut client: TcpStream, server: &str, plan: &dyn Fn(&Request) -> Trouble) -> io::Result<()> {
    let (head, begun) = read_head(&mut client)?;
    let request = parse(&head);
    let trouble = plan(&request);
    let wanted = if trouble == Trouble::LostRequest { request.len / 2 } else { request.len };
    let mut body = begun;
    let missing = wanted.saturating_sub(body.len()) as u64;
    Read::by_ref(&mut client).take(missing).read_to_end(&mut body)?;
    match trouble {
        Trouble::LostRequest => return reset(&client),
        Trouble::Answer(status) => {
            write!(client, "HTTP/1.1 {status} Trouble\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
            return client.shutdown(Shutdown::Both);
        }
        Trouble::Stall => return client.read_to_end(&mut body).map(drop),
        Trouble::None | Trouble::LostAnswer => {}
    }
    let mut upstream = TcpStream::connect(server)?;
    // One exchange for each connection: the answer ends with it.
    upstream.write_all(head.replacen("\r\n", "\r\nConnection: close\r\n", 1).as_bytes())?;
    upstream.write_all(&body)?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer)?;
    if trouble == Trouble::LostAnswer {
        return reset(&client);
    }
    client.write_all(&answer)?;
    client.shutdown(Shutdown::Both)
}

/// Ends a connection as one that is lost does: whoever sends on is told so.
fn reset(client: &TcpStream) -> io::Result<()> {
    client.shutdown(Shutdown::Both)
}

/// The head, and what came of the body with it.
fn read_head(client: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            let head = String::from_utf8(bytes).map_err(io::Error::other)?;
            return Ok((head, body));
        }
        match client.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => bytes.extend_from_slice(buffer.get(..n).unwrap_or_default()),
        }
    }
}

fn parse(head: &str) -> Request {
    let mut words = head.split_whitespace();
    let mut word = || words.next().unwrap_or_default().to_owned();
    let (method, target) = (word(), word());
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    Request { method, target, len: length.unwrap_or(0) }
}
