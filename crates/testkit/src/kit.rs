//! Where the programs under test lie: a folder laid out as the bundle is.

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::manifest::Manifest;

/// A folder with `bin/dormouse`, `lib/libcuda.so.1` and `guests/`.
#[derive(Debug, Clone)]
pub struct Kit {
    root: PathBuf,
}

impl Kit {
    /// The kit named by `DORMOUSE_KIT`, else the folder that this program's own lies in (a bundle), else the one that
    /// `cargo xtask kit` made in the target folder.
    pub fn locate() -> anyhow::Result<Self> {
        if let Some(root) = std::env::var_os("DORMOUSE_KIT") {
            return Self::at(Path::new(&root));
        }
        let program = std::env::current_exe()?;
        for folder in program.ancestors().skip(2) {
            for root in [folder.to_owned(), folder.join("kit")] {
                if root.join("bin/dormouse").exists() {
                    return Self::at(&root);
                }
            }
        }
        bail!("no kit: run `cargo xtask kit` first, or name one in DORMOUSE_KIT")
    }

    /// The kit in a folder, with everything a kit has.
    pub fn at(root: &Path) -> anyhow::Result<Self> {
        for part in ["bin/dormouse", "lib/libcuda.so.1", "guests/guests.toml"] {
            if !root.join(part).exists() {
                bail!("{} is not a kit: it has no {part}", root.display());
            }
        }
        Ok(Self { root: root.canonicalize()? })
    }

    /// The command under test.
    pub fn dormouse(&self) -> PathBuf {
        self.root.join("bin/dormouse")
    }

    /// A guest's program.
    pub fn guest(&self, program: &str) -> PathBuf {
        self.root.join("guests").join(program)
    }

    /// What programs link or load that ask for their own checkpoints: `include`, `lib` or `python`.
    pub fn part(&self, folder: &str) -> PathBuf {
        self.root.join(folder)
    }

    /// A benchmark program.
    pub fn bench(&self, program: &str) -> PathBuf {
        self.root.join("bench").join(program)
    }

    /// The folder of further checks: programs that take `--device`, print what they found and fail when it is wrong.
    pub fn checks(&self) -> PathBuf {
        self.root.join("checks")
    }

    /// The list of guests.
    pub fn manifest(&self) -> anyhow::Result<Manifest> {
        Manifest::read(&self.root.join("guests/guests.toml"))
    }
}
