//! Keys for tests, and media that are encrypted with them.
#![allow(dead_code, clippy::unwrap_used, reason = "each user uses its part, and a test may panic")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::media::Media;
use store::{Identities, Key, Recipient, Store};

/// The recipient of the key that is kept with the golden stores: it opens nothing else.
pub const RECIPIENT: &str = "age12pkx975ck0a0lp59dsl4spy76m922raqy0uw54w9fg7v2hwax4uszmatph";

pub fn key_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/test-key.txt")
}

/// The key itself.
pub fn key() -> Key {
    Key::Identities(Identities::read(&[key_file()]).unwrap())
}

pub fn recipient() -> Recipient {
    RECIPIENT.parse().unwrap()
}

/// A key that nobody is a recipient of.
pub fn other_key(folder: &Path) -> (Key, Recipient) {
    use age::secrecy::ExposeSecret;
    let (identity, file) = (age::x25519::Identity::generate(), folder.join("other-key.txt"));
    std::fs::write(&file, identity.to_string().expose_secret()).unwrap();
    (Key::Identities(Identities::read(&[file]).unwrap()), identity.to_public().to_string().parse().unwrap())
}

/// The store on a medium, encrypted or not.
pub fn open(media: Arc<dyn Media>) -> Store {
    Store::open_with(media, &key(), &[]).unwrap()
}

/// A new encrypted one.
pub fn create(media: Arc<dyn Media>) -> Store {
    Store::open_or_create_with(media, &key(), &[recipient()]).unwrap()
}
