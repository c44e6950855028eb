//! Arrays, textures, surfaces and tensor maps over a session whose server is a thread of the test.
#![allow(clippy::unwrap_used)]

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use crate::fake::start;
use cuda_abi::{CuError, sys};
use cuda_shim::api::{array::*, copy::*, device::*, memory::*, peer::*, stream::*, tensor::*, texture::*};
use cuda_shim::default_stream::LEGACY;
use sys::CUmemorytype::{CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST};
use wire::Request;

const FLOAT: sys::CUarray_format = sys::CUarray_format::CU_AD_FORMAT_FLOAT;

fn bytes(count: usize, seed: u8) -> Vec<u8> {
    (0..count).map(|index| (index as u8).wrapping_mul(37) ^ (index >> 8) as u8 ^ seed).collect()
}

fn desc(width: usize, height: usize, depth: usize, flags: u32) -> sys::CUDA_ARRAY3D_DESCRIPTOR {
    sys::CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        Format: FLOAT,
        NumChannels: 1,
        Flags: flags,
    }
}

fn create(desc: &sys::CUDA_ARRAY3D_DESCRIPTOR) -> Result<sys::CUarray, CuError> {
    let mut array = null_mut();
    // SAFETY: the pointers are this function's.
    unsafe { cuArray3DCreate_v2(&raw mut array, desc) }.map(|()| array)
}

/// A value of a struct of the driver's whose bytes are all zero but for what is set later.
fn zeroed<T>() -> Box<MaybeUninit<T>> {
    let mut value = Box::new(MaybeUninit::uninit());
    // SAFETY: the bytes are the box's.
    unsafe { std::ptr::write_bytes(value.as_mut_ptr(), 0, 1) };
    value
}

#[test]
fn arrays_tell_what_they_are() {
    start();
    let mut array = null_mut();
    let flat = sys::CUDA_ARRAY_DESCRIPTOR { Width: 7, Height: 5, Format: FLOAT, NumChannels: 2 };
    // SAFETY: the pointers are this test's.
    unsafe {
        cuArrayCreate_v2(&raw mut array, &raw const flat).unwrap();
        let mut told = desc(0, 0, 9, 9);
        cuArray3DGetDescriptor_v2(&raw mut told, array).unwrap();
        assert_eq!((told.Width, told.Height, told.Depth, told.NumChannels, told.Flags), (7, 5, 0, 2, 0));
        let mut told = flat;
        told.Width = 0;
        cuArrayGetDescriptor_v2(&raw mut told, array).unwrap();
        assert_eq!((told.Width, told.Format), (7, FLOAT));
        // What only other kinds of array have.
        let mut sparse = zeroed();
        assert_eq!(cuArrayGetSparseProperties(sparse.as_mut_ptr(), array), Err(CuError::INVALID_VALUE));
        let mut needs = zeroed();
        assert_eq!(cuArrayGetMemoryRequirements(needs.as_mut_ptr(), array, 0), Err(CuError::INVALID_VALUE));
        let mut plane = null_mut();
        assert_eq!(cuArrayGetPlane(&raw mut plane, array, 0), Err(CuError::INVALID_VALUE));
        cuArrayDestroy(array).unwrap();
        assert_eq!(cuArrayDestroy(array), Err(CuError::INVALID_HANDLE));
        assert_eq!(cuArrayGetPlane(&raw mut plane, array, 0), Err(CuError::INVALID_HANDLE));
    }
    assert_eq!(create(&desc(0, 0, 0, 0)), Err(CuError::INVALID_VALUE));
    assert_eq!(create(&desc(4, 4, 5, 4)), Err(CuError::INVALID_VALUE), "five faces");
    assert_eq!(create(&desc(4, 4, 0, sys::CUDA_ARRAY3D_SPARSE)), Err(CuError::NOT_SUPPORTED));
    assert_eq!(create(&desc(4, 4, 0, sys::CUDA_ARRAY3D_COLOR_ATTACHMENT)), Err(CuError::NOT_SUPPORTED));
}

