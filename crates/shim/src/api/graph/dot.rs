//! A graph as a drawing for Graphviz.

use std::ffi::{CStr, OsStr, c_char, c_uint};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use ::graph::{Body, EdgeData, GraphId};
use cuda_abi::{CuError, CuResult, sys};

use crate::client::{End, session};
use crate::graph::{Model, Work, graph, told};

use sys::CUgraphDebugDot_flags as Flag;

/// Writes a graph to a file in the DOT language.
pub unsafe fn cuGraphDebugDotPrint(hGraph: sys::CUgraph, path: *const c_char, flags: c_uint) -> CuResult {
    if path.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, and text as the caller says.
    let path = OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
    let mut text = String::from("digraph dot {\n");
    draw(&session()?.graphs.lock(), graph(hGraph)?, flags, &mut text)?;
    text.push_str("}\n");
    std::fs::write(path, text).map_err(|_| CuError::OPERATING_SYSTEM)
}

/// What a node is called, with what the flags ask for.
fn label(work: &Work, flags: c_uint) -> String {
    let asked = |flag: Flag| flags & (Flag::CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE as c_uint | flag as c_uint) != 0;
    let kind = format!("{:?}", work.kind());
    let mut text = kind.trim_start_matches("CU_GRAPH_NODE_TYPE_").to_owned();
    // Writing to a String cannot fail.
    let _ = match work {
        Work::Kernel(kernel) => {
            let size = kernel.size;
            let named = write!(text, "\\n{}", kernel.callable.name.to_string_lossy());
            match asked(Flag::CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS) {
                true => write!(text, "\\ngrid {:?} block {:?} shared {}", size.grid, size.block, size.shared),
                false => named,
            }
        }
        Work::Copy(copy) if asked(Flag::CU_GRAPH_DEBUG_DOT_FLAGS_MEMCPY_NODE_PARAMS) => {
            let name = |end: &End| match end {
                End::Rows(rows) => format!("{:#x}", rows.side.address()),
                End::Array(array, at) => format!("array {:#x} at {at:?}", array.id.handle()),
            };
            let (to, from, extent) = (name(&copy.dst), name(&copy.src), copy.extent);
            write!(text, "\\n{from} to {to}, {} x {} x {}", extent.width, extent.height, extent.depth)
        }
        Work::Fill(fill) if asked(Flag::CU_GRAPH_DEBUG_DOT_FLAGS_MEMSET_NODE_PARAMS) => {
            write!(text, "\\n{:#x} = {:#x}, {} x {}", fill.dst, fill.value, fill.width, fill.height)
        }
        Work::Host(call) if asked(Flag::CU_GRAPH_DEBUG_DOT_FLAGS_HOST_NODE_PARAMS) => {
            write!(text, "\\n{:#x}", call.0 as usize)
        }
        Work::EventRecord(event, _) | Work::EventWait(event, _)
            if asked(Flag::CU_GRAPH_DEBUG_DOT_FLAGS_EVENT_NODE_PARAMS) =>
        {
            write!(text, "\\n{:#x}", event.handle())
        }
        Work::MemAlloc(memory) if asked(Flag::CU_GRAPH_DEBUG_DOT_FLAGS_MEM_ALLOC_NODE_PARAMS) => {
            write!(text, "\\n{:#x}, {} bytes", memory.address, memory.bytes)
        }
        Work::Operations(operations) if asked(Flag::CU_GRAPH_DEBUG_DOT_FLAGS_BATCH_MEM_OP_NODE_PARAMS) => {
            write!(text, "\\n{:x?}", operations.list)
        }
        Work::Conditional(conditional) if asked(Flag::CU_GRAPH_DEBUG_DOT_FLAGS_CONDITIONAL_NODE_PARAMS) => {
            write!(text, "\\n{:?} {:#x}", conditional.kind, conditional.condition.value)
        }
        Work::MemFree(address) if asked(Flag::CU_GRAPH_DEBUG_DOT_FLAGS_MEM_FREE_NODE_PARAMS) => {
            write!(text, "\\n{address:#x}")
        }
        _ => Ok(()),
    };
    text
}

fn draw(model: &Model, graph: GraphId, flags: c_uint, text: &mut String) -> CuResult {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "subgraph cluster_{:x} {{\nlabel=\"graph {:#x}\"", graph.handle(), graph.handle());
    for id in model.graphs.nodes(graph).map_err(told)? {
        let node = model.graphs.node(id).map_err(told)?;
        let label = match &node.body {
            Body::Work(work) | Body::Choice(work, _) => label(work, flags),
            Body::Child(_) => "GRAPH".to_owned(),
        };
        let _ = match flags & Flag::CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES as c_uint {
            0 => writeln!(text, "\"{:x}\"[label=\"{label}\"]", id.handle()),
            _ => writeln!(text, "\"{:x}\"[label=\"{label}\\n{:#x}\"]", id.handle(), id.handle()),
        };
        for own in node.body.graphs() {
            draw(model, *own, flags, text)?;
        }
    }
    for (from, to, data) in model.graphs.edges(graph).map_err(told)? {
        let style = if data == EdgeData::default() { "" } else { "[style=dashed]" };
        let _ = writeln!(text, "\"{:x}\" -> \"{:x}\"{style}", from.handle(), to.handle());
    }
    text.push_str("}\n");
    Ok(())
}
