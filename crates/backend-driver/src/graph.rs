//! Executable graphs. The driver's graph that one is made from stays beside it: it names the nodes, and is what larger changes
//! are compared with.

use crate::api::{Api, check};
use crate::driver::{event, stream};
use crate::work;
use backend::{GraphFunction, GraphKernel, GraphPlan, GraphWork, Result, StreamArg};
use cudarc::driver::sys;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use sys::CUgraphNodeType as Kind;
use wire::{CuError, LaunchValue};

/// An executable graph; the driver's handles as numbers.
pub struct Graph {
    template: usize,
    exec: usize,
    nodes: Vec<Node>,
    functions: Arc<Functions>,
    /// How often it has been launched.
    launches: u64,
}

#[derive(Clone)]
struct Node {
    raw: usize,
    work: GraphWork,
    /// Its host function, if that is what it does.
    place: Option<Arc<Place>>,
    /// How often the graph had been launched when it got its work.
    since: u64,
}

/// The host functions of a graph, in the order in which its nodes got them. The driver holds them too, through a user object of the
/// graph: until the last launch is complete, however early the graph is destroyed.
#[derive(Default)]
struct Functions(Mutex<Vec<Arc<Place>>>);

/// A node's host function, at an address that the driver is given.
struct Place {
    node: usize,
    function: GraphFunction,
    all: Weak<Functions>,
}

impl Functions {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Place>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for what a node calls, if it calls something.
    fn place(self: &Arc<Self>, node: usize, work: &GraphWork) -> Option<Arc<Place>> {
        let GraphWork::Host(function) = work else { return None };
        let place = Arc::new(Place { node, function: function.clone(), all: Arc::downgrade(self) });
        self.lock().push(Arc::clone(&place));
        Some(place)
    }

    /// Forgets what nobody can call.
    fn forget(&self, gone: &Arc<Place>) {
        self.lock().retain(|place| !Arc::ptr_eq(place, gone));
    }

    /// Forgets what the node called before: launches of a graph are in turn, so those that knew it are complete.
    fn forget_before(&self, place: &Place) {
        let mut newer = false;
        self.lock().retain(|each| {
            newer |= std::ptr::eq(&**each, place);
            newer || each.node != place.node
        });
    }
}

impl Place {
    /// Does what the node is there for.
    fn run(&self) {
        // The driver runs host functions only in streams without an error.
        (self.function.0)(Ok(()));
        if let Some(all) = self.all.upgrade() {
            all.forget_before(self);
        }
    }
}

unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: a place that the graph had when it was launched: it is forgotten when a later launch has come to its node, or with
    // the graph, which the driver holds meanwhile.
    unsafe { &*data.cast::<Place>() }.run();
}

unsafe extern "C" fn release(data: *mut c_void) {
    // SAFETY: the pointer given to `cuUserObjectCreate`, whose last reference is gone.
    drop(unsafe { Arc::from_raw(data.cast::<Functions>()) });
}

impl Graph {
    /// Builds a graph and makes it executable, in the context that is current.
    pub fn make(api: &Api, plan: &GraphPlan, flags: u64) -> Result<Self> {
        let mut template: sys::CUgraph = std::ptr::null_mut();
        // SAFETY: writes the graph.
        check(unsafe { (api.cuGraphCreate)(&raw mut template, 0) })?;
        let functions = Arc::<Functions>::default();
        let mut graph =
            Self { template: template as usize, exec: 0, nodes: Vec::new(), functions, launches: 0 };
        let made = graph.keep_functions(api).and_then(|()| graph.build(api, plan)).and_then(|()| {
            let mut exec: sys::CUgraphExec = std::ptr::null_mut();
            // SAFETY: writes the executable graph.
            check(unsafe { (api.cuGraphInstantiateWithFlags)(&raw mut exec, template, flags) })?;
            graph.exec = exec as usize;
            Ok(())
        });
        match made {
            Ok(()) => Ok(graph),
            Err(error) => {
                // SAFETY: the graph just made.
                let _ = unsafe { (api.cuGraphDestroy)(template) };
                Err(error)
            }
        }
    }

    fn exec(&self) -> sys::CUgraphExec {
        self.exec as sys::CUgraphExec
    }