#[test]
fn runs_of_bytes_go_every_way() {
    start();
    let (first, second) = (create(&desc(100, 0, 0, 0)).unwrap(), create(&desc(100, 0, 0, 0)).unwrap());
    let data = bytes(400, 1);
    let (mut address, mut back) = (0, vec![0u8; 400]);
    // SAFETY: the pointers are this test's, and slices of that size.
    unsafe {
        cuMemAlloc_v2(&raw mut address, 400).unwrap();
        cuMemcpyHtoA_v2(first, 0, data.as_ptr().cast(), 400, LEGACY).unwrap();
        cuMemcpyAtoA_v2(second, 40, first, 0, 360, LEGACY).unwrap();
        cuMemcpyAtoD_v2(address, second, 40, 360, LEGACY).unwrap();
        cuMemcpyDtoA_v2(second, 0, address, 40, LEGACY).unwrap();
        cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), second, 0, 400, LEGACY).unwrap();
        assert_eq!(back, [&data[..40], &data[..360]].concat());
        cuMemcpyHtoAAsync_v2(second, 8, data.as_ptr().cast(), 12, LEGACY).unwrap();
        cuMemcpyAtoHAsync_v2(back.as_mut_ptr().cast(), second, 0, 20, LEGACY).unwrap();
        cuStreamSynchronize(LEGACY).unwrap();
        assert_eq!(back[..20], [&data[..8], &data[..12]].concat());
        let beyond = cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), second, 40, 400, LEGACY);
        assert_eq!(beyond, Err(CuError::INVALID_VALUE), "beyond the end");
        let half = cuMemcpyHtoA_v2(second, 2, data.as_ptr().cast(), 4, LEGACY);
        assert_eq!(half, Err(CuError::INVALID_VALUE), "from the middle of an element");
    }
}

/// A `CUDA_MEMCPY3D` between the host and an array.
fn copy_3d(
    to_array: bool,
    array: sys::CUarray,
    at: [usize; 3],
    host: *mut u8,
    extent: [usize; 3],
    pitch: usize,
) {
    let mut copy = zeroed::<sys::CUDA_MEMCPY3D>();
    let raw = copy.as_mut_ptr();
    // SAFETY: the struct is this function's, and the host's side is the caller's of that size.
    unsafe {
        ((*raw).WidthInBytes, (*raw).Height, (*raw).Depth) = (extent[0], extent[1], extent[2]);
        if to_array {
            (&raw mut (*raw).srcMemoryType).write(CU_MEMORYTYPE_HOST);
            ((*raw).srcHost, (*raw).srcPitch, (*raw).srcHeight) = (host.cast(), pitch, extent[1]);
            (&raw mut (*raw).dstMemoryType).write(CU_MEMORYTYPE_ARRAY);
            ((*raw).dstArray, (*raw).dstXInBytes, (*raw).dstY, (*raw).dstZ) = (array, at[0], at[1], at[2]);
        } else {
            (&raw mut (*raw).dstMemoryType).write(CU_MEMORYTYPE_HOST);
            ((*raw).dstHost, (*raw).dstPitch, (*raw).dstHeight) = (host.cast(), pitch, extent[1]);
            (&raw mut (*raw).srcMemoryType).write(CU_MEMORYTYPE_ARRAY);
            ((*raw).srcArray, (*raw).srcXInBytes, (*raw).srcY, (*raw).srcZ) = (array, at[0], at[1], at[2]);
        }
        cuMemcpy3D_v2(raw, LEGACY).unwrap();
    }
}

#[test]
fn boxes_arrive_where_they_belong() {
    start();
    // Many slices, rows that fill a slot together, and rows longer than a slot.
    for [width, height, depth] in [[6, 5, 20], [1 << 16, 9, 1], [3 << 17, 2, 2]] {
        let array = create(&desc(width, height, depth, 0)).unwrap();
        let (row, pitch) = (width * 4, width * 4 + 64);
        let host = bytes(pitch * height * depth, 3);
        copy_3d(true, array, [0; 3], host.as_ptr().cast_mut(), [row, height, depth], pitch);
        let mut back = vec![0; host.len()];
        copy_3d(false, array, [0; 3], back.as_mut_ptr(), [row, height, depth], pitch);
        for (number, (sent, got)) in host.chunks(pitch).zip(back.chunks(pitch)).enumerate() {
            assert!(sent[..row] == got[..row], "row {number} of {width} × {height} × {depth}");
            assert!(got[row..].iter().all(|byte| *byte == 0), "what is between rows is left alone");
        }
        let mut corner = vec![0; 16];
        copy_3d(false, array, [8, 1, depth - 1], corner.as_mut_ptr(), [16, 1, 1], 16);
        let at = ((depth - 1) * height + 1) * pitch + 8;
        assert_eq!(corner, host[at..at + 16]);
        // SAFETY: the array is this test's.
        unsafe { cuArrayDestroy(array) }.unwrap();
    }
}

