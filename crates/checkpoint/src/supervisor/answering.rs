//! Whoever asks a job's supervisor, and what he is answered.

use super::Supervisor;
use crate::admin::{CheckpointOptions, Event, Request, receive, send};
use crate::error::no_thread;
use crate::hand_over::HandOver;
use crate::sessions::{RECOVERY, wait_for_caller};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long whoever asks may take to say what, and to hear the answer.
const ASKING: Duration = Duration::from_secs(10);
/// How often it is looked whether whoever asked is still there.
const LOOK: Duration = Duration::from_millis(200);

/// Who has called, and the thread that answers.
pub(super) struct Answering {
    pub(super) thread: JoinHandle<()>,
    pub(super) stream: UnixStream,
}

impl Supervisor {
    /// Answers until the job has ended, each question on a thread of its own; gives those that are still at it.
    pub(super) fn listen(self: &Arc<Self>, listener: &UnixListener) -> Vec<Answering> {
        let mut answering: Vec<Answering> = Vec::new();
        loop {
            wait_for_caller(listener);
            if *self.ended() {
                return answering;
            }
            answering.retain(|each| !each.thread.is_finished());
            match listener.accept().and_then(|(stream, _)| Ok((stream.try_clone()?, stream))) {
                Ok((stream, ours)) => {
                    let this = Arc::clone(self);
                    let thread = Builder::new().spawn(move || {
                        if let Err(error) = this.answer(&ours) {
                            tracing::debug!("whoever asked is gone: {error}");
                        }
                    });
                    match thread {
                        Ok(thread) => answering.push(Answering { thread, stream }),
                        Err(error) => {
                            // Whoever asked would not read what is sent to him before he was heard.
                            let heard = stream.set_read_timeout(Some(RECOVERY)).and_then(|()| {
                                receive::<Request>(&mut BufReader::new(stream.try_clone()?)).map(drop)
                            });
                            let _ = heard.and_then(|()| send(&stream, &Event::Failed(no_thread(&error))));
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!("admin socket: {error}");
                    std::thread::sleep(RECOVERY);
                }
            }
        }
    }

    fn answer(self: Arc<Self>, stream: &UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(ASKING))?;
        stream.set_write_timeout(Some(ASKING))?;
        let mut from = BufReader::new(stream.try_clone()?);
        match receive(&mut from)? {
            Some(request) => {
                let is_handed_over = matches!(request, Request::HandOver(_));
                let hand_over = is_handed_over.then(|| HandOver::heard(from)).transpose()?;
                // Who is gone by now, as when this process was suspended, wants nothing any more.
                send(stream, &Event::Step { step: "preparing".to_owned() })?;
                let (events, queue) = mpsc::channel();
                let this = Arc::clone(&self);
                // What was asked for does not wait for whoever looks on.
                let carry_out = move || this.carry_out(&request, hand_over, events);
                if let Err(error) = Builder::new().spawn(carry_out) {
                    return send(stream, &Event::Failed(no_thread(&error)));
                }
                loop {
                    match queue.recv_timeout(LOOK) {
                        Ok(event) => send(stream, &event)?,
                        Err(RecvTimeoutError::Disconnected) => return Ok(()),
                        // What was not begun in earnest is given up, since nobody takes what it sends any more.
                        Err(RecvTimeoutError::Timeout) if has_hung_up(stream) => return Ok(()),
                        Err(RecvTimeoutError::Timeout) => {}
                    }
                }
            }
            None => Ok(()),
        }
    }

    fn carry_out(&self, request: &Request, hand_over: Option<HandOver>, events: mpsc::Sender<Event>) {
        match request {
            Request::Checkpoint(options) | Request::HandOver(options) => {
                let stop = options.stop || hand_over.is_some();
                let options = CheckpointOptions { stop, ..options.clone() };
                let taken = self.checkpoint_at(&options, (None, hand_over.as_ref()), &events);
                let kept = hand_over.and_then(HandOver::into_kept);
                let last = match kept.map_or(taken, Err) {
                    Ok(report) => Event::Published(report),
                    Err(failure) => Event::Failed(failure),
                };
                let _ = events.send(last);
            }
            Request::Suspend(options) => self.suspend(options, events),
            Request::Resume(options) => self.resume(options, events),
        }
    }
}

/// Whether nobody is at the other end any more.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut looked = [PollFd::new(stream, PollFlags::empty())];
    let looks = poll(&mut looked, Some(&Timespec::default()));
    looks.is_ok() && looked.iter().any(|fd| fd.revents().contains(PollFlags::HUP))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::Shutdown;

    #[test]
    fn who_hangs_up_is_noticed_and_who_only_listens_is_not_taken_for_him() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!has_hung_up(&ours));
        ours.shutdown(Shutdown::Read).unwrap();
        assert!(!has_hung_up(&ours));
        drop(theirs);
        assert!(has_hung_up(&ours));
    }
}
