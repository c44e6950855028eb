//! Where images live.