#[test]
fn device_memory_is_copied_by_one_message() {
    let fake = start();
    let array = create(&desc(8, 4, 0, 0)).unwrap();
    let mut address = 0;
    let mut copy = zeroed::<sys::CUDA_MEMCPY2D>();
    let raw = copy.as_mut_ptr();
    // SAFETY: the pointers are this test's.
    unsafe {
        cuMemAlloc_v2(&raw mut address, 4096).unwrap();
        (&raw mut (*raw).srcMemoryType).write(CU_MEMORYTYPE_DEVICE);
        ((*raw).srcDevice, (*raw).srcPitch) = (address, 512);
        (&raw mut (*raw).dstMemoryType).write(CU_MEMORYTYPE_ARRAY);
        ((*raw).dstArray, (*raw).dstXInBytes, (*raw).dstY) = (array, 4, 1);
        ((*raw).WidthInBytes, (*raw).Height) = (28, 3);
        cuMemcpy2DAsync_v2(raw, LEGACY).unwrap();
        cuStreamSynchronize(LEGACY).unwrap();
        (*raw).Height = 4;
        assert_eq!(cuMemcpy2DUnaligned_v2(raw, LEGACY), Err(CuError::INVALID_VALUE), "a row too many");
    }
    let sent = fake.picked(|(_, request)| match request {
        Request::CopyBox(copy) if matches!(copy.src, wire::CopySide::Memory(side) if side.address == address) => {
            Some((copy.width, copy.height, copy.depth))
        }
        _ => None,
    });
    assert_eq!(sent, [(28, 3, 1)]);
}

#[test]
fn levels_go_with_their_array() {
    start();
    let (mut mipmap, mut level, mut again) = (null_mut(), null_mut(), null_mut());
    let pyramid = desc(8, 8, 0, 0);
    // SAFETY: the pointers are this test's.
    unsafe {
        assert_eq!(
            cuMipmappedArrayCreate(&raw mut mipmap, &raw const pyramid, 0),
            Err(CuError::INVALID_VALUE)
        );
        cuMipmappedArrayCreate(&raw mut mipmap, &raw const pyramid, 3).unwrap();
        cuMipmappedArrayGetLevel(&raw mut level, mipmap, 1).unwrap();
        cuMipmappedArrayGetLevel(&raw mut again, mipmap, 1).unwrap();
        assert_eq!(level, again, "a level has one handle");
        assert_eq!(cuMipmappedArrayGetLevel(&raw mut again, mipmap, 3), Err(CuError::INVALID_VALUE));
        let mut told = pyramid;
        cuArray3DGetDescriptor_v2(&raw mut told, level).unwrap();
        assert_eq!((told.Width, told.Height), (4, 4));
        assert_eq!(cuArrayDestroy(level), Err(CuError::INVALID_HANDLE), "it goes with the others");
        let mut sparse = zeroed();
        assert_eq!(
            cuMipmappedArrayGetSparseProperties(sparse.as_mut_ptr(), mipmap),
            Err(CuError::INVALID_VALUE)
        );
        let mut needs = zeroed();
        assert_eq!(
            cuMipmappedArrayGetMemoryRequirements(needs.as_mut_ptr(), mipmap, 0),
            Err(CuError::INVALID_VALUE)
        );
        cuMipmappedArrayDestroy(mipmap).unwrap();
        assert_eq!(cuArray3DGetDescriptor_v2(&raw mut told, level), Err(CuError::INVALID_HANDLE));
        assert_eq!(cuMipmappedArrayDestroy(mipmap), Err(CuError::INVALID_HANDLE));
    }
}

