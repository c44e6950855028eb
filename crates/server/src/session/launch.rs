//! Launches, and questions about them.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::objects::Stream;
use backend::Launch;
use cudarc::driver::sys::CUlaunchAttributeID as Attribute;
use std::sync::Arc;
use wire::{Callee, CuError};

/// Launch attributes that hold no handle and no address, and so mean the same in this process.
const CARRIED: &[Attribute] = &[
    Attribute::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
    Attribute::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
    Attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
    Attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
    Attribute::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
    Attribute::CU_LAUNCH_ATTRIBUTE_PRIORITY,
    Attribute::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
    Attribute::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
    Attribute::CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION,
    Attribute::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
    // An address, but one of the application's, and only a hint.
    Attribute::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
];

pub(super) fn check_attributes(attributes: &[(u32, wire::LaunchValue)]) -> Result<()> {
    match attributes.iter().find(|(id, _)| !CARRIED.iter().any(|known| *known as u32 == *id)) {
        None => Ok(()),
        Some((id, _)) => {
            Err(Failure::new(CuError::NOT_SUPPORTED, format!("launch attribute {id} is not supported")))
        }
    }
}

/// Who launches a kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// A message of its own.
    Message,
    /// A graph, of which the watch has heard.
    Graph,
}

impl Session {
    /// Submits a launch to its stream.
    pub(super) fn launch(
        &self,
        caller: &mut Caller,
        stream: &Arc<Stream>,
        launch: &wire::Launch,
        of: Of,
    ) -> Result<()> {
        let function = self.launched(caller, launch.ctx, launch.callee)?;
        check_attributes(&launch.attributes)?;
        if (launch.params.0.len() as u64) < function.params_bytes()? {
            let detail = format!(
                "{}: {} bytes of parameters are too few",
                cpt::in_source(&function.name),
                launch.params.0.len()
            );
            return Err(Failure::new(CuError::INVALID_VALUE, detail));
        }
        let handle = match launch.callee {
            Callee::Function(id) => id.handle(),
            Callee::Kernel(id) => id.handle(),
        };
        self.give_heap(&function)?;
        if let Some(memory) = self.devices.get(stream.ctx.device()) {
            memory.note_use(&launch.params.0);
        }
        let flight = self.stoppable((stream, caller.number()), &function, (handle, launch));
        let work = stream.begin_launch(handle);
        let _work = work.inspect_err(|_| flight.iter().for_each(|flight| self.forget(flight, false)))?;
        if of == Of::Message {
            if let Some(recorder) = self.watch.recorder() {
                recorder.launch(&function, &launch.params.0);
            }
            if let Some(steering) = self.watch.steering() {
                steering.pass(function.name_hash());
            }
        }
        if flight.is_some_and(|flight| self.take_off(&flight)) {
            return Ok(());
        }
        let launch = Launch {
            function: function.raw,
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            stream: stream.arg(),
            attributes: &launch.attributes,
            params: &launch.params.0,
        };
        self.backend()
            .launch(stream.ctx.raw, &launch)
            .map_err(|code| Failure::new(code, format!("launch of {}", cpt::in_source(&function.name))))
    }
}

impl Execute for wire::Launch {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        session.launch(caller, &stream, &self, Of::Message)
    }
}

impl Execute for wire::OccupancyBlocks {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<i32> {
        let function = session.callee(self.ctx, self.callee)?;
        let ctx = function.module.ctx.raw;
        Ok(session.backend().occupancy_blocks(ctx, function.raw, self.block, self.shared, self.flags)?)
    }
}

impl Execute for wire::OccupancyShared {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<u64> {
        let function = session.callee(self.ctx, self.callee)?;
        let ctx = function.module.ctx.raw;
        Ok(session.backend().occupancy_shared(ctx, function.raw, self.blocks, self.block)?)
    }
}

impl Execute for wire::OccupancyClusters {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<i32> {
        let config = self.config;
        let function = session.callee(config.ctx, self.callee)?;
        let stream = session.stream(caller, config.ctx, config.stream)?;
        check_attributes(&config.attributes)?;
        let launch = Launch {
            function: function.raw,
            grid: config.grid,
            block: config.block,
            shared: config.shared,
            stream: stream.arg(),
            attributes: &config.attributes,
            params: &[],
        };
        Ok(session.backend().occupancy_clusters(stream.ctx.raw, self.active, &launch)?)
    }
}
