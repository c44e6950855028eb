//! The driver's functions, found at run time so that one binary works with and without a GPU.
//!
//! Each signature is checked at compile time against the bindings in `cudarc::driver::sys`. Results are taken as plain numbers:
//! a newer driver may answer with a code that today's enum does not have.

use crate::partition;
use cudarc::driver::sys;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use wire::CuError;

/// Why the driver cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DriverUnavailable {
    /// There is no driver library.
    #[error("no CUDA driver: the loader does not find libcuda.so.1, or cannot use it")]
    NoLibrary(#[source] libloading::Error),
    /// The library that was found is Dormouse's own.
    #[error(
        "the libcuda.so.1 that the loader finds is Dormouse's own; take its folder out of LD_LIBRARY_PATH"
    )]
    Shim,
    /// The driver is older than what Dormouse needs.
    #[error("the CUDA driver has no {name}; a driver of version 550 or newer is needed")]
    TooOld {
        /// The function it lacks.
        name: &'static str,
    },
    /// `cuInit` failed: no device, or one that cannot be used.
    #[error("{call}: {error}")]
    Init {
        /// The call that failed.
        call: &'static str,
        /// What it answered.
        error: CuError,
    },
}

/// The type a parameter has in the bindings, where it differs from the one it is passed as.
macro_rules! bound {
    ($ty:ty) => {
        $ty
    };
    ($ty:ty, $bound:ty) => {
        $bound
    };
}

/// A function of the driver.
///
/// # Errors
/// `TooOld` where it has none of that name.
///
/// # Safety
/// `F` is the function's type.
pub unsafe fn find<F: Copy>(
    library: &libloading::Library,
    name: &'static str,
) -> Result<F, DriverUnavailable> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<F>(name) }.map(|found| *found).map_err(|_| DriverUnavailable::TooOld { name })
}

/// `cuTensorMapEncodeIm2colWide`.
pub type TensorMapEncodeIm2colWide = unsafe extern "C" fn(
    *mut sys::CUtensorMap,
    c_uint,
    c_uint,
    *mut c_void,
    *const u64,
    *const u64,
    c_int,
    c_int,
    c_uint,
    c_uint,
    *const u32,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
) -> c_uint;

#[expect(clippy::type_complexity)]
const _: unsafe fn(
    *mut sys::CUtensorMap,
    sys::CUtensorMapDataType,
    c_uint,
    *mut c_void,
    *const u64,
    *const u64,
    c_int,
    c_int,
    c_uint,
    c_uint,
    *const u32,
    sys::CUtensorMapInterleave,
    sys::CUtensorMapIm2ColWideMode,
    sys::CUtensorMapSwizzle,
    sys::CUtensorMapL2promotion,
    sys::CUtensorMapFloatOOBfill,
) -> sys::CUresult = sys::cuTensorMapEncodeIm2colWide;

