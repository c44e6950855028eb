//! What nvcc would keep of the device code that it compiles.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use rustix::fs::MemfdFlags;

/// Architectures, without what makes them virtual or real: `90`, `90a`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// For which code is compiled.
    compiled: BTreeSet<String>,
    /// Whose PTX is bound into what comes out.
    ptx: BTreeSet<String>,
    /// Whether anything is made of PTX: else PTX, or nothing, is what comes out.
    is_made_of_it: bool,
}

impl Kept {
    /// As nvcc itself says when it is asked for the commands that it would run; nothing where it refuses the arguments.
    pub fn of(nvcc: &Path, args: &[OsString]) -> Option<Self> {
        // What a terminal sends to interrupt us is not for it, nor does it write to whom it could lose: interrupted so soon, it leaves files behind.
        let mut said = File::from(rustix::fs::memfd_create("dryrun", MemfdFlags::CLOEXEC).ok()?);
        let mut ask = Command::new(nvcc);
        ask.arg("--dryrun").args(args).process_group(0);
        ask.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.try_clone().ok()?);
        ask.status().ok().filter(ExitStatus::success)?;
        let mut commands = Vec::new();
        said.rewind().ok()?;
        said.read_to_end(&mut commands).ok()?;
        Some(Self::parse(&String::from_utf8_lossy(&commands)))
    }

    fn parse(commands: &str) -> Self {
        let mut kept = Self::default();
        for command in commands.lines().filter_map(|line| line.strip_prefix("#$ ")) {
            let compiled = between(command, " -arch compute_").filter(|_| command.contains("cicc"));
            kept.compiled.extend(compiled);
            kept.ptx.extend(between(command, "kind=ptx,sm="));
            // ptxas is also asked whether PTX is right, and makes nothing then.
            let is_assembled = command.starts_with("ptxas ") && command.contains(" -o ");
            kept.is_made_of_it |= is_assembled || command.starts_with("fatbinary ");
        }
        kept
    }

    /// What tells nvcc to keep the PTX that it would not.
    pub fn ptx_flags(&self) -> Vec<OsString> {
        let lacking = self.compiled.difference(&self.ptx).filter(|_| self.is_made_of_it);
        lacking
            .flat_map(|arch| ["-gencode".into(), format!("arch=compute_{arch},code=compute_{arch}").into()])
            .collect()
    }
}

/// The words that follow `before`.
fn between<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = String> + 'a {
    let word =
        |rest: &str| rest.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default().to_owned();
    text.split(before).skip(1).map(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(commands: &str) -> Vec<String> {
        Kept::parse(commands).ptx_flags().iter().map(|flag| flag.to_string_lossy().into_owned()).collect()
    }

    const CICC: &str =
        r#"#$ "$CICC_PATH/cicc" --c++17  -arch compute_90a -m64 "/tmp/a.cpp1.ii" -o "/tmp/a.ptx""#;
    const PTXAS: &str = r#"#$ ptxas -arch=sm_90a -m64  "/tmp/a.ptx"  -o "/tmp/a.cubin""#;

    #[test]
    fn machine_code_alone_lacks_its_ptx() {
        let elf = r#"#$ fatbinary -64 "--image3=kind=elf,sm=90a,file=/tmp/a.cubin" --embedded-fatbin="/tmp/a.fatbin.c""#;
        let ptx = r#"#$ fatbinary "--image3=kind=ptx,sm=90a,file=/tmp/a.ptx" "--image3=kind=elf,sm=90a,file=/tmp/a.cubin""#;
        let expected = ["-gencode", "arch=compute_90a,code=compute_90a"];
        assert_eq!(flags(&[CICC, PTXAS, elf].join("\n")), expected);
        assert_eq!(flags(&[CICC, PTXAS].join("\n")), expected, "a cubin");
        assert!(flags(&[CICC, PTXAS, ptx].join("\n")).is_empty());
    }

    #[test]
    fn ptx_alone_lacks_nothing() {
        let check = r#"#$ ptxas -arch=compute_90a -m64  "a.ptx""#;
        assert!(flags(CICC).is_empty() && flags(&[CICC, check].join("\n")).is_empty());
        assert!(flags("#$ gcc -c a.cpp -o a.o\nnvcc warning : something").is_empty());
    }
}
