//! A CRIU that works on the running kernel: the distribution's if it does, else that of the distribution's next release,
//! fetched and verified by apt itself and unpacked into a private prefix that leaves the machine as it is.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::process::{cargo, quiet, step, succeeds};

/// The file in a prefix that says which packages were unpacked.
const PACKAGES: &str = "packages.txt";
/// The file that says on which kernel a CRIU was last found to work.
const PROBED: &str = ".probed";
/// What a prefix keeps of its packages; the rest is documentation, character sets and start-up files.
const KEPT: [&str; 3] = ["usr/sbin/criu", "usr/lib/x86_64-linux-gnu", "usr/share/doc"];

/// Makes sure that a working CRIU is found: in `prefix`, or the distribution's own.
///
/// # Errors
/// When there is none, and none can be had; says what to do.
pub fn install(prefix: &Path) -> anyhow::Result<()> {
    let kernel = kernel();
    let probed = prefix.join(PROBED);
    if fs::read_to_string(&probed).is_ok_and(|there| there == kernel) {
        return Ok(());
    }
    if prefix.is_dir() && works(prefix).is_ok() {
        return fs::write(&probed, kernel).context("cannot record that CRIU works");
    }
    let distribution = ["/usr/sbin/criu", "/usr/bin/criu", "/usr/local/sbin/criu"].map(PathBuf::from);
    if distribution.iter().any(|program| program.is_file() && works(program).is_ok()) {
        return Ok(());
    }
    unpack_here(prefix)
}

/// Makes sure that a working CRIU is in `prefix`, to be taken along to machines that may have none.
///
/// # Errors
/// When none can be had; says what to do.
pub fn install_here(prefix: &Path) -> anyhow::Result<()> {
    if prefix.is_dir() { Ok(()) } else { unpack_here(prefix) }
}

fn unpack_here(prefix: &Path) -> anyhow::Result<()> {
    step("fetching and unpacking CRIU");
    let probed = prefix.join(PROBED);
    let kernel = kernel();
    let release = Release::of_this_machine()?;
    let parent = prefix.parent().context("a prefix lies in a folder")?;
    let work =
        tempfile::Builder::new().prefix(".criu-").tempdir_in(parent).context("cannot make a folder")?;
    let packages = release.download(work.path())?;
    let unpacked = work.path().join("prefix");
    unpack(&packages, &unpacked)?;
    if prefix.exists() {
        fs::remove_dir_all(prefix).with_context(|| format!("cannot remove {}", prefix.display()))?;
    }
    fs::rename(&unpacked, prefix).with_context(|| format!("cannot put {} in place", prefix.display()))?;
    works(prefix)?;
    fs::write(&probed, kernel).context("cannot record that CRIU works")
}

/// The release of the running kernel.
fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Dumps and restores one of everything with the CRIU at `place`.
fn works(place: &Path) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies outside a workspace")?;
    step(format_args!(
        "trying CRIU in {} (the first time, what tries it is built: minutes)",
        place.display()
    ));
    let run = |what: &[&str]| {
        let mut command = cargo(root);
        command.args(what).args(["--quiet", "--package", "host"]);
        command
    };
    quiet(&mut run(&["build", "--bin", "dormouse-init"]))?;
    quiet(run(&["run", "--example", "probe"]).arg("--").arg(place)).map(drop)
}

/// A distribution and where its packages come from, as this machine's own apt is configured.
struct Release {
    /// The release that packages are in before they are released.
    next: &'static str,
    /// This release's name, by which its entries are recognised.
    codename: String,
}

