//! The list of guests, `guests/guests.toml`: what `cargo xtask` builds and what the testkit runs.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::outcome::Exit;

/// Every guest, in the order of the list.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The guests.
    #[serde(rename = "guest")]
    pub guests: Vec<Guest>,
}

/// One guest program: how it is built, and how it is called.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// What tests call it.
    pub name: String,
    /// The program, when several guests are one program with different arguments.
    program: Option<String>,
    /// Its source file, when that is not `PROGRAM.cu`.
    source: Option<String>,
    /// Further sources, `NAME.cu`, whose device code is linked with that of the first one.
    #[serde(default)]
    units: Vec<String>,
    /// Which tests run it.
    pub set: Set,
    /// Arguments for the software device: a few seconds of work.
    #[serde(default)]
    args: Vec<String>,
    /// Arguments for a real GPU, when they differ.
    gpu_args: Option<Vec<String>>,
    /// The same with another machine's software device, where a step takes many ways there and back.
    elsewhere_args: Option<Vec<String>>,
    /// Flags for nvcc, beside the common ones.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Whether its kernels are marked with `#pragma CPT`: `dormouse nvcc` compiles it.
    #[serde(default)]
    pub marked: bool,
    /// Libraries it is linked against, beside the static runtime.
    #[serde(default)]
    pub libraries: Vec<Library>,
    /// Device code that it loads at run time, from `modules/NAME.cu`.
    #[serde(default)]
    pub modules: Vec<String>,
    /// Files that it writes in its working directory.
    #[serde(default)]
    pub files: Vec<String>,
    /// How it ends.
    #[serde(default)]
    pub ends: Exit,
    /// Whether its last kernel faults, after which a checkpoint is refused: it comes too late.
    #[serde(default)]
    pub faults: bool,
    /// How its managed memory is had (`--managed`), if that is chosen.
    pub managed: Option<Managed>,
    /// How many MiB of a device it may take, if not all (`--device-memory`).
    device_memory: Option<u32>,
    /// The same where the device is no GPU.
    soft_memory: Option<u32>,
    /// Whether it shares what a device has with other processes, which another machine's device does not let it.
    #[serde(default)]
    pub shares: bool,
    /// Whether it takes all memory that a GPU has free: there nothing runs beside it.
    #[serde(default)]
    pub alone: bool,
    /// Whether a job that began on a GPU can go to the software device and back: it makes nothing there that a GPU would have to give it again.
    #[serde(default)]
    pub devices: bool,
    /// The most rounds of each scenario on a GPU, where one takes minutes.
    pub gpu_rounds: Option<u32>,
    /// What device code is embedded.
    #[serde(default)]
    pub code: Code,
}

/// How managed memory is had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Managed {
    /// In the host's memory.
    Coherent,
    /// On the device, with shadow pages.
    Shadow,
    /// The same, for one side at a time.
    Exclusive,
    /// On the device, with shadow pages, for a program that has no right to more than the faults of its own code (`--user-faults`).
    User,
}

impl Managed {
    /// The value of `--managed`.
    #[must_use]
    pub fn flag(self) -> &'static str {
        match self {
            Self::Coherent => "coherent",
            Self::Shadow | Self::User => "shadow",
            Self::Exclusive => "exclusive",
        }
    }
}

/// Which tests run a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Set {
    /// Every scenario on every device, byte-identical output.
    Matrix,
    /// Kernels that last long and are marked, so that they can stop half-way: with tests of their own.
    Marked,
    /// Tests of its own.
    Special,
}

/// A library that a guest is linked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Library {
    /// The driver library, `libcuda.so.1`.
    Cuda,
    /// The shared runtime library, in place of the static one.
    Cudart,
    /// The compiler for code at run time, `libnvrtc.so.13`, which is the machine's own.
    Nvrtc,
    /// `libdormouse.so.1`, by which a program asks for its own checkpoint.
    Dormouse,
}

/// The device code that is embedded in a guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Code {
    /// PTX for compute_90 and machine code for sm_90.
    #[default]
    #[serde(rename = "ptx+sass")]
    PtxAndSass,
    /// Machine code for sm_90 alone.
    Sass,
}

