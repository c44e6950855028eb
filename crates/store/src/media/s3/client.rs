//! Requests, one at a time, for code that waits for each.

use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use object_store::{
    BackoffConfig, ClientConfigKey, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode,
    PutPayload, RetryConfig,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::S3Options;
use super::fault::Way;
use super::uploads::{Mark, Uploads};
use crate::Location;

/// An upload's id is no longer than this.
const MOST_ID: u64 = 4096;

/// A connection to a bucket, and the threads that it works on.
#[derive(Debug)]
pub(super) struct Client {
    /// For what is answered soon, if at all.
    s3: Arc<AmazonS3>,
    /// For what takes its time: many bytes to the server, or work of the server's.
    bulk: Arc<AmazonS3>,
    /// For who only wants to know whether anybody is there.
    probe: AmazonS3,
    way: Arc<Way>,
    location: Location,
    prefix: Path,
    /// There until the client ends.
    runtime: Option<Runtime>,
}

/// How often a request is made that the library makes once.
const TRIES: u32 = 3;
/// How soon a server answers of which nothing is known yet, each of two times that it is asked.
const PROBE: Duration = Duration::from_secs(5);
/// More bytes than this take their time.
const FEW: usize = 256 << 10;
/// For how long a signed address is good, and how long its answer may take.
const SIGNED_FOR: Duration = Duration::from_secs(30);
/// No answer about uploads is longer.
const MOST_ANSWER: usize = 8 << 20;

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
        let way = Arc::new(Way::new(&builder, bucket));
        let ms = |time: Duration| format!("{}ms", time.as_millis());
        // Whatever the environment says: what is argued of leases rests on it.
        let builder = builder
            .with_bucket_name(bucket)
            .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), ms(options.request))
            .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout), ms(options.answer))
            // One at a time, all servers can.
            .with_config(AmazonS3ConfigKey::DisableBulkDelete, "true");
        let backoff = BackoffConfig { init_backoff: options.pause, ..BackoffConfig::default() };
        let patient = RetryConfig { backoff, max_retries: options.retries, retry_timeout: options.retry_for };
        let impatient = RetryConfig { max_retries: options.retries.min(1), ..patient.clone() };
        let built = |silence: Duration, retry: RetryConfig| {
            let silence_key = AmazonS3ConfigKey::Client(ClientConfigKey::ReadTimeout);
            let s3 = builder.clone().with_config(silence_key, ms(silence)).with_retry(retry).build();
            s3.map_err(|error| way.failure(&error))
        };
        let s3 = Arc::new(built(options.answer, patient.clone())?);
        let bulk = Arc::new(built(options.request, patient)?);
        let probe = built(options.answer.min(PROBE), impatient)?;
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("s3").enable_all().build()?;
        let prefix_path = Path::parse(prefix).map_err(io::Error::other)?;
        let location = Location::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() };
        Ok(Self { s3, bulk, probe, way, location, prefix: prefix_path, runtime: Some(runtime) })
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
        self.wait(request)?.map_err(|error| self.way.failure(&error))
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
        let s3 = if bytes.len() > FEW { &self.bulk } else { &self.s3 };
        self.ask(s3.put(&key, PutPayload::from(bytes))).map(drop)
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
                Err(Error::AlreadyExists { .. }) => {
                    return Ok(self.get_range(path, 0..bytes.len() as u64 + 1)?.0 == bytes);
                }
                // The library does not know that it may try this again.
                Err(_) if tries < TRIES => {}
                Err(error) => return Err(self.way.failure(&error)),
            }
        }
    }

    /// [`Client::put`] for a task that does it again and again. It does not keep the client.
    pub(super) fn putting(
        &self,
        path: &str,
        bytes: Vec<u8>,
    ) -> impl Fn() -> BoxFuture<io::Result<()>> + Send + 'static {
        let (s3, way, key) = (self.s3.clone(), self.way.clone(), self.key(path));
        move || {
            let (s3, way, key) = (s3.clone(), way.clone(), key.clone());
            let payload = PutPayload::from(bytes.clone());
            Box::pin(
                async move { s3.put(&key, payload).await.map(drop).map_err(|error| way.failure(&error)) },
            )
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
        self.ask(self.bulk.copy(&from, &key))?;
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
            Ok(done) => done.map_err(|error| self.way.failure(&error)),
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
        let (s3, way, key, upload) = (self.bulk.clone(), self.way.clone(), self.key(path), upload.to_owned());
        self.spawn(async move {
            let sent = s3.put_part(&key, &upload, number, PutPayload::from(bytes)).await;
            sent.map_err(|error| way.failure(&error))
        })
    }

    /// Makes an object of the parts, which has `len` bytes.
    pub(super) fn complete(&self, path: &str, upload: &str, parts: Vec<PartId>, len: u64) -> io::Result<()> {
        let (key, upload) = (self.key(path), upload.to_owned());
        match self.ask(self.bulk.complete_multipart(&key, &upload, parts)) {
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

    /// [`Client::abort`], or not, where that takes longer.
    pub(super) fn abort_within(&self, path: &str, upload: &str, time: Duration) -> io::Result<()> {
        let (key, upload) = (self.key(path), upload.to_owned());
        let abort = self.s3.abort_multipart(&key, &upload);
        match self.wait(async { tokio::time::timeout(time, abort).await })? {
            Ok(done) => done.map_err(|error| self.way.failure(&error)),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Asks for `path`, without patience. What is wrong with the way to the server, or with the bucket.
    pub(super) fn reach(&self, path: &str) -> io::Result<()> {
        let key = self.key(path);
        let options = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
        let Err(error) = self.wait(self.probe.get_opts(&key, options))? else { return Ok(()) };
        let failure = self.way.failure(&error);
        match failure.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::NotConnected | io::ErrorKind::PermissionDenied => {
                Err(failure)
            }
            // What may pass is tried again by those who are patient, and what is not there is theirs to judge.
            _ => Ok(()),
        }
    }

    /// The uploads of objects in a folder that are neither completed nor ended: one page of them, from behind a mark.
    pub(super) fn uploads(&self, folder: &str, behind: Option<&Mark>) -> io::Result<Uploads> {
        let prefix = format!("{}/", self.key(folder));
        let mut query = vec![("uploads".to_owned(), String::new()), ("prefix".to_owned(), prefix)];
        if let Some(Mark { key, upload }) = behind {
            query.push(("key-marker".to_owned(), key.clone()));
            query.push(("upload-id-marker".to_owned(), upload.clone()));
        }
        let options = SignedUrlOptions::new().with_query(query);
        let root = Path::default();
        let url = self.ask(self.s3.signed_url_opts(reqwest::Method::GET, &root, SIGNED_FOR, &options))?;
        let answer = self.wait(async {
            let mut answer =
                reqwest::Client::new().get(url).timeout(SIGNED_FOR).send().await?.error_for_status()?;
            let mut text = Vec::new();
            while let Some(more) = answer.chunk().await? {
                text.extend_from_slice(&more);
                if text.len() > MOST_ANSWER {
                    break;
                }
            }
            Ok(text)
        })?;
        // Its address has a signature in it.
        let answer = answer.map_err(|error: reqwest::Error| io::Error::other(error.without_url()))?;
        Uploads::read(&answer, &self.prefix)
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
