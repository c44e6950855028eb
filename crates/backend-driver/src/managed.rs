//! Code with variables in managed memory: where they lie is put into the code before the driver sees it.

use crate::api::{Api, check};
use crate::link;
use backend::{Compiled, LinkInput, LoadError};
use cudarc::driver::sys;
use fatbin::{Code, Image};
use std::ffi::c_int;
use wire::CuError;

const PTX: u32 = sys::CUjitInputType::CU_JIT_INPUT_PTX as u32;

fn wrong(error: impl ToString) -> LoadError {
    LoadError { code: CuError::INVALID_IMAGE, detail: error.to_string() }
}

/// The cubin of an image for the current context's device, compiled if need be, with its variables in managed memory at these
/// addresses.
pub fn bind(
    api: &Api,
    image: &[u8],
    options: &[(u32, u64)],
    managed: &[(&str, u64)],
) -> Result<Compiled<Vec<u8>>, LoadError> {
    let image = Image::parse(image).map_err(wrong)?;
    let code = image.code_for(capability(api)?).map_err(wrong)?;
    let missing = || LoadError {
        code: CuError::NO_BINARY_FOR_GPU,
        detail: format!("the program holds {}", image.architectures()),
    };
    let cubin = match code.ok_or_else(missing)? {
        Code::Cubin(cubin) => Compiled { code: cubin.into_owned(), info: String::new() },
        Code::Ptx(text) => {
            let text = [&*text, b"\0"].concat();
            link::link(api, &[LinkInput { kind: PTX, data: &text, name: "module" }], options)?
        }
    };
    let address =
        |wanted: &str| managed.iter().find(|(name, _)| *name == wanted).map(|(_, address)| *address);
    let bound = fatbin::bind(&cubin.code, address)
        .map_err(|error| LoadError { code: CuError::NOT_SUPPORTED, detail: error.to_string() })?;
    Ok(Compiled { code: bound, ..cubin })
}

/// Of the current context's device: major × 10 + minor.
fn capability(api: &Api) -> Result<u32, CuError> {
    use sys::CUdevice_attribute as Attribute;
    let mut device = 0;
    // SAFETY: writes the device.
    check(unsafe { (api.cuCtxGetDevice)(&raw mut device) })?;
    let get = |attribute: Attribute| {
        let mut value: c_int = 0;
        // SAFETY: writes the value.
        check(unsafe { (api.cuDeviceGetAttribute)(&raw mut value, attribute as u32, device) })?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    Ok(get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? * 10
        + get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?)
}
