//! Work for streams. What fails here is told by a later call of its context.

use super::Session;
use super::completions::{Effect, Entry, Probe};
use super::staging::Buffer;
use crate::frame::{INLINE_MAX, PIECE};
use crate::lock;
use crate::messages::{Call, Query, Word};
use backend::{
    BoxSide, CopyBox, Fill, GraphKernel, Launch, MemoryOperation, Pitched, RawContext, Result, StreamArg,
};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::CuError;

/// A context and a stream: how the client names them, and what they are.
#[derive(Clone, Copy)]
pub(super) struct At {
    name: (u64, u64),
    pub(super) ctx: RawContext,
    pub(super) stream: StreamArg,
}

thread_local! {
    /// Of the thread that carries out calls in their turn: whether the next one is there, and asks about a stream.
    pub(super) static QUERY_NEXT: Cell<bool> = const { Cell::new(false) };
}

fn name(ctx: RawContext, stream: StreamArg) -> (u64, u64) {
    match stream {
        StreamArg::Legacy => (ctx.0, 0),
        StreamArg::Created(stream) => (ctx.0, stream.0),
    }
}

/// All that lies between the first and the last byte of some rows.
fn extent(memory: &Pitched, [width, height, depth]: [u64; 3]) -> Option<u64> {
    let slice = memory.pitch.checked_mul(memory.rows)?.checked_mul(depth.checked_sub(1)?)?;
    slice.checked_add(memory.pitch.checked_mul(height.checked_sub(1)?)?)?.checked_add(width)
}

/// Bytes of a box.
fn volume([width, height, depth]: [u64; 3]) -> Option<u64> {
    width.checked_mul(height)?.checked_mul(depth)
}

/// A box that lies packed in a buffer.
fn packed(buffer: &Buffer, [width, height, _]: [u64; 3]) -> BoxSide {
    BoxSide::Memory(Pitched { address: buffer.address(), pitch: width, rows: height })
}

impl Session {
    pub(super) fn at(&self, ctx: RawContext, stream: StreamArg) -> Result<At> {
        let name = name(ctx, stream);
        Ok(At { name, ctx: self.objects.ctx(ctx)?, stream: self.objects.stream(stream)? })
    }

    /// Has something done when the stream has come here.
    pub(super) fn when(&self, at: At, effects: Vec<Effect>) -> Result<()> {
        if !matches!(effects.last(), Some(Effect::Ticket(_))) {
            return self.when_behind(at, effects);
        }
        if QUERY_NEXT.get() && self.is_alone() {
            *lock(&self.held) = Some((at, effects));
            return Ok(());
        }
        let effects = self.soon(|| self.backend.stream_query(at.ctx, at.stream), effects);
        effects.map_or_else(|effects| self.when_behind(at, effects), Ok)
    }

    /// What was left for a question that was to come next is done when its stream has come here, if something else has come.
    pub(super) fn settle_held(&self, call: &Call) {
        let is_of_it = |at: At| {
            let Call::Query(Query { ctx, stream, .. }) = call else { return false };
            at.name == name(*ctx, *stream)
        };
        let held = lock(&self.held).take_if(|(at, _)| !is_of_it(*at));
        if let Some((at, effects)) = held {
            let _ = self.when_behind(at, effects);
        }
    }

    /// Looks at a stream for whoever asks, with what was left for this question; that it has been looked at is told in any case.
    pub(super) fn query(&self, call: u64, ctx: RawContext, at: Result<At>, ticket: u64) {
        let held = lock(&self.held).take();
        let mut effects = held.map(|(_, effects)| effects).unwrap_or_default();
        effects.push(Effect::Ticket(ticket));
        match at {
            Ok(at) => {
                effects.push(Effect::Looked(call));
                let looked = self.soon(|| self.backend.stream_query(at.ctx, at.stream), effects);
                let Err(mut effects) = looked else { return };
                effects.pop();
                // What goes wrong is told with the tickets.
                let _ = self.when_behind(at, effects);
            }
            Err(error) => self.now(ctx, Err(error), effects),
        }
        // Behind what is known by now of all that was asked about before.
        self.now(RawContext(0), Ok(()), vec![Effect::Looked(call)]);
    }

    fn when_behind(&self, at: At, effects: Vec<Effect>) -> Result<()> {
        // An event would be one more piece of work, which a stream that has come to its end is not done with yet.
        let asked = matches!(effects.as_slice(), [Effect::Ticket(_)]);
        if asked && self.backend.stream_query(at.ctx, at.stream) == Ok(true) {
            let (stream, probe) = (Some(at.name.1), Probe::Now(Ok(())));
            self.completions.push(Entry { ctx: at.name.0, stream, probe, effects });
            return Ok(());
        }
        let recorded = self.record(at.name.0, at.ctx, at.stream);
        let probe = match recorded {
            Ok((ctx, event)) => Probe::Ours(ctx, event),
            Err(error) => Probe::Now(Err(error)),
        };
        self.completions.push(Entry { ctx: at.name.0, stream: Some(at.name.1), probe, effects });
        recorded.map(drop)
    }

