//! Tensor maps made before: libraries ask for the same ones again and again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use cuda_abi::CuResult;
use wire::{ContextId, TensorMap, TensorMapEncode, TensorMapRequest};

use super::thread::Call;

/// The most that are kept; beyond that it begins anew.
const MOST: usize = 1024;

/// What the device library made of which arguments.
#[derive(Default)]
pub struct TensorMaps(Mutex<HashMap<(ContextId, TensorMapRequest), TensorMap>>);

impl TensorMaps {
    /// Forgets all.
    pub fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Call<'_> {
    /// The tensor map that the device library makes of these arguments, in the current context.
    ///
    /// # Errors
    /// What it answers.
    pub fn tensor_map(&mut self, request: TensorMapRequest) -> CuResult<TensorMap> {
        let key = (self.context()?.id, request);
        let known =
            self.session.tensor_maps.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        if let Some(map) = known {
            self.check()?;
            return Ok(map);
        }
        let map = self.ask(&TensorMapEncode { ctx: key.0, request: key.1.clone() })?;
        let mut maps = self.session.tensor_maps.0.lock().unwrap_or_else(PoisonError::into_inner);
        if maps.len() >= MOST {
            maps.clear();
        }
        maps.insert(key, map);
        Ok(map)
    }
}
