//! The libraries of ours that a job has, on its tmpfs: they are part of its images.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Their folder.
const FOLDER: &str = "lib";
/// The shim's name there.
const SHIM: &str = "libcuda.so.1";
/// Its other names.
const SHIM_LINKS: [&str; 3] = ["libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"];

/// Where they come from.
#[derive(Clone, Debug)]
pub struct Libraries {
    /// Our `libcuda.so.1`.
    pub shim: PathBuf,
    /// What has the program's system calls get at managed memory, where a userfaultfd of user mode only is to do.
    pub bounce: Option<PathBuf>,
}

impl Libraries {
    /// Copies them to a job's tmpfs: the shim under every name by which programs ask for the driver, or for NVML, which are one file, so that a process
    /// that asks for both loads it once. ldconfig takes the names of links for those of other libraries. An error names the file.
    pub(crate) fn install(&self, tmpfs: &Path) -> Result<(), (PathBuf, io::Error)> {
        let folder = tmpfs.join(FOLDER);
        let in_way = |error| (folder.clone(), error);
        fs::create_dir_all(&folder).map_err(in_way)?;
        for (from, name) in [(Some(&self.shim), SHIM), (self.bounce.as_ref(), host::BOUNCE)] {
            let Some(from) = from else { continue };
            fs::copy(from, folder.join(name)).map_err(|error| (from.clone(), error))?;
        }
        SHIM_LINKS.iter().try_for_each(|name| symlink(SHIM, folder.join(name))).map_err(in_way)
    }

    /// Has a job's programs find them.
    pub(crate) fn introduce(&self, spec: &mut host::JobSpec) {
        let folder = Path::new(host::JOB_DIR).join(FOLDER);
        let shim = folder.join(SHIM);
        spec.binds = ["libcuda.so", "libnvidia-ml.so"]
            .into_iter()
            .flat_map(|library| host::driver::binds(&shim, library))
            .collect();
        preload(&mut spec.env, &folder.join(host::BOUNCE), self.bounce.is_some());
        spec.library_dir = Some(folder);
    }
}

/// Has every program of an environment load a library, behind those that it names itself; or not, if it was an outer job that had it.
fn preload(environment: &mut Vec<(OsString, OsString)>, library: &Path, is_there: bool) {
    const PRELOAD: &str = "LD_PRELOAD";
    let is_it = |(name, _): &(OsString, OsString)| name == PRELOAD;
    let before = environment.iter().position(is_it).map(|index| environment.remove(index).1);
    let before = before.unwrap_or_default();
    // The loader takes these for the end of a name.
    let named = before.as_bytes().split(|byte| matches!(byte, b':' | b' '));
    let others = named.filter(|name| !name.is_empty() && *name != library.as_os_str().as_bytes());
    let all: Vec<_> = others.chain(is_there.then_some(library.as_os_str().as_bytes())).collect();
    if !all.is_empty() {
        environment.push((PRELOAD.into(), OsString::from_vec(all.join(&b':'))));
    }
}

/// The shim on a job's tmpfs.
pub(crate) fn shim(tmpfs: &Path) -> PathBuf {
    tmpfs.join(FOLDER).join(SHIM)
}

/// Whether a job's tmpfs has a link of ours at `path`.
pub(crate) fn is_link(path: &Path) -> bool {
    SHIM_LINKS.iter().any(|name| Path::new(FOLDER).join(name) == path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_preloads_itself_comes_first() {
        let preloaded = |before: Option<&str>, is_there| {
            let mut environment = vec![];
            environment.extend(before.map(|named| ("LD_PRELOAD".into(), named.into())));
            environment.push(("A".into(), "1".into()));
            preload(&mut environment, Path::new("/b.so"), is_there);
            assert_eq!(environment.remove(0), ("A".into(), "1".into()));
            environment.pop().map(|(_, preloaded)| preloaded.into_string().unwrap())
        };
        assert_eq!(preloaded(None, true).unwrap(), "/b.so");
        assert_eq!(preloaded(Some(""), true).unwrap(), "/b.so");
        assert_eq!(preloaded(Some("/a.so /c.so"), true).unwrap(), "/a.so:/c.so:/b.so");
        assert_eq!(preloaded(Some("/a.so:/b.so"), true).unwrap(), "/a.so:/b.so", "in a job in a job");
        assert_eq!(preloaded(Some("/a.so:/b.so"), false).unwrap(), "/a.so");
        assert_eq!(preloaded(Some("/b.so"), false), None);
        assert_eq!(preloaded(None, false), None);
    }

    #[test]
    fn each_is_there_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::write(&from, "shim").unwrap();
        let libraries = Libraries { shim: from.clone(), bounce: None };
        libraries.install(&to).unwrap();
        assert_eq!(fs::read(shim(&to)).unwrap(), b"shim");
        assert!(!to.join(FOLDER).join(host::BOUNCE).exists());
        let (again, missing) = (dir.path().join("again"), dir.path().join("missing"));
        let failed = Libraries { bounce: Some(missing.clone()), ..libraries }.install(&again).unwrap_err();
        assert_eq!(failed.0, missing);
        Libraries { shim: from.clone(), bounce: Some(from) }.install(&dir.path().join("both")).unwrap();
        assert!(dir.path().join("both").join(FOLDER).join(host::BOUNCE).exists());
    }
}