    fn node(&self, node: usize) -> Result<sys::CUgraphNode> {
        self.nodes.get(node).map(|node| node.raw as sys::CUgraphNode).ok_or(CuError::INVALID_VALUE)
    }

    /// Has the driver hold the host functions for as long as it may call them.
    fn keep_functions(&self, api: &Api) -> Result<()> {
        let held = Arc::into_raw(Arc::clone(&self.functions)).cast_mut().cast();
        let mut object: sys::CUuserObject = std::ptr::null_mut();
        let flags = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as c_uint;
        // SAFETY: `release` takes back the reference given here.
        check(unsafe { (api.cuUserObjectCreate)(&raw mut object, held, Some(release), 1, flags) })
            // SAFETY: the driver did not take the reference.
            .inspect_err(|_| unsafe { release(held) })?;
        let flags = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as c_uint;
        // SAFETY: the graph takes over the only reference.
        check(unsafe { (api.cuGraphRetainUserObject)(self.template as sys::CUgraph, object, 1, flags) })
    }

    fn build(&mut self, api: &Api, plan: &GraphPlan) -> Result<()> {
        for node in &plan.nodes {
            let after =
                node.after.iter().map(|edge| self.node(edge.from as usize)).collect::<Result<Vec<_>>>()?;
            let edges: Vec<_> = node
                .after
                .iter()
                .map(|edge| sys::CUgraphEdgeData {
                    from_port: edge.from_port,
                    to_port: edge.to_port,
                    type_: edge.kind,
                    reserved: [0; 5],
                })
                .collect();
            let mut raw: sys::CUgraphNode = std::ptr::null_mut();
            let template = self.template as sys::CUgraph;
            let place = self.functions.place(self.nodes.len(), &node.work);
            with_params(&node.work, place.as_deref(), |params| {
                // SAFETY: whole parameters, and as many nodes of this graph as are said; it writes the node.
                check(unsafe {
                    (api.cuGraphAddNode_v2)(
                        &raw mut raw,
                        template,
                        after.as_ptr(),
                        edges.as_ptr(),
                        after.len(),
                        params,
                    )
                })
            })?;
            if let GraphWork::Kernel(_, kernel) = &node.work {
                kernel.attributes.iter().try_for_each(|attribute| set_attribute(api, raw, attribute))?;
            }
            self.nodes.push(Node { raw: raw as usize, work: node.work.clone(), place, since: 0 });
        }
        Ok(())
    }

    /// Gives nodes other work.
    pub fn update(&mut self, api: &Api, changes: &[(usize, GraphWork)]) -> Result<()> {
        for (node, work) in changes {
            let node = self.nodes.get(*node).ok_or(CuError::INVALID_VALUE)?;
            if !node.work.is_like(work) {
                return Err(CuError::GRAPH_EXEC_UPDATE_FAILURE);
            }
        }
        let before: Vec<_> = changes.iter().map(|(node, _)| (*node, self.nodes[*node].clone())).collect();
        let updated = changes
            .iter()
            .try_for_each(|(node, work)| {
                let place = self.functions.place(*node, work);
                self.set_in_template(api, *node, work, place)
            })
            .and_then(|()| self.apply(api, changes, &before));
        for (node, old) in before {
            if updated.is_err() {
                // What the driver took before, it takes again.
                if self.set_in_template(api, node, &old.work, old.place).is_ok() {
                    self.nodes[node].since = old.since;
                }
            } else if let Some(place) = old.place.filter(|_| old.since == self.launches) {
                // No launch knows it.
                self.functions.forget(&place);
            }
        }
        updated
    }

    /// Brings the executable graph in line with the template.
    fn apply(&self, api: &Api, changes: &[(usize, GraphWork)], before: &[(usize, Node)]) -> Result<()> {
        if let ([(node, work)], [(_, old)]) = (changes, before)
            && attributes(work) == attributes(&old.work)
        {
            let raw = self.node(*node)?;
            return with_params(work, self.nodes[*node].place.as_deref(), |params| {
                // SAFETY: a node of the graph that this one was made from, and whole parameters of its kind.
                check(unsafe { (api.cuGraphExecNodeSetParams)(self.exec(), raw, params) })
            });
        }
        let mut info = sys::CUgraphExecUpdateResultInfo {
            result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS,
            errorNode: std::ptr::null_mut(),
            errorFromNode: std::ptr::null_mut(),
        };
        let template = self.template as sys::CUgraph;
        // SAFETY: both live; it writes the result, which is not read: a newer driver may tell what today's enum does not have.
        check(unsafe { (api.cuGraphExecUpdate_v2)(self.exec(), template, &raw mut info) })
    }

