//! Every message, defined once: `calls!` makes the structs, their codecs and the [`Call`] that the far end matches on.
//!
//! A *pipelined* call has no answer; what it says is wrong is told by a later one. The far end carries out the others in the
//! thread that reads (*quick*) or in one of their own (*slow*: whatever may wait for work, or takes long).

use crate::frame::{INLINE_MAX, LONG_MAX, SHORT_MAX};
use backend::{
    Access, BoxSide, CopyBox, Fill, GraphConditional, GraphKernel, MemoryOperation, Range, RawArray,
    RawBlock, RawContext, RawEvent, RawFunction, RawGraph, RawGreen, RawMipmap, RawModule, RawPhysical,
    RawStream, RawTemplate, RawTexture, StreamArg,
};
use wire::{
    ArrayDesc, Bytes, DecodeError, Decoder, DeviceFacts, Encoder, FunctionFacts, GraphEdge, LaunchValue,
    Resource, SmCount, SmSplit, SmStep, TensorMap, TensorMapRequest, Wire,
};

/// How the far end carries out a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Pipelined,
    Quick,
    Slow,
}

/// A call and the type of its answer.
pub(crate) trait Message: Wire {
    const OPCODE: u16;
    type Reply: Wire;
}

macro_rules! calls {
    ($($op:literal $mode:ident $name:ident { $($field:ident: $ty:ty),* } $(-> $reply:ty)?;)*) => {
        $(
            #[derive(Debug)]
            pub(crate) struct $name { $(pub(crate) $field: $ty),* }
            impl Wire for $name {
                #[allow(unused_variables)]
                fn encode(&self, to: &mut Encoder<'_>) {
                    $(self.$field.encode(to);)*
                }
                #[allow(unused_variables)]
                fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                    Ok(Self { $($field: Wire::decode(from)?),* })
                }
            }
            impl Message for $name {
                const OPCODE: u16 = $op;
                type Reply = calls!(@reply $($reply)?);
            }
        )*

        /// Any call, decoded.
        #[derive(Debug)]
        pub(crate) enum Call { $($name($name)),* }

        impl Call {
            pub(crate) fn decode(opcode: u16, body: &[u8]) -> Result<Self, DecodeError> {
                let mut from = Decoder::new(body);
                let call = match opcode {
                    $($op => Self::$name(Wire::decode(&mut from)?),)*
                    other => return Err(DecodeError::Invalid { what: "opcode", value: other.into() }),
                };
                from.finish()?;
                Ok(call)
            }

            pub(crate) fn mode(opcode: u16) -> Option<Mode> {
                match opcode {
                    $($op => Some(Mode::$mode),)*
                    _ => None,
                }
            }
        }
    };
    (@reply) => { () };
    (@reply $reply:ty) => { $reply };
}

