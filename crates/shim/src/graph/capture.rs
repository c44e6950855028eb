//! Capturing streams: work becomes nodes.

use std::collections::HashMap;
use std::sync::Arc;

use ::graph::{Edge, GraphId};
use cuda_abi::{CuError, CuResult, sys};
use wire::ContextId;

use super::captured::{Captured, Target, thread};
use super::captures::{Captive, Capture, Lane, Mode, Status, Told, capturing, merge};
use super::{Copy, Work, told};
use crate::client::{Call, End, Event, Extent, Rows, Side};

impl Call<'_> {
    /// Whether the stream is being captured: then work goes there. One relaxed load where nothing is. Otherwise the stream can be
    /// used ([`Call::any_stream`]).
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `STREAM_CAPTURE_INVALIDATED`, `_IMPLICIT`.
    #[inline]
    pub fn capture_of(&mut self, stream: sys::CUstream) -> CuResult<Option<Target>> {
        if !capturing() {
            return Ok(None);
        }
        let (name, ctx) = self.any_stream(stream)?;
        let Some(stream) = Captured::new(name, ctx) else {
            return self.refuse_in_capture((name, ctx)).map(|()| None);
        };
        match self.session.graphs.lock().captures.status(stream) {
            Status::None => Ok(None),
            Status::Active(target) => Ok(Some(target)),
            Status::Invalidated => Err(CuError::STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// What is known of a stream.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `STREAM_CAPTURE_IMPLICIT` for the legacy stream while a stream that is ordered with it is captured.
    pub fn capture_status(&mut self, stream: sys::CUstream) -> CuResult<Status> {
        let (name, ctx) = self.any_stream(stream)?;
        let model = self.session.graphs.lock();
        match Captured::new(name, ctx) {
            Some(stream) => Ok(model.captures.status(stream)),
            None if model.captures.implicit(ctx).is_some() => Err(CuError::STREAM_CAPTURE_IMPLICIT),
            None => Ok(Status::None),
        }
    }

    /// Adds a node to a capture.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED`.
    pub fn capture(&mut self, target: Target, work: Captive) -> CuResult {
        self.session.graphs.lock().capture(target, work).map(drop)
    }

    /// Refuses a call that a stream which is being captured cannot be part of, and invalidates the capture.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED`, `_INVALIDATED`, `_IMPLICIT`.
    #[cold]
    pub fn refuse_in_capture(&mut self, (name, ctx): (wire::Stream, ContextId)) -> CuResult {
        let mut model = self.session.graphs.lock();
        let Some(stream) = Captured::new(name, ctx) else {
            let Some(capture) = model.captures.implicit(ctx) else { return Ok(()) };
            model.captures.invalidate(capture);
            return Err(CuError::STREAM_CAPTURE_IMPLICIT);
        };
        match model.captures.status(stream) {
            Status::None => Ok(()),
            Status::Invalidated => Err(CuError::STREAM_CAPTURE_INVALIDATED),
            Status::Active(target) => {
                model.captures.invalidate(target.capture);
                Err(CuError::STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// To be called by what could break a capture of this thread or another, such as allocations: refuses as the modes say.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED`.
    #[inline]
    pub fn unsafe_in_capture(&self) -> CuResult {
        if capturing() { self.refuse_unsafe() } else { Ok(()) }
    }

    #[cold]
    fn refuse_unsafe(&self) -> CuResult {
        let mut model = self.session.graphs.lock();
        let endangered = model.captures.endangered();
        if endangered.is_empty() {
            return Ok(());
        }
        endangered.into_iter().for_each(|capture| model.captures.invalidate(capture));
        Err(CuError::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses to wait for a context with a stream that is being captured.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED`.
    pub fn refuse_captured_context(&self, ctx: ContextId) -> CuResult {
        if !capturing() {
            return Ok(());
        }
        let mut model = self.session.graphs.lock();
        let is = |capture: &Capture| capture.lanes.keys().any(|stream| stream.ctx() == ctx);
        let of_context: Vec<u64> = model
            .captures
            .by_number
            .iter()
            .filter(|(_, capture)| is(capture))
            .map(|(number, _)| *number)
            .collect();
        if of_context.is_empty() {
            return Ok(());
        }
        of_context.into_iter().for_each(|capture| model.captures.invalidate(capture));
        Err(CuError::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses to ask an event that was last recorded in a capture.
    ///
    /// # Errors
    /// `CAPTURED_EVENT`.
    #[inline]
    pub fn refuse_captured_event(&self, event: &Event) -> CuResult {
        let Some(capture) = event.captured.capture() else { return Ok(()) };
        self.session.graphs.lock().captures.invalidate(capture);
        Err(CuError::CAPTURED_EVENT)
    }

    /// Begins a capture; into a graph that is there, behind these nodes, or into a new one.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` for the legacy stream, `ILLEGAL_STATE` for one that is being captured.
    pub fn begin_capture(
        &mut self,
        stream: sys::CUstream,
        mode: Mode,
        into: Option<(GraphId, Vec<Edge>)>,
    ) -> CuResult {
        let (name, ctx) = self.any_stream(stream)?;
        let origin = Captured::new(name, ctx).ok_or(CuError::STREAM_CAPTURE_UNSUPPORTED)?;
        let blocking = self.is_blocking(name);
        let mut model = self.session.graphs.lock();
        if model.captures.status(origin) != Status::None {
            return Err(CuError::ILLEGAL_STATE);
        }
        let (graph, after, into) = match into {
            None => (model.graphs.create(), Vec::new(), false),
            Some((graph, after)) => {
                for edge in &after {
                    if model.graphs.node(edge.node).map_err(told)?.graph != graph {
                        return Err(CuError::INVALID_VALUE);
                    }
                }
                if !model.graphs.contains(graph) {
                    return Err(CuError::INVALID_HANDLE);
                }
                (graph, after, true)
            }
        };
        let lanes = HashMap::new();
        let begun = Capture { graph, into, mode, thread: thread(), origin, lanes, valid: true };
        let capture = model.captures.begin(begun);
        model.captures.add(Target { stream: origin, ctx, capture }, after, blocking)
    }

    /// Whether a stream is ordered with the legacy one.
    fn is_blocking(&self, name: wire::Stream) -> bool {
        match name {
            wire::Stream::Created(id) => {
                self.session.streams.get(id.0).is_some_and(|stream| stream.flags & 1 == 0)
            }
            wire::Stream::PerThread | wire::Stream::Legacy => true,
        }
    }

    /// Ends a capture and gives its graph, which is gone already if it is not wanted and was made for the capture.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` for a stream that is not captured, `STREAM_CAPTURE_*` for a capture that has come to nothing.
    pub fn end_capture(&mut self, stream: sys::CUstream, wanted: bool) -> CuResult<GraphId> {
        let (name, ctx) = self.any_stream(stream)?;
        let stream = Captured::new(name, ctx).ok_or(CuError::ILLEGAL_STATE)?;
        let mut model = self.session.graphs.lock();
        let number = *model.captures.by_stream.get(&stream).ok_or(CuError::ILLEGAL_STATE)?;
        let capture = model.captures.by_number.get_mut(&number).ok_or(CuError::ILLEGAL_STATE)?;
        if capture.mode != Mode::Relaxed && capture.thread != thread() {
            return Err(CuError::STREAM_CAPTURE_WRONG_THREAD);
        }
        if capture.origin != stream {
            capture.valid = false;
            return Err(CuError::STREAM_CAPTURE_UNMATCHED);
        }
        let ended = model.captures.end(number).ok_or(CuError::ILLEGAL_STATE)?;
        let joined = || {
            let end = ended.lanes.get(&stream).map_or(&[][..], |lane| &lane.after);
            let others = ended.lanes.iter().filter(|(other, _)| **other != stream);
            others
                .flat_map(|(_, lane)| &lane.after)
                .all(|edge| model.graphs.reaches(end.iter().map(|edge| edge.node), edge.node))
        };
        let outcome = match ended.valid {
            false => Err(CuError::STREAM_CAPTURE_INVALIDATED),
            true if !joined() => Err(CuError::STREAM_CAPTURE_UNJOINED),
            true => Ok(ended.graph),
        };
        if (outcome.is_err() || !wanted) && !ended.into {
            let due = model.destroy(ended.graph)?;
            drop(model);
            self.destroy(due);
        }
        outcome
    }

    /// The stream is no more: a capture that began with it comes to nothing. What it had in another stays there.
    pub fn end_of_stream(&mut self, name: wire::Stream, ctx: ContextId) {
        if !capturing() {
            return;
        }
        let Some(stream) = Captured::new(name, ctx) else { return };
        let mut model = self.session.graphs.lock();
        let Some(capture) = model.captures.by_stream.remove(&stream) else { return };
        if model.captures.by_number.get(&capture).is_some_and(|capture| capture.origin == stream) {
            // Nobody can end it any more.
            let due = model.abandon(capture);
            drop(model);
            self.destroy(due);
        }
    }

    /// Records an event in a capture.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED`.
    pub fn capture_record(&mut self, target: Target, event: &Event) -> CuResult {
        let after = self.session.graphs.lock().captures.lane(target)?.after.clone();
        event.captured.set(target.capture, after);
        Ok(())
    }

    /// Has a stream wait for an event where a capture is involved; false when none is.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_*`, `CAPTURED_EVENT`.
    pub fn capture_wait(&mut self, stream: sys::CUstream, event: &Arc<Event>) -> CuResult<bool> {
        let (name, ctx) = self.any_stream(stream)?;
        let blocking = self.is_blocking(name);
        let mut model = self.session.graphs.lock();
        let status = Captured::new(name, ctx).map_or(Status::None, |stream| model.captures.status(stream));
        if status == Status::Invalidated {
            return Err(CuError::STREAM_CAPTURE_INVALIDATED);
        }
        let Some(capture) = event.captured.capture() else {
            let Status::Active(target) = status else { return Ok(false) };
            if !event.is_recorded() {
                return Ok(true);
            }
            model.captures.invalidate(target.capture);
            return Err(CuError::STREAM_CAPTURE_ISOLATION);
        };
        match model.captures.by_number.get(&capture) {
            None => return Err(CuError::CAPTURED_EVENT),
            Some(found) if !found.valid => return Err(CuError::STREAM_CAPTURE_INVALIDATED),
            Some(_) => {}
        }
        match status {
            Status::Active(target) if target.capture == capture => {
                let edges = event.captured.edges();
                merge(&mut model.captures.lane(target)?.after, &edges);
            }
            Status::Active(target) => {
                model.captures.invalidate(target.capture);
                model.captures.invalidate(capture);
                return Err(CuError::STREAM_CAPTURE_MERGE);
            }
            Status::None | Status::Invalidated => {
                let Some(stream) = Captured::new(name, ctx) else {
                    model.captures.invalidate(capture);
                    return Err(CuError::STREAM_CAPTURE_IMPLICIT);
                };
                let target = Target { stream, ctx, capture };
                model.captures.add(target, event.captured.edges(), blocking)?;
            }
        }
        Ok(true)
    }

    /// Calls `tell` with a capture's number, its graph, and what the stream's next node waits for.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED`.
    pub fn capture_info<R>(
        &mut self,
        target: Target,
        tell: impl FnOnce(GraphId, &mut Told, &[Edge]) -> R,
    ) -> CuResult<R> {
        let mut model = self.session.graphs.lock();
        let graph = model.captures.by_number.get(&target.capture).map(|capture| capture.graph);
        let graph = graph.ok_or(CuError::STREAM_CAPTURE_INVALIDATED)?;
        let Lane { after, told, .. } = model.captures.lane(target)?;
        Ok(tell(graph, told, after))
    }

    /// Changes what the stream's next node waits for.
    ///
    /// # Errors
    /// `INVALID_VALUE` for nodes of another graph.
    pub fn set_capture_dependencies(&mut self, target: Target, edges: &[Edge], add: bool) -> CuResult {
        let mut model = self.session.graphs.lock();
        let graph = model.captures.by_number.get(&target.capture).map(|capture| capture.graph);
        for edge in edges {
            if Some(model.graphs.node(edge.node).map_err(told)?.graph) != graph {
                return Err(CuError::INVALID_VALUE);
            }
        }
        let after = &mut model.captures.lane(target)?.after;
        if !add {
            after.clear();
        }
        merge(after, edges);
        Ok(())
    }
}

impl Call<'_> {
    /// Captures a copy of bytes.
    ///
    /// # Errors
    /// As the driver's copies; `STREAM_CAPTURE_INVALIDATED`.
    pub fn capture_bytes(&mut self, target: Target, dst: Side, src: Side, bytes: u64) -> CuResult {
        let row = |side| End::Rows(Rows { side, pitch: bytes, rows: 1 });
        self.capture_box(target, row(dst), row(src), Extent { width: bytes, height: 1, depth: 1 })
    }

    /// Captures a copy of a box. An empty one leaves nothing.
    ///
    /// # Errors
    /// As the driver's copies; `STREAM_CAPTURE_INVALIDATED`.
    pub fn capture_box(&mut self, target: Target, dst: End, src: End, extent: Extent) -> CuResult {
        if extent.width == 0 || extent.height == 0 || extent.depth == 0 {
            return Ok(());
        }
        dst.place(self, extent)?;
        src.place(self, extent)?;
        let copy = Copy { ctx: target.ctx, dst, src, extent };
        self.capture(target, Captive::Work(Work::Copy(copy)))
    }
}
