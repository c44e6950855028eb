//! MD2 (RFC 1319): a digest long broken, used here only because cudart expects it.

/// The permutation of RFC 1319, made from the digits of pi.
#[rustfmt::skip]
const PI: [u8; 256] = [
    41, 46, 67, 201, 162, 216, 124, 1, 61, 54, 84, 161, 236, 240, 6, 19,
    98, 167, 5, 243, 192, 199, 115, 140, 152, 147, 43, 217, 188, 76, 130, 202,
    30, 155, 87, 60, 253, 212, 224, 22, 103, 66, 111, 24, 138, 23, 229, 18,
    190, 78, 196, 214, 218, 158, 222, 73, 160, 251, 245, 142, 187, 47, 238, 122,
    169, 104, 121, 145, 21, 178, 7, 63, 148, 194, 16, 137, 11, 34, 95, 33,
    128, 127, 93, 154, 90, 144, 50, 39, 53, 62, 204, 231, 191, 247, 151, 3,
    255, 25, 48, 179, 72, 165, 181, 209, 215, 94, 146, 42, 172, 86, 170, 198,
    79, 184, 56, 210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4, 241,
    69, 157, 112, 89, 100, 113, 135, 32, 134, 91, 207, 101, 230, 45, 168, 2,
    27, 96, 37, 173, 174, 176, 185, 246, 28, 70, 97, 105, 52, 64, 126, 15,
    85, 71, 163, 35, 221, 81, 175, 58, 195, 92, 249, 206, 186, 197, 234, 38,
    44, 83, 13, 110, 133, 40, 132, 9, 211, 223, 205, 244, 65, 129, 77, 82,
    106, 220, 55, 200, 108, 193, 171, 250, 36, 225, 123, 8, 12, 189, 177, 74,
    120, 136, 149, 139, 227, 99, 232, 109, 233, 203, 213, 254, 59, 0, 29, 57,
    242, 239, 183, 14, 102, 88, 208, 228, 166, 119, 114, 248, 235, 117, 75, 10,
    49, 68, 80, 180, 143, 237, 31, 26, 219, 153, 141, 51, 159, 17, 131, 20,
];

/// The digest of a message.
pub fn digest(message: &[u8]) -> [u8; 16] {
    let mut state = [0u8; 48];
    let mut checksum = [0u8; 16];
    let whole = message.chunks_exact(16);
    let rest = whole.remainder();
    // Padding is never empty, and its bytes say its length, which is at most 16.
    let mut last = [(16 - rest.len()) as u8; 16];
    last[..rest.len()].copy_from_slice(rest);
    for block in whole.chain(std::iter::once(&last[..])) {
        update_checksum(&mut checksum, block);
        update_state(&mut state, block);
    }
    update_state(&mut state, &checksum);
    let mut digest = [0; 16];
    digest.copy_from_slice(&state[..16]);
    digest
}

fn update_checksum(checksum: &mut [u8; 16], block: &[u8]) {
    let mut last = checksum[15];
    for (sum, byte) in checksum.iter_mut().zip(block) {
        *sum ^= PI[usize::from(byte ^ last)];
        last = *sum;
    }
}

fn update_state(state: &mut [u8; 48], block: &[u8]) {
    for (at, byte) in block.iter().enumerate() {
        state[16 + at] = *byte;
        state[32 + at] = *byte ^ state[at];
    }
    let mut t = 0u8;
    for round in 0..18 {
        for byte in state.iter_mut() {
            *byte ^= PI[usize::from(t)];
            t = *byte;
        }
        t = t.wrapping_add(round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test suite of RFC 1319, A.5.
    #[test]
    fn digests_are_those_of_the_rfc() {
        for (message, expected) in [
            ("", 0x8350e5a3e24c153df2275c9f80692773_u128),
            ("a", 0x32ec01ec4a6dac72c0ab96fb34c0b5d1),
            ("abc", 0xda853b0d3f88d99b30283a69e6ded6bb),
            ("message digest", 0xab4f496bfb2a530b219ff33031fe06b0),
            ("abcdefghijklmnopqrstuvwxyz", 0x4e8ddff3650292ab5a4108c3aa47940b),
            (
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
                0xda33def2a42df13975352846c30338cd,
            ),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                0xd5976f79d83d3a0dc9806c3c66f3efd8,
            ),
        ] {
            assert_eq!(digest(message.as_bytes()), expected.to_be_bytes(), "{message:?}");
        }
    }
}
