//! Modules that another device library had laid out, whose variables stay where the program knows them.
#![allow(clippy::unwrap_used)]

use crate::common::Param::U64;
use crate::common::{BACKEND, Gpu};
use backend::{Backend, Range, RawModule};
use std::sync::Mutex;

const PTX: &str = "
.version 7.8
.target sm_80
.address_size 64
.visible .global .align 4 .u32 counter = 7;
.visible .const .align 4 .u32 step;
.visible .entry advance(.param .u64 out) {
    .reg .u64 %rd<3>;
    .reg .u32 %r<4>;
    ld.param.u64 %rd1, [out];
    ld.global.u32 %r1, [counter];
    ld.const.u32 %r2, [step];
    add.u32 %r3, %r1, %r2;
    st.global.u32 [counter], %r3;
    st.global.u32 [%rd1], %r3;
    ret;
}";

/// As a vendor's library takes them: whole, and for several modules at once.
const TAKEN: [Range; 2] =
    [Range { base: 0x3700_0000_0000, bytes: 0x20_0000 }, Range { base: 0x3700_0040_0000, bytes: 0x400_0000 }];

/// What a context takes there, it is said to take here, too; and what was made beside it.
fn again(replay: &[Range], make: impl Fn() -> RawModule) -> (RawModule, Vec<Range>) {
    let made = Mutex::new(None);
    let told = BACKEND.place(Some(replay), &mut || {
        *made.lock().unwrap() = Some(make());
        Ok(())
    });
    (made.into_inner().unwrap().unwrap(), told.unwrap())
}

#[test]
fn variables_lie_where_another_library_had_put_them() {
    let ctx = BACKEND.context_create(0, 0, false).unwrap();
    let load = |counter: u64, step: u64| {
        let named = [("counter", counter), ("step", step)];
        again(&TAKEN, || BACKEND.module_load(ctx, PTX.as_bytes(), &[], &named).unwrap().code)
    };
    // Two modules in a page, and one that goes.
    let places = [(0x3700_0000_1010, 0x3700_0040_0ffc), (0x3700_0000_1ff0, 0x3700_0040_0000)];
    let modules = places.map(|(counter, step)| load(counter, step));
    let out = Gpu::new(PTX).alloc(4);
    for ((module, told), (counter, step)) in modules.iter().zip(places) {
        assert_eq!(told[..], TAKEN, "a GPU gets them again");
        let at = |name| BACKEND.global(ctx, *module, name).unwrap();
        assert_eq!(
            (at("counter"), at("step")),
            (Range { base: counter, bytes: 4 }, Range { base: step, bytes: 4 })
        );
        let gpu = Gpu { ctx, module: *module };
        for (address, value) in [(counter, 40_u32), (step, 2)] {
            let from = gpu.upload(&[value]);
            BACKEND.copy(ctx, backend::StreamArg::Legacy, address, from, 4).unwrap();
        }
        gpu.run("advance", [1; 3], [1; 3], 0, &[U64(out)]).unwrap();
        gpu.run("advance", [1; 3], [1; 3], 0, &[U64(out)]).unwrap();
        assert_eq!((gpu.download::<u32>(out, 1), gpu.download::<u32>(counter, 1)), (vec![44], vec![44]));
    }
    BACKEND.module_unload(ctx, modules[0].0).unwrap();
    let left = Gpu { ctx, module: modules[1].0 };
    left.run("advance", [1; 3], [1; 3], 0, &[U64(out)]).unwrap();
    assert_eq!(left.download::<u32>(out, 1), [46]);
    // One that nobody has named is somewhere else, and that is told.
    let (_, told) = again(&TAKEN, || {
        BACKEND.module_load(ctx, PTX.as_bytes(), &[], &[("counter", 0x3700_0000_3000)]).unwrap().code
    });
    assert_ne!(told[..], TAKEN);
    // So may a module for which the library had room in what it had taken before.
    let named = [("counter", 0x3700_0000_4000), ("step", 0x3700_0000_4004)];
    let (module, told) = again(&[], || BACKEND.module_load(ctx, PTX.as_bytes(), &[], &named).unwrap().code);
    assert_eq!((told, BACKEND.global(ctx, module, "step").unwrap().base), (Vec::new(), named[1].1));
    // What a program keeps of its functions would be others here.
    let calls = "
.version 7.8
.target sm_80
.address_size 64
.func twice() { ret; }
.visible .entry call(.param .u64 out) {
    .reg .u64 %rd<3>;
    ld.param.u64 %rd1, [out];
    mov.u64 %rd2, twice;
    st.global.u64 [%rd1], %rd2;
    ret;
}";
    let load_calls = || BACKEND.module_load(ctx, calls.as_bytes(), &[], &[]).map_err(|error| error.detail);
    load_calls().unwrap();
    BACKEND.continues(&["driver"]);
    load_calls().unwrap();
    let mut refused = Ok(());
    BACKEND
        .place(Some(&[]), &mut || {
            refused = load_calls().map(drop);
            Ok(())
        })
        .unwrap();
    BACKEND.continues(&["soft"]);
    let refused = refused.unwrap_err();
    assert!(refused.contains("takes the address of its function twice"), "{refused}");
    // What takes nothing here keeps what it took there.
    assert_eq!(BACKEND.place(Some(&TAKEN), &mut || Ok(())).unwrap(), TAKEN);
}
