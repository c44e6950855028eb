//! The suite every backend must pass: the same body for the real driver and the software device.
