//! Whether the machine has memory left for what a checkpoint takes of it: who asks for more than there is, the job first of all, has it.

use host::memory::{SHORT, available};
use std::io;
use std::time::{Duration, Instant};
use store::ChunkWriter;

/// How often it is looked: a store in memory takes some 100 MiB of that meanwhile.
const LOOK: Duration = Duration::from_millis(10);

/// Who looks while an image is written.
pub(super) struct Watch {
    /// Copies of device memory in the host's, bytes.
    on_host: u64,
    /// Whether the store lies in memory, too.
    in_memory: bool,
    looked: Instant,
}

impl Watch {
    pub(super) fn new(on_host: u64, writer: &ChunkWriter) -> Self {
        Self { on_host, in_memory: writer.is_in_memory(), looked: Instant::now() }
    }

    /// Looks now and then.
    ///
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`]: the checkpoint is to be given up.
    pub(super) fn look(&mut self) -> io::Result<()> {
        if !(self.on_host > 0 || self.in_memory) || self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        self.judge(available())
    }

    fn judge(&self, left: u64) -> io::Result<()> {
        // 0 is nobody's answer.
        if left == 0 || left >= SHORT {
            return Ok(());
        }
        let copies = (self.on_host > 0).then(|| format!("its copies of {} MiB", self.on_host >> 20));
        let written = self.in_memory.then(|| "what it has written to a store in memory".to_owned());
        let what: Vec<String> = copies.into_iter().chain(written).collect();
        Err(io::Error::new(
            io::ErrorKind::OutOfMemory,
            format!(
                "this machine has {} MiB of memory left: the checkpoint is given up, and {} makes room",
                left >> 20,
                what.join(", with ")
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_takes_memory_gives_way() {
        let watch = |on_host, in_memory| Watch { on_host, in_memory, looked: Instant::now() };
        for takes in [watch(3 << 20, false), watch(0, true), watch(3 << 20, true)] {
            assert!(takes.judge(0).is_ok() && takes.judge(SHORT).is_ok());
            let said = takes.judge(SHORT - 1).map_err(|error| (error.kind(), error.to_string()));
            let Err((io::ErrorKind::OutOfMemory, said)) = said else { panic!("{said:?}") };
            assert!(said.contains("has 127 MiB of memory left"), "{said}");
            assert_eq!(said.contains("its copies of 3 MiB"), takes.on_host > 0, "{said}");
            assert_eq!(said.contains("a store in memory"), takes.in_memory, "{said}");
        }
    }
}
