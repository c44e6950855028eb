//! What two machines say before a connection carries data, and the processes of the one that serves among each other, is refused or understood; what is understood
//! is written, and read back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| link::come_back(bytes));
