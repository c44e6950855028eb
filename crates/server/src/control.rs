//! What the supervisor and a GPU server say to each other: one JSON object a line, over a socket pair that the server has
//! as file descriptor 3. The supervisor asks, the server answers each question once, in order; while it captures, writes or fills
//! memory it may send [`Answer::Progress`] in between. A server whose supervisor is gone ends.
//!
//! A server is started with [`Start`] as the first line and answers [`Answer::Ready`]. Questions are numbered from 1, an answer
//! bears the number of its question, and what comes before the first question the number 0: an answer to a question that was
//! given up is recognised. No line is longer than [`LINE_MAX`]: what has no bound goes through files, sentences are [cut](few).

mod lines;
mod sentences;

pub use crate::capture::{CopyBudget, DeviceSet, Kept, Reads};
pub use crate::watch::{Approach, Course};
pub use lines::{LINE_MAX, Lines, say};
pub use sentences::{few, short};

use image::{Compress, DeviceFacts, RawPath};
use plan::follow::Passed;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use store::Access;

/// First line to a server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "start")]
pub enum Start {
    /// A fresh session: the folder is empty.
    Fresh,
    /// A session from an image: the folder holds its files as they were at the cut; the object table and device memory
    /// are read from the store.
    Restore {
        /// The store; of an encrypted one with its secret, which is in no other place that a server could have it from.
        store: Access,
        /// The image's id, whole.
        image: String,
        /// When its memory is filled.
        #[serde(default)]
        fills: Fills,
        /// Where the image comes from.
        #[serde(default)]
        origin: Origin,
    },
    /// Only replay an object table and compare addresses (no session files, no memory): the answer to the next question,
    /// [`Ask::Rehearse`].
    Rehearsal,
}

/// When the memory of a session that is made again is filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Fills {
    /// Before the session is ready.
    #[default]
    Before,
    /// When it is, and before its program goes on: [`Ask::Fill`] waits for that.
    Beside,
    /// While its program runs.
    Lazily,
}

/// Where an image comes from, of which a session is made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Origin {
    /// A store.
    #[default]
    Store,
    /// Another machine, and it may be on its way yet.
    Arriving,
    /// A store in memory, which nobody but this supervisor and its servers have ever had.
    Own,
}

/// A question and its number.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Question {
    /// One more than the last.
    pub number: u64,
    /// What is asked.
    pub ask: Ask,
}

/// An answer and the number of its question.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// Of the question; 0 for what comes before the first.
    pub number: u64,
    /// What is answered.
    pub answer: Answer,
}

/// A question to a server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "ask")]
pub enum Ask {
    /// Watch the program from now on; before it is served. Answers [`Answer::Done`].
    Watch {
        /// Where to write a profile at the end; there is none without.
        profile: Option<RawPath>,
        /// By what to stop the program where a checkpoint is to be taken.
        course: Option<Course>,
        /// How far it was in its plan when its image was taken.
        passed: Option<Passed>,
    },
    /// How near the next checkpoint is, by the course. Answers [`Answer::Approach`].
    Approach,
    /// Wait until the program comes to where a checkpoint is to be taken, and have it wait there for [`Ask::Gate`]. Answers [`Answer::Come`].
    Await {
        /// No longer than that, ms.
        within_ms: u64,
    },
    /// Which devices the session uses. Answers [`Answer::Devices`].
    Devices,
    /// Get ready to write into this draft: read the store's indexes, and make room for copies of device memory. Only while the gate is
    /// open; good for one closing of it. Answers [`Answer::Done`].
    Prepare {
        /// The store; of an encrypted one with its secret, which is in no other place that a server could have it from.
        store: Access,
        /// The draft's id.
        draft: String,
        /// How to compress.
        compress: Compress,
        /// How much memory writing takes at most, bytes.
        memory: u64,
        /// How many threads hash and compress at most.
        threads: usize,
        /// The length of packs, bytes.
        pack_len: u64,
        /// Whether chunks that the store has are read before they are used again.
        reread: bool,
        /// What of device memory is read.
        reads: Reads,
        /// Where device memory may be copied to, so that the application can go on before it is written; nowhere without.
        copies: Option<CopyBudget>,
    },
    /// Stop taking messages, and wait until the device is idle and every callback is acknowledged. Answers
    /// [`Answer::Idle`], or [`Answer::Busy`] after the deadline, with the gate open again.
    Gate {
        /// How long to wait, ms.
        deadline_ms: u64,
    },
    /// Begin that of [`Ask::Capture`] which can be done while the application may still touch managed memory: device memory is taken into copies, as
    /// far as there is room. Answers [`Answer::Done`].
    BeginCapture,
    /// Take the object table and device memory: into copies or, what finds no room, into the draft, through the `store::ChunkWriter` of
    /// [`Ask::Prepare`]. Only between [`Answer::Idle`] and [`Ask::Ungate`]; if managed memory has shadows, while the application stands
    /// still. What [`Ask::BeginCapture`] has copied is copied again where the application has changed it. Answers [`Answer::Captured`].
    Capture,
    /// Leave the object table that was captured, for [`Ask::Rehearse`]; before it is written. Answers [`Answer::Left`].
    Leave {
        /// A folder for [`state_file`]; it is gone with the supervisor.
        states: RawPath,
    },
    /// Write what was captured and is not in the draft yet. Answers [`Answer::Written`].
    Write {
        /// A folder for [`receipt_file`]; it is gone with the supervisor.
        states: RawPath,
    },
    /// After a restart, when the application's userfaultfd has been sent and its tasks do not run yet: keep the shadows of its managed
    /// memory. Answers [`Answer::Done`].
    Keep,
    /// How far the filling of memory is, in a session that was ready before it was over. Answers [`Answer::Filling`], or [`Answer::Failed`] when
    /// it never will be: nothing that needs it is executed any more then, and the session is of no use.
    Filling,
    /// Wait until that is over. Answers [`Answer::Done`].
    Fill,
    /// Take messages again; nothing changes when they are taken already. Answers [`Answer::Done`].
    Ungate {
        /// Whether what was captured is kept for [`Ask::Write`].
        keep: bool,
    },
    /// In a server started with [`Start::Rehearsal`]: replay this object table (a file with the bytes of the session state
    /// object). Answers [`Answer::Done`] when every address is as recorded, else [`Answer::Failed`] naming what differs.
    Rehearse {
        /// The file.
        state: RawPath,
    },
    /// End the session: give back everything. Answers [`Answer::Ended`] and exits.
    End,
}