impl Manifest {
    /// Reads the list at `path`, and refuses one that names a guest twice.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a list of guests", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let manifest: Self = toml::from_str(text)?;
        for (i, guest) in manifest.guests.iter().enumerate() {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            for name in [&guest.name, guest.program()] {
                ensure!(!name.is_empty() && name.chars().all(plain), "{name:?} is not a program name");
            }
            ensure!(
                manifest.guests[..i].iter().all(|earlier| earlier.name != guest.name),
                "guest {} is listed twice",
                guest.name
            );
        }
        Ok(manifest)
    }

    /// The guest called `name`.
    pub fn guest(&self, name: &str) -> anyhow::Result<&Guest> {
        self.guests
            .iter()
            .find(|guest| guest.name == name)
            .with_context(|| format!("there is no guest {name}"))
    }

    /// The guests of one set.
    pub fn set(&self, set: Set) -> impl Iterator<Item = &Guest> {
        self.guests.iter().filter(move |guest| guest.set == set)
    }
}

impl Guest {
    /// How many MiB of the device it may take, if not all.
    pub fn device_memory(&self, gpu: bool) -> Option<u32> {
        self.device_memory.or(self.soft_memory.filter(|_| !gpu))
    }

    /// The program's name.
    pub fn program(&self) -> &str {
        self.program.as_deref().unwrap_or(&self.name)
    }

    /// The source files, relative to `guests/`, that of `main` first.
    pub fn sources(&self) -> impl Iterator<Item = String> {
        let first = self.source.clone().unwrap_or_else(|| format!("{}.cu", self.program()));
        std::iter::once(first).chain(self.units.iter().map(|unit| format!("{unit}.cu")))
    }

    /// As it is run with another machine's software device.
    #[must_use]
    pub fn elsewhere(mut self) -> Self {
        self.args = self.elsewhere_args.take().unwrap_or(self.args);
        self
    }

    /// The arguments for a device.
    pub fn args(&self, gpu: bool) -> &[String] {
        match &self.gpu_args {
            Some(args) if gpu => args,
            _ => &self.args,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ours() -> Manifest {
        Manifest::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/guests.toml")).unwrap()
    }

    #[test]
    fn our_list_is_complete() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests");
        let manifest = ours();
        for guest in &manifest.guests {
            assert!(
                guest.sources().all(|source| folder.join(source).exists()),
                "{} lacks a source",
                guest.name
            );
            for module in &guest.modules {
                assert!(folder.join(format!("modules/{module}.cu")).exists(), "{module} has no source");
            }
        }
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "cu") {
                let is_of = |guest: &Guest| guest.sources().any(|source| folder.join(source) == path);
                let listed = manifest.guests.iter().any(is_of);
                assert!(listed, "{} is not in guests.toml", path.display());
            }
        }
        assert!(manifest.set(Set::Matrix).count() >= 14);
    }

    #[test]
    fn a_guest_listed_twice_is_refused() {
        let one = "[[guest]]\nname = \"a\"\nset = \"matrix\"\n";
        assert!(Manifest::parse(one).is_ok());
        let error = Manifest::parse(&format!("{one}{one}")).unwrap_err();
        assert!(error.to_string().contains("guest a is listed twice"), "{error}");
    }

    #[test]
    fn a_name_that_leaves_the_folder_is_refused() {
        let error = Manifest::parse("[[guest]]\nname = \"../a\"\nset = \"matrix\"\n").unwrap_err();
        assert!(error.to_string().contains("is not a program name"), "{error}");
    }

    #[test]
    fn arguments_depend_on_the_device() {
        let text = "[[guest]]\nname = \"a\"\nset = \"matrix\"\nargs = [\"1\"]\ngpu_args = [\"2\"]\n";
        let manifest = Manifest::parse(text).unwrap();
        let guest = manifest.guest("a").unwrap();
        assert_eq!((guest.args(false), guest.args(true)), (&["1".to_owned()][..], &["2".to_owned()][..]));
    }
}
