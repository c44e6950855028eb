//! The list of driver functions against NVIDIA's headers, and the page made from it.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, bail};
use cuda_list::{coverage, headers::Headers};

/// Headers that declare what the list names, and the `PFN_` types that say since when.
const HEADERS: [&str; 2] = ["cudaTypedefs.h", "cudaProfilerTypedefs.h"];

/// Fails where the list differs from the headers in `cuda_include`, or the page at `coverage_md` from the list.
pub fn check(cuda_include: &Path, coverage_md: &Path) -> anyhow::Result<()> {
    let list = cuda_list::list()?;
    let mut headers = Headers::default();
    for header in HEADERS {
        headers.read(&preprocess(cuda_include, header)?);
    }
    let differences = headers.differences(&list);
    if !differences.is_empty() {
        bail!(
            "the list differs from {} in {} places:\n{}",
            cuda_include.display(),
            differences.len(),
            differences.join("\n")
        );
    }
    let page =
        fs::read_to_string(coverage_md).with_context(|| format!("reading {}", coverage_md.display()))?;
    if page != coverage::markdown(&list) {
        bail!("{} is not what the list says; run `cargo xtask coverage`", coverage_md.display());
    }
    Ok(())
}

/// Writes the coverage page.
pub fn write_coverage(coverage_md: &Path) -> anyhow::Result<()> {
    fs::write(coverage_md, coverage::markdown(&cuda_list::list()?))
        .with_context(|| format!("writing {}", coverage_md.display()))
}

/// The header as the C compiler sees it, with every version of every function visible.
fn preprocess(include: &Path, header: &str) -> anyhow::Result<String> {
    let output = Command::new("cc")
        .args(["-E", "-P", "-x", "c", "-D__CUDA_API_VERSION_INTERNAL", "-I"])
        .arg(include)
        .arg(include.join(header))
        .output()
        .context("starting the C preprocessor `cc`")?;
    if !output.status.success() {
        bail!("`cc -E` of {header} in {}: {}", include.display(), String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).with_context(|| format!("{header} is not UTF-8"))
}
