//! Bytes are refused or understood as each message, greeting and reply, and are all of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{
    Bytes, DecodeError, Decoder, Encoder, FunctionFacts, GraphChange, GraphPlan, Greeting, Names, Reply,
    Request, SessionFacts, Wire,
};

/// Beyond every opcode that there is.
const OPCODES: u16 = 256;

fuzz_target!(|bytes: &[u8]| {
    for opcode in (0..OPCODES).chain([u16::MAX]) {
        match Request::decode(opcode, bytes) {
            Ok(request) => assert!(!request.name().is_empty()),
            Err(DecodeError::Trailing(rest)) => {
                Request::decode(opcode, &bytes[..bytes.len() - rest])
                    .expect("what comes before is a message");
            }
            Err(_) => {}
        }
    }
    comes_back::<Greeting>(bytes);
    comes_back::<GraphPlan>(bytes);
    comes_back::<Vec<GraphChange>>(bytes);
    comes_back::<Reply<()>>(bytes);
    comes_back::<Reply<Bytes>>(bytes);
    comes_back::<Reply<Names>>(bytes);
    comes_back::<Reply<SessionFacts>>(bytes);
    comes_back::<Reply<FunctionFacts>>(bytes);
});

/// What is understood is written as the bytes that it was read from.
fn comes_back<T: Wire>(bytes: &[u8]) {
    let mut from = Decoder::new(bytes);
    let Ok(value) = T::decode(&mut from) else { return };
    let mut again = Vec::new();
    value.encode(&mut Encoder::new(&mut again));
    assert_eq!(again, bytes[..bytes.len() - from.remaining()]);
}
