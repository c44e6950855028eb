//! From the model to a plan for the server: what the application's own memory and functions take part in becomes callbacks and
//! staging memory.

use ::graph::{EdgeData, Step, What};
use cuda_abi::{CuError, CuResult, FunctionId};
use wire::{
    Bytes, CallbackId, CopySide, GraphConditional, GraphCopy, GraphData, GraphEdge, GraphFill, GraphKernel,
    GraphNode, GraphOperations, GraphPlan, GraphWork, Pitched, UploadId, Wire,
};

use super::{Copy, Fill, HostCall, Kernel, Work};
use crate::client::{Call, Callback, End, Extent, LocalRows, Place, Rows, Upload};
use crate::report::{Unsupported, report};

/// Where a node is in the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// A node of its own.
    One(u32),
    /// A callback.
    Host {
        /// The node.
        at: u32,
        /// The callback.
        callback: u32,
    },
    /// A copy between staging memory and the device, and the callback that fills or empties that.
    Staged {
        /// Whether the copy is to the device.
        up: bool,
        /// The callback's node.
        host: u32,
        /// The copy's node.
        copy: u32,
        /// The callback.
        callback: u32,
        /// The staging memory.
        staging: u64,
        /// Bytes of it.
        bytes: u64,
    },
}

impl Slot {
    /// Its callback, if it has one.
    pub fn callback(&self) -> Option<u32> {
        match self {
            Self::One(_) => None,
            Self::Host { callback, .. } | Self::Staged { callback, .. } => Some(*callback),
        }
    }
}

/// What a node becomes.
enum Planned {
    One(GraphWork),
    Host(u32),
    Staged { up: bool, callback: u32, copy: GraphCopy, staging: u64, bytes: u64 },
}

/// Makes plans; what it has taken on the way is given back with [`Planner::undo`].
pub struct Planner<'a, 'b> {
    call: &'a mut Call<'b>,
    callbacks: Vec<u32>,
    /// Staging memory taken.
    pub staging: Vec<u64>,
}

impl<'a, 'b> Planner<'a, 'b> {
    /// One that has taken nothing.
    pub fn new(call: &'a mut Call<'b>) -> Self {
        Self { call, callbacks: Vec::new(), staging: Vec::new() }
    }

