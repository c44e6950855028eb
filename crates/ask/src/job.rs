//! The job that this program is in, if it is in one.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use transport::board::{BOARD, Board};
use transport::hello;
use wire::Question;

/// Where a job's shared folder is, inside the job.
const FOLDER: &str = "/run/dormouse-job";
/// Where the supervisor listens, in that.
const HELLO: &str = "hello.sock";
/// What is there, as `host::EXCLUDES` has it, once a process has excluded memory of its own.
const EXCLUDES: &str = "excludes";
/// A supervisor that takes longer to note a question does not run.
const PATIENCE: Duration = Duration::from_secs(30);

/// A job as its programs see it.
pub struct Job {
    /// What the supervisor writes for them.
    pub board: Board,
    hello: PathBuf,
    excludes: PathBuf,
}

impl Job {
    fn at(folder: &Path) -> Option<Self> {
        let board = Board::open(&folder.join(BOARD))?;
        Some(Self { board, hello: folder.join(HELLO), excludes: folder.join(EXCLUDES) })
    }

    /// Has it known, in this job and in every restarted one, that marks of excluded memory are meant so.
    pub fn excludes(&self) -> std::io::Result<()> {
        if self.excludes.exists() { Ok(()) } else { std::fs::File::create(&self.excludes).map(drop) }
    }

    /// Asks the supervisor; tells under which ticket the board will have the answer.
    pub fn ask(&self, question: Question) -> transport::Result<u64> {
        hello::ask_job(&self.hello, question, PATIENCE)
    }
}

/// The job that this program is in. Looked for once: no program gets into one, or out of it, while it runs.
pub fn here() -> Option<&'static Job> {
    static HERE: OnceLock<Option<Job>> = OnceLock::new();
    HERE.get_or_init(|| Job::at(Path::new(FOLDER))).as_ref()
}