#[test]
fn objects_tell_what_they_were_made_of() {
    let fake = start();
    let array = create(&desc(8, 4, 0, sys::CUDA_ARRAY3D_SURFACE_LDST)).unwrap();
    let mut resource = zeroed::<sys::CUDA_RESOURCE_DESC>();
    let mut sampling = zeroed::<sys::CUDA_TEXTURE_DESC>();
    let mut view = zeroed::<sys::CUDA_RESOURCE_VIEW_DESC>();
    // SAFETY: the pointers are this test's; all zeros is a value of each struct.
    unsafe {
        (*resource.as_mut_ptr()).res.array.hArray = array;
        (*sampling.as_mut_ptr()).flags = sys::CU_TRSF_NORMALIZED_COORDINATES;
        ((*view.as_mut_ptr()).width, (*view.as_mut_ptr()).height) = (8, 4);
        let (mut texture, mut plain, mut surface) = (0, 0, 0);
        let (resource, sampling, view) = (resource.as_ptr(), sampling.as_ptr(), view.as_ptr());
        cuTexObjectCreate(&raw mut texture, resource, sampling, view).unwrap();
        cuTexObjectCreate(&raw mut plain, resource, sampling, null()).unwrap();
        cuSurfObjectCreate(&raw mut surface, resource).unwrap();
        assert_eq!(cuTexObjectCreate(&raw mut plain, null(), sampling, null()), Err(CuError::INVALID_VALUE));

        let mut told = zeroed::<sys::CUDA_RESOURCE_DESC>();
        cuTexObjectGetResourceDesc(told.as_mut_ptr(), texture).unwrap();
        assert_eq!((*told.as_ptr()).res.array.hArray, array);
        cuSurfObjectGetResourceDesc(told.as_mut_ptr(), surface).unwrap();
        assert_eq!((*told.as_ptr()).res.array.hArray, array);
        let mut told = zeroed::<sys::CUDA_TEXTURE_DESC>();
        cuTexObjectGetTextureDesc(told.as_mut_ptr(), texture).unwrap();
        assert_eq!((*told.as_ptr()).flags, sys::CU_TRSF_NORMALIZED_COORDINATES);
        let mut told = zeroed::<sys::CUDA_RESOURCE_VIEW_DESC>();
        cuTexObjectGetResourceViewDesc(told.as_mut_ptr(), texture).unwrap();
        assert_eq!((*told.as_ptr()).width, 8);
        assert_eq!(
            cuTexObjectGetResourceViewDesc(told.as_mut_ptr(), plain),
            Err(CuError::INVALID_VALUE),
            "it has none"
        );
        let sent = fake.picked(|(_, request)| match request {
            Request::TextureCreate(m) => {
                Some((m.texture.sampling.flags, m.texture.view.map(|view| view.width)))
            }
            _ => None,
        });
        assert_eq!(sent, [(2, Some(8)), (2, None)]);
        cuTexObjectDestroy(texture).unwrap();
        assert_eq!(cuTexObjectDestroy(texture), Err(CuError::INVALID_VALUE));
        assert_eq!(cuTexObjectDestroy(surface), Err(CuError::INVALID_VALUE), "another sort of object");
        cuSurfObjectDestroy(surface).unwrap();
        cuTexObjectDestroy(plain).unwrap();
    }
}

/// A `CUtensorMap` where one may lie.
#[repr(align(128))]
struct Map([u64; 16]);