calls! {
    // --- the machine, memory
    1 Quick CanAccessPeer { device: u32, peer: u32 } -> bool;
    2 Slow Reserve { range: Range };
    3 Slow PhysicalCreate { physical: RawPhysical, device: u32, bytes: u64, compressible: bool } -> bool;
    4 Slow PhysicalCreateOnHost { physical: RawPhysical, device: u32, bytes: u64 };
    5 Slow PhysicalRelease { physical: RawPhysical };
    6 Slow MapPhysical { physical: RawPhysical, range: Range };
    7 Slow UnmapPhysical { range: Range };
    8 Slow SetAccess { device: u32, range: Range, access: Access };
    9 Slow MapBlock { block: RawBlock, device: u32, range: Range };
    10 Slow UnmapBlock { block: RawBlock };
    11 Quick MemoryInfo { ctx: RawContext } -> (u64, u64);
    12 Slow MirrorMake { range: Range };
    13 Slow MirrorDrop { range: Range };
    14 Pipelined Changes { base: u64, runs: Bytes };
    15 Pipelined Ping {};

    // --- contexts
    20 Slow ContextCreate { ctx: RawContext, device: u32, flags: u32, primary: bool };
    21 Slow ContextDestroy { ctx: RawContext };
    22 Slow ContextSynchronize { ctx: RawContext };
    23 Quick ContextLimit { ctx: RawContext, limit: u32 } -> u64;
    24 Slow ContextSetLimit { ctx: RawContext, limit: u32, value: u64 };
    25 Slow ContextSetCacheConfig { ctx: RawContext, config: u32 };
    26 Slow PeerAccess { ctx: RawContext, peer: RawContext, enable: bool };

    // --- code
    30 Slow PlaceBegin { replay: Option<Vec<Range>> };
    31 Slow PlaceEnd { error: u32 } -> Vec<Range>;
    32 Quick Holds { range: Range } -> bool;
    33 Slow ModuleLoad { ctx: RawContext, module: RawModule, image: Bytes, options: Vec<(u32, u64)>, managed: Vec<(String, u64)> } -> String;
    34 Slow Link { ctx: RawContext, inputs: Vec<(u32, (String, Bytes))>, options: Vec<(u32, u64)> } -> (Bytes, String);
    35 Slow ModuleUnload { ctx: RawContext, module: RawModule };
    36 Slow ModuleFunctions { ctx: RawContext, module: RawModule } -> Vec<String>;
    37 Slow Function { ctx: RawContext, module: RawModule, name: String, function: RawFunction } -> FunctionFacts;
    38 Quick FunctionAsk { ctx: RawContext, function: RawFunction } -> FunctionFacts;
    39 Quick FunctionAttribute { ctx: RawContext, function: RawFunction, attribute: i32 } -> i32;
    40 Slow FunctionSetAttribute { ctx: RawContext, function: RawFunction, attribute: i32, value: i32 };
    41 Slow FunctionSetCacheConfig { ctx: RawContext, function: RawFunction, config: u32 };
    42 Slow Global { ctx: RawContext, module: RawModule, name: String } -> Range;
    43 Quick OccupancyBlocks { ctx: RawContext, function: RawFunction, block: u32, shared: u64, flags: u32 } -> i32;
    44 Quick OccupancyShared { ctx: RawContext, function: RawFunction, blocks: i32, block: i32 } -> u64;
    45 Quick OccupancyClusters { ctx: RawContext, active: bool, stream: StreamArg, kernel: GraphKernel } -> i32;

    // --- streams and events
    50 Slow StreamCreate { ctx: RawContext, stream: RawStream, flags: u32, priority: i32 };
    51 Pipelined StreamDestroy { ctx: RawContext, stream: RawStream };
    52 Pipelined StreamWaitEvent { ctx: RawContext, stream: StreamArg, event: RawEvent, flags: u32 };
    53 Pipelined EventCreate { ctx: RawContext, event: RawEvent, flags: u32 };
    54 Pipelined EventDestroy { ctx: RawContext, event: RawEvent };
    55 Pipelined EventRecord { ctx: RawContext, event: RawEvent, stream: StreamArg, flags: u32 };
    56 Quick EventElapsed { start: RawEvent, end: RawEvent } -> f32;
    57 Slow StreamSynchronize { ctx: RawContext, stream: StreamArg };
    58 Pipelined Mark { ctx: RawContext, stream: StreamArg, ticket: u64 };
    59 Pipelined Watch { ctx: RawContext, event: RawEvent, ticket: u64 };
    60 Slow StreamAttribute { ctx: RawContext, stream: StreamArg, attribute: u32 } -> LaunchValue;
    61 Slow StreamSetAttribute { ctx: RawContext, stream: StreamArg, attribute: u32, value: LaunchValue };
    62 Quick Query { ctx: RawContext, stream: StreamArg, ticket: u64 };

    // --- work
    70 Pipelined Launch { ctx: RawContext, stream: StreamArg, kernel: GraphKernel };
    71 Pipelined Copy { ctx: RawContext, stream: StreamArg, dst: u64, src: u64, bytes: u64 };
    72 Pipelined CopyBoxes { ctx: RawContext, stream: StreamArg, copy: CopyBox };
    73 Pipelined CopyPeer { stream: StreamArg, dst: (RawContext, u64), src: (RawContext, u64), bytes: u64 };
    74 Pipelined FillMemory { ctx: RawContext, stream: StreamArg, fill: Fill };
    75 Pipelined Operations { ctx: RawContext, stream: StreamArg, operations: Vec<MemoryOperation> };
    76 Pipelined HostFunction { ctx: RawContext, stream: StreamArg, function: u64 };
    77 Pipelined HostDone { call: u64 };
    78 Pipelined CopyIn { ctx: RawContext, stream: StreamArg, dst: u64, data: Bytes };
    79 Pipelined CopyInBulk { ctx: RawContext, stream: StreamArg, dst: u64, bytes: u64, transfer: u64 };
    80 Pipelined BoxIn { ctx: RawContext, stream: StreamArg, dst: BoxSide, size: [u64; 3], data: Bytes };
    81 Pipelined BoxInBulk { ctx: RawContext, stream: StreamArg, dst: BoxSide, size: [u64; 3], transfer: u64 };
    82 Pipelined CopyOut { ctx: RawContext, stream: StreamArg, src: u64, bytes: u64, transfer: u64 };
    83 Pipelined BoxOut { ctx: RawContext, stream: StreamArg, src: BoxSide, size: [u64; 3], transfer: u64 };

    // --- graphs
    90 Slow GraphInstantiate { ctx: RawContext, graph: RawGraph, template: Option<RawTemplate>, nodes: Vec<Node>, flags: u64 };
    91 Slow GraphUpdate { ctx: RawContext, graph: RawGraph, changes: Vec<(u64, Task)> };
    92 Slow GraphEnable { ctx: RawContext, graph: RawGraph, node: u64, enabled: bool };
    93 Pipelined GraphUpload { ctx: RawContext, stream: StreamArg, graph: RawGraph };
    94 Pipelined GraphLaunch { ctx: RawContext, stream: StreamArg, graph: RawGraph };
    95 Pipelined GraphDestroy { ctx: RawContext, graph: RawGraph };
    96 Slow TemplateCreate { ctx: RawContext, template: RawTemplate };
    97 Slow TemplateCondition { ctx: RawContext, template: RawTemplate, initial: Option<u32> } -> u64;
    98 Slow TemplateDestroy { ctx: RawContext, template: RawTemplate };

    // --- textures
    110 Slow ArrayCreate { ctx: RawContext, array: RawArray, desc: ArrayDesc };
    111 Slow ArrayDestroy { ctx: RawContext, array: RawArray };
    112 Slow MipmapCreate { ctx: RawContext, mipmap: RawMipmap, desc: ArrayDesc, levels: u32 };
    113 Slow MipmapLevel { ctx: RawContext, mipmap: RawMipmap, level: u32, array: RawArray };
    114 Slow MipmapDestroy { ctx: RawContext, mipmap: RawMipmap };
    115 Slow TextureCreate { ctx: RawContext, texture: Texture } -> u64;
    116 Slow TextureDestroy { ctx: RawContext, texture: u64 };
    117 Slow SurfaceCreate { ctx: RawContext, array: RawArray } -> u64;
    118 Slow SurfaceDestroy { ctx: RawContext, surface: u64 };
    119 Quick LinearTextureWidth { device: u32, format: u32, channels: u32 } -> u64;
    120 Slow TensorMapMake { ctx: RawContext, request: TensorMapRequest } -> TensorMap;

    // --- green contexts
    130 Slow SmCountAsk { device: u32, of: Vec<SmStep> } -> SmCount;
    131 Slow SmSplitAsk { device: u32, of: Vec<SmStep>, split: SmSplit } -> (Vec<SmCount>, SmCount);
    132 Slow GreenCreate { device: u32, of: Vec<SmStep>, green: RawGreen };
    133 Slow GreenDestroy { green: RawGreen };
    134 Slow GreenStreamCreate { ctx: RawContext, green: RawGreen, stream: RawStream, priority: i32 };
}