    /// Does something with the call.
    pub fn send<R>(&mut self, body: impl FnOnce(&mut Call<'b>) -> CuResult<R>) -> CuResult<R> {
        body(self.call)
    }

    /// Gives everything back.
    pub fn undo(self) {
        self.callbacks.iter().for_each(|id| self.call.session.callbacks.retire(*id));
        for address in self.staging {
            // What fails here goes with the context.
            let _ = self.call.free_pinned(address);
        }
    }

    /// The plan of steps with their work, and where each step's node is.
    ///
    /// # Errors
    /// What is wrong with a node; what the server says.
    pub fn plan(&mut self, steps: &[(Step, Option<Work>)]) -> CuResult<(GraphPlan, Vec<Slot>)> {
        let mut plan = GraphPlan::default();
        let mut slots: Vec<Slot> = Vec::with_capacity(steps.len());
        // The node of the plan that stands for a step in what waits for it.
        let mut last: Vec<u32> = Vec::with_capacity(steps.len());
        // The end of the outermost conditional node's bodies.
        let mut bodies_end = 0;
        for (number, (step, work)) in steps.iter().enumerate() {
            let after =
                step.after.iter().filter_map(|(step, data)| Some(edge(*last.get(*step)?, *data))).collect();
            let planned = match (&step.what, work) {
                (What::Work, Some(work)) => self.planned(work, None, true)?,
                (What::Choice(bodies), Some(Work::Conditional(conditional))) => {
                    bodies_end = bodies_end.max(number + 1 + bodies.iter().sum::<usize>());
                    Planned::One(GraphWork::Conditional(GraphConditional {
                        ctx: conditional.condition.ctx,
                        handle: conditional.condition.value,
                        kind: conditional.kind,
                        // Each step in a body is one node.
                        bodies: bodies.iter().map(|steps| *steps as u32).collect(),
                    }))
                }
                _ => Planned::One(GraphWork::Empty),
            };
            if number < bodies_end {
                check_body(&planned, work.as_ref())?;
            }
            let at = plan.nodes.len() as u32;
            let mut push = |work, after| plan.nodes.push(GraphNode { work, after });
            let slot = match planned {
                Planned::One(work) => {
                    push(work, after);
                    Slot::One(at)
                }
                Planned::Host(callback) => {
                    push(GraphWork::Host(CallbackId(callback)), after);
                    Slot::Host { at, callback }
                }
                Planned::Staged { up, callback, copy, staging, bytes } => {
                    let (host, copy) = (GraphWork::Host(CallbackId(callback)), GraphWork::Copy(copy));
                    let (first, second) = if up { (host, copy) } else { (copy, host) };
                    push(first, after);
                    push(second, vec![edge(at, EdgeData::default())]);
                    let (host, copy) = if up { (at, at + 1) } else { (at + 1, at) };
                    Slot::Staged { up, host, copy, callback, staging, bytes }
                }
            };
            last.push(plan.nodes.len() as u32 - 1);
            slots.push(slot);
        }
        Ok((plan, slots))
    }

    /// New work for a node in a slot: the nodes of the plan that change, and the slot it then has. A node that is not `enabled` has
    /// callbacks that do nothing.
    ///
    /// # Errors
    /// `GRAPH_EXEC_UPDATE_FAILURE` when the slot cannot hold it; as [`Planner::plan`].
    pub fn change(
        &mut self,
        slot: Slot,
        work: &Work,
        enabled: bool,
    ) -> CuResult<(Vec<(u32, GraphWork)>, Slot)> {
        match (slot, self.planned(work, Some(slot), enabled)?) {
            (Slot::One(at), Planned::One(work)) => Ok((vec![(at, work)], slot)),
            (Slot::Host { at, .. }, Planned::Host(callback)) => {
                Ok((vec![(at, GraphWork::Host(CallbackId(callback)))], Slot::Host { at, callback }))
            }
            (
                Slot::Staged { up: was, host, copy: at, .. },
                Planned::Staged { up, callback, copy, staging, bytes },
            ) if was == up => Ok((
                vec![(host, GraphWork::Host(CallbackId(callback))), (at, GraphWork::Copy(copy))],
                Slot::Staged { up, host, copy: at, callback, staging, bytes },
            )),
            _ => Err(CuError::GRAPH_EXEC_UPDATE_FAILURE),
        }
    }

    fn planned(&mut self, work: &Work, before: Option<Slot>, enabled: bool) -> CuResult<Planned> {
        Ok(match work {
            Work::Empty => Planned::One(GraphWork::Empty),
            Work::Kernel(kernel) => Planned::One(GraphWork::Kernel(kernel_work(kernel))),
            Work::Copy(copy) => self.copy(copy, before, enabled)?,
            Work::Fill(fill) => Planned::One(GraphWork::Fill(fill_work(fill))),
            Work::Host(HostCall(function, data)) => {
                Planned::Host(self.keep(Callback::Function(*function, *data))?)
            }
            Work::EventRecord(event, _) => Planned::One(GraphWork::EventRecord(*event)),
            Work::EventWait(event, _) => Planned::One(GraphWork::EventWait(*event)),
            Work::Operations(operations) => Planned::One(GraphWork::Operations(GraphOperations {
                ctx: operations.ctx,
                operations: operations.list.clone(),
            })),
            // It cannot be changed, and is planned with its bodies.
            Work::Conditional(_) => return Err(CuError::GRAPH_EXEC_UPDATE_FAILURE),
            // The memory is there before, and after.
            Work::MemAlloc(_) | Work::MemFree(_) => Planned::One(GraphWork::Empty),
        })
    }

    fn keep(&mut self, callback: Callback) -> CuResult<u32> {
        let id = self.call.session.next_id();
        self.call.session.callbacks.keep(id, callback)?;
        self.callbacks.push(id);
        Ok(id)
    }

    fn keep_rows(&mut self, rows: LocalRows, enabled: bool) -> CuResult<u32> {
        let nothing = Extent { width: 0, height: 0, depth: 0 };
        let extent = if enabled { rows.extent } else { nothing };
        self.keep(Callback::Rows(LocalRows { extent, ..rows }))
    }

    fn copy(&mut self, copy: &Copy, before: Option<Slot>, enabled: bool) -> CuResult<Planned> {
        let Copy { ctx, ref dst, ref src, extent } = *copy;
        let Extent { width, height, depth } = extent;
        let (to, from) = (dst.place(self.call, extent)?, src.place(self.call, extent)?);
        let whole = GraphCopy { ctx, dst: dst.whole(), src: src.whole(), width, height, depth };
        // Pinned memory is the application's too, where the node's slot is one for that.
        let is_host = |place: Place| place != Place::Device;
        let (to, from) = match before {
            Some(Slot::Host { .. }) => (is_host(to), is_host(from)),
            Some(Slot::Staged { up: true, .. }) => (to.is_local(), is_host(from)),
            Some(Slot::Staged { up: false, .. }) => (is_host(to), from.is_local()),
            Some(Slot::One(_)) | None => (to.is_local(), from.is_local()),
        };
        // Where rows are this process's own, if they are.
        let local = |end: &End, is_local: bool| end.rows().filter(|_| is_local).map(Rows::pitched);
        let (up, local) = match (local(dst, to), local(src, from)) {
            (None, None) => return Ok(Planned::One(GraphWork::Copy(whole))),
            (Some(dst), Some(src)) => {
                return Ok(Planned::Host(self.keep_rows(LocalRows { dst, src, extent }, enabled)?));
            }
            (None, Some(src)) => (true, src),
            (Some(dst), None) => (false, dst),
        };
        let bytes = width.checked_mul(height).and_then(|plane| plane.checked_mul(depth));
        let bytes = bytes.ok_or(CuError::INVALID_VALUE)?;
        let (staging, bytes) = match before {
            Some(Slot::Staged { staging, bytes: room, .. }) if bytes <= room => (staging, room),
            _ => {
                let address = self.call.allocate_pinned(bytes, 0)?;
                self.staging.push(address);
                (address, bytes)
            }
        };
        let packed = Pitched { address: staging, pitch: width, rows: height };
        let side = CopySide::Memory(packed);
        let (rows, copy) = match up {
            true => (LocalRows { dst: packed, src: local, extent }, GraphCopy { src: side, ..whole }),
            false => (LocalRows { dst: local, src: packed, extent }, GraphCopy { dst: side, ..whole }),
        };
        let callback = self.keep_rows(rows, enabled)?;
        Ok(Planned::Staged { up, callback, copy, staging, bytes })
    }
}

/// Refuses what a device cannot do by itself in the body of a conditional node.
///
/// # Errors
/// `NOT_SUPPORTED`.
fn check_body(planned: &Planned, work: Option<&Work>) -> CuResult {
    if !work.is_none_or(Work::fits_body) {
        return Err(CuError::NOT_SUPPORTED);
    }
    match planned {
        Planned::One(_) => Ok(()),
        // A copy that this process has a part in.
        Planned::Host(_) | Planned::Staged { .. } => {
            report(Unsupported::Function(FunctionId::cuGraphConditionalHandleCreate));
            Err(CuError::NOT_SUPPORTED)
        }
    }
}

fn edge(from: u32, data: EdgeData) -> GraphEdge {
    GraphEdge { from, from_port: data.from_port, to_port: data.to_port, kind: data.kind }
}

fn kernel_work(kernel: &Kernel) -> GraphKernel {
    GraphKernel {
        ctx: kernel.ctx,
        callee: kernel.callable.callee,
        grid: kernel.size.grid,
        block: kernel.size.block,
        shared: kernel.size.shared,
        attributes: kernel.attributes.clone(),
        params: Bytes(kernel.params().to_vec()),
    }
}

fn fill_work(fill: &Fill) -> GraphFill {
    let Fill { ctx, dst, pitch, element, value, width, height } = *fill;
    GraphFill { ctx, dst, pitch, element, value, width, height }
}

/// What a message carries: the bytes, or a file with them that is removed when the second value is dropped.
///
/// # Errors
/// `OUT_OF_MEMORY` when the file cannot be written.
pub fn graph_data(call: &Call<'_>, value: &impl Wire) -> CuResult<(GraphData, Option<Upload>)> {
    let mut bytes = Vec::new();
    value.encode(&mut wire::Encoder::new(&mut bytes));
    if bytes.len() <= wire::GRAPH_INLINE_MAX {
        return Ok((GraphData::Inline(Bytes(bytes)), None));
    }
    let upload = Upload::write(&call.session.folder, UploadId(call.session.next_id()), &bytes)?;
    Ok((GraphData::Upload(upload.id), Some(upload)))
}
