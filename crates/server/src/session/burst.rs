//! Launches that follow one another into a stream, executed together. The driver takes some 3 us for each, and leaves little of ours in the processor's caches: taking
//! a message, looking things up and entering the gate costs several times as much between two launches as once for all of them.

use super::launch::Of;
use super::order::Footprint;
use super::reached::Reached;
use super::{Caller, Session};
use crate::failure::Result;
use crate::objects::StreamKey;
use std::collections::VecDeque;
use transport::{RingReader, TransportError};
use wire::{Launch, Message, Request};

/// How many launches at most: a cut waits for all that are in hand.
const MOST: usize = 16;

/// The launches in hand, all of one stream.
#[derive(Default)]
pub(super) struct Burst(VecDeque<Launch>);

impl Burst {
    /// Takes those that have come behind `first`, into the same stream and in order with no other ring.
    pub(super) fn gather(
        &mut self,
        first: Launch,
        reader: &mut RingReader,
    ) -> std::result::Result<(), TransportError> {
        self.0.clear();
        let stream = (first.ctx, first.stream);
        self.0.push_back(first);
        while self.0.len() < MOST
            && let Some(next) = reader.follow(|message| {
                if message.opcode != Launch::OPCODE || !message.dependencies.is_empty() {
                    return None;
                }
                match Request::decode(message.opcode, message.body) {
                    Ok(Request::Launch(launch)) if (launch.ctx, launch.stream) == stream => Some(launch),
                    // One that is malformed is left for whoever says so.
                    _ => None,
                }
            })?
        {
            self.0.push_back(next);
        }
        Ok(())
    }
}

impl Session {
    /// Executes all launches in hand; false when the session ends first.
    pub(super) fn run_burst(
        &self,
        reader: &mut RingReader,
        caller: &mut Caller,
        burst: &mut Burst,
    ) -> std::result::Result<bool, TransportError> {
        let launches = &mut burst.0;
        while let Some(first) = launches.front() {
            let key = StreamKey::new(first.ctx, first.stream, caller.number());
            if std::mem::take(&mut caller.stops) || self.is_planned(caller, first) {
                self.wait_for_cut();
            }
            let claim = self.await_half_way_in(|| Footprint::Stream(key, first.ctx, None), caller);
            if claim.is_none() || !self.await_room_in(key, caller) || !self.await_all_filled() {
                return Ok(false);
            }
            let _pass = self.gate.enter(caller.ring, Launch::OPCODE);
            if self.is_ending() {
                return Ok(false);
            }
            if let Err(failure) = self.run_launches(reader, caller, launches) {
                self.note_failure(&failure, Launch::OPCODE, true);
                launches.pop_front();
                reader.advance();
            }
            // What comes behind a marked kernel has waited for its end.
            (caller.recent.found, caller.launched) = (None, (!self.has_half_way_in(&key)).then_some(key));
        }
        Ok(true)
    }

    /// Executes launches as long as their stream has room for them; fails as the first of them does.
    fn run_launches(
        &self,
        reader: &mut RingReader,
        caller: &mut Caller,
        launches: &mut VecDeque<Launch>,
    ) -> Result<()> {
        let Some(first) = launches.front() else { return Ok(()) };
        let _reach = self.shadows.reach(|| Reached::Anything)?;
        let stream = self.stream(caller, first.ctx, first.stream)?;
        while let Some(launch) = launches.front() {
            self.launch(caller, &stream, launch, Of::Message)?;
            launches.pop_front();
            reader.advance();
            // Who waits for a cut does so before he goes through the gate.
            caller.stops = launches.front().is_some_and(|next| self.is_planned(caller, next));
            if stream.is_full() || caller.stops || self.has_half_way() {
                break;
            }
        }
        Ok(())
    }
}
