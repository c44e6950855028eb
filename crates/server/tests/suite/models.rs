//! Sessions that are to go on on another model of device.
#![allow(clippy::unwrap_used)]

use crate::common::{App, BASIC, Images, rehearse};
use server::objects::Image;
use server::state::SessionState;
use std::error::Error;
use std::sync::Arc;

/// Machine code for sm_80, and nothing else.
const MACHINE_CODE: &[u8] = include_bytes!("../../../fatbin/tests/data/managed80.cubin");

/// A state of a session in which the code of every module is this.
fn with_code(state: &[u8], code: &[u8]) -> Vec<u8> {
    let (mut state, _) = SessionState::from_bytes(state).unwrap();
    let image = Arc::new(Image::new(code.to_vec()));
    for module in &mut state.modules {
        module.record.image = image.hash;
    }
    state.to_bytes(&[(image.hash, image)].into()).unwrap()
}

#[test]
fn machine_code_for_another_model_alone_is_refused_by_name() {
    let (mut app, mut thread) = App::with_context();
    app.load(&mut thread, 4, BASIC);
    let images = Images::new();
    let (_, state, _files) = app.captured(thread, &images);
    rehearse(&with_code(&state, &[BASIC.as_bytes(), b"\0"].concat())).unwrap();
    let refused = rehearse(&with_code(&state, MACHINE_CODE)).unwrap_err();
    let said = format!("{refused}: {}", refused.source().map(ToString::to_string).unwrap_or_default());
    for word in ["the module of Module(ModuleId(4))", "cannot be made again", "sm_80", "-gencode arch="] {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}
