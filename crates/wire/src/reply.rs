//! What comes back from a round trip.

use crate::CuError;
use crate::codec::{Bytes, DecodeError, Decoder, Encoder, Wire};

/// The answer to a round trip, before its body is decoded.
#[derive(Clone, PartialEq, Debug)]
pub struct Reply<T> {
    /// What the device printed since the last answer: the client writes it to the application's stdout first.
    pub output: Bytes,
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
