//! Requests, one at a time, for code that waits for each.

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientConfigKey, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode,
    PutPayload, RetryConfig,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::S3Options;
use crate::Location;

/// An upload's id is no longer than this.
const MOST_ID: u64 = 4096;

/// A connection to a bucket, and the threads that it works on.
#[derive(Debug)]
pub(super) struct Client {
    s3: Arc<AmazonS3>,
    location: Location,
    prefix: Path,
    /// There until the client ends.
    runtime: Option<Runtime>,
}

/// How often a request is made that the library makes once.
const TRIES: u32 = 3;

/// An endpoint that is no URL would be noticed by a panic of the library.
fn check_endpoint(endpoint: &str) -> io::Result<()> {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
    let host = rest.split('/').next().unwrap_or_default();
    let is_closed = host.starts_with('[') == host.contains(']');
    let is_url = ["http", "https"].contains(&scheme) && !host.is_empty() && is_closed;
    if is_url && endpoint.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    let what = format!(
        "AWS_ENDPOINT_URL is {endpoint:?}, which is no URL such as https://s3.example.org; unset it for Amazon's own"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// What a task does.
pub(super) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What a folder has: an object, or a folder.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) object: Option<Facts>,
}

/// What the server knows of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) len: u64,
    /// By the server's clock.
    pub(super) written: SystemTime,
}

