//! What a client is told once and then answers by itself.

use crate::codec::{DecodeError, Decoder, Encoder, Wire};

macro_rules! record {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }
        impl Wire for $name {
            fn encode(&self, to: &mut Encoder<'_>) {
                $(self.$field.encode(to);)*
            }
            fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(Self { $($field: Wire::decode(from)?),* })
            }
        }
    };
}

record! {
    /// One GPU.
    DeviceFacts {
        /// `cuDeviceGetName`.
        name: String,
        /// `cuDeviceGetUuid`.
        uuid: [u8; 16],
        /// `cuDeviceTotalMem`, bytes.
        total_memory: u64,
        /// `cuDeviceGetPCIBusId`, as `0000:00:00.0`.
        pci_bus_id: String,
        /// `CUdevice_attribute` and its value; attributes of what Dormouse does not carry answer 0.
        attributes: Vec<(i32, i32)>,
        /// `cuCtxGetStreamPriorityRange`: least, greatest.
        stream_priorities: (i32, i32),
    }
}

record! {
    /// What holds for a session as long as it lives.
    SessionFacts {
        /// `cuDriverGetVersion`: the smaller of the server's and the newest our list covers.
        driver_version: i32,
        /// Every GPU, in order.
        devices: Vec<DeviceFacts>,
    }
}

record! {
    /// One parameter of a kernel, as `cuKernelGetParamInfo` tells it.
    Param {
        /// Bytes from the start of the parameter buffer.
        offset: u32,
        /// Bytes.
        size: u32,
    }
}

record! {
    /// What the client must know to launch a function and to answer for it.
    FunctionFacts {
        /// Its name as linked.
        name: String,
        /// Its parameters, in order.
        params: Vec<Param>,
        /// `CUfunction_attribute` and its value when it was looked up.
        attributes: Vec<(i32, i32)>,
    }
}