/// How long a call may be.
pub(crate) fn call_limit(opcode: u16) -> usize {
    match opcode {
        ModuleLoad::OPCODE | Link::OPCODE | GraphInstantiate::OPCODE | GraphUpdate::OPCODE => LONG_MAX,
        CopyIn::OPCODE | BoxIn::OPCODE => INLINE_MAX + 256,
        _ => SHORT_MAX,
    }
}

/// How long an answer to a call may be.
pub(crate) fn answer_limit(opcode: u16) -> usize {
    match opcode {
        ModuleLoad::OPCODE | Link::OPCODE | ModuleFunctions::OPCODE | PlaceEnd::OPCODE => LONG_MAX,
        _ => SHORT_MAX,
    }
}

/// The most tickets that a word tells.
pub(crate) const TICKETS_MAX: usize = 64 << 10;

/// What the far end is, first of all.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Hello {
    pub(crate) kind: String,
    pub(crate) on_cores: bool,
    pub(crate) describe: String,
    pub(crate) driver_version: i32,
    pub(crate) driver_release: String,
    pub(crate) devices: Vec<DeviceFacts>,
}

impl Wire for Hello {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.kind.encode(to);
        self.on_cores.encode(to);
        self.describe.encode(to);
        self.driver_version.encode(to);
        self.driver_release.encode(to);
        self.devices.encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            kind: Wire::decode(from)?,
            on_cores: Wire::decode(from)?,
            describe: Wire::decode(from)?,
            driver_version: Wire::decode(from)?,
            driver_release: Wire::decode(from)?,
            devices: Wire::decode(from)?,
        })
    }
}

