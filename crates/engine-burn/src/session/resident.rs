//! Runs whose inputs and outputs stay in device memory: training steps, whose parameters and optimizer state are copied
//! only when they are read.

use super::{DeviceSession, Feed, internal, unusable};
use crate::exec::Image;
use crate::form::Form;
use crate::guard::guard;
use crate::kernels::DeviceBackend;
use crate::plan::Output;
use crate::transfer::Transfers;
use burn_tensor::StreamId;
use cytoscope_engine::{Content, DeviceId, DeviceTensor, EngineError, ResidentSession};
use cytoscope_graph::{ElementType, Tensor as HostTensor, ValueId};
use cytoscope_profile::{Recorder, Stage};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A tensor of 32-bit floats in the memory of a device.
struct Resident<B: DeviceBackend> {
    /// `None` only while this is dropped.
    tensor: Option<Image<B>>,
    shape: Vec<usize>,
    device: B::Device,
    id: DeviceId,
    /// The stream that computed the tensor. Sessions that read it join the stream.
    stream: StreamId,
    /// Whether the device has failed.
    is_lost: Arc<AtomicBool>,
}

impl<B: DeviceBackend> DeviceTensor for Resident<B> {
    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn read(&self) -> Result<HostTensor, EngineError> {
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(unusable(self.id));
        }
        let tensor = self.tensor.clone().ok_or_else(|| internal("buffers", "the tensor was freed"))?;
        let transfers = Transfers::<B>::new(self.device.clone(), self.id);
        let values = guard(self.id, || self.stream.executes(|| transfers.download(tensor)))?;
        Ok(HostTensor::new(self.shape.clone(), values)?)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<B: DeviceBackend> Drop for Resident<B> {
    fn drop(&mut self) {
        let tensor = self.tensor.take();
        if self.is_lost.load(Ordering::Relaxed) {
            // Freeing memory of a failed device may fail again and abort the process.
            std::mem::forget(tensor);
            return;
        }
        let stream = self.stream;
        // An error while freeing memory has no consequences for the run.
        let _ = guard(self.id, || {
            stream.executes(|| drop(tensor));
            Ok(())
        });
    }
}

/// Returns a tensor of this backend; `None` if it is in the host's memory or of another backend.
fn resident<B: DeviceBackend>(content: &Content) -> Option<&Resident<B>> {
    match content {
        Content::Host(_) => None,
        Content::Device(tensor) => tensor.as_any().downcast_ref(),
    }
}

/// Returns the tensor of `content` if it is on device `id` and has this form.
pub(super) fn image<B: DeviceBackend>(content: &Content, id: DeviceId, form: Form) -> Option<Image<B>> {
    let resident = resident::<B>(content).filter(|resident| resident.id == id)?;
    resident.tensor.clone().filter(|tensor| tensor.dims() == form)
}

impl<B: DeviceBackend> DeviceSession<B> {
    /// Wraps a tensor that stays on the device.
    fn keep(&self, tensor: Image<B>, shape: Vec<usize>) -> Content {
        Content::Device(Box::new(Resident::<B> {
            tensor: Some(tensor),
            shape,
            device: self.transfers.device().clone(),
            id: self.id,
            stream: self.stream,
            is_lost: Arc::clone(&self.is_lost),
        }))
    }

    /// Refuses contents whose types or shapes differ from those of the program's inputs.
    fn check_contents(&self, inputs: &[Content]) -> Result<(), EngineError> {
        self.check(inputs.iter().map(|content| match content {
            Content::Host(tensor) => (tensor.dtype(), tensor.shape()),
            Content::Device(tensor) => (ElementType::F32, tensor.shape()),
        }))
    }

    /// Replaces the inputs of the host that are to be kept by tensors on the device.
    fn move_to_device(&mut self, inputs: &mut [Content], keep: &[bool]) -> Result<(), EngineError> {
        let (id, stream) = (self.id, self.stream);
        let mut has_moved = false;
        for (index, (content, keep)) in inputs.iter_mut().zip(keep).enumerate() {
            let (Content::Host(tensor), true, Some(input)) = (&*content, *keep, self.program.inputs.get(index)) else {
                continue;
            };
            // `check_contents` has refused inputs of other types.
            let (values, transfers) = (tensor.as_f32().unwrap_or_default().to_vec(), &self.transfers);
            let upload = || stream.executes(|| Ok(transfers.upload(values, input.form)));
            let uploaded = self.watch.guard(id, upload)?;
            *content = self.keep(uploaded, input.shape.clone());
            has_moved = true;
        }
        if has_moved {
            // Errors must be seen here: those of earlier work are lost when kernels are timed.
            let transfers = &self.transfers;
            self.watch.guard(id, || stream.executes(|| transfers.synchronize()))?;
        }
        Ok(())
    }

    /// Downloads the outputs of a run when they are computed, except those that stay on the device.
    fn keep_or_download(
        &self,
        values: &BTreeMap<ValueId, Image<B>>,
        keep: &[bool],
        recorder: &Recorder,
    ) -> Result<Vec<Content>, EngineError> {
        // This also makes Burn compute the outputs that stay, and not later among the work of another session.
        self.transfers.synchronize()?;
        let mut span = recorder.span(Stage::Download, "outputs");
        let mut outputs = Vec::with_capacity(self.program.outputs.len());
        for (index, output) in self.program.outputs.iter().enumerate() {
            let (value, shape) = match output {
                Output::Constant(tensor) => {
                    outputs.push(Content::Host(tensor.as_ref().clone()));
                    continue;
                }
                Output::Value { value, shape } => (value, shape),
            };
            let tensor = values.get(value).cloned().ok_or_else(|| internal("outputs", "an output was not computed"))?;
            if keep.get(index).copied().unwrap_or(false) {
                outputs.push(self.keep(tensor, shape.clone()));
                continue;
            }
            let host = self.transfers.download(tensor)?;
            span.add_bytes(host.len() * size_of::<f32>());
            outputs.push(Content::Host(HostTensor::new(shape.clone(), host)?));
        }
        Ok(outputs)
    }
}

impl<B: DeviceBackend> ResidentSession for DeviceSession<B> {
    fn run_resident(
        &mut self,
        inputs: &mut [Content],
        keep_inputs: &[bool],
        keep_outputs: &[bool],
    ) -> Result<Vec<Content>, EngineError> {
        self.check_contents(inputs)?;
        // Burn orders work by stream, so sessions that share tensors share a stream, from their first run on.
        if self.is_empty()
            && let Some(first) = inputs.iter().find_map(|content| resident::<B>(content))
        {
            (self.stream, self.is_lost) = (first.stream, Arc::clone(&first.is_lost));
        }
        self.upload_weights(false)?;
        let moved = self.move_to_device(inputs, keep_inputs);
        self.release_if_failed(moved)?;
        self.run_with(Feed::Contents(&*inputs), true, |session, values, recorder| {
            session.keep_or_download(values, keep_outputs, recorder)
        })
    }
}
