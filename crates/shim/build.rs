//! Generates the exported symbols from the list: for a supported function a typed entry that calls
//! `crate::api::<chapter>`, for the others one that answers `CUDA_ERROR_NOT_SUPPORTED` and reports it.

use std::{collections::BTreeSet, env, error::Error, fmt::Write, fs, path::PathBuf};

use cuda_list::{Chapter, List, Role, Version};

const LOCATION: &str = "sys::CUmemLocation";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Like the driver, it binds to its own functions even where the program defines some of the same name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let list = cuda_list::list()?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("exports.rs"), exports(&list)?)?;
    Ok(())
}

fn exports(list: &List) -> Result<String, std::fmt::Error> {
    let mut code = String::new();
    let mut addresses = String::new();
    for (chapter, function) in list.functions() {
        for version in &function.versions {
            let per_thread = version.per_thread.as_ref().map(|p| p.symbol.as_str());
            for (symbol, per_thread) in [(Some(version.symbol.as_str()), false), (per_thread, true)] {
                let Some(symbol) = symbol else { continue };
                writeln!(addresses, "    Address({symbol} as *const c_void),")?;
                match version.unsupported {
                    Some(_) => unsupported(&mut code, symbol)?,
                    None => supported(&mut code, chapter, version, symbol, per_thread, &list.enums)?,
                }
            }
        }
    }
    Ok(format!("{code}\nstatic ADDRESSES: [Address; FunctionId::COUNT] = [\n{addresses}];\n"))
}

/// On x86-64 the caller owns the arguments, so an entry that looks at none serves every prototype.
fn unsupported(code: &mut String, symbol: &str) -> std::fmt::Result {
    writeln!(
        code,
        "#[unsafe(no_mangle)]\npub extern \"C\" fn {symbol}() -> c_uint {{\n    \
         crate::report::unsupported(FunctionId::{symbol})\n}}\n"
    )
}

fn supported(
    code: &mut String,
    chapter: &Chapter,
    version: &Version,
    symbol: &str,
    per_thread: bool,
    enums: &BTreeSet<String>,
) -> std::fmt::Result {
    let mut params = Vec::new();
    let mut arguments = Vec::new();
    for param in &version.params {
        let name = format!("r#{}", param.name);
        let by_value = param.c_type.rust(enums);
        // A record by value: the enumeration in it may be any number.
        let ty = if by_value == LOCATION { format!("MaybeUninit<{LOCATION}>") } else { by_value };
        params.push(format!("{name}: {ty}"));
        let stream = per_thread && param.role == Role::Stream;
        arguments.push(if stream { format!("crate::default_stream::or_per_thread({name})") } else { name });
    }
    if version.takes_default_stream() {
        let which = if per_thread { "PER_THREAD" } else { "LEGACY" };
        arguments.push(format!("crate::default_stream::{which}"));
    }
    writeln!(
        code,
        "#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {symbol}({}) -> c_uint {{\n    \
         // SAFETY: the caller keeps the contract that cuda.h states for the function, which is the implementation's.\n    \
         answer(FunctionId::{symbol}, || unsafe {{ crate::api::{}::{}({}) }})\n}}\n",
        params.join(", "),
        chapter.name,
        version.implementation,
        arguments.join(", ")
    )
}