macro_rules! functions {
    ($($name:ident($($ty:ty $(as $bound:ty)?),* $(,)?);)* ; older { $($old:ident($($oldty:ty),*);)* }) => {
        /// The driver's functions.
        #[allow(non_snake_case)]
        pub struct Api {
            _library: libloading::Library,
            /// `cuTensorMapEncodeIm2colWide`, which came with CUDA 12.8.
            pub tensor_map_im2col_wide: Option<TensorMapEncodeIm2colWide>,
            /// Those of green contexts.
            pub partitions: Option<partition::Functions>,
            $(pub $name: unsafe extern "C" fn($($ty),*) -> c_uint,)*
            $(pub $old: unsafe extern "C" fn($($oldty),*) -> c_uint,)*
        }

        $(const _: unsafe fn($(bound!($ty $(, $bound)?)),*) -> sys::CUresult = sys::$name;)*

        impl Api {
            fn bind(library: libloading::Library) -> Result<Self, DriverUnavailable> {
                Ok(Self {
                    // SAFETY: the signatures are those of cuda.h, as the constants above check; the library outlives the
                    // pointers because `Self` owns both.
                    $($name: unsafe { find(&library, stringify!($name))? },)*
                    // SAFETY: the same, but for the check.
                    $($old: unsafe { find(&library, stringify!($old))? },)*
                    // SAFETY: the signature is that of cuda.h, as the constant below checks.
                    tensor_map_im2col_wide: unsafe { find(&library, "cuTensorMapEncodeIm2colWide") }.ok(),
                    partitions: partition::Functions::of(&library),
                    _library: library,
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut sys::CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, sys::CUdevice);
    cuDeviceGetUuid_v2(*mut sys::CUuuid, sys::CUdevice);
    cuDeviceTotalMem_v2(*mut usize, sys::CUdevice);
    cuDeviceGetAttribute(*mut c_int, c_uint as sys::CUdevice_attribute, sys::CUdevice);
    cuDeviceGetPCIBusId(*mut c_char, c_int, sys::CUdevice);
    cuDeviceCanAccessPeer(*mut c_int, sys::CUdevice, sys::CUdevice);
    cuDevicePrimaryCtxRetain(*mut sys::CUcontext, sys::CUdevice);
    cuDevicePrimaryCtxSetFlags_v2(sys::CUdevice, c_uint);
    cuDevicePrimaryCtxReset_v2(sys::CUdevice);
    cuCtxDestroy_v2(sys::CUcontext);
    cuCtxSetCurrent(sys::CUcontext);
    cuCtxGetDevice(*mut sys::CUdevice);
    cuCtxSynchronize();
    cuCtxGetLimit(*mut usize, c_uint as sys::CUlimit);
    cuCtxSetLimit(c_uint as sys::CUlimit, usize);
    cuCtxSetCacheConfig(c_uint as sys::CUfunc_cache);
    cuCtxEnablePeerAccess(sys::CUcontext, c_uint);
    cuCtxDisablePeerAccess(sys::CUcontext);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAddressReserve(*mut sys::CUdeviceptr, usize, usize, sys::CUdeviceptr, c_ulonglong);
    cuMemAddressFree(sys::CUdeviceptr, usize);
    cuMemCreate(*mut sys::CUmemGenericAllocationHandle, usize, *const sys::CUmemAllocationProp, c_ulonglong);
    cuMemRelease(sys::CUmemGenericAllocationHandle);
    cuMemGetAllocationPropertiesFromHandle(*mut sys::CUmemAllocationProp, sys::CUmemGenericAllocationHandle);
    cuMemMap(sys::CUdeviceptr, usize, usize, sys::CUmemGenericAllocationHandle, c_ulonglong);
    cuMemUnmap(sys::CUdeviceptr, usize);
    cuMemRetainAllocationHandle(*mut sys::CUmemGenericAllocationHandle, *mut c_void);
    cuMemExportToShareableHandle(*mut c_void, sys::CUmemGenericAllocationHandle, c_uint as sys::CUmemAllocationHandleType, c_ulonglong);
    cuMemImportFromShareableHandle(*mut sys::CUmemGenericAllocationHandle, *mut c_void, c_uint as sys::CUmemAllocationHandleType);
    cuIpcGetEventHandle(*mut sys::CUipcEventHandle, sys::CUevent);
    cuIpcOpenEventHandle(*mut sys::CUevent, sys::CUipcEventHandle);
    cuMemSetAccess(sys::CUdeviceptr, usize, *const sys::CUmemAccessDesc, usize);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuModuleLoadDataEx(*mut sys::CUmodule, *const c_void, c_uint, *mut c_uint as *mut sys::CUjit_option, *mut *mut c_void);
    cuLinkCreate_v2(c_uint, *mut c_uint as *mut sys::CUjit_option, *mut *mut c_void, *mut sys::CUlinkState);
    cuLinkAddData_v2(sys::CUlinkState, c_uint as sys::CUjitInputType, *mut c_void, usize, *const c_char, c_uint, *mut c_uint as *mut sys::CUjit_option, *mut *mut c_void);
    cuLinkComplete(sys::CUlinkState, *mut *mut c_void, *mut usize);
    cuLinkDestroy(sys::CUlinkState);
    cuModuleUnload(sys::CUmodule);
    cuModuleGetFunctionCount(*mut c_uint, sys::CUmodule);
    cuModuleEnumerateFunctions(*mut sys::CUfunction, c_uint, sys::CUmodule);
    cuModuleGetFunction(*mut sys::CUfunction, sys::CUmodule, *const c_char);
    cuModuleGetGlobal_v2(*mut sys::CUdeviceptr, *mut usize, sys::CUmodule, *const c_char);
    cuFuncGetName(*mut *const c_char, sys::CUfunction);
    cuFuncGetParamInfo(sys::CUfunction, usize, *mut usize, *mut usize);
    cuFuncGetAttribute(*mut c_int, c_uint as sys::CUfunction_attribute, sys::CUfunction);
    cuFuncSetAttribute(sys::CUfunction, c_uint as sys::CUfunction_attribute, c_int);
    cuFuncSetCacheConfig(sys::CUfunction, c_uint as sys::CUfunc_cache);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(*mut c_int, sys::CUfunction, c_int, usize, c_uint);
    cuOccupancyAvailableDynamicSMemPerBlock(*mut usize, sys::CUfunction, c_int, c_int);
    cuOccupancyMaxActiveClusters(*mut c_int, sys::CUfunction, *const sys::CUlaunchConfig);
    cuOccupancyMaxPotentialClusterSize(*mut c_int, sys::CUfunction, *const sys::CUlaunchConfig);
    cuStreamCreateWithPriority(*mut sys::CUstream, c_uint, c_int);
    cuStreamDestroy_v2(sys::CUstream);
    cuStreamQuery(sys::CUstream);
    cuStreamGetAttribute(sys::CUstream, c_uint as sys::CUstreamAttrID, *mut sys::CUstreamAttrValue);
    cuStreamSetAttribute(sys::CUstream, c_uint as sys::CUstreamAttrID, *const sys::CUstreamAttrValue);
    cuStreamSynchronize(sys::CUstream);
    cuStreamWaitEvent(sys::CUstream, sys::CUevent, c_uint);
    cuEventCreate(*mut sys::CUevent, c_uint);
    cuEventDestroy_v2(sys::CUevent);
    cuEventRecordWithFlags(sys::CUevent, sys::CUstream, c_uint);
    cuEventQuery(sys::CUevent);
    cuEventSynchronize(sys::CUevent);
    cuLaunchKernelEx(*const sys::CUlaunchConfig, sys::CUfunction, *mut *mut c_void, *mut *mut c_void);
    cuMemcpyAsync(sys::CUdeviceptr, sys::CUdeviceptr, usize, sys::CUstream);
    cuMemcpy3DAsync_v2(*const sys::CUDA_MEMCPY3D, sys::CUstream);
    cuMemcpyPeerAsync(sys::CUdeviceptr, sys::CUcontext, sys::CUdeviceptr, sys::CUcontext, usize, sys::CUstream);
    cuMemsetD2D8Async(sys::CUdeviceptr, usize, u8, usize, usize, sys::CUstream);
    cuMemsetD2D16Async(sys::CUdeviceptr, usize, u16, usize, usize, sys::CUstream);
    cuMemsetD2D32Async(sys::CUdeviceptr, usize, c_uint, usize, usize, sys::CUstream);
    cuMemsetD8Async(sys::CUdeviceptr, u8, usize, sys::CUstream);
    cuMemsetD16Async(sys::CUdeviceptr, u16, usize, sys::CUstream);
    cuMemsetD32Async(sys::CUdeviceptr, c_uint, usize, sys::CUstream);
    cuStreamBatchMemOp_v2(sys::CUstream, c_uint, *mut sys::CUstreamBatchMemOpParams, c_uint);
    cuLaunchHostFunc(sys::CUstream, sys::CUhostFn, *mut c_void);
    cuGraphCreate(*mut sys::CUgraph, c_uint);
    cuGraphDestroy(sys::CUgraph);
    cuGraphAddNode_v2(*mut sys::CUgraphNode, sys::CUgraph, *const sys::CUgraphNode, *const sys::CUgraphEdgeData, usize, *mut sys::CUgraphNodeParams);
    cuGraphDestroyNode(sys::CUgraphNode);
    cuGraphAddDependencies_v2(sys::CUgraph, *const sys::CUgraphNode, *const sys::CUgraphNode, *const sys::CUgraphEdgeData, usize);
    cuGraphRemoveDependencies_v2(sys::CUgraph, *const sys::CUgraphNode, *const sys::CUgraphNode, *const sys::CUgraphEdgeData, usize);
    cuGraphConditionalHandleCreate(*mut sys::CUgraphConditionalHandle, sys::CUgraph, sys::CUcontext, c_uint, c_uint);
    cuGraphNodeSetParams(sys::CUgraphNode, *mut sys::CUgraphNodeParams);
    cuGraphKernelNodeSetAttribute(sys::CUgraphNode, c_uint as sys::CUlaunchAttributeID, *const sys::CUlaunchAttributeValue);
    cuGraphInstantiateWithFlags(*mut sys::CUgraphExec, sys::CUgraph, c_ulonglong);
    cuGraphExecUpdate_v2(sys::CUgraphExec, sys::CUgraph, *mut sys::CUgraphExecUpdateResultInfo);
    cuGraphExecNodeSetParams(sys::CUgraphExec, sys::CUgraphNode, *mut sys::CUgraphNodeParams);
    cuGraphNodeSetEnabled(sys::CUgraphExec, sys::CUgraphNode, c_uint);
    cuGraphUpload(sys::CUgraphExec, sys::CUstream);
    cuGraphLaunch(sys::CUgraphExec, sys::CUstream);
    cuGraphExecDestroy(sys::CUgraphExec);
    cuGraphRetainUserObject(sys::CUgraph, sys::CUuserObject, c_uint, c_uint);
    cuGraphReleaseUserObject(sys::CUgraph, sys::CUuserObject, c_uint);
    cuUserObjectCreate(*mut sys::CUuserObject, *mut c_void, sys::CUhostFn, c_uint, c_uint);
    cuUserObjectRelease(sys::CUuserObject, c_uint);
    cuArray3DCreate_v2(*mut sys::CUarray, *const sys::CUDA_ARRAY3D_DESCRIPTOR);
    cuArrayDestroy(sys::CUarray);
    cuMipmappedArrayCreate(*mut sys::CUmipmappedArray, *const sys::CUDA_ARRAY3D_DESCRIPTOR, c_uint);
    cuMipmappedArrayGetLevel(*mut sys::CUarray, sys::CUmipmappedArray, c_uint);
    cuMipmappedArrayDestroy(sys::CUmipmappedArray);
    cuTexObjectCreate(*mut sys::CUtexObject, *const sys::CUDA_RESOURCE_DESC, *const sys::CUDA_TEXTURE_DESC, *const sys::CUDA_RESOURCE_VIEW_DESC);
    cuTexObjectDestroy(sys::CUtexObject);
    cuSurfObjectCreate(*mut sys::CUsurfObject, *const sys::CUDA_RESOURCE_DESC);
    cuSurfObjectDestroy(sys::CUsurfObject);
    cuTensorMapEncodeTiled(
        *mut sys::CUtensorMap, c_uint as sys::CUtensorMapDataType, c_uint, *mut c_void, *const u64, *const u64, *const u32,
        *const u32, c_uint as sys::CUtensorMapInterleave, c_uint as sys::CUtensorMapSwizzle,
        c_uint as sys::CUtensorMapL2promotion, c_uint as sys::CUtensorMapFloatOOBfill,
    );
    cuTensorMapEncodeIm2col(
        *mut sys::CUtensorMap, c_uint as sys::CUtensorMapDataType, c_uint, *mut c_void, *const u64, *const u64, *const c_int,
        *const c_int, c_uint, c_uint, *const u32, c_uint as sys::CUtensorMapInterleave, c_uint as sys::CUtensorMapSwizzle,
        c_uint as sys::CUtensorMapL2promotion, c_uint as sys::CUtensorMapFloatOOBfill,
    );
    cuDeviceGetTexture1DLinearMaxWidth(*mut usize, c_uint as sys::CUarray_format, c_uint, sys::CUdevice);
    cuTensorMapReplaceAddress(*mut sys::CUtensorMap, *mut c_void);
    ;
    // Their successors came with drivers newer than the oldest supported; the bindings have only those.
    older {
        cuCtxCreate_v2(*mut sys::CUcontext, c_uint, sys::CUdevice);
        cuEventElapsedTime(*mut f32, sys::CUevent, sys::CUevent);
    }
}

/// A symbol that only Dormouse's own `libcuda.so.1` has.
pub const SHIM_MARKER: &[u8] = b"dormouse_shim\0";

impl Api {
    /// Loads `libcuda.so.1`: the vendor's, not Dormouse's own.
    ///
    /// # Errors
    /// [`DriverUnavailable`] when there is none, it is the shim, or it is too old.
    pub fn load() -> Result<Self, DriverUnavailable> {
        let library = library()?;
        // SAFETY: only the symbol's presence is asked for; it is never read or called.
        if unsafe { library.get::<*const c_void>(SHIM_MARKER) }.is_ok() {
            return Err(DriverUnavailable::Shim);
        }
        Self::bind(library)
    }

    /// Loads `libcuda.so.1`, whosever it is.
    ///
    /// # Errors
    /// As [`Api::load`].
    pub fn load_any() -> Result<Self, DriverUnavailable> {
        Self::bind(library()?)
    }
}

fn library() -> Result<libloading::Library, DriverUnavailable> {
    // SAFETY: the driver's initialisers are the vendor's, or ours; nothing else of this process depends on their order.
    unsafe { libloading::Library::new("libcuda.so.1") }.map_err(DriverUnavailable::NoLibrary)
}

/// A driver's answer as a `Result`.
pub fn check(code: c_uint) -> Result<(), CuError> {
    match CuError::from_code(code) {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

/// A driver's answer to a query: complete, not yet, or an error.
pub fn ready(code: c_uint) -> Result<bool, CuError> {
    match check(code) {
        Ok(()) => Ok(true),
        Err(CuError::NOT_READY) => Ok(false),
        Err(error) => Err(error),
    }
}
