//! Where a store is: the one thing that every process is told of it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::OpenError;
use crate::media::{Dir, Media, S3, S3Options};

/// What the location of a store in object storage begins with.
const SCHEME: &[u8] = b"s3://";

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Location {
    /// In a folder.
    Folder(PathBuf),
    /// In a bucket of S3-compatible object storage. How that is reached is in the environment of whoever opens it.
    Bucket {
        /// The bucket's name.
        bucket: String,
        /// What the names of all objects begin with, without a slash at its end; may be empty.
        prefix: String,
    },
}

/// A text that begins as the location of a bucket does and is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no place for a store: {problem}; give a folder, or s3://BUCKET/PREFIX")]
pub struct LocationError {
    text: String,
    problem: &'static str,
}

impl Location {
    /// What each process takes that writes there, beside what [`WriteOptions::memory`](crate::WriteOptions) counts, for two packs at a time; bytes.
    #[must_use]
    pub fn taken_by_writers(&self) -> u64 {
        match self {
            Self::Folder(_) => 0,
            Self::Bucket { .. } => 2 * S3Options::UPLOAD,
        }
    }

    /// The location that `text` means: `s3://BUCKET/PREFIX`, `s3://BUCKET`, or the path of a folder.
    ///
    /// # Errors
    /// [`LocationError`] for a bucket or prefix that no bucket has.
    pub fn parse(text: &OsStr) -> Result<Self, LocationError> {
        let wrong = |problem| LocationError { text: text.to_string_lossy().into_owned(), problem };
        let Some(rest) = text.as_bytes().strip_prefix(SCHEME) else {
            let scheme = text.as_bytes().split(|byte| *byte == b'/').next().unwrap_or_default();
            let is_url = scheme.len() > 1
                && scheme.ends_with(b":")
                && text.as_bytes().starts_with(&[scheme, b"//"].concat());
            return match is_url {
                _ if text.is_empty() => Err(wrong("it is empty")),
                true => Err(wrong("of URLs only s3:// is one")),
                false => Ok(Self::Folder(text.into())),
            };
        };
        let rest = std::str::from_utf8(rest).map_err(|_| wrong("it is not UTF-8"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if bucket.is_empty() || bucket.len() > 255 || !bucket.bytes().all(good) {
            return Err(wrong("it names no bucket"));
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        // Whatever would have to be written in another way in requests, or be taken for a folder above.
        let part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.bytes().all(good);
        if prefix.len() > 512 || !(prefix.is_empty() || prefix.split('/').all(part)) {
            return Err(wrong("parts of its prefix may have letters, digits, '-', '_' and '.'"));
        }
        Ok(Self::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }

    /// A place for another store, which whoever removes images of this one leaves alone: a folder in it, or a prefix like its own.
    /// `name` is a good name of a file.
    #[must_use]
    pub fn beside(&self, name: &str) -> Self {
        match self {
            Self::Folder(dir) => Self::Folder(dir.join(name)),
            Self::Bucket { bucket, prefix } => {
                let prefix = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}-{name}") };
                Self::Bucket { bucket: bucket.clone(), prefix }
            }
        }
    }

    /// The folder, if it is one.
    #[must_use]
    pub fn as_folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(dir) => Some(dir),
            Self::Bucket { .. } => None,
        }
    }

    /// The same folder by a name that means it from everywhere.
    #[must_use]
    pub fn absolute(self) -> Self {
        match self {
            Self::Folder(dir) => Self::Folder(std::path::absolute(&dir).unwrap_or(dir)),
            bucket @ Self::Bucket { .. } => bucket,
        }
    }

    /// As a path, as messages have it.
    #[must_use]
    pub fn to_path(&self) -> PathBuf {
        match self {
            Self::Folder(dir) => dir.clone(),
            Self::Bucket { bucket, prefix } if prefix.is_empty() => format!("s3://{bucket}").into(),
            Self::Bucket { bucket, prefix } => format!("s3://{bucket}/{prefix}").into(),
        }
    }

    /// The medium there; a bucket's server must answer. Without patience, for who only wants to know, requests are soon given up.
    pub(crate) fn media(&self, patient: bool) -> Result<Arc<dyn Media>, OpenError> {
        Ok(match self {
            Self::Folder(dir) => Arc::new(Dir::new(dir)),
            Self::Bucket { bucket, prefix } if patient => reached(bucket, prefix)?,
            Self::Bucket { bucket, prefix } => {
                let (some_time, options) = (Duration::from_secs(5), S3Options::default());
                let options = S3Options {
                    retries: 1,
                    retry_for: some_time,
                    request: some_time,
                    answer: some_time,
                    ..options
                };
                Arc::new(S3::with_options(bucket, prefix, &[], options)?)
            }
        })
    }
}

/// A bucket whose server has answered.
fn reached(bucket: &str, prefix: &str) -> Result<Arc<S3>, OpenError> {
    let s3 = S3::connect(bucket, prefix)?;
    s3.reach()?;
    Ok(Arc::new(s3))
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_path().display())
    }
}

/// As a text, or as bytes where it is not UTF-8.
impl Serialize for Location {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let path = self.to_path();
        match path.to_str() {
            Some(text) => text.serialize(serializer),
            None => path.as_os_str().as_bytes().serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Location {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Text(String),
            Bytes(Vec<u8>),
        }
        let text = match Form::deserialize(deserializer)? {
            Form::Text(text) => OsString::from(text),
            Form::Bytes(bytes) => OsString::from_vec(bytes),
        };
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Location, LocationError> {
        Location::parse(OsStr::new(text))
    }

    #[test]
    fn a_location_is_what_it_is_shown_as() {
        for text in
            ["/var/lib/dormouse", "store", "s3:/one/slash", "s3://my-bucket", "s3://my.bucket/team_a/jobs"]
        {
            let location = parsed(text).unwrap();
            assert_eq!(location.to_string(), text);
            assert_eq!(location.as_folder().is_some(), !text.starts_with("s3://"), "{text}");
            let json = serde_json::to_string(&location).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<Location>(&json).unwrap(), location);
        }
        assert_eq!(parsed("s3://b/p/"), parsed("s3://b/p"));
        let odd = Location::Folder(OsString::from_vec(vec![b'/', 0xff]).into());
        let json = serde_json::to_string(&odd).unwrap();
        assert_eq!(serde_json::from_str::<Location>(&json).unwrap(), odd);
    }

    #[test]
    fn what_no_bucket_has_is_refused_with_what_to_give() {
        for text in [
            "",
            "gs://b/p",
            "S3://b/p",
            "http://localhost:9/x",
            "s3://",
            "s3:///p",
            "s3://b//p",
            "s3://b/../c",
            "s3://b/a b",
            "s3://b/ä",
            "s3://b/p//",
            "s3://b?x",
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains("s3://BUCKET/PREFIX"), "{error}");
        }
    }
}
