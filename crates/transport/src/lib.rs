//! Shared-memory rings, the control page and staging slots of a session.
