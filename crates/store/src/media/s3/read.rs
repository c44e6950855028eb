//! An object being read.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::client::Client;
use crate::media::MediaRead;

/// So much of an object comes with its length.
const HEAD: u64 = 64 << 10;
/// Reads shorter than this are of somebody who reads on from there.
const SHORT: usize = 64 << 10;
/// So much is fetched for them.
const AHEAD: u64 = 1 << 20;

/// An object; its beginning is here.
#[derive(Debug)]
pub(super) struct Object {
    client: Arc<Client>,
    path: String,
    len: u64,
    head: Vec<u8>,
    /// What was fetched last for a short read, and where it begins.
    ahead: Mutex<(u64, Vec<u8>)>,
}

impl Object {
    pub(super) fn open(client: Arc<Client>, path: String) -> io::Result<Self> {
        let (head, len) = match client.get_range(&path, 0..HEAD) {
            Ok(got) => got,
            // An object without bytes has no first ones.
            Err(error) if error.to_string().contains(" 416 ") && client.len(&path)? == 0 => (Vec::new(), 0),
            Err(error) => return Err(error),
        };
        Ok(Self { client, path, len, head, ahead: Mutex::default() })
    }

    /// Exactly these bytes, or none.
    fn fetch(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let (bytes, _) = self.client.get_range(&self.path, offset..offset + len)?;
        if bytes.len() as u64 == len { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl MediaRead for Object {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let len = buffer.len() as u64;
        if len == 0 {
            return Ok(());
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if copy_from(&self.head, 0, offset, buffer) {
            return Ok(());
        }
        if buffer.len() >= SHORT {
            buffer.copy_from_slice(&self.fetch(offset, len)?);
            return Ok(());
        }
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if !copy_from(&ahead.1, ahead.0, offset, buffer) {
            *ahead = (offset, self.fetch(offset, AHEAD.min(self.len - offset))?);
            copy_from(&ahead.1, ahead.0, offset, buffer);
        }
        Ok(())
    }
}

/// Fills `buffer` with what is at `offset`, if `bytes`, which begin at `start`, have all of it.
fn copy_from(bytes: &[u8], start: u64, offset: u64, buffer: &mut [u8]) -> bool {
    let from = offset.checked_sub(start).and_then(|from| usize::try_from(from).ok());
    let found = from.and_then(|from| bytes.get(from..)?.get(..buffer.len()));
    if let Some(found) = found {
        buffer.copy_from_slice(found);
    }
    found.is_some()
}
