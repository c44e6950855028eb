//! What comes back from a round trip.

use crate::CuError;
use crate::codec::{Bytes, DecodeError, Decoder, Encoder, Wire};

record! {
    /// A piece of what the device has printed. Pieces go out with whichever answers come next, and are written in order.
    #[derive(Eq, Default)]
    Output {
        /// How many bytes have gone out before: whoever has this answer goes on only when they are written.
        from: u64,
        /// The next ones, at most [`crate::OUTPUT_MAX`]; whole lines, if there are any.
        bytes: Bytes,
        /// Whether there are more, to be asked for with `TakeOutput` before anything else is done.
        more: bool,
    }
}

/// The answer to a round trip, before its body is decoded.
#[derive(Clone, PartialEq, Debug)]
pub struct Reply<T> {
    /// What the device has printed: the client writes it to the application's stdout first.
    pub output: Output,
    /// The message's own reply, or the error with a sentence for the log (which may be empty).
    pub result: Result<T, (CuError, String)>,
}

impl<T: Wire> Wire for Reply<T> {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.output.encode(to);
        match &self.result {
            Ok(body) => {
                0u32.encode(to);
                body.encode(to);
            }
            Err((error, detail)) => {
                error.code().encode(to);
                detail.encode(to);
            }
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let output = Wire::decode(from)?;
        let result = match CuError::from_code(u32::decode(from)?) {
            None => Ok(T::decode(from)?),
            Some(error) => Err((error, Wire::decode(from)?)),
        };
        Ok(Self { output, result })
    }
}