    fn set_in_template(
        &mut self,
        api: &Api,
        node: usize,
        work: &GraphWork,
        place: Option<Arc<Place>>,
    ) -> Result<()> {
        let raw = self.node(node)?;
        with_params(work, place.as_deref(), |params| {
            // SAFETY: a node of the template, and whole parameters of its kind.
            check(unsafe { (api.cuGraphNodeSetParams)(raw, params) })
        })?;
        if let (GraphWork::Kernel(_, new), GraphWork::Kernel(_, old)) = (work, &self.nodes[node].work) {
            let gone =
                old.attributes.iter().filter(|(id, _)| !new.attributes.iter().any(|(new, _)| new == id));
            let reset: Vec<_> = gone.map(|(id, _)| (*id, LaunchValue([0; 64]))).collect();
            reset
                .iter()
                .chain(&new.attributes)
                .try_for_each(|attribute| set_attribute(api, raw, attribute))?;
        }
        self.nodes[node] = Node { raw: raw as usize, work: work.clone(), place, since: self.launches };
        Ok(())
    }

    /// Lets a node do its work, or nothing.
    pub fn enable(&self, api: &Api, node: usize, enabled: bool) -> Result<()> {
        // SAFETY: a node of the graph that this one was made from.
        check(unsafe { (api.cuGraphNodeSetEnabled)(self.exec(), self.node(node)?, enabled.into()) })
    }

    /// As `cuGraphUpload`.
    pub fn upload(&self, api: &Api, arg: StreamArg) -> Result<()> {
        // SAFETY: both live.
        check(unsafe { (api.cuGraphUpload)(self.exec(), stream(arg)) })
    }

    /// As `cuGraphLaunch`.
    pub fn launch(&mut self, api: &Api, arg: StreamArg) -> Result<()> {
        self.launches += 1;
        // SAFETY: both live.
        check(unsafe { (api.cuGraphLaunch)(self.exec(), stream(arg)) })
    }

    /// Destroys both; a launch that is under way completes.
    pub fn destroy(self, api: &Api) -> Result<()> {
        // SAFETY: nobody else has the handles.
        let exec = check(unsafe { (api.cuGraphExecDestroy)(self.exec()) });
        // SAFETY: as above.
        let template = check(unsafe { (api.cuGraphDestroy)(self.template as sys::CUgraph) });
        exec.and(template)
    }
}

fn attributes(work: &GraphWork) -> &[(u32, LaunchValue)] {
    match work {
        GraphWork::Kernel(_, kernel) => &kernel.attributes,
        _ => &[],
    }
}

fn set_attribute(api: &Api, node: sys::CUgraphNode, (id, value): &(u32, LaunchValue)) -> Result<()> {
    let value: [u64; 8] = work::words(value);
    // SAFETY: a kernel node, and a value of the size that every attribute has; the driver refuses ids it does not know.
    check(unsafe { (api.cuGraphKernelNodeSetAttribute)(node, *id, value.as_ptr().cast()) })
}

