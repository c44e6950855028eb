//! HMAC (RFC 2104) over MD2, whose block is 16 bytes; keys are exactly one block.

use super::md2;

/// The authentication code of a message.
pub fn hmac_md2(key: &[u8; 16], message: &[u8]) -> [u8; 16] {
    let inner = md2::digest(&[&key.map(|byte| byte ^ 0x36), message].concat());
    md2::digest(&[key.map(|byte| byte ^ 0x5c), inner].concat())
}
