//! The cut and its reversal.
