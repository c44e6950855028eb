//! What a session's watch is told, and asks.

use super::{Caller, Session};
use crate::watch::Watch;
use crate::{lock, read};
use std::time::{Duration, Instant};
use wire::{Launch, Request};

/// Shorter waits are none: the processor finds what it asks for done.
const WAIT: Duration = Duration::from_micros(2);

impl Session {
    /// Who watches.
    #[must_use]
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Tells the watch, which has just begun, what there is already.
    pub(crate) fn tell_watch(&self) {
        for device in &self.devices {
            device.each_allocation(|range| self.watch.found(range));
        }
        self.tell_watch_of_process();
    }

    /// Tells the watch which process this is, once that is known.
    pub(super) fn tell_watch_of_process(&self) {
        if let (Some(recorder), Some(application)) = (self.watch.recorder(), self.application.get()) {
            recorder.of_process(application.pid());
        }
    }

    /// Whether a checkpoint is to be taken before this launch.
    pub(super) fn is_planned(&self, caller: &mut Caller, launch: &Launch) -> bool {
        let Some(steering) = self.watch.steering() else { return false };
        // One that names no function fails, and is no boundary.
        let function = self.launched(caller, launch.ctx, launch.callee);
        function.is_ok_and(|function| steering.stops(function.name_hash(), self.watch.allocated()))
    }

    /// The same for any message.
    pub(super) fn is_boundary_planned(&self, caller: &mut Caller, request: &Request) -> bool {
        match (self.watch.steering(), request) {
            (Some(_), Request::Launch(launch)) => self.is_planned(caller, launch),
            (Some(steering), Request::GraphLaunch(launch)) => self
                .graph_name(launch.exec)
                .is_some_and(|name| steering.stops(plan::follow::name(&name), self.watch.allocated())),
            _ => false,
        }
    }

    /// Has this thread wait for the cut that is planned here. It executes nothing meanwhile.
    pub(super) fn wait_for_cut(&self) {
        if let Some(steering) = self.watch.steering() {
            steering.hold(|| self.is_ending());
        }
    }

    /// Tells the watch of a message that is about to be executed; of a kernel's launch it hears where that happens.
    pub(super) fn record(&self, request: &Request) {
        if let Request::GraphLaunch(launch) = request {
            self.pass_graph(launch.exec);
        } else if let Some(recorder) = self.watch.recorder() {
            recorder.message(request);
        }
    }

    fn pass_graph(&self, exec: wire::GraphExecId) {
        if self.watch.recorder().is_none() && self.watch.steering().is_none() {
            return;
        }
        let Some(nodes) = self.graph_nodes(exec) else { return };
        if let Some(recorder) = self.watch.recorder() {
            recorder.graph(nodes);
        }
        if let Some(steering) = self.watch.steering() {
            steering.pass(plan::follow::name(&crate::watch::graph_name(nodes)));
        }
    }

    fn graph_name(&self, exec: wire::GraphExecId) -> Option<String> {
        self.graph_nodes(exec).map(crate::watch::graph_name)
    }

    fn graph_nodes(&self, exec: wire::GraphExecId) -> Option<usize> {
        let graph = read(&self.table).graphs.get(&exec).cloned()?;
        let state = lock(&graph.state);
        // The rest of a launch is no other one.
        (state.given == 0).then(|| state.plan.nodes.len())
    }

    /// A wait of the program's has ended.
    pub(super) fn note_wait(&self, begun: Instant) {
        if let Some(recorder) = self.watch.recorder()
            && begun.elapsed() >= WAIT
        {
            recorder.waited(begun);
        }
    }
}
