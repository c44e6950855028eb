//! Generates `FunctionId` and the table behind `cuGetProcAddress` from the list.

use std::{collections::BTreeMap, env, error::Error, fmt::Write, fs, path::PathBuf};

use cuda_list::{Chapter, Function, List, Version};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let list = cuda_list::list()?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("functions.rs"), functions(&list)?)?;
    fs::write(out.join("proc_address.rs"), proc_address(&list)?)?;
    Ok(())
}

/// `enum FunctionId`, and for each its `Function`.
fn functions(list: &List) -> Result<String, std::fmt::Error> {
    let mut ids = String::new();
    let mut table = String::new();
    let mut count = 0;
    for (chapter, function) in list.functions() {
        for version in &function.versions {
            let per_thread = version.per_thread.as_ref();
            let symbols = [Some((&version.symbol, version.since)), per_thread.map(|p| (&p.symbol, p.since))];
            for (index, (symbol, since)) in symbols.into_iter().flatten().enumerate() {
                writeln!(ids, "    /// `{symbol}`.\n    {symbol},")?;
                entry(&mut table, chapter, function, version, symbol, since, index == 1)?;
                count += 1;
            }
        }
    }
    Ok(format!(
        "/// One exported symbol of the driver.\n\
         #[allow(non_camel_case_types)]\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]\n\
         #[repr(u16)]\n\
         pub enum FunctionId {{\n{ids}}}\n\n\
         static FUNCTIONS: [Function; {count}] = [\n{table}];\n"
    ))
}

fn entry(
    table: &mut String,
    chapter: &Chapter,
    function: &Function,
    version: &Version,
    symbol: &str,
    since: u32,
    per_thread: bool,
) -> std::fmt::Result {
    writeln!(
        table,
        "    Function {{ id: FunctionId::{symbol}, symbol: {symbol:?}, name: {:?}, chapter: {:?}, since: {since}, \
         class: Class::{:?}, per_thread: {per_thread}, unsupported: {:?}, limits: {:?} }},",
        function.name, chapter.name, function.class, version.unsupported, function.limits
    )
}

/// For each base name, in order: its legacy versions and its per-thread ones, oldest first.
fn proc_address(list: &List) -> Result<String, std::fmt::Error> {
    let bases: BTreeMap<&str, &Function> = list.functions().map(|(_, f)| (f.name.as_str(), f)).collect();
    let mut table = String::new();
    for (name, function) in &bases {
        let legacy = function.versions.iter().map(|v| (v.since, &v.symbol));
        let per_thread =
            function.versions.iter().filter_map(|v| v.per_thread.as_ref()).map(|p| (p.since, &p.symbol));
        writeln!(table, "    ({name:?}, &[{}], &[{}]),", versions(legacy), versions(per_thread))?;
    }
    Ok(format!("static BASES: [Base; {}] = [\n{table}];\n", bases.len()))
}

fn versions<'a>(versions: impl Iterator<Item = (u32, &'a String)>) -> String {
    versions.map(|(since, symbol)| format!("({since}, FunctionId::{symbol})")).collect::<Vec<_>>().join(", ")
}
