//! Why a job could not be dumped, and what CRIU's log says of it.

use std::io;

use crate::criu::LogExcerpt;
use crate::files::FileError;

/// Why a job could not be dumped. It runs on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// A dump of this job is being made.
    #[error("another checkpoint of this job is being taken; try again when it is done")]
    Busy,
    /// It is over.
    #[error("the job has ended")]
    Ended,
    /// It holds what no image can.
    #[error("the job holds what cannot be restored; nothing was written, it runs on: {}", .0.join("; "))]
    Unrestorable(Vec<String>),
    /// Something came in by a TCP connection within the job while CRIU read what was there: what a restored connection sends again, or the kernel was slow to deliver. Another attempt finds it there.
    #[error("data was on its way through a TCP connection within the job")]
    UnderWay,
    /// One of its threads did not stop. Another attempt may find that it does.
    #[error(
        "one of its processes cannot be stopped: it waits for the end of a child that it has made with vfork, or for something in the kernel; try again later{log}"
    )]
    Unstoppable {
        /// The end of CRIU's log.
        log: LogExcerpt,
    },
    /// CRIU refused.
    #[error("{criu} cannot dump the job: {why}{log}")]
    Refused {
        /// Which CRIU.
        criu: String,
        /// What is known to be behind the log's last lines, and what to do.
        why: String,
        /// The end of its log.
        log: LogExcerpt,
    },
    /// CRIU got nowhere and was killed.
    #[error("{criu} cannot dump the job: {why}{log}")]
    Hung {
        /// Which CRIU.
        criu: String,
        /// For how long, and what to do.
        why: String,
        /// The end of its log.
        log: LogExcerpt,
    },
    /// A file could not be saved.
    #[error(transparent)]
    File(#[from] FileError),
    /// Files in memory that have no names are not in CRIU's images as they should be.
    #[error("cannot dump the job: copying its shared memory: {0}")]
    Nameless(io::Error),
    /// Something on this side failed.
    #[error("cannot dump the job: {what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// Something on this side failed while that was being done.
pub(super) fn failed(what: &'static str) -> impl FnOnce(io::Error) -> DumpError {
    move |source| DumpError::Io { what, source }
}

/// Whether a queue of a TCP connection had grown when its contents were read.
pub(super) fn is_under_way(log: &LogExcerpt) -> bool {
    log.mentions("recv failed (") && log.mentions("libsoccr_save() failed")
}

/// What CRIU says of a thread that does not stop.
pub(super) const UNSTOPPABLE: &str = "Unseizable non-zombie";

/// What is behind CRIU's messages, if that is known, and what to do.
pub(super) fn explain(log: &LogExcerpt) -> Option<&'static str> {
    const SOCKETS: &str = "it cannot dump sockets on this kernel (Linux 6.16 and newer need CRIU 4.2); install a newer CRIU or set \
                           DORMOUSE_CRIU";
    log.mentions("Can't get 1:16 opt").then_some(SOCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_criu_on_a_new_kernel_is_explained() {
        let log = LogExcerpt(vec!["(00.01) Error (criu/sockets.c:1): Can't get 1:16 opt: bad".into()]);
        assert!(explain(&log).is_some_and(|text| text.contains("cannot dump sockets on this kernel")));
        assert_eq!(explain(&LogExcerpt::default()), None);
    }

    #[test]
    fn a_queue_that_grows_is_no_refusal() {
        let grown = [
            "Error (soccr/soccr.c:371): \trecv failed (28, want 16): Invalid argument",
            "Error (criu/sk-tcp.c:147): tcp: libsoccr_save() failed with -6",
        ];
        assert!(is_under_way(&LogExcerpt(grown.map(String::from).into())));
        assert!(!is_under_way(&LogExcerpt(vec![grown[1].into()])), "it fails for other reasons, too");
    }

    #[test]
    fn a_process_that_cannot_be_stopped_is_known() {
        let log = LogExcerpt(vec![
            "Error (compel/src/lib/infect.c:262): Unseizable non-zombie 7 found, state D".into(),
        ]);
        assert!(log.mentions(UNSTOPPABLE));
    }
}