    /// The same now.
    pub(super) fn now(&self, ctx: RawContext, result: Result<()>, effects: Vec<Effect>) {
        self.completions.push(Entry { ctx: ctx.0, stream: None, probe: Probe::Now(result), effects });
    }

    pub(super) fn failed(&self, ctx: RawContext, error: CuError) {
        self.say(0, &Word::Failed { ctx, error: error.code() });
    }

    pub(super) fn launch(&self, at: At, kernel: &GraphKernel) -> Result<()> {
        let launch = self.launch_of(at.stream, kernel)?;
        self.backend.launch(at.ctx, &launch)
    }

    pub(super) fn launch_of<'a>(&self, stream: StreamArg, kernel: &'a GraphKernel) -> Result<Launch<'a>> {
        let GraphKernel { function, grid, block, shared, attributes, params } = kernel;
        Ok(Launch {
            function: self.objects.function(*function)?,
            grid: *grid,
            block: *block,
            shared: *shared,
            stream,
            attributes,
            params,
        })
    }

    /// A side of a copy as the backend knows it, if it is the client's.
    pub(super) fn side(&self, side: BoxSide, size: [u64; 3]) -> Result<BoxSide> {
        match side {
            BoxSide::Memory(memory) => {
                let bytes = extent(&memory, size).ok_or(CuError::INVALID_VALUE)?;
                self.objects.owns(memory.address, bytes)?;
                Ok(side)
            }
            BoxSide::Array(array, at) => Ok(BoxSide::Array(self.objects.arrays.get(array.0)?.raw, at)),
        }
    }

    pub(super) fn boxes(&self, copy: &CopyBox) -> Result<CopyBox> {
        let size = [copy.width, copy.height, copy.depth];
        Ok(CopyBox { dst: self.side(copy.dst, size)?, src: self.side(copy.src, size)?, ..*copy })
    }

    pub(super) fn owns_fill(&self, fill: &Fill) -> Result<()> {
        if fill.width == 0 || fill.height == 0 {
            return Ok(());
        }
        let row = fill.width.checked_mul(fill.element.into());
        let rows = fill.pitch.checked_mul(fill.height - 1);
        let bytes =
            row.zip(rows).and_then(|(row, rows)| row.checked_add(rows)).ok_or(CuError::INVALID_VALUE)?;
        self.objects.owns(fill.dst, bytes)
    }

    pub(super) fn owns_words(&self, operations: &[MemoryOperation]) -> Result<()> {
        operations.iter().filter_map(MemoryOperation::word).try_for_each(|word| {
            if !word.address.is_multiple_of(word.bytes()) {
                return Err(CuError::INVALID_VALUE);
            }
            self.objects.owns(word.address, word.bytes())
        })
    }

    /// Bytes that came with the call: the backend has read them when it returns.
    pub(super) fn copy_in(&self, at: At, dst: u64, data: &[u8]) -> Result<()> {
        self.objects.owns(dst, data.len() as u64)?;
        let mut buffer = self.staging.get(data.len().max(1))?;
        buffer.bytes_mut()[..data.len()].copy_from_slice(data);
        self.backend.copy(at.ctx, at.stream, dst, buffer.address(), data.len() as u64)?;
        self.keep(at, buffer)
    }

    /// Keeps a small buffer until the stream has come here.
    fn keep(&self, at: At, buffer: Buffer) -> Result<()> {
        self.when(at, vec![Effect::Keep(buffer)])
    }

    pub(super) fn copy_in_bulk(&self, at: Result<At>, dst: u64, bytes: u64, transfer: u64) -> Result<()> {
        let mut all = at.and_then(|at| self.objects.owns(dst, bytes).map(|()| at));
        let mut offset = 0;
        while offset < bytes {
            let piece = (bytes - offset).min(PIECE as u64);
            let Some(buffer) = self.arrival(transfer, offset) else { return Ok(()) };
            let right = buffer.len() as u64 == piece;
            let copied = all.and_then(|at| {
                let right = if right { Ok(()) } else { Err(CuError::INVALID_VALUE) };
                right?;
                // It may have been given back since the piece before.
                self.objects.owns(dst + offset, piece)?;
                self.backend.copy(at.ctx, at.stream, dst + offset, buffer.address(), piece).map(|()| at)
            });
            // Whatever happens, all pieces are taken.
            all = match copied {
                Ok(at) => self.when(at, vec![Effect::Release(buffer)]).map(|()| at),
                Err(error) => {
                    self.now(RawContext(0), Ok(()), vec![Effect::Release(buffer)]);
                    Err(error)
                }
            };
            offset += piece;
        }
        all.map(drop)
    }

    pub(super) fn box_in(&self, at: At, dst: BoxSide, size: [u64; 3], data: &[u8]) -> Result<()> {
        let mut buffer = self.staging.get(data.len().max(1))?;
        buffer.bytes_mut()[..data.len()].copy_from_slice(data);
        self.box_from(at, dst, size, &buffer)?;
        self.keep(at, buffer)
    }

    fn box_from(&self, at: At, dst: BoxSide, size: [u64; 3], buffer: &Buffer) -> Result<()> {
        if volume(size) != Some(buffer.len() as u64) {
            return Err(CuError::INVALID_VALUE);
        }
        let [width, height, depth] = size;
        let copy = CopyBox { dst: self.side(dst, size)?, src: packed(buffer, size), width, height, depth };
        self.backend.copy_box(at.ctx, at.stream, &copy)
    }

    pub(super) fn box_in_bulk(
        &self,
        at: Result<At>,
        dst: BoxSide,
        size: [u64; 3],
        transfer: u64,
    ) -> Result<()> {
        let Some(buffer) = self.arrival(transfer, 0) else { return Ok(()) };
        match at.and_then(|at| self.box_from(at, dst, size, &buffer).map(|()| at)) {
            Ok(at) => self.when(at, vec![Effect::Release(buffer)]),
            Err(error) => {
                self.now(RawContext(0), Ok(()), vec![Effect::Release(buffer)]);
                Err(error)
            }
        }
    }

    /// The transfer's ticket is told in any case.
    pub(super) fn copy_out(&self, ctx: RawContext, at: Result<At>, src: u64, bytes: u64, transfer: u64) {
        let out = || -> Result<()> {
            let at = at?;
            self.objects.owns(src, bytes)?;
            let mut offset = 0;
            while offset < bytes {
                let piece = (bytes - offset).min(PIECE as u64);
                let buffer = self.staging.get(piece as usize)?;
                self.backend.copy(at.ctx, at.stream, buffer.address(), src + offset, piece)?;
                let mut effects = vec![Effect::Send { transfer, offset, buffer }];
                offset += piece;
                if offset == bytes {
                    effects.push(Effect::Ticket(transfer));
                    // It is told with the ticket whether this fails.
                    let _ = self.when(at, effects);
                    return Ok(());
                }
                self.when(at, effects)?;
            }
            Err(CuError::INVALID_VALUE)
        };
        if let Err(error) = out() {
            self.now(ctx, Err(error), vec![Effect::Ticket(transfer)]);
        }
    }

    pub(super) fn box_out(
        &self,
        ctx: RawContext,
        at: Result<At>,
        src: BoxSide,
        size: [u64; 3],
        transfer: u64,
    ) {
        let out = || -> Result<(At, Buffer)> {
            let at = at?;
            let bytes = volume(size).filter(|bytes| (1..=PIECE as u64).contains(bytes));
            let buffer = self.staging.get(bytes.ok_or(CuError::INVALID_VALUE)? as usize)?;
            let [width, height, depth] = size;
            let copy =
                CopyBox { dst: packed(&buffer, size), src: self.side(src, size)?, width, height, depth };
            self.backend.copy_box(at.ctx, at.stream, &copy)?;
            Ok((at, buffer))
        };
        match out() {
            Ok((at, buffer)) => {
                let effects = vec![Effect::Send { transfer, offset: 0, buffer }, Effect::Ticket(transfer)];
                let _ = self.when(at, effects);
            }
            Err(error) => self.now(ctx, Err(error), vec![Effect::Ticket(transfer)]),
        }
    }

    /// A function of the client's: the thread that runs it waits until the client has.
    pub(super) fn host(self: &Arc<Self>, function: u64) -> impl Fn(Result<()>) + Send + Sync + 'static {
        let session = Arc::downgrade(self);
        move |status| {
            let Some(session) = session.upgrade() else { return };
            let call = session.next_host.fetch_add(1, Ordering::Relaxed);
            let (sender, receiver) = std::sync::mpsc::channel();
            lock(&session.hosts).insert(call, sender);
            if session.is_lost() {
                lock(&session.hosts).clear();
            }
            let error = status.err().map_or(0, CuError::code);
            session.now(RawContext(0), Ok(()), vec![Effect::Host { call, function, error }]);
            drop(session);
            let _ = receiver.recv();
        }
    }

    pub(super) fn fits_inline(data: &[u8]) -> Result<()> {
        if data.is_empty() || data.len() > INLINE_MAX { Err(CuError::INVALID_VALUE) } else { Ok(()) }
    }
}
