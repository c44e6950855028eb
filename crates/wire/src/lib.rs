//! Messages between application and GPU server, and their codec.
