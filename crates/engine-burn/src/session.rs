//! A session on a device: weights are uploaded once, inputs and outputs are transferred at every run.

use crate::exec::{self, Image, Uploaded};
use crate::form::{Form, count};
use crate::guard::{PanicWatch, device_error};
use crate::plan::{Kind, Output, Program, Source};
use crate::tuning::TuningState;
use burn_tensor::backend::{Backend, ExecutionError};
use burn_tensor::{StreamId, Tensor, TensorData};
use cytoscope_engine::{
    CompileOptions, CompileReport, Device, DeviceId, EngineError, Precision, Session, TuningListener,
};
use cytoscope_graph::{ElementType, Tensor as HostTensor, ValueId};
use cytoscope_profile::{Recorder, Stage};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A compiled program on a device of backend `B`.
pub(crate) struct DeviceSession<B: Backend> {
    program: Program,
    /// `None` after the device has failed or run out of memory.
    uploaded: Option<Uploaded<B>>,
    device: B::Device,
    id: DeviceId,
    /// Panics of device threads since the session was created fail its next run.
    watch: PanicWatch,
    tuning: TuningState,
    listener: TuningListener,
    /// Burn orders work by stream. Its default stream is the calling thread's, but a session may move between threads.
    stream: StreamId,
    recorder: Recorder,
}

/// Returns a stream id that no thread has; thread ids count from zero.
fn new_stream() -> StreamId {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    StreamId { value: NEXT.fetch_add(1, Ordering::Relaxed) }
}

/// Returns the bytes that convolutions without rounding hold in addition: the input, twice (see `exec::layers`).
fn exact_bytes(program: &Program) -> u64 {
    let mut elements: BTreeMap<ValueId, usize> = program.inputs.iter().map(|i| (i.value, count(&i.form))).collect();
    elements.extend(program.steps.iter().flat_map(|s| s.outputs.iter().map(|(value, form)| (*value, count(form)))));
    let read = program.steps.iter().filter(|s| matches!(s.kind, Kind::Conv { .. } | Kind::Upsample { .. }));
    let largest = read.filter_map(|step| match step.inputs.first() {
        Some(Source::Value(value)) => elements.get(value).copied(),
        _ => None,
    });
    (largest.max().unwrap_or(0) * 2 * size_of::<f32>()) as u64
}

/// Describes the steps and shapes of a program, which decide what is tuned.
fn description(program: &Program, exact: bool) -> String {
    let steps = program.steps.iter().map(|step| {
        let forms: Vec<&Form> = step.outputs.iter().map(|(_, form)| form).collect();
        format!("{:?} {forms:?}\n", step.kind)
    });
    steps.chain([format!("exact: {exact}")]).collect()
}

impl<B: Backend> DeviceSession<B> {
    /// Uploads a program's constants to a device. Kernel timings are cached in `cache`.
    pub(crate) fn new(
        mut program: Program,
        device: &B::Device,
        known: &Device,
        cache: &Path,
        options: &CompileOptions,
    ) -> Result<Self, EngineError> {
        let id = known.id;
        // Only on CUDA do kernels exist that round the factors of 32-bit convolutions.
        let exact = matches!(id, DeviceId::Cuda(_)) && options.precision == Precision::F32;
        if exact {
            program.report.arena_bytes += exact_bytes(&program);
        }
        let needed_bytes = program.report.arena_bytes + program.report.weight_bytes;
        let available_bytes =
            options.memory_budget_bytes.unwrap_or(u64::MAX).min(known.available_bytes().unwrap_or(u64::MAX));
        if needed_bytes > available_bytes {
            return Err(EngineError::OutOfMemory { device: id, needed_bytes, available_bytes });
        }
        let stream = new_stream();
        let mut watch = PanicWatch::start();
        let span = options.recorder.span(Stage::Upload, "weights").bytes(program.report.weight_bytes as usize);
        let (uploaded, backend) = watch.guard(id, || {
            stream.executes(|| {
                let constants = std::mem::take(&mut program.constants).into_iter();
                let constants = constants.map(|c| Tensor::from_data(TensorData::new(c.values, c.form), device));
                let tables = std::mem::take(&mut program.tables).into_iter();
                let tables = tables.map(|t| {
                    let length = t.len();
                    Tensor::from_data(TensorData::new(t, [length]), device)
                });
                let widen_f16 = matches!(id, DeviceId::Wgpu(_));
                let uploaded =
                    Uploaded::<B> { widen_f16, exact, constants: constants.collect(), tables: tables.collect() };
                synchronize::<B>(device, id)?;
                Ok((uploaded, B::name(device)))
            })
        })?;
        span.finish();
        program.report.backend = backend;
        Ok(Self {
            tuning: TuningState::of(cache, id, &description(&program, exact)),
            program,
            uploaded: Some(uploaded),
            device: device.clone(),
            id,
            watch,
            listener: options.tuning.clone(),
            stream,
            recorder: options.recorder.clone(),
        })
    }

    /// Frees the device memory of the session, also that which Burn keeps for later sessions of the same stream.
    fn release(&mut self) {
        let Some(uploaded) = self.uploaded.take() else { return };
        let (stream, device, id) = (self.stream, &self.device, self.id);
        // Errors of a session that ends have no consequences; later sessions have watches of their own.
        let _ = PanicWatch::start().guard(id, || {
            stream.executes(|| {
                drop(uploaded);
                synchronize::<B>(device, id)?;
                B::memory_cleanup(device);
                synchronize::<B>(device, id)
            })
        });
    }

