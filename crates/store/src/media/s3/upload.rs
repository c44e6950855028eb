//! An object being written: in one request if it is small, else in parts, of which several are under way.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use object_store::multipart::PartId;
use tokio::task::JoinHandle;

use super::client::Client;
use super::lease::Leases;
use crate::media::MediaFile;

/// So many parts are under way at a time. With the one that is being filled they are all the memory that is used.
pub(super) const UNDER_WAY: usize = 4;

/// For how long the end of an upload that failed may keep its writer waiting.
const PARTING: Duration = Duration::from_secs(5);

/// An object that is there, whole, when it is synced, and not before.
#[derive(Debug)]
pub(super) struct Upload {
    client: Arc<Client>,
    leases: Arc<Leases>,
    path: String,
    /// Where the draft's stand-in for it is to be, which names the upload: whoever finds it can end that.
    stand_in: Option<String>,
    /// Length of all parts but the last.
    part: usize,
    /// There from the first part on, until all is done.
    upload: Option<String>,
    filling: Vec<u8>,
    under_way: VecDeque<JoinHandle<io::Result<PartId>>>,
    parts: Vec<PartId>,
    len: u64,
}

impl Upload {
    pub(super) fn new(
        (client, leases): (Arc<Client>, Arc<Leases>),
        path: String,
        stand_in: Option<String>,
        part: usize,
    ) -> Self {
        let (filling, under_way, parts) = (Vec::new(), VecDeque::new(), Vec::new());
        Self { client, leases, path, stand_in, part, upload: None, filling, under_way, parts, len: 0 }
    }

    fn leave_stand_in(&self, upload: &str) -> io::Result<()> {
        let leave = |path: &String| self.client.put(path, upload.as_bytes().to_vec());
        self.stand_in.as_ref().map_or(Ok(()), leave)
    }

    /// Sends what has gathered, when there is room for another part under way.
    fn send(&mut self) -> io::Result<()> {
        let upload = match &self.upload {
            Some(upload) => upload.clone(),
            None => {
                let upload = self.client.begin_upload(&self.path)?;
                let upload = self.upload.insert(upload).clone();
                self.leave_stand_in(&upload)?;
                upload
            }
        };
        while self.under_way.len() >= UNDER_WAY {
            self.receive()?;
        }
        let number = self.parts.len() + self.under_way.len();
        let bytes = std::mem::take(&mut self.filling);
        self.under_way.push_back(self.client.upload_part(&self.path, &upload, number, bytes)?);
        Ok(())
    }

    /// Waits for the oldest part.
    fn receive(&mut self) -> io::Result<()> {
        if let Some(part) = self.under_way.pop_front() {
            self.parts.push(self.client.wait(part)?.map_err(io::Error::other)??);
        }
        Ok(())
    }
}

impl MediaFile for Upload {
    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.len += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.part - self.filling.len()));
            self.filling.extend_from_slice(now);
            bytes = later;
            if self.filling.len() == self.part {
                self.send()?;
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        // What others have taken over is theirs to write.
        self.leases.check()?;
        if self.upload.is_none() {
            self.leave_stand_in("")?;
            return self.client.put(&self.path, std::mem::take(&mut self.filling));
        }
        if !self.filling.is_empty() {
            self.send()?;
        }
        while !self.under_way.is_empty() {
            self.receive()?;
        }
        let parts = std::mem::take(&mut self.parts);
        if let Some(upload) = &self.upload {
            self.client.complete(&self.path, upload, parts, self.len)?;
        }
        self.upload = None;
        Ok(())
    }
}

/// What was not finished is ended, where that can be done soon. What a draft's stand-in names is ended with the draft, too.
impl Drop for Upload {
    fn drop(&mut self) {
        self.under_way.iter().for_each(JoinHandle::abort);
        let Some(upload) = self.upload.take() else { return };
        if let Err(error) = self.client.abort_within(&self.path, &upload, PARTING) {
            tracing::debug!(%error, "an upload could not be ended; the next removal of images does it");
        }
    }
}
