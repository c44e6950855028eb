//! Whether there is memory left for what an image takes of it while it is written: who asks for more than there is, the job first of all, has it.

use host::memory::{SHORT, SHORT_FOR_STORES, available, before_kills, lasts};
use std::io;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
use store::ChunkWriter;

/// How often it is looked: about as soon as memory could be short, and often enough to see a limit that comes down.
const LOOK: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(100);

/// Who looks while an image is written.
pub(super) struct Shortage {
    /// Copies of device memory in the host's, bytes.
    on_host: u64,
    /// Whether the store lies in this machine's memory, too.
    in_memory: bool,
    next: Instant,
}

impl Shortage {
    pub(super) fn new(on_host: u64, writer: &ChunkWriter) -> Self {
        Self { on_host, in_memory: writer.is_in_memory(), next: Instant::now() }
    }

    /// Looks now and then.
    ///
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`]: the image is to be given up.
    pub(super) fn look(&mut self) -> io::Result<()> {
        if !(self.on_host > 0 || self.in_memory) || Instant::now() < self.next {
            return Ok(());
        }
        // Copies make room before anything is swapped out for them; a store in memory may be swapped out itself.
        let for_copies = (self.on_host > 0).then(available);
        let for_store = self.in_memory.then(before_kills).flatten();
        let soon = self.judge(for_copies, for_store)?;
        self.next = Instant::now() + soon;
        Ok(())
    }

    /// When to look again, where so many bytes are left to those.
    fn judge(&self, for_copies: Option<u64>, for_store: Option<u64>) -> io::Result<Duration> {
        let given_up = |left: u64, what: String| {
            let left = left >> 20;
            let said = format!("{left} MiB of memory are left: the image is given up, and {what} make room");
            Err(io::Error::new(io::ErrorKind::OutOfMemory, said))
        };
        let spare = match (for_copies, for_store) {
            (Some(left), _) if left < SHORT => {
                return given_up(left, format!("copies of {} MiB of device memory", self.on_host >> 20));
            }
            (_, Some(left)) if left < SHORT_FOR_STORES => {
                return given_up(
                    left,
                    "what was written of it to a store in memory and what was copied".into(),
                );
            }
            (copies, store) => {
                let spare = [copies.map(|left| left - SHORT), store.map(|left| left - SHORT_FOR_STORES)];
                spare.into_iter().flatten().min().unwrap_or(u64::MAX)
            }
        };
        Ok(lasts(spare).clamp(*LOOK.start(), *LOOK.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_takes_memory_gives_way() {
        let judged = |on_host: u64, for_copies, for_store| {
            let shortage = Shortage { on_host, in_memory: true, next: Instant::now() };
            shortage.judge(for_copies, for_store).map_err(|error| (error.kind(), error.to_string()))
        };
        let (soonest, latest) = (*LOOK.start(), *LOOK.end());
        assert_eq!(judged(0, None, None), Ok(latest));
        assert_eq!(judged(1, Some(SHORT), None), Ok(soonest));
        assert_eq!(judged(1, Some(SHORT + 50 * (16 << 20)), Some(u64::MAX)), Ok(Duration::from_millis(50)));
        assert_eq!(judged(1, Some(u64::MAX), Some(SHORT_FOR_STORES)), Ok(soonest));
        for (for_copies, for_store, left, what) in [
            (Some(SHORT - 1), Some(u64::MAX), 127, "copies of 3 MiB"),
            (Some(u64::MAX), Some(SHORT_FOR_STORES - 1), 255, "a store in memory"),
            (None, Some(0), 0, "a store in memory"),
            (Some(0), None, 0, "copies of 3 MiB"),
        ] {
            let Err((io::ErrorKind::OutOfMemory, said)) = judged(3 << 20, for_copies, for_store) else {
                panic!("{left} MiB are taken for enough")
            };
            assert!(said.starts_with(&format!("{left} MiB of memory are left")), "{said}");
            assert!(said.contains(what), "{said}");
        }
    }
}
