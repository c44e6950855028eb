//! Running guests under every device, transport and fault.
