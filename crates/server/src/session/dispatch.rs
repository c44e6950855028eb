//! From a message to its handler, and from the handler's answer to the reply's bytes.

use super::{Caller, Session};
use crate::failure::{Failure, Result, truncate};
use transport::REPLY_MAX;
use wire::{CuError, DETAIL_MAX, Encoder, INLINE_MAX, Message, NAMES_MAX, OUTPUT_MAX, Reply, Request, Wire};

/// A message's handler.
pub(super) trait Execute: Message {
    /// Does what the message says.
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<Self::Reply>;
}

/// What a message's handler answered, encoded but for the device's output.
pub(super) enum Answer {
    /// The body of the reply.
    Done(Vec<u8>),
    /// The message failed.
    Failed(Failure),
}

fn answer<M: Execute>(message: M, session: &Session, caller: &mut Caller) -> Answer {
    match message.execute(session, caller) {
        Ok(reply) => {
            let mut body = Vec::new();
            reply.encode(&mut Encoder::new(&mut body));
            Answer::Done(body)
        }
        Err(failure) => Answer::Failed(failure),
    }
}

macro_rules! dispatch {
    ($request:expr, $session:expr, $caller:expr; $($name:ident)*) => {
        match $request {
            $(Request::$name(message) => answer(message, $session, $caller)),*
        }
    };
}

impl Session {
    /// Executes a message.
    pub(super) fn dispatch(&self, request: Request, caller: &mut Caller) -> Answer {
        dispatch!(request, self, caller;
            GetFacts ContextCreate ContextDestroy ContextSynchronize ContextGetLimit ContextSetLimit
            ContextSetCacheConfig PeerAccess CanAccessPeer TakeOutput Notice
            MemAlloc MemFree MemInfo PinnedAlloc PinnedFree SlabFree ManagedAlloc ManagedKeep
            ManagedLeave ManagedHint Exclude
            CopyFromInline CopyFromSlot SlotWait CopyToInline CopyToSlot CopyToSlotWait Copy CopyWait Copy3D Fill CopyPeer
            CopyRowsFromSlot CopyRowsToSlot
            StreamCreate StreamDestroy StreamSynchronize StreamQuery StreamWaitEvent
            EventCreate EventDestroy EventRecord EventQuery EventSynchronize EventElapsed
            ModuleLoad ModuleUnload ModuleGetFunction ModuleGetGlobal ModuleListFunctions
            LibraryLoad LibraryUnload LibraryGetKernel LibraryGetGlobal LibraryListKernels LibraryGetModule
            LibraryManaged LibraryBind
            KernelGetFunction FunctionGetAttribute FunctionSetAttribute FunctionSetCacheConfig
            OccupancyBlocks OccupancyShared OccupancyClusters
            Launch HostFunction
            PoolCreate PoolDestroy PoolTrim PoolGetAttribute PoolSetAttribute MemAllocAsync MemFreeAsync
            GraphInstantiate GraphUpdate GraphNodeEnable GraphUpload GraphLaunch GraphExecDestroy GraphRelease
            GraphCondition GraphTemplateDestroy
            ArrayCreate ArrayDestroy MipmapCreate MipmapLevel MipmapDestroy CopyBox
            TextureCreate TextureDestroy SurfaceCreate SurfaceDestroy TensorMapEncode
            LinearTextureWidth StreamGetAttribute StreamSetAttribute
            MemoryOperations
            AddressReserve AddressFree PhysicalCreate PhysicalRelease PhysicalRetain PhysicalProperties
            Link
            SmResource SmResourceSplit GreenCreate GreenDestroy GreenStreamCreate
            ContextRecordEvent ContextWaitEvent
            MemMap MemUnmap MemSetAccess MemGetAccess
            IpcGetMem IpcOpenMem IpcCloseMem IpcGetEvent IpcOpenEvent EventRecordNow PhysicalExport PhysicalImport
            HostRegister HostUnregister
        )
    }
}

/// The longest body that is sent: with it, the device's output and the reply's own fields must fit into the ring.
const BODY_MAX: usize = REPLY_MAX - OUTPUT_MAX - 64;
const _: () = assert!(DETAIL_MAX <= BODY_MAX && NAMES_MAX <= BODY_MAX && INLINE_MAX <= BODY_MAX);

impl Answer {
    /// Whether it is the answer "no" to a question.
    pub(super) fn is_no(&self) -> bool {
        matches!(self, Self::Done(body) if body[..] == [u8::from(false)])
    }

    /// The answer to the message `name`, such that the ring can carry it: a reason is cut off, and a body that is too long is a
    /// failure of this message alone.
    pub(super) fn bounded(self, name: &str) -> Self {
        match self {
            Self::Done(body) if body.len() > BODY_MAX => {
                let detail =
                    format!("the answer to {name} has {} bytes, and {BODY_MAX} can be sent", body.len());
                Self::Failed(Failure::new(CuError::NOT_SUPPORTED, detail))
            }
            Self::Failed(mut failure) => {
                truncate(&mut failure.detail, DETAIL_MAX);
                Self::Failed(failure)
            }
            done => done,
        }
    }
}

/// The bytes of a [`Reply`] whose body is encoded already.
pub(super) fn reply_bytes(output: wire::Output, answer: Answer) -> Vec<u8> {
    /// An encoded body.
    struct Body(Vec<u8>);
    impl Wire for Body {
        fn encode(&self, to: &mut Encoder<'_>) {
            to.put(&self.0);
        }
        fn decode(from: &mut wire::Decoder<'_>) -> std::result::Result<Self, wire::DecodeError> {
            Ok(Self(from.take(from.remaining())?.to_vec()))
        }
    }
    let result = match answer {
        Answer::Done(body) => Ok(Body(body)),
        Answer::Failed(Failure { code, detail }) => Err((code, detail)),
    };
    let mut bytes = Vec::new();
    Reply { output, result }.encode(&mut Encoder::new(&mut bytes));
    bytes
}

/// The answer to a message that is none.
pub(super) fn malformed(opcode: u16, error: wire::DecodeError) -> Failure {
    Failure::new(CuError::INVALID_VALUE, format!("message {opcode} is malformed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Bytes;

    #[test]
    fn a_no_is_known() {
        let told = |is_so: bool| {
            let mut body = Vec::new();
            is_so.encode(&mut Encoder::new(&mut body));
            Answer::Done(body)
        };
        assert!(told(false).is_no() && !told(true).is_no());
        assert!(!Answer::Done(Vec::new()).is_no() && !Answer::Failed(CuError::NOT_READY.into()).is_no());
    }

    #[test]
    fn every_answer_fits_into_the_ring() {
        let output = || wire::Output { from: u64::MAX, bytes: Bytes(vec![0; OUTPUT_MAX]), more: true };
        let long = || Answer::Done(vec![0; REPLY_MAX]).bounded("GetFacts");
        assert!(matches!(long(), Answer::Failed(failure) if failure.detail.contains("GetFacts")));
        let detail = || Answer::Failed(Failure::new(CuError::INVALID_PTX, "\u{e9}".repeat(REPLY_MAX)));
        let full = Answer::Done(vec![0; BODY_MAX]);
        for answer in [long(), detail().bounded("ModuleLoad"), full.bounded("CopyToInline")] {
            assert!(reply_bytes(output(), answer).len() <= REPLY_MAX);
        }
    }
}
