//! What a server, or the way to it, said: with a kind, in one line, and with what to look at.

use std::error::Error as _;
use std::io;

use object_store::Error;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};
use object_store::client::{HttpError, HttpErrorKind};

/// What the way to a server consists of.
#[derive(Debug)]
pub(super) struct Way {
    endpoint: String,
    bucket: String,
    /// Whether the environment has anything to be known by.
    is_known: bool,
}

/// Where to look for credentials, for people.
const VARIABLES: &str = "DORMOUSE_AWS_ACCESS_KEY_ID and DORMOUSE_AWS_SECRET_ACCESS_KEY, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY \
     (a session token, AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN, or AWS_CONTAINER_CREDENTIALS_RELATIVE_URI would do, too)";

/// What has credentials, or needs none.
const CREDENTIALS: [Key; 5] = [
    Key::AccessKeyId,
    Key::SecretAccessKey,
    Key::WebIdentityTokenFile,
    Key::ContainerCredentialsRelativeUri,
    Key::ContainerCredentialsFullUri,
];

impl Way {
    pub(super) fn new(builder: &AmazonS3Builder, bucket: &str) -> Self {
        let value = |key: &Key| builder.get_config_value(key);
        let region = || value(&Key::Region).unwrap_or_else(|| "us-east-1".to_owned());
        let endpoint =
            value(&Key::Endpoint).unwrap_or_else(|| format!("https://s3.{}.amazonaws.com", region()));
        let unsigned = value(&Key::SkipSignature).is_some_and(|value| value == "true");
        let is_known = unsigned || CREDENTIALS.iter().any(|key| value(key).is_some());
        Self { endpoint, bucket: bucket.to_owned(), is_known }
    }

    /// The error, for whoever waits for what was tried.
    pub(super) fn failure(&self, error: &Error) -> io::Error {
        let said = describe(error);
        // The machine's own role is asked for last, at an address where most machines have nobody.
        if !self.is_known && said.contains("/latest/") {
            let what = format!(
                "there are no credentials for it: set {VARIABLES}; this machine has no role of its own either ({said})"
            );
            return io::Error::new(io::ErrorKind::PermissionDenied, what);
        }
        let (endpoint, bucket) = (&self.endpoint, &self.bucket);
        let (kind, what) = match error {
            Error::NotFound { .. } if said.contains("NoSuchBucket") => {
                let what = format!(
                    "{endpoint} has no bucket {bucket:?}: make it, or check its name, AWS_ENDPOINT_URL and AWS_REGION ({said})"
                );
                (io::ErrorKind::Other, what)
            }
            Error::NotFound { .. } => (io::ErrorKind::NotFound, said),
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                (io::ErrorKind::PermissionDenied, said)
            }
            error => match way_there(error) {
                Some(HttpErrorKind::Timeout) => (io::ErrorKind::TimedOut, self.silent(&said)),
                Some(HttpErrorKind::Connect) => {
                    let what = format!(
                        "{endpoint} cannot be reached: check AWS_ENDPOINT_URL, the network, and HTTPS_PROXY if there is one ({said})"
                    );
                    (io::ErrorKind::NotConnected, what)
                }
                _ => (io::ErrorKind::Other, said),
            },
        };
        io::Error::new(kind, what)
    }

    fn silent(&self, said: &str) -> String {
        format!(
            "{} does not answer: check that it is up, that AWS_ENDPOINT_URL is its address, and what lies between ({said})",
            self.endpoint
        )
    }
}

/// What failed before there was an answer.
fn way_there(error: &Error) -> Option<HttpErrorKind> {
    let mut next = error.source();
    while let Some(cause) = next {
        if let Some(http) = cause.downcast_ref::<HttpError>() {
            return Some(http.kind());
        }
        next = cause.source();
    }
    None
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
