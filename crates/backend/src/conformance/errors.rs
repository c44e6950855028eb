use super::rig::{BASIC, Rig, one_block, params, wait_until};
use crate::{Backend, Launch, StreamArg};
use std::sync::mpsc;
use wire::CuError;

pub(super) fn no_module_from_garbage(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let garbage: [&[u8]; 3] = [
        b"no code at all\0",
        b"\x7fELF and nothing more",
        b".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry f() { jump nowhere; }\0",
    ];
    for image in garbage {
        let error = backend.module_load(rig.ctx, image, &[], &[]).unwrap_err();
        assert!(
            [CuError::INVALID_IMAGE, CuError::INVALID_PTX, CuError::NO_BINARY_FOR_GPU].contains(&error.code),
            "{error:?}"
        );
    }
    backend.context_synchronize(rig.ctx).unwrap();
}

pub(super) fn no_function_of_that_name(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let module = rig.load(BASIC);
    assert_eq!(backend.function(rig.ctx, module, "subtract_one"), Err(CuError::NOT_FOUND));
    assert_eq!(backend.global(rig.ctx, module, "add_one_to"), Err(CuError::NOT_FOUND));
}

pub(super) fn wrong_launches_are_told_at_once(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let function = rig.kernel(BASIC, "add_one");
    let params = params(&[rig.at(0)], &[0]);
    let right = one_block(function, 32, StreamArg::Legacy, &params);
    let wrong = [
        Launch { grid: [0, 1, 1], ..right },
        Launch { block: [0, 1, 1], ..right },
        Launch { block: [1025, 1, 1], ..right },
        Launch { block: [32, 32, 2], ..right },
        Launch { grid: [1, 70_000, 1], ..right },
        Launch { shared: 1 << 30, ..right },
    ];
    for launch in wrong {
        assert!(backend.launch(rig.ctx, &launch).is_err(), "{launch:?}");
    }
    // None of that is an execution error.
    backend.launch(rig.ctx, &right).unwrap();
    backend.context_synchronize(rig.ctx).unwrap();
}

fn go_wild(rig: &Rig<'_>) {
    rig.launch(rig.kernel(BASIC, "wild"), 1, StreamArg::Legacy, &[]);
}

pub(super) fn a_wild_access_is_sticky(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    go_wild(&rig);
    let mut told = None;
    wait_until(|| {
        told = backend.stream_query(rig.ctx, StreamArg::Legacy).err();
        told.is_some()
    });
    assert_eq!(told, Some(CuError::ILLEGAL_ADDRESS));
    for _ in 0..2 {
        assert_eq!(backend.context_synchronize(rig.ctx), Err(CuError::ILLEGAL_ADDRESS));
        assert_eq!(backend.stream_synchronize(rig.ctx, StreamArg::Legacy), Err(CuError::ILLEGAL_ADDRESS));
    }
    let words = [0u32];
    let copied = backend.copy(rig.ctx, StreamArg::Legacy, rig.at(0), words.as_ptr() as u64, 4);
    assert_eq!(copied, Err(CuError::ILLEGAL_ADDRESS));
}

pub(super) fn host_functions_are_told_of_failure(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let (sender, receiver) = mpsc::channel();
    go_wild(&rig);
    let sent = backend.host_function(
        rig.ctx,
        StreamArg::Legacy,
        Box::new(move |status| sender.send(status).unwrap()),
    );
    // It is refused when the failure is known already; otherwise it is told of it, or never runs.
    if sent.is_ok()
        && let Ok(status) = receiver.recv_timeout(std::time::Duration::from_secs(5))
    {
        assert_eq!(status, Err(CuError::ILLEGAL_ADDRESS));
    }
    assert_eq!(backend.context_synchronize(rig.ctx), Err(CuError::ILLEGAL_ADDRESS));
}