/// What the far end says. Where there is an `after`, it holds only once so many pieces have come out of each bulk stream (an empty
/// one: as many as before).
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Word {
    /// The answer to a call: its error (0 for none), a sentence for the log, the answer proper.
    Reply { after: Vec<u64>, error: u32, detail: String, body: Bytes },
    /// Tickets that have come true, and the error that each met.
    Done { after: Vec<u64>, tickets: Vec<(u64, u32)> },
    /// A pipelined call of a context has failed.
    Failed { ctx: RawContext, error: u32 },
    /// What the device has written to registered memory.
    Changes { base: u64, runs: Bytes },
    /// A stream has come to a host function.
    HostCall { after: Vec<u64>, call: u64, function: u64, error: u32 },
    /// So many bytes of calls have been read, and so many of bulk have been used, since the beginning.
    Ack { control: u64, bulk: u64 },
    /// What kernels have printed.
    Output { data: Bytes },
    /// Contents of memory, as a piece in a bulk stream.
    Data { transfer: u64, offset: u64, data: Bytes },
    /// Nothing.
    Ping,
}

impl Word {
    /// How long it may be, an answer as long as `answer` says.
    pub(crate) fn limit(opcode: u16, answer: impl FnOnce() -> usize) -> usize {
        match opcode {
            1 => answer(),
            // Tickets, changes, output.
            2 | 4 | 7 => SHORT_MAX,
            8 => INLINE_MAX + 256,
            _ => 256,
        }
    }

    pub(crate) fn opcode(&self) -> u16 {
        match self {
            Self::Reply { .. } => 1,
            Self::Done { .. } => 2,
            Self::Failed { .. } => 3,
            Self::Changes { .. } => 4,
            Self::HostCall { .. } => 5,
            Self::Ack { .. } => 6,
            Self::Output { .. } => 7,
            Self::Data { .. } => 8,
            Self::Ping => 9,
        }
    }

    pub(crate) fn decode(opcode: u16, body: &[u8]) -> Result<Self, DecodeError> {
        let from = &mut Decoder::new(body);
        let word = match opcode {
            1 => Self::Reply {
                after: Wire::decode(from)?,
                error: Wire::decode(from)?,
                detail: Wire::decode(from)?,
                body: Wire::decode(from)?,
            },
            2 => Self::Done { after: Wire::decode(from)?, tickets: Wire::decode(from)? },
            3 => Self::Failed { ctx: Wire::decode(from)?, error: Wire::decode(from)? },
            4 => Self::Changes { base: Wire::decode(from)?, runs: Wire::decode(from)? },
            5 => Self::HostCall {
                after: Wire::decode(from)?,
                call: Wire::decode(from)?,
                function: Wire::decode(from)?,
                error: Wire::decode(from)?,
            },
            6 => Self::Ack { control: Wire::decode(from)?, bulk: Wire::decode(from)? },
            7 => Self::Output { data: Wire::decode(from)? },
            8 => Self::Data {
                transfer: Wire::decode(from)?,
                offset: Wire::decode(from)?,
                data: Wire::decode(from)?,
            },
            9 => Self::Ping,
            other => return Err(DecodeError::Invalid { what: "opcode", value: other.into() }),
        };
        match from.remaining() {
            0 => Ok(word),
            more => Err(DecodeError::Trailing(more)),
        }
    }

    /// What travels behind the header.
    pub(crate) fn body(&self) -> WordBody<'_> {
        WordBody(self)
    }
}

/// The fields of a [`Word`], to be encoded.
pub(crate) struct WordBody<'a>(&'a Word);

impl Wire for WordBody<'_> {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self.0 {
            Word::Reply { after, error, detail, body } => {
                after.encode(to);
                error.encode(to);
                detail.encode(to);
                body.encode(to);
            }
            Word::Done { after, tickets } => {
                after.encode(to);
                tickets.encode(to);
            }
            Word::Failed { ctx, error } => (*ctx, *error).encode(to),
            Word::Changes { base, runs } => {
                base.encode(to);
                runs.encode(to);
            }
            Word::HostCall { after, call, function, error } => {
                after.encode(to);
                (*call, (*function, *error)).encode(to);
            }
            Word::Ack { control, bulk } => (*control, *bulk).encode(to),
            Word::Output { data } => data.encode(to),
            Word::Data { transfer, offset, data } => {
                (*transfer, *offset).encode(to);
                data.encode(to);
            }
            Word::Ping => {}
        }
    }
    fn decode(_: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Err(DecodeError::Invalid { what: "borrowed message", value: 0 })
    }
}

