//! An S3-compatible server for a test: the one that `cargo xtask setup` unpacked, on a port of its own, with one empty bucket in memory.

mod proxy;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};

pub use proxy::{Proxy, Request, Trouble};

/// Where set-up put it.
const PREFIX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.prefix/s3");

/// What runs it. It ends when its standard input does: with whoever started it, however that ends.
const PROGRAM: &str = r#"
import os, sys, threading
sys.path.insert(0, sys.argv[1])
from werkzeug.serving import WSGIRequestHandler, make_server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
class Quiet(WSGIRequestHandler):
    def log(self, *args):
        pass
def wait():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=wait, daemon=True).start()
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True, request_handler=Quiet)
s3_backends["123456789012"]["aws"].create_bucket(sys.argv[2], "us-east-1")
print(server.server_port, flush=True)
server.serve_forever()
"#;

/// A running server; dropped, it ends.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// The name of its bucket.
    pub const BUCKET: &'static str = "tests";

    /// Starts one.
    pub fn start() -> anyhow::Result<Self> {
        if !Path::new(PREFIX).exists() {
            bail!("there is no S3-compatible server in {PREFIX}: run `cargo xtask setup` first");
        }
        // The one whose pip unpacked the server comes first there, too.
        let mut said = String::new();
        for python in ["python3", "/usr/bin/python3"] {
            let mut command = Command::new(python);
            command.args(["-c", PROGRAM, PREFIX, Self::BUCKET]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            // Not what is meant for the real one.
            command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
            let Ok(mut child) = command.spawn() else { continue };
            let mut port = String::new();
            BufReader::new(child.stdout.take().context("it has a pipe")?).read_line(&mut port)?;
            if port.trim().parse::<u16>().is_ok() {
                let address = format!("127.0.0.1:{}", port.trim());
                // Nobody reads what it says from now on.
                drop(child.stderr.take());
                return Ok(Self { child, address });
            }
            let mut stderr = child.stderr.take().context("it has a pipe")?;
            stderr.read_to_string(&mut said)?;
            child.wait()?;
        }
        bail!("the S3-compatible server does not start: {said}")
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The environment that leads to it.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        env(&self.address)
    }

    /// How many parts there are of uploads that were neither completed nor ended. Those without any cost nothing.
    pub fn parts_of_uploads(&self) -> anyhow::Result<usize> {
        let uploads = self.get("?uploads")?;
        let field = |upload: &str, name: &str| {
            let (_, rest) = upload.split_once(&format!("<{name}>"))?;
            Some(rest.split_once("</")?.0.to_owned())
        };
        let parts = uploads.split("<Upload>").skip(1).map(|upload| {
            let (key, id) =
                field(upload, "Key").zip(field(upload, "UploadId")).context("an upload has both")?;
            Ok(self.get(&format!("/{key}?uploadId={id}"))?.matches("<PartNumber>").count())
        });
        parts.sum()
    }

    /// The names of all objects.
    pub fn objects(&self) -> anyhow::Result<Vec<String>> {
        let listing = self.get("?list-type=2")?;
        let names = listing.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
        Ok(names.map(|(name, _)| name.to_owned()).collect())
    }

    /// The bytes of all objects.
    pub fn content(&self) -> anyhow::Result<Vec<u8>> {
        let mut content = Vec::new();
        for name in self.objects()? {
            content.extend(self.get_bytes(&format!("/{name}"))?);
        }
        Ok(content)
    }

    fn get(&self, query: &str) -> anyhow::Result<String> {
        String::from_utf8(self.get_bytes(query)?).context("the server's answer is no text")
    }

    fn get_bytes(&self, query: &str) -> anyhow::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(&self.address).context("cannot reach the server")?;
        let bucket = Self::BUCKET;
        write!(stream, "GET /{bucket}{query} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).context("the server does not answer")?;
        Ok(answer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The environment that leads to what listens at `address`.
pub fn env(address: &str) -> Vec<(&'static str, String)> {
    vec![
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "an-id".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "a-secret".to_owned()),
    ]
}