/// Calls `body` with a node's parameters in the driver's own form; they are whole until it returns. `place` is that of a host function.
fn with_params(
    work: &GraphWork,
    place: Option<&Place>,
    body: impl FnOnce(*mut sys::CUgraphNodeParams) -> Result<()>,
) -> Result<()> {
    // SAFETY: a record of numbers, pointers and enumerations whose first value is 0.
    let mut params: sys::CUgraphNodeParams = unsafe { std::mem::zeroed() };
    let body = |kind, params: &mut sys::CUgraphNodeParams| {
        params.type_ = kind;
        body(&raw mut *params)
    };
    match work {
        GraphWork::Empty => body(Kind::CU_GRAPH_NODE_TYPE_EMPTY, &mut params),
        GraphWork::Kernel(ctx, kernel) => {
            let mut bytes = kernel.params.len();
            let mut extra = work::param_buffer(&kernel.params, &mut bytes);
            params.__bindgen_anon_1.kernel =
                kernel_params(kernel, ctx.0 as sys::CUcontext, extra.as_mut_ptr());
            body(Kind::CU_GRAPH_NODE_TYPE_KERNEL, &mut params)
        }
        GraphWork::Copy(ctx, copy) => {
            params.__bindgen_anon_1.memcpy = sys::CUDA_MEMCPY_NODE_PARAMS {
                flags: 0,
                reserved: 0,
                copyCtx: ctx.0 as sys::CUcontext,
                copyParams: work::copy_record(copy),
            };
            body(Kind::CU_GRAPH_NODE_TYPE_MEMCPY, &mut params)
        }
        GraphWork::Fill(ctx, fill) => {
            params.__bindgen_anon_1.memset = sys::CUDA_MEMSET_NODE_PARAMS_v2 {
                dst: fill.dst,
                pitch: fill.pitch as usize,
                value: fill.value,
                elementSize: fill.element.into(),
                width: fill.width as usize,
                height: fill.height as usize,
                ctx: ctx.0 as sys::CUcontext,
            };
            body(Kind::CU_GRAPH_NODE_TYPE_MEMSET, &mut params)
        }
        GraphWork::Host(_) => {
            let place = place.ok_or(CuError::INVALID_VALUE)?;
            // SAFETY: the fields of the record that `type_` will say is there, zero so far.
            let host = unsafe { &mut params.__bindgen_anon_1.host };
            host.fn_ = Some(run);
            host.userData = std::ptr::from_ref(place).cast_mut().cast();
            body(Kind::CU_GRAPH_NODE_TYPE_HOST, &mut params)
        }
        GraphWork::EventRecord(raw) => {
            params.__bindgen_anon_1.eventRecord = sys::CUDA_EVENT_RECORD_NODE_PARAMS { event: event(*raw) };
            body(Kind::CU_GRAPH_NODE_TYPE_EVENT_RECORD, &mut params)
        }
        GraphWork::EventWait(raw) => {
            params.__bindgen_anon_1.eventWait = sys::CUDA_EVENT_WAIT_NODE_PARAMS { event: event(*raw) };
            body(Kind::CU_GRAPH_NODE_TYPE_WAIT_EVENT, &mut params)
        }
    }
}

fn kernel_params(
    kernel: &GraphKernel,
    ctx: sys::CUcontext,
    extra: *mut *mut c_void,
) -> sys::CUDA_KERNEL_NODE_PARAMS_v3 {
    sys::CUDA_KERNEL_NODE_PARAMS_v3 {
        func: kernel.function.0 as sys::CUfunction,
        gridDimX: kernel.grid[0],
        gridDimY: kernel.grid[1],
        gridDimZ: kernel.grid[2],
        blockDimX: kernel.block[0],
        blockDimY: kernel.block[1],
        blockDimZ: kernel.block[2],
        sharedMemBytes: kernel.shared,
        kernelParams: std::ptr::null_mut(),
        extra,
        kern: std::ptr::null_mut(),
        ctx,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn functions_go_when_a_later_launch_has_come_to_their_node() {
        let functions = Arc::<Functions>::default();
        let calls = Arc::new(AtomicUsize::new(0));
        let work = || {
            let calls = Arc::clone(&calls);
            GraphWork::Host(GraphFunction(Arc::new(move |_| {
                calls.fetch_add(1, Ordering::Relaxed);
            })))
        };
        assert!(functions.place(0, &GraphWork::Empty).is_none());
        let [first, other, second, unused, third] =
            [1, 2, 1, 1, 1].map(|node| Arc::downgrade(&functions.place(node, &work()).unwrap()));
        let alive = || [&first, &other, &second, &unused, &third].map(|place| place.strong_count() > 0);
        first.upgrade().unwrap().run();
        assert_eq!(alive(), [true; 5]);
        functions.forget(&unused.upgrade().unwrap());
        second.upgrade().unwrap().run();
        assert_eq!(alive(), [false, true, true, false, true]);
        third.upgrade().unwrap().run();
        assert_eq!(alive(), [false, true, false, false, true]);
        assert_eq!(calls.load(Ordering::Relaxed), 3);
        drop(functions);
        assert_eq!(alive(), [false; 5]);
    }
}