/// A server's answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum Answer {
    /// The session can begin (or go on): its files are there, memory is filled, messages will be taken when
    /// [`Ask::Ungate`] has been asked (after a restore) or at once (fresh).
    Ready {
        /// What this is, for people.
        device: String,
    },
    /// How near the next checkpoint is.
    Approach(Approach),
    /// Whether the program has come to where a checkpoint is to be taken.
    Come {
        /// It has, and waits.
        come: bool,
    },
    /// The devices that the session uses now.
    Devices {
        /// Each of them.
        devices: Vec<DeviceFacts>,
    },
    /// The device is idle and the gate closed.
    Idle {
        /// What of the session cannot be restored: a few sentences; nothing must be written unless it is empty.
        refusals: Vec<String>,
        /// Whether objects were made or destroyed since the last table that was rehearsed (see [`Answer::Captured`]).
        table_changed: bool,
        /// Bytes of device memory that a capture would read.
        bytes: u64,
    },
    /// The device did not get idle; the gate is open again.
    Busy {
        /// What held it, a few sentences: the stream, kernel, callback, call.
        holders: Vec<String>,
    },
    /// Bytes captured or filled so far.
    Progress {
        /// Done.
        done: u64,
        /// Of how many.
        total: u64,
    },
    /// Bytes of memory that are filled; all of them when `done` is `total`.
    Filling {
        /// Done.
        done: u64,
        /// Of how many.
        total: u64,
    },
    /// Nothing more is needed of the device's memory as it is.
    Captured {
        /// Where its bytes are.
        kept: Kept,
        /// The devices of the session.
        devices: Vec<DeviceFacts>,
        /// How far the program is in its plan.
        #[serde(default)]
        passed: Option<Box<Passed>>,
        /// Launches of marked kernels that are half-way.
        #[serde(default)]
        half_way: u64,
    },
    /// The object table is in [`state_file`].
    Left {
        /// Bytes that are free beside copies on the session's devices: on the one that has least.
        free: u64,
    },
    /// Everything is in the store, in the writer's pack.
    Written {
        /// Length of [`receipt_file`], bytes.
        receipt_bytes: u64,
    },
    /// Done.
    Done,
    /// The session has ended.
    Ended,
    /// It could not be done; the session goes on as before.
    Failed {
        /// What happened, to what, and what to do.
        message: String,
        /// Whose fault it is.
        cause: Cause,
    },
}

/// What a failure is put down to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The store: full, read-only, gone.
    Store,
    /// The device's memory is used up.
    DeviceMemory,
    /// An object cannot be made again as it was, or its address differs: the session cannot be restored.
    Differs,
    /// Anything else.
    Other,
}

/// The file with the object table that [`Ask::Leave`] leaves in `states`, for [`Ask::Rehearse`].
#[must_use]
pub fn state_file(states: &Path, session: u32) -> PathBuf {
    states.join(format!("session-{session}"))
}

/// The file with `store::Receipt::to_bytes` that [`Ask::Write`] leaves in `states`: it grows with the number of chunks.
#[must_use]
pub fn receipt_file(states: &Path, session: u32) -> PathBuf {
    states.join(format!("receipt-{session}"))
}