    fn check(&self, inputs: &[HostTensor]) -> Result<(), EngineError> {
        let wanted = &self.program.inputs;
        if inputs.len() != wanted.len() {
            return Err(EngineError::Input {
                name: "inputs".to_owned(),
                expected: format!("{} inputs", wanted.len()),
                got: inputs.len().to_string(),
            });
        }
        for (input, tensor) in wanted.iter().zip(inputs) {
            if tensor.shape() != input.shape || tensor.dtype() != ElementType::F32 {
                return Err(EngineError::Input {
                    name: input.name.clone(),
                    expected: format!("{} {:?}", ElementType::F32, input.shape),
                    got: format!("{} {:?}", tensor.dtype(), tensor.shape()),
                });
            }
        }
        Ok(())
    }

    fn execute(
        &self,
        uploaded: &Uploaded<B>,
        inputs: &[HostTensor],
        recorder: &Recorder,
    ) -> Result<Vec<HostTensor>, EngineError> {
        let internal =
            |name: &str, what: &str| EngineError::Internal { place: name.to_owned(), reason: what.to_owned() };
        // Work is queued; the device is synchronized after each step only if steps are profiled.
        let wait = |wanted: bool| if wanted { synchronize::<B>(&self.device, self.id) } else { Ok(()) };
        let each = recorder.times_operators();
        let bytes = |tensors: &[HostTensor]| tensors.iter().map(|t| t.len() * size_of::<f32>()).sum();
        let mut values: BTreeMap<ValueId, Image<B>> = BTreeMap::new();
        let span = recorder.span(Stage::Upload, "inputs").bytes(bytes(inputs));
        for (input, tensor) in self.program.inputs.iter().zip(inputs) {
            // `check` has refused inputs of other types.
            let host = tensor.as_f32().unwrap_or_default().to_vec();
            values.insert(input.value, Tensor::from_data(TensorData::new(host, input.form), &self.device));
        }
        wait(each)?;
        span.finish();
        for step in &self.program.steps {
            let span = each.then(|| recorder.span(Stage::Op, step.name.clone()).macs(step.macs));
            let mut arguments = Vec::with_capacity(step.inputs.len());
            for (index, source) in step.inputs.iter().enumerate() {
                let argument = match source {
                    Source::Constant(index) => uploaded.constants.get(*index).cloned(),
                    // The last reader takes ownership, so that the buffer can be reused in place.
                    Source::Value(value)
                        if step.last_used.contains(value) && !step.inputs[index + 1..].contains(source) =>
                    {
                        values.remove(value)
                    }
                    Source::Value(value) => values.get(value).cloned(),
                };
                arguments.push(argument.ok_or_else(|| internal(&step.name, "an input was not computed"))?);
            }
            let outputs_of_step = exec::run(step, arguments, uploaded)
                .ok_or_else(|| internal(&step.name, "inputs do not match the plan"))?;
            if outputs_of_step.len() != step.outputs.len() {
                return Err(internal(&step.name, "wrong number of outputs"));
            }
            for (tensor, (output, form)) in outputs_of_step.into_iter().zip(&step.outputs) {
                if tensor.dims() != *form {
                    return Err(internal(
                        &step.name,
                        &format!("output has form {:?} instead of {form:?}", tensor.dims()),
                    ));
                }
                values.insert(*output, tensor);
            }
            for value in &step.last_used {
                values.remove(value);
            }
            wait(each)?;
            drop(span);
        }
        // Wait for the computation, so that the span below measures the download only.
        wait(true)?;
        let mut span = recorder.span(Stage::Download, "outputs");
        let mut outputs = Vec::with_capacity(self.program.outputs.len());
        for output in &self.program.outputs {
            let (value, shape) = match output {
                Output::Constant(tensor) => {
                    outputs.push(tensor.as_ref().clone());
                    continue;
                }
                Output::Value { value, shape } => (value, shape),
            };
            let tensor = values.get(value).cloned().ok_or_else(|| internal("outputs", "an output was not computed"))?;
            let data = tensor.try_into_data().map_err(|e| failed(self.id, &e))?;
            let host = data.into_vec::<f32>().map_err(|e| internal("outputs", &format!("{e:?}")))?;
            span.add_bytes(host.len() * size_of::<f32>());
            outputs.push(HostTensor::new(shape.clone(), host)?);
        }
        Ok(outputs)
    }
}

impl<B: Backend> Session for DeviceSession<B> {
    fn run(&mut self, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, EngineError> {
        self.check(inputs)?;
        let Some(uploaded) = &self.uploaded else {
            return Err(EngineError::Device {
                device: self.id,
                reason: "the device failed in an earlier run: restart the program".to_owned(),
            });
        };
        let (mut watch, mut tuning) = (self.watch, self.tuning.clone());
        let silent = Recorder::totals_only();
        let result = tuning.run(&self.listener, self.id, |is_recorded| {
            let recorder = if is_recorded { &self.recorder } else { &silent };
            watch.guard(self.id, || self.stream.executes(|| self.execute(uploaded, inputs, recorder)))
        });
        (self.watch, self.tuning) = (watch, tuning);
        match &result {
            // Nothing that the session holds can be trusted, but its memory is needed for a smaller one.
            Err(EngineError::OutOfMemory { .. }) => self.release(),
            // Freeing memory of a failed device may fail again and abort the process.
            Err(EngineError::Device { .. }) => std::mem::forget(self.uploaded.take()),
            _ => {}
        }
        result
    }

    fn report(&self) -> &CompileReport {
        &self.program.report
    }
}

impl<B: Backend> Drop for DeviceSession<B> {
    fn drop(&mut self) {
        self.release();
    }
}

fn failed(device: DeviceId, error: &ExecutionError) -> EngineError {
    device_error(device, &error.to_string())
}

/// Waits until the device has finished all queued work.
fn synchronize<B: Backend>(device: &B::Device, id: DeviceId) -> Result<(), EngineError> {
    B::sync(device).map_err(|e| failed(id, &e))
}
