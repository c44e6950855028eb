//! The keys of people: age identity files.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

/// The longest key file.
const FILE_MAX: u64 = 1 << 20;
/// Read by others than the owner.
const OTHERS: u32 = 0o077;

/// A key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key's file cannot be read.
    #[error("the key file {} cannot be read: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file has no key in it.
    #[error("{} is no key file: {problem}; `age-keygen -o FILE` makes one", path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
        /// What is wrong with it. Nothing of what it holds.
        problem: String,
    },
    /// A text is no recipient.
    #[error(
        "{text} is no recipient: {problem}; one looks like age1…, and `age-keygen -y KEYFILE` prints that of a key"
    )]
    NotARecipient {
        /// The text, but for private keys.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// The private keys of one or more files.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identities {
    files: Vec<PathBuf>,
    /// One `AGE-SECRET-KEY-…` each.
    keys: Vec<String>,
}

impl Identities {
    /// Reads key files, as `age-keygen` writes them.
    ///
    /// # Errors
    /// [`KeyError::Unreadable`], [`KeyError::NotAKey`].
    pub fn read(files: &[PathBuf]) -> Result<Self, KeyError> {
        let mut all = Self { files: files.to_vec(), keys: Vec::new() };
        for path in files {
            all.read_file(path)?;
        }
        Ok(all)
    }

    fn read_file(&mut self, path: &Path) -> Result<(), KeyError> {
        let not_a_key = |problem: String| KeyError::NotAKey { path: path.to_owned(), problem };
        // Read once into room that does not move: what moves is not wiped.
        let mut text = Zeroizing::new(String::with_capacity(FILE_MAX as usize + 1));
        let read = File::open(path).and_then(|file| {
            if file.metadata()?.mode() & OTHERS != 0 {
                let file = path.display();
                tracing::warn!("others than its owner may read the key file {file}: `chmod 600 {file}`");
            }
            file.take(FILE_MAX + 1).read_to_string(&mut text)
        });
        match read {
            Ok(len) if len as u64 > FILE_MAX => return Err(not_a_key("it is too long".to_owned())),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(not_a_key("it is not text".to_owned()));
            }
            Err(error) => return Err(KeyError::Unreadable { path: path.to_owned(), error }),
            Ok(_) => {}
        }
        let before = self.keys.len();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // What is there instead is not said: it may be another sort of secret.
            if line.parse::<age::x25519::Identity>().is_err() {
                return Err(not_a_key(format!("line {number} is no age identity (AGE-SECRET-KEY-…)")));
            }
            self.keys.push(line.to_owned());
        }
        if self.keys.len() == before {
            return Err(not_a_key("there is no age identity (AGE-SECRET-KEY-…) in it".to_owned()));
        }
        Ok(())
    }

    /// The files they come from.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// As the library has them.
    pub(super) fn parsed(&self) -> Vec<age::x25519::Identity> {
        self.keys.iter().filter_map(|key| key.parse().ok()).collect()
    }
}

impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identities").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Drop for Identities {
    fn drop(&mut self) {
        self.keys.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use age::secrecy::ExposeSecret;
    use std::fs;

    #[test]
    fn key_files_are_read_and_others_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = age::x25519::Identity::generate().to_string().expose_secret().to_owned();
        let read = |content: &[u8]| {
            fs::write(&path, content).unwrap();
            Identities::read(std::slice::from_ref(&path))
        };
        let good = read(format!("# created: today\n# public key: age1…\n{key}\n\n").as_bytes()).unwrap();
        assert_eq!((good.parsed().len(), good.files()), (1, &[path.clone()][..]));
        assert!(!format!("{good:?}").contains("AGE-SECRET-KEY"), "{good:?}");
        for (bad, word) in [
            (&b""[..], "no age identity"),
            (b"# nothing\n", "no age identity"),
            (b"hunter2\n", "line 1"),
            (b"\xff\xfe", "not text"),
        ] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains("hunter2"), "{error}");
        }
        assert!(read(&vec![b'#'; FILE_MAX as usize + 1]).unwrap_err().to_string().contains("too long"));
        let none = folder.path().join("none");
        let error = Identities::read(&[none]).unwrap_err();
        assert!(matches!(error, KeyError::Unreadable { .. }), "{error}");
    }
}
