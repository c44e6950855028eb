//! What the entry points and the private tables must know of the session. The session client provides it; the tables
//! never ask a server.

use std::sync::OnceLock;

use cuda_abi::{CuError, CuResult, NEWEST_DRIVER_VERSION, sys::CUcontext};

/// A device, as the integrity check sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// As `cuDeviceGetUuid_v2` gives it.
    pub uuid: [u8; 16],
    /// Attribute 50, `CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID`.
    pub pci_domain: i32,
    /// Attribute 33, `CU_DEVICE_ATTRIBUTE_PCI_BUS_ID`.
    pub pci_bus: i32,
    /// Attribute 34, `CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID`.
    pub pci_device: i32,
}

/// The session's answers; each made in this process, without waiting.
pub trait Facts: Sync {
    /// The devices, in the order of their ordinals.
    fn devices(&self) -> &[DeviceIdentity];

    /// The calling thread's current context; NULL where it has none.
    fn current_context(&self) -> CUcontext;

    /// The handle of a device's primary context, whether it is active or not; it is neither retained nor activated.
    ///
    /// # Errors
    /// `INVALID_DEVICE`: no device has this ordinal.
    fn primary_context(&self, device: i32) -> CuResult<CUcontext>;

    /// As `cuCtxGetId`.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`: no context has this handle.
    fn context_id(&self, context: CUcontext) -> CuResult<u64>;
}

static FACTS: OnceLock<&'static dyn Facts> = OnceLock::new();

/// Makes the session known: called once, by a successful `cuInit`. The first one stays.
pub fn provide(facts: &'static dyn Facts) {
    let _ = FACTS.set(facts);
}

/// The session.
///
/// # Errors
/// `NOT_INITIALIZED` before a successful `cuInit`.
pub fn get() -> CuResult<&'static dyn Facts> {
    FACTS.get().copied().ok_or(CuError::NOT_INITIALIZED)
}

/// What `cuDriverGetVersion` says. cudart asks before `cuInit` and counts on the same answer later, so it cannot
/// depend on the session.
pub fn driver_version() -> i32 {
    NEWEST_DRIVER_VERSION
}
