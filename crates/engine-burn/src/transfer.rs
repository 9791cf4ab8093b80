//! The copies between host and device, and the waiting for the device: all of them go through [`Transfers`], which
//! counts them.

use crate::exec::Image;
use crate::form::{Form, count};
use crate::guard::device_error;
use crate::kernels::DeviceBackend;
use burn_tensor::backend::ExecutionError;
use burn_tensor::{Int, Tensor, TensorData};
use cytoscope_engine::{DeviceId, EngineError};
use cytoscope_profile::DeviceTraffic;
use std::cell::Cell;

/// Number of elements that are downloaded at once. CubeCL reserves page-locked memory for each download, and keeps small
/// blocks of it; a large one takes much longer to reserve than to copy.
const PIECE_ELEMENTS: usize = 2 << 20;

/// A device of backend `B`, and what a session has copied to and from it.
pub(crate) struct Transfers<B: DeviceBackend> {
    device: B::Device,
    id: DeviceId,
    counted: Cell<DeviceTraffic>,
}

impl<B: DeviceBackend> Transfers<B> {
    /// Starts with nothing counted.
    pub(crate) fn new(device: B::Device, id: DeviceId) -> Self {
        Self { device, id, counted: Cell::default() }
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &B::Device {
        &self.device
    }

    /// Returns the counts so far.
    pub(crate) fn counted(&self) -> DeviceTraffic {
        self.counted.get()
    }

    /// Replaces the counts, so that repeated work is counted once.
    pub(crate) fn set_counted(&self, counted: DeviceTraffic) {
        self.counted.set(counted);
    }

    /// Counts a run of the network with this number of steps.
    pub(crate) fn count_run(&self, steps: usize) {
        self.count(|all| {
            all.runs += 1;
            all.steps += steps as u64;
        });
    }

    fn count(&self, add: impl FnOnce(&mut DeviceTraffic)) {
        let mut counted = self.counted.get();
        add(&mut counted);
        self.counted.set(counted);
    }

    fn count_upload(&self, bytes: usize) {
        self.count(|all| {
            all.uploads += 1;
            all.uploaded_bytes += bytes as u64;
        });
    }

    /// Queues the copy of a tensor to the device. There are as many values as the form has elements.
    pub(crate) fn upload(&self, values: Vec<f32>, form: Form) -> Image<B> {
        self.count_upload(size_of_val(values.as_slice()));
        let length = values.len();
        // With more than one axis, CubeCL copies row by row.
        Tensor::<B, 1>::from_data(TensorData::new(values, [length]), &self.device).reshape(form)
    }

    /// Queues the copy of a table of positions to the device.
    pub(crate) fn upload_table(&self, table: Vec<i32>) -> Tensor<B, 1, Int> {
        self.count_upload(size_of_val(table.as_slice()));
        let length = table.len();
        Tensor::from_data(TensorData::new(table, [length]), &self.device)
    }

    /// Copies a tensor from the device when it is computed.
    ///
    /// # Errors
    /// [`EngineError::Device`] or [`EngineError::OutOfMemory`] if the device failed; [`EngineError::Internal`] if the
    /// elements are not f32.
    pub(crate) fn download(&self, tensor: Image<B>) -> Result<Vec<f32>, EngineError> {
        let length = count(&tensor.dims());
        let mut values = Vec::with_capacity(length);
        // With more than one axis, CubeCL copies row by row.
        for piece in B::pieces(&tensor, PIECE_ELEMENTS).unwrap_or_else(|| vec![tensor.reshape([length])]) {
            let data = piece.try_into_data().map_err(|e| failed(self.id, &e))?;
            let piece = data
                .as_slice::<f32>()
                .map_err(|e| EngineError::Internal { place: "outputs".to_owned(), reason: format!("{e:?}").into() })?;
            values.extend_from_slice(piece);
        }
        self.count(|all| {
            all.downloads += 1;
            all.downloaded_bytes += size_of_val(values.as_slice()) as u64;
        });
        Ok(values)
    }

    /// Waits until the device has finished all queued work.
    ///
    /// # Errors
    /// [`EngineError::Device`] or [`EngineError::OutOfMemory`] if the device failed.
    pub(crate) fn synchronize(&self) -> Result<(), EngineError> {
        self.count(|all| all.synchronizations += 1);
        B::sync(&self.device).map_err(|e| failed(self.id, &e))
    }
}

fn failed(device: DeviceId, error: &ExecutionError) -> EngineError {
    device_error(device, &error.to_string())
}
