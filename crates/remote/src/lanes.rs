//! The sending side of the bulk streams: a thread for each, and pieces that wait for it.

use crate::frame::PieceHeader;
use crate::lock;
use crate::packing::Packer;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Builder;

/// Bytes that stay where they are until they are sent; dropping it tells whoever waits for that.
pub(crate) trait Piece: Send {
    fn bytes(&self) -> &[u8];
}

type Queued = (PieceHeader, Box<dyn Piece>);

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Queued>,
    /// Pieces given to it so far.
    count: u64,
    waiting_bytes: usize,
    ended: bool,
}

/// All bulk streams of one direction.
pub(crate) struct Lanes(Vec<Arc<(Mutex<Queue>, Condvar)>>);

impl Lanes {
    /// `lost` is told when a stream breaks.
    pub(crate) fn new(
        streams: Vec<Box<dyn Write + Send>>,
        lost: impl Fn(&str) + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let start = |mut stream: Box<dyn Write + Send>| {
            let (lane, lost) = (Arc::<(Mutex<Queue>, Condvar)>::default(), lost.clone());
            let sender = Arc::clone(&lane);
            let run = move || {
                if let Err(error) = send(&sender, &mut *stream) {
                    lost(&error.to_string());
                }
                end(&sender);
            };
            Builder::new().name("remote-bulk-out".into()).spawn(run)?;
            Ok(lane)
        };
        streams.into_iter().map(start).collect::<io::Result<_>>().map(Self)
    }

    /// Sends a piece with the stream that has least to do. Pieces of one transfer are given in order, and those of earlier transfers
    /// before.
    pub(crate) fn give(&self, head: PieceHeader, piece: Box<dyn Piece>) {
        let least = self.0.iter().min_by_key(|lane| lock(&lane.0).waiting_bytes);
        let Some(lane) = least else { return };
        let mut queue = lock(&lane.0);
        if !queue.ended {
            queue.count += 1;
            queue.waiting_bytes += head.bytes;
            queue.pieces.push_back((head, piece));
            lane.1.notify_one();
        }
    }

    /// How many pieces each has been given.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.0.iter().map(|lane| lock(&lane.0).count).collect()
    }

    /// Sends nothing more.
    pub(crate) fn end(&self) {
        self.0.iter().for_each(|lane| end(lane));
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.end();
    }
}

fn end(lane: &(Mutex<Queue>, Condvar)) {
    let dropped = {
        let mut queue = lock(&lane.0);
        queue.ended = true;
        std::mem::take(&mut queue.pieces)
    };
    lane.1.notify_one();
    drop(dropped);
}

fn send(lane: &(Mutex<Queue>, Condvar), stream: &mut (dyn Write + Send)) -> io::Result<()> {
    let mut packer = Packer::default();
    loop {
        let (head, piece) = {
            let mut queue = lock(&lane.0);
            loop {
                if let Some(next) = queue.pieces.pop_front() {
                    break next;
                }
                if queue.ended {
                    return Ok(());
                }
                queue = lane.1.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        };
        packer.send(head, piece.bytes(), stream)?;
        drop(piece);
        lock(&lane.0).waiting_bytes -= head.bytes;
    }
}