#[test]
fn tensor_maps_are_made_once() {
    let fake = start();
    let (dims, strides) = ([64u64, 32, 16, 8], [256u64, 8192, 131_072]);
    let (shape, steps, corner) = ([8u32, 8, 1, 1], [1u32; 4], [0i32; 2]);
    let mut map = Map([0; 16]);
    let address = crate::fake::DEVICE as *mut std::ffi::c_void;
    let tiled = |map: &mut Map, rank: u32| {
        let to: *mut sys::CUtensorMap = (&raw mut map.0).cast();
        let (dims, strides) = (dims.as_ptr(), strides.as_ptr());
        // SAFETY: the lists are longer than the rank; the map is this test's.
        unsafe {
            cuTensorMapEncodeTiled(
                to,
                7,
                rank,
                address,
                dims,
                strides,
                shape.as_ptr(),
                steps.as_ptr(),
                0,
                0,
                0,
                0,
            )
        }
    };
    tiled(&mut map, 2).unwrap();
    assert_eq!(map.0, [crate::fake::DEVICE; 16]);
    tiled(&mut map, 2).unwrap();
    tiled(&mut map, 3).unwrap();
    assert_eq!(tiled(&mut map, 6), Err(CuError::INVALID_VALUE));
    let asked = |fake: &crate::fake::Fake| {
        fake.picked(|(_, request)| matches!(request, Request::TensorMapEncode(_)).then_some(()))
    };
    assert_eq!(asked(fake).len(), 2, "the same arguments are not asked about again");
    let to: *mut sys::CUtensorMap = (&raw mut map.0).cast();
    // SAFETY: as above.
    unsafe {
        let (dims, strides, steps) = (dims.as_ptr(), strides.as_ptr(), steps.as_ptr());
        let (lower, upper) = (corner.as_ptr(), corner.as_ptr());
        cuTensorMapEncodeIm2col(to, 7, 4, address, dims, strides, lower, upper, 8, 8, steps, 0, 0, 0, 0)
            .unwrap();
        cuTensorMapEncodeIm2colWide(to, 7, 4, address, dims, strides, 0, 0, 8, 8, steps, 0, 0, 0, 0, 0)
            .unwrap();
        assert_eq!(map.0, [crate::fake::DEVICE; 16]);
        cuTensorMapReplaceAddress(to, 4096 as *mut _).unwrap();
        assert_eq!(map.0, [crate::fake::DEVICE + 4096; 16]);
        let askew = to.cast::<u8>().add(8).cast();
        assert_eq!(cuTensorMapReplaceAddress(askew, null_mut()), Err(CuError::INVALID_VALUE));
    }
    assert_eq!(asked(fake).len(), 5);
}

#[test]
fn streams_have_attributes() {
    start();
    let attribute = |id: sys::CUlaunchAttributeID| id as u32;
    let (policy, priority) = (
        attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY),
        attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY),
    );
    let (mut one, mut other) = (null_mut(), null_mut());
    // What is behind a short value is left alone: a program may have no room for it.
    let mut words = [0xffff_ffffu32; 16];
    // SAFETY: the pointers are this test's, and values have at most 64 bytes.
    unsafe {
        cuStreamCreate(&raw mut one, 0).unwrap();
        cuStreamCreate(&raw mut other, 0).unwrap();
        let mut set = [0u32; 16];
        set[0] = 2;
        cuStreamSetAttribute(one, policy, set.as_ptr().cast()).unwrap();
        set[0] = -3i32 as u32;
        cuStreamSetAttribute(one, priority, set.as_ptr().cast()).unwrap();
        cuStreamGetAttribute(other, policy, words.as_mut_ptr().cast()).unwrap();
        assert_eq!(words[..2], [0, 0xffff_ffff]);
        cuStreamCopyAttributes(other, one).unwrap();
        cuStreamGetAttribute(other, policy, words.as_mut_ptr().cast()).unwrap();
        assert_eq!(words[..2], [2, 0xffff_ffff]);
        let mut told = 0;
        cuStreamGetPriority(other, &raw mut told).unwrap();
        assert_eq!(told, -3);
        let unknown = cuStreamGetAttribute(one, 4, words.as_mut_ptr().cast());
        assert_eq!(unknown, Err(CuError::INVALID_VALUE), "a cluster is a launch's");
    }
}

#[test]
fn devices_tell_what_they_can() {
    start();
    let (mut width, mut answers, operations) = (0, [9u32; 3], [0u32, 9, 12]);
    // SAFETY: the pointers are this test's.
    unsafe {
        cuDeviceGetTexture1DLinearMaxWidth(&raw mut width, FLOAT as u32, 2, 0).unwrap();
        assert_eq!(width, 1000 + FLOAT as usize + 2);
        cuDeviceGetHostAtomicCapabilities(answers.as_mut_ptr(), operations.as_ptr(), 3, 0).unwrap();
        assert_eq!(answers, [0; 3], "nothing is promised");
        let wrong = [13u32; 3];
        let told = cuDeviceGetHostAtomicCapabilities(answers.as_mut_ptr(), wrong.as_ptr(), 3, 0);
        assert_eq!(told, Err(CuError::INVALID_VALUE));
        let told = cuDeviceGetP2PAtomicCapabilities(answers.as_mut_ptr(), operations.as_ptr(), 3, 0, 1);
        assert_eq!(told, Err(CuError::INVALID_DEVICE), "there is one device");
    }
}
