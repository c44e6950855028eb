//! The device trait and its conformance suite.