impl Release {
    fn of_this_machine() -> anyhow::Result<Self> {
        let text = fs::read_to_string("/etc/os-release").context("cannot tell the distribution")?;
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            value.map(|v| v.trim_matches('"').to_owned()).unwrap_or_default()
        };
        let next = match field("ID").as_str() {
            "debian" => "testing",
            "ubuntu" => "devel",
            other => bail!(
                "no CRIU that works here, and none can be unpacked on {other:?}; install a newer criu package, or set DORMOUSE_CRIU"
            ),
        };
        ensure!(succeeds(Command::new("apt-get").arg("--version")), "apt-get does not run");
        Ok(Self { next, codename: field("VERSION_CODENAME") })
    }

    /// Lets apt fetch and verify CRIU and all that it needs into `work`.
    fn download(&self, work: &Path) -> anyhow::Result<Vec<PathBuf>> {
        let sources = work.join("sources");
        for folder in [&sources, &work.join("lists/partial"), &work.join("cache/archives/partial")] {
            fs::create_dir_all(folder).context("cannot make a folder")?;
        }
        fs::write(work.join("status"), "").context("cannot write a file")?;
        let (stanzas, lines) = self.entries()?;
        ensure!(
            !(stanzas.is_empty() && lines.is_empty()),
            "apt has no source for {} from which one for {} could be made; set DORMOUSE_CRIU to a newer CRIU",
            self.codename,
            self.next
        );
        fs::write(sources.join("next.sources"), stanzas).context("cannot write apt's sources")?;
        fs::write(sources.join("next.list"), lines).context("cannot write apt's sources")?;
        let apt = |arguments: &[&str]| {
            let mut command = Command::new("apt-get");
            for (option, value) in [
                ("Dir::Etc::sourcelist", "/dev/null".into()),
                ("Dir::Etc::sourceparts", sources.display().to_string()),
                ("Dir::Etc::preferences", "/dev/null".into()),
                ("Dir::Etc::preferencesparts", "/dev/null".into()),
                ("Dir::State::Lists", work.join("lists").display().to_string()),
                ("Dir::State::status", work.join("status").display().to_string()),
                ("Dir::Cache", work.join("cache").display().to_string()),
                ("APT::Install-Recommends", "0".into()),
                ("Acquire::Languages", "none".into()),
            ] {
                command.arg("-o").arg(format!("{option}={value}"));
            }
            command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
            quiet(&mut command)
        };
        apt(&["update"]).with_context(|| format!("cannot read the package lists of {}", self.next))?;
        // With an empty status, "install" means CRIU and every library down to the C library.
        apt(&["install", "--yes", "--download-only", "criu"])
            .with_context(|| format!("cannot fetch CRIU from {}", self.next))?;
        let archives = fs::read_dir(work.join("cache/archives")).context("cannot list packages")?;
        let mut packages: Vec<PathBuf> = archives.flatten().map(|entry| entry.path()).collect();
        packages.retain(|path| path.extension().is_some_and(|e| e == "deb"));
        packages.sort();
        Ok(packages)
    }

    /// This machine's entries for its own release, changed to name the next one: in apt's newer format and its older one.
    fn entries(&self) -> anyhow::Result<(String, String)> {
        let (mut stanzas, mut lines) = (String::new(), String::new());
        let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
        files.extend(
            fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|e| e.path()),
        );
        for file in files {
            let Ok(text) = fs::read_to_string(&file) else { continue };
            match file.extension().and_then(|e| e.to_str()) {
                Some("sources") => stanzas.push_str(&self.next_stanzas(&text)),
                Some("list") => lines.push_str(&self.next_lines(&text)),
                _ => {}
            }
        }
        Ok((stanzas, lines))
    }

    /// `Suites: bookworm bookworm-updates` becomes `Suites: testing`; entries that do not name this release are left out.
    fn next_stanzas(&self, text: &str) -> String {
        let mut changed = String::new();
        for stanza in text.split("\n\n") {
            let lines: Vec<&str> = stanza.lines().filter(|l| !l.trim_start().starts_with('#')).collect();
            let is = |line: &str, field: &str| line.to_ascii_lowercase().starts_with(field);
            let suites = lines.iter().find(|l| is(l, "suites:"));
            let ours = suites.is_some_and(|l| l.split_whitespace().any(|suite| suite == self.codename));
            if !ours || lines.iter().any(|l| is(l, "enabled:") && l.ends_with("no")) {
                continue;
            }
            for line in lines {
                if is(line, "suites:") {
                    let _ = writeln!(changed, "Suites: {}", self.next);
                } else if is(line, "types:") {
                    changed.push_str("Types: deb\n");
                } else {
                    let _ = writeln!(changed, "{line}");
                }
            }
            changed.push('\n');
        }
        changed
    }

    /// The same for `deb [options] URI bookworm main`.
    fn next_lines(&self, text: &str) -> String {
        let mut changed = String::new();
        for line in text.lines().filter(|line| line.starts_with("deb ")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.contains(&self.codename.as_str()) {
                let swap = |word: &&str| if *word == self.codename { self.next } else { *word }.to_owned();
                let _ = writeln!(changed, "{}", words.iter().map(swap).collect::<Vec<_>>().join(" "));
            }
        }
        changed
    }
}