impl Client {
    pub(super) fn new(
        bucket: &str,
        prefix: &str,
        settings: &[(&str, &str)],
        options: &S3Options,
    ) -> io::Result<Self> {
        // Somebody else may have chosen one already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = AmazonS3Builder::from_env();
        let ours = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.to_str()?.strip_prefix(super::S3::OWN_VARIABLES)?.to_owned();
            Some((name, value.into_string().ok()?))
        });
        let given = settings
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix("AWS_")?.to_owned(), (*value).to_owned())));
        for (name, value) in ours.chain(given) {
            if let Ok(key) = format!("aws_{}", name.to_ascii_lowercase()).parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
        if let Some(endpoint) = builder.get_config_value(&AmazonS3ConfigKey::Endpoint) {
            check_endpoint(&endpoint)?;
        }
        let retry = RetryConfig {
            backoff: BackoffConfig { init_backoff: options.pause, ..BackoffConfig::default() },
            max_retries: options.retries,
            retry_timeout: options.retry_for,
        };
        // Whatever the environment says: what is argued of leases rests on it.
        let timeout = format!("{}ms", options.request.as_millis());
        let s3 = builder
            .with_bucket_name(bucket)
            .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), timeout)
            .with_retry(retry)
            // One at a time, all servers can.
            .with_config(AmazonS3ConfigKey::DisableBulkDelete, "true")
            .build()
            .map_err(failure)?;
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("s3").enable_all().build()?;
        let prefix_path = Path::parse(prefix).map_err(io::Error::other)?;
        let location = Location::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() };
        Ok(Self { s3: Arc::new(s3), location, prefix: prefix_path, runtime: Some(runtime) })
    }

    pub(super) fn location(&self) -> &Location {
        &self.location
    }

    fn runtime(&self) -> io::Result<&Runtime> {
        self.runtime.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> io::Result<T> {
        Ok(self.runtime()?.block_on(work))
    }

    fn ask<T>(&self, request: impl Future<Output = Result<T, Error>>) -> io::Result<T> {
        self.wait(request)?.map_err(failure)
    }

    pub(super) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        Ok(self.runtime()?.spawn(work))
    }

    /// The name of an object in the bucket.
    fn key(&self, path: &str) -> Path {
        path.split('/').filter(|part| !part.is_empty()).fold(self.prefix.clone(), |key, part| key.join(part))
    }

    pub(super) fn put(&self, path: &str, bytes: Vec<u8>) -> io::Result<()> {
        let key = self.key(path);
        self.ask(self.s3.put(&key, PutPayload::from(bytes))).map(drop)
    }

    /// [`Client::put`] of an object that is not there yet, with bytes that nobody else writes. Whether it was not there.
    pub(super) fn put_new(&self, path: &str, bytes: Vec<u8>) -> io::Result<bool> {
        let key = self.key(path);
        let mut tries = 0;
        loop {
            tries += 1;
            let put = self.s3.put_opts(&key, PutPayload::from(bytes.clone()), PutMode::Create.into());
            match self.wait(put)? {
                Ok(_) => return Ok(true),
                // If only the answer was lost, a second try finds what the first has written.
                Err(Error::AlreadyExists { .. }) => return Ok(self.get_range(path, 0..MOST_ID)?.0 == bytes),
                // The library does not know that it may try this again.
                Err(_) if tries < TRIES => {}
                Err(error) => return Err(failure(error)),
            }
        }
    }

    /// [`Client::put`] for a task that does it again and again. It does not keep the client.
    pub(super) fn putting(
        &self,
        path: &str,
        bytes: Vec<u8>,
    ) -> impl Fn() -> BoxFuture<io::Result<()>> + Send + 'static {
        let (s3, key) = (self.s3.clone(), self.key(path));
        move || {
            let (s3, key, payload) = (s3.clone(), key.clone(), PutPayload::from(bytes.clone()));
            Box::pin(async move { s3.put(&key, payload).await.map(drop).map_err(failure) })
        }
    }

    /// A part of an object, with the length of all of it.
    pub(super) fn get_range(&self, path: &str, range: Range<u64>) -> io::Result<(Vec<u8>, u64)> {
        let key = self.key(path);
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        self.ask(async {
            let got = self.s3.get_opts(&key, options).await?;
            let len = got.meta.size;
            Ok((got.bytes().await?.to_vec(), len))
        })
    }

    pub(super) fn facts(&self, path: &str) -> io::Result<Facts> {
        let key = self.key(path);
        let meta = self.ask(self.s3.head(&key))?;
        Ok(Facts { len: meta.size, written: meta.last_modified.into() })
    }

    pub(super) fn len(&self, path: &str) -> io::Result<u64> {
        self.facts(path).map(|facts| facts.len)
    }

    pub(super) fn list(&self, folder: &str) -> io::Result<Vec<Listed>> {
        let key = self.key(folder);
        let found = self.ask(self.s3.list_with_delimiter(Some(&key)))?;
        let name = |path: &Path| path.filename().map(str::to_owned);
        let folders =
            found.common_prefixes.iter().filter_map(|path| Some(Listed { name: name(path)?, object: None }));
        let objects = found.objects.iter().filter_map(|meta| {
            let facts = Facts { len: meta.size, written: meta.last_modified.into() };
            Some(Listed { name: name(&meta.location)?, object: Some(facts) })
        });
        Ok(folders.chain(objects).collect())
    }

    /// Copies an object on the server. Nothing is there afterwards, and this fails, where `from` was removed before.
    pub(super) fn copy(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, key) = (self.key(from), self.key(to));
        self.ask(self.s3.copy(&from, &key))?;
        // A server may find out late that it cannot, and say so behind an answer that means success.
        self.len(to).map(drop)
    }

    /// Removes an object; one that is not there is no error.
    pub(super) fn remove(&self, path: &str) -> io::Result<()> {
        let key = self.key(path);
        match self.ask(self.s3.delete(&key)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// [`Client::remove`], or not, where that takes longer.
    pub(super) fn remove_within(&self, path: &str, time: Duration) -> io::Result<()> {
        let key = self.key(path);
        match self.wait(async { tokio::time::timeout(time, self.s3.delete(&key)).await })? {
            Ok(done) => done.map_err(failure),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    pub(super) fn begin_upload(&self, path: &str) -> io::Result<String> {
        let key = self.key(path);
        self.ask(self.s3.create_multipart(&key))
    }

    pub(super) fn upload_part(
        &self,
        path: &str,
        upload: &str,
        number: usize,
        bytes: Vec<u8>,
    ) -> io::Result<JoinHandle<io::Result<PartId>>> {
        let (s3, key, upload) = (self.s3.clone(), self.key(path), upload.to_owned());
        self.spawn(async move {
            s3.put_part(&key, &upload, number, PutPayload::from(bytes)).await.map_err(failure)
        })
    }

    /// Makes an object of the parts, which has `len` bytes.
    pub(super) fn complete(&self, path: &str, upload: &str, parts: Vec<PartId>, len: u64) -> io::Result<()> {
        let (key, upload) = (self.key(path), upload.to_owned());
        match self.ask(self.s3.complete_multipart(&key, &upload, parts)) {
            Ok(_) => Ok(()),
            // If only the answer was lost, a second try finds no upload any more.
            Err(error) => {
                if self.len(path).is_ok_and(|found| found == len) {
                    Ok(())
                } else {
                    Err(error)
                }
            }
        }
    }

    /// Ends an upload, and frees its parts; one that is not there is no error.
    pub(super) fn abort(&self, path: &str, upload: &str) -> io::Result<()> {
        let (key, upload) = (self.key(path), upload.to_owned());
        match self.ask(self.s3.abort_multipart(&key, &upload)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// [`Client::abort`] that nobody waits for.
    pub(super) fn abort_soon(&self, path: &str, upload: String) {
        let (s3, key) = (self.s3.clone(), self.key(path));
        let _ = self.spawn(async move { s3.abort_multipart(&key, &upload).await });
    }

    /// The upload that an object names.
    pub(super) fn upload_of(&self, path: &str) -> io::Result<Option<String>> {
        if self.len(path)? == 0 {
            return Ok(None);
        }
        let (bytes, _) = self.get_range(path, 0..MOST_ID)?;
        String::from_utf8(bytes).map(Some).map_err(io::Error::other)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Not waited for: a name that is being looked up may take long.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What the server or the way to it said, with a kind.
fn failure(error: Error) -> io::Error {
    let kind = match &error {
        Error::NotFound { .. } => io::ErrorKind::NotFound,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, describe(&error))
}

/// In one line, with the cause of all; of a server's answer only the code and the message.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut root = error.source();
    while let Some(next) = root.and_then(std::error::Error::source) {
        root = Some(next);
    }
    if let Some(root) = root.map(ToString::to_string).filter(|root| !text.contains(root.as_str())) {
        text = format!("{text}: {root}");
    }
    if let Some(start) = text.find("<?xml").or_else(|| text.find("<Error>")) {
        let answer = text.split_off(start);
        let field = |name: &str| {
            let (_, rest) = answer.split_once(&format!("<{name}>"))?;
            Some(rest.split_once("</")?.0)
        };
        text += field("Code").unwrap_or("an answer without a code");
        if let Some(message) = field("Message") {
            text = format!("{text}: {message}");
        }
    }
    let text = text.strip_prefix("Generic S3 error: ").unwrap_or(&text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_that_is_no_url_is_told_of() {
        for good in ["http://127.0.0.1:9000", "https://s3.example.org/", "http://[::1]:9000/minio"] {
            assert!(check_endpoint(good).is_ok(), "{good}");
        }
        for bad in
            ["", "localhost:9000", "s3.example.org", "https://", "http://[::1", "ftp://h", "http://a b"]
        {
            let said = check_endpoint(bad).map_err(|error| error.to_string());
            assert!(said.is_err_and(|said| said.contains("AWS_ENDPOINT_URL")), "{bad}");
        }
    }
}