/// A node of a graph, with its host function by number.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) task: Task,
    pub(crate) after: Vec<GraphEdge>,
}

impl Wire for Node {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.task.encode(to);
        self.after.encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { task: Wire::decode(from)?, after: Wire::decode(from)? })
    }
}

/// What a node does.
#[derive(Debug)]
pub(crate) enum Task {
    Empty,
    Kernel(RawContext, GraphKernel),
    Copy(RawContext, CopyBox),
    Fill(RawContext, Fill),
    Host(u64),
    EventRecord(RawEvent),
    EventWait(RawEvent),
    Operations(RawContext, Vec<MemoryOperation>),
    Conditional(RawContext, GraphConditional),
}

impl Wire for Task {
    fn encode(&self, to: &mut Encoder<'_>) {
        let mut numbered = |number: u8, fields: &dyn Fn(&mut Encoder<'_>)| {
            number.encode(to);
            fields(to);
        };
        match self {
            Self::Empty => numbered(0, &|_| {}),
            Self::Kernel(ctx, kernel) => numbered(1, &|to| {
                ctx.encode(to);
                kernel.encode(to);
            }),
            Self::Copy(ctx, copy) => numbered(2, &|to| (*ctx, *copy).encode(to)),
            Self::Fill(ctx, fill) => numbered(3, &|to| (*ctx, *fill).encode(to)),
            Self::Host(function) => numbered(4, &|to| function.encode(to)),
            Self::EventRecord(event) => numbered(5, &|to| event.encode(to)),
            Self::EventWait(event) => numbered(6, &|to| event.encode(to)),
            Self::Operations(ctx, operations) => numbered(7, &|to| {
                ctx.encode(to);
                operations.encode(to);
            }),
            Self::Conditional(ctx, conditional) => numbered(8, &|to| {
                ctx.encode(to);
                conditional.encode(to);
            }),
        }
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(match u8::decode(from)? {
            0 => Self::Empty,
            1 => Self::Kernel(Wire::decode(from)?, Wire::decode(from)?),
            2 => Self::Copy(Wire::decode(from)?, Wire::decode(from)?),
            3 => Self::Fill(Wire::decode(from)?, Wire::decode(from)?),
            4 => Self::Host(Wire::decode(from)?),
            5 => Self::EventRecord(Wire::decode(from)?),
            6 => Self::EventWait(Wire::decode(from)?),
            7 => Self::Operations(Wire::decode(from)?, Wire::decode(from)?),
            8 => Self::Conditional(Wire::decode(from)?, Wire::decode(from)?),
            other => return Err(DecodeError::Invalid { what: "node of a graph", value: other.into() }),
        })
    }
}

/// A texture, with arrays by name.
#[derive(Debug)]
pub(crate) struct Texture(pub(crate) RawTexture);

impl Wire for Texture {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self.0.resource {
            Resource::Array(array) => (0u8, array).encode(to),
            Resource::Mipmap(mipmap) => (1u8, mipmap).encode(to),
            Resource::Linear { address, format, channels, bytes } => {
                (2u8, ([address, bytes], [format, channels])).encode(to);
            }
            Resource::Pitch2D { address, format, channels, width, height, pitch } => {
                (3u8, ([address, width, height, pitch], [format, channels])).encode(to);
            }
        }
        self.0.sampling.encode(to);
        self.0.view.encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let resource = match u8::decode(from)? {
            0 => Resource::Array(Wire::decode(from)?),
            1 => Resource::Mipmap(Wire::decode(from)?),
            2 => {
                let ([address, bytes], [format, channels]) = Wire::decode(from)?;
                Resource::Linear { address, format, channels, bytes }
            }
            3 => {
                let ([address, width, height, pitch], [format, channels]) = Wire::decode(from)?;
                Resource::Pitch2D { address, format, channels, width, height, pitch }
            }
            other => return Err(DecodeError::Invalid { what: "resource of a texture", value: other.into() }),
        };
        Ok(Self(RawTexture { resource, sampling: Wire::decode(from)?, view: Wire::decode(from)? }))
    }
}
