//! Bytes are refused or understood, and never decompress to more than is accepted.
#![no_main]

use fatbin::{Code, Image, ManagedVariable, ModuleFacts, bind, measure};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(measured) = measure(&mut &*bytes, 1 << 30)
        && let Some(image) = bytes.get(..measured.length as usize)
    {
        let _ = Image::parse(image);
    }
    let Ok(image) = Image::parse(bytes) else { return };
    let _ = image.architectures().to_string();
    if let Ok(Some(code)) = image.code_for(90) {
        let _ = ManagedVariable::all_of(&code);
        if let Code::Cubin(cubin) = &code {
            let _ = bind(cubin, |_| Some(0x5000_0000_0000));
        }
    }
    match image {
        Image::Fatbinary(fatbinary) => {
            for entry in fatbinary.entries() {
                let _ = ModuleFacts::of_entry(entry);
            }
        }
        Image::Cubin(cubin, _) => drop(cubin.facts()),
        Image::Ptx(text) => drop(ModuleFacts::of_ptx_text(text)),
    }
});
