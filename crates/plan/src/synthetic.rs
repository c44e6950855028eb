//! Profiles of programs that there are not: for tests, figures and first steps.

use crate::Error;
use crate::profile::{Boundary, CpuInterval, Profile, Recorder};
use crate::units::Nanos;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

/// Writes down kernels one after another.
struct Script {
    recorder: Recorder,
    now: u64,
    kernels: u64,
}

impl Script {
    fn new() -> Self {
        Self { recorder: Recorder::default(), now: 0, kernels: 0 }
    }

    /// The next kernel, before which so much is live.
    fn kernel(&mut self, name: &str, lasts: u64, allocated: u64, live: u64) -> Result<(), Error> {
        let kernel = self.recorder.kernel(name)?;
        // Every sixteenth boundary is sampled; a kernel changes an eighth of what is live.
        let changed = self.kernels.is_multiple_of(16).then_some(live / 8 * 16);
        let boundary = Boundary { kernel, allocated, live, changed, ..Boundary::default() };
        self.recorder.boundary(Nanos(self.now), boundary)?;
        self.now += lasts;
        self.kernels += 1;
        Ok(())
    }

    /// A moment at which the processor waits so long for what it has launched.
    fn cpu(&mut self, bytes: u64, idle: u64) -> Result<(), Error> {
        self.recorder
            .interval(Nanos(self.now), CpuInterval { bytes, idle: Nanos(idle), ..CpuInterval::default() })
    }

    fn finish(self) -> Result<Profile, Error> {
        let end = Nanos(self.now);
        self.recorder.finish(end)
    }
}

/// A multigrid solver: V-cycles down to the coarsest of `levels` grids and back, each level with scratch of its own, which is live until
/// the way back has passed it. Between two cycles only the solution is.
///
/// # Errors
/// [`Error::Overflow`] for sizes that no machine has.
pub fn multigrid(cycles: u32, levels: u32) -> Result<Profile, Error> {
    let mut script = Script::new();
    let finest = 8192 * MIB;
    let solution = finest / 8;
    let allocated = finest * 3 / 2 + solution;
    // A level down is a quarter of the grid.
    let of_level = |level: u32, whole: u64| whole >> (2 * level).min(63);
    let lasts = |level: u32, ms: u64| of_level(level, ms * MS) + MS;
    for _ in 0..cycles {
        script.cpu(512 * MIB, 3000 * MS)?;
        let mut live = solution;
        for level in 0..levels {
            live += of_level(level, finest);
            for _ in 0..4 {
                script.kernel("smooth", lasts(level, 400), allocated, live)?;
            }
            script.kernel("restrict", lasts(level, 100), allocated, live)?;
        }
        for level in (0..levels).rev() {
            script.kernel("prolong", lasts(level, 100), allocated, live)?;
            for _ in 0..4 {
                script.kernel("smooth", lasts(level, 400), allocated, live)?;
            }
            live -= of_level(level, finest);
        }
        script.kernel("norm", 20 * MS, solution, solution)?;
        script.kernel("update", 20 * MS, solution, solution)?;
    }
    script.finish()
}

/// A spectral solver: a transform of the field into scratch twice its size, a product there, and back.
///
/// # Errors
/// As [`multigrid`].
pub fn spectral(steps: u32) -> Result<Profile, Error> {
    let mut script = Script::new();
    let field = 4096 * MIB;
    for _ in 0..steps {
        script.cpu(256 * MIB, 200 * MS)?;
        script.kernel("advance", 30 * MS, 3 * field, field)?;
        for (name, live) in [
            ("fft_forward", field),
            ("fft_forward", 3 * field),
            ("multiply", 2 * field),
            ("fft_inverse", 2 * field),
            ("fft_inverse", 3 * field),
        ] {
            script.kernel(name, 60 * MS, 3 * field, live)?;
        }
    }
    script.finish()
}

/// Kernels alike, with a moment of the processor before each: as plain as a program can be.
///
/// # Errors
/// As [`multigrid`].
pub fn uniform(kernels: u32, lasts: Nanos, live: u64) -> Result<Profile, Error> {
    let mut script = Script::new();
    for _ in 0..kernels {
        script.cpu(live / 8, 0)?;
        let kernel = script.recorder.kernel("step")?;
        let boundary = Boundary { kernel, allocated: live, live, ..Boundary::default() };
        script.recorder.boundary(Nanos(script.now), boundary)?;
        script.now += lasts.0;
    }
    script.finish()
}
