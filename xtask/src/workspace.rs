//! Where things are: the checkout, what set-up installed, what a build left.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// The folders that tasks work in.
#[derive(Debug, Clone)]
pub struct Workspace {
    /// The checkout.
    pub root: PathBuf,
    /// Cargo's target folder.
    pub target: PathBuf,
}

impl Workspace {
    /// The workspace that this program was built from.
    pub fn locate() -> anyhow::Result<Self> {
        let root =
            Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies outside a workspace")?;
        // target/debug/xtask: wherever cargo was told to build.
        let program = std::env::current_exe().context("cannot tell where xtask runs from")?;
        let target = program.ancestors().nth(2).context("xtask does not run from a target folder")?;
        Ok(Self { root: root.to_owned(), target: target.to_owned() })
    }

    /// What set-up installs, and nothing else of the machine.
    pub fn prefix(&self) -> PathBuf {
        self.root.join(".prefix")
    }

    /// The CUDA compiler's folder.
    pub fn cuda(&self) -> PathBuf {
        self.prefix().join("cuda")
    }

    /// The linker for older C libraries.
    pub fn zig(&self) -> PathBuf {
        self.prefix().join("zig")
    }

    /// What builds Python wheels.
    pub fn maturin(&self) -> PathBuf {
        self.prefix().join("maturin")
    }

    /// The S3-compatible server that tests start.
    pub fn s3(&self) -> PathBuf {
        self.prefix().join("s3")
    }

    /// The CRIU that set-up installed, where the machine's own did not do.
    pub fn criu(&self) -> PathBuf {
        self.prefix().join("criu")
    }

    /// What tests and the demonstration run, laid out as the bundle is.
    pub fn kit(&self) -> PathBuf {
        self.target.join("kit")
    }
}