/// Unpacks packages that apt has verified, keeps what running CRIU takes, and writes down what it was.
fn unpack(packages: &[PathBuf], prefix: &Path) -> anyhow::Result<()> {
    let all = prefix.with_extension("all");
    let mut list = String::new();
    for package in packages {
        quiet(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&all))?;
        let format = "${Package} ${Version} (source ${source:Package} ${source:Version})\\n";
        let about =
            quiet(Command::new("dpkg-deb").arg("--show").arg("--showformat").arg(format).arg(package))?;
        list.push_str(&String::from_utf8_lossy(&about.stdout));
    }
    for kept in KEPT {
        let (from, to) = (all.join(kept), prefix.join(kept));
        fs::create_dir_all(to.parent().context("every kept path lies in a folder")?)
            .context("cannot make a folder")?;
        fs::rename(&from, &to).with_context(|| format!("the packages hold no {kept}"))?;
    }
    prune_libraries(&prefix.join("usr/lib/x86_64-linux-gnu"))?;
    prune_documentation(&prefix.join("usr/share/doc"))?;
    fs::write(prefix.join(PACKAGES), list).context("cannot write down the packages")
}

/// Folders below the libraries hold character sets and plugins that CRIU does not load.
fn prune_libraries(folder: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).context("cannot list the libraries")? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path()).context("cannot remove a folder")?;
        }
    }
    Ok(())
}

/// Licences stay, the rest goes.
fn prune_documentation(folder: &Path) -> anyhow::Result<()> {
    for package in fs::read_dir(folder).context("cannot list the documentation")? {
        let package = package?.path();
        let Ok(entries) = fs::read_dir(&package) else { continue };
        for entry in entries {
            let entry = entry?;
            if entry.file_name() != "copyright" {
                match entry.file_type()?.is_dir() {
                    true => fs::remove_dir_all(entry.path()),
                    false => fs::remove_file(entry.path()),
                }
                .context("cannot remove documentation")?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Release;

    fn bookworm() -> Release {
        Release { next: "testing", codename: "bookworm".into() }
    }

    #[test]
    fn entries_of_this_release_name_the_next() {
        let text = "Types: deb deb-src\n# a comment\nURIs: mirror:/list\nSuites: bookworm bookworm-updates\nComponents: main\n\
                    Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\nTypes: deb\nURIs: mirror:/list\nSuites: bookworm-security\n\
                    Components: main\n\nEnabled: no\nTypes: deb\nURIs: mirror:/other\nSuites: bookworm\nComponents: main\n";
        let next = bookworm().next_stanzas(text);
        assert_eq!(
            next,
            "Types: deb\nURIs: mirror:/list\nSuites: testing\nComponents: main\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n"
        );
    }

    #[test]
    fn the_older_format_is_understood() {
        let text = "# deb x bookworm main\ndeb [signed-by=/k.gpg] mirror:/list bookworm main contrib\n\
                    deb mirror:/list bookworm-updates main\ndeb-src mirror:/list bookworm main\n";
        assert_eq!(bookworm().next_lines(text), "deb [signed-by=/k.gpg] mirror:/list testing main contrib\n");
    }
}
