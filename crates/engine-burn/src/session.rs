//! A session on a device: weights are uploaded once, and inputs at every run, unless they are tiles of a slab that was
//! uploaded before. Outputs are downloaded at every run.

mod resident;
mod slab;

use crate::exec::{self, Image, Uploaded};
use crate::form::{Form, described};
use crate::guard::PanicWatch;
use crate::kernels::{DeviceBackend, FactorType};
use crate::plan::{Constant, Output, Program, Source};
use crate::transfer::Transfers;
use crate::tuning::TuningState;
use burn_tensor::StreamId;
use burn_tensor::backend::Backend;
use cytoscope_engine::{
    CompileOptions, CompileReport, Content, Device, DeviceId, EngineError, ResidentSession, SLAB_COPIES, Session,
    SlabSession, TuningListener, UNKNOWN_DEVICE_SLAB_BYTES,
};
use cytoscope_graph::{ElementType, Tensor as HostTensor, ValueId};
use cytoscope_profile::{DeviceTraffic, OperatorPrecision, Recorder, Stage};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A compiled program on a device of backend `B`.
pub(crate) struct DeviceSession<B: DeviceBackend> {
    program: Program,
    memory: DeviceMemory<B>,
    transfers: Transfers<B>,
    id: DeviceId,
    /// The type to which convolutions of 32-bit tensors round their factors for matrix units, if any.
    wide_factor_type: Option<FactorType>,
    /// Panics of device threads since the session was created fail its next run.
    watch: PanicWatch,
    tuning: TuningState,
    listener: TuningListener,
    /// Burn orders work by stream. Its default stream is the calling thread's, but a session may move between threads.
    stream: StreamId,
    /// Whether the device has failed. Tensors that outlive the session must not be freed then.
    is_lost: Arc<AtomicBool>,
    recorder: Recorder,
    /// Maximum size of a slab in bytes; 0 if the graph does not take tiles of one.
    slab_limit_bytes: u64,
    /// Whether each run waits for the device before it returns. It must if Burn times kernels, because an error that is not
    /// received before is lost. In other sessions, the next wait receives it.
    waits: bool,
    /// Number of runs since the session waited for the device.
    unwaited_runs: usize,
}

/// Tensors that a session holds in device memory.
enum DeviceMemory<B: Backend> {
    /// Nothing yet. Weights are uploaded before the first run: some sessions are compiled for their report alone.
    Empty,
    /// Weights, and possibly a slab.
    Held(Held<B>),
    /// Nothing: the device has failed or run out of memory.
    Released,
}

/// Data that are uploaded before a run.
struct Held<B: Backend> {
    weights: Uploaded<B>,
    /// Slices of a volume that input tiles are cut from.
    slab: Option<Image<B>>,
    /// Parts of outputs that were kept and not yet taken.
    kept: Vec<Image<B>>,
    /// Sums of overlapping tiles.
    sums: Option<Sums<B>>,
}

/// Sums of overlapping tiles.
struct Sums<B: Backend> {
    /// The sums of weighted voxels, one sample.
    total: Image<B>,
    /// Weights of the voxels of a tile, one sample with one channel.
    weights: Image<B>,
}

/// The inputs of a run.
#[derive(Clone, Copy)]
enum Feed<'a> {
    /// Tensors in host memory, which are copied to the device.
    Tensors(&'a [HostTensor]),
    /// Tiles of the slab that start at these positions Z, Y, X.
    Tiles(&'a [[usize; 3]]),
    /// Tensors of the host or the device.
    Contents(&'a [Content]),
}

/// Returns the maximum size of a slab in bytes for a program that leaves `free_bytes` of the device, if that is known.
fn slab_limit(program: &Program, id: DeviceId, free_bytes: Option<u64>) -> u64 {
    let takes_tiles = match program.inputs.as_slice() {
        [input] => matches!(input.shape.len(), 4 | 5),
        _ => false,
    };
    if !takes_tiles {
        return 0;
    }
    let memory = free_bytes.map_or(UNKNOWN_DEVICE_SLAB_BYTES, |free| free / SLAB_COPIES);
    // Indices of elements have 32 bits; WebGPU guarantees bindings of 128 MiB.
    let indexed = if matches!(id, DeviceId::Wgpu(_)) { 128 << 20 } else { i32::MAX as u64 * size_of::<f32>() as u64 };
    memory.min(indexed)
}

/// Returns the error of a session that has lost its device.
fn unusable(device: DeviceId) -> EngineError {
    EngineError::Device { device, reason: "the device failed in an earlier run: restart the program".into() }
}

/// Returns the error for a slab or tile that does not fit.
fn bad_slab(expected: String, got: String) -> EngineError {
    EngineError::Input { name: "slab".to_owned(), expected, got }
}

/// Returns the error of a plan that does not fit its program.
fn internal(place: &str, what: &str) -> EngineError {
    EngineError::Internal { place: place.to_owned(), reason: what.into() }
}

/// Returns a stream id that no thread has; thread ids count from zero.
fn new_stream() -> StreamId {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    StreamId { value: NEXT.fetch_add(1, Ordering::Relaxed) }
}

/// Describes the steps and shapes of a program, which decide what is tuned.
fn description(program: &Program) -> String {
    let steps = program.steps.iter().map(|step| {
        let forms: Vec<&Form> = step.outputs.iter().map(|(_, form)| form).collect();
        format!("{:?} {forms:?}\n", step.kind)
    });
    steps.collect()
}

impl<B: DeviceBackend> DeviceSession<B> {
    /// Prepares a program for a device. Kernel timings are cached in `cache`. Convolutions of 32-bit tensors round their
    /// factors to the type `wide_factor_type`, if there is one and the device has units for it.
    pub(crate) fn new(
        mut program: Program,
        device: &B::Device,
        known: &Device,
        cache: &Path,
        options: &CompileOptions,
        wide_factor_type: Option<FactorType>,
    ) -> Result<Self, EngineError> {
        let id = known.id;
        let needed_bytes = program.report.arena_bytes + program.report.weight_bytes;
        let available_bytes =
            options.memory_budget_bytes.unwrap_or(u64::MAX).min(known.available_bytes().unwrap_or(u64::MAX));
        if needed_bytes > available_bytes {
            return Err(EngineError::OutOfMemory { device: id, needed_bytes, available_bytes });
        }
        // A part is left for what Burn allocates besides tensors.
        let free_bytes = (available_bytes < u64::MAX).then(|| (available_bytes / 8 * 7).saturating_sub(needed_bytes));
        let slab_limit_bytes = slab_limit(&program, id, free_bytes);
        let mut watch = PanicWatch::start();
        program.report.backend = watch.guard(id, || Ok(B::name(device)))?;
        let waits = program.times_kernels();
        let tuning = TuningState::of(cache, id, &format!("{wide_factor_type:?} {}", description(&program)));
        Ok(Self {
            tuning: if waits { tuning } else { tuning.not_needed() },
            program,
            memory: DeviceMemory::Empty,
            transfers: Transfers::new(device.clone(), id),
            id,
            wide_factor_type,
            watch,
            listener: options.tuning.clone(),
            stream: new_stream(),
            is_lost: Arc::default(),
            recorder: options.recorder.clone(),
            slab_limit_bytes,
            waits,
            unwaited_runs: 0,
        })
    }

    /// Returns the stream whose memory pool the session uses, and a weak reference that is valid while the session, or a
    /// tensor that it left on the device, exists.
    pub(crate) fn memory_holder(&self) -> (StreamId, Weak<AtomicBool>) {
        (self.stream, Arc::downgrade(&self.is_lost))
    }

    /// Uploads the program's constants, unless that was done. If `wait`, waits until they have arrived.
    fn upload_weights(&mut self, wait: bool) -> Result<(), EngineError> {
        if !matches!(self.memory, DeviceMemory::Empty) {
            return Ok(());
        }
        // After an error, the session has no weights to run with.
        self.memory = DeviceMemory::Released;
        let constants = std::mem::take(&mut self.program.constants);
        let tables = std::mem::take(&mut self.program.tables);
        let (id, wide_factor_type, stream, transfers) = (self.id, self.wide_factor_type, self.stream, &self.transfers);
        let parts = &self.program.parts;
        let upload = |constant: Constant| {
            let uploaded = transfers.upload(constant.values, constant.form);
            constant.half.into_iter().fold(uploaded, exec::cast)
        };
        let span = self.recorder.span(Stage::Upload, "weights").bytes(self.program.report.weight_bytes as usize);
        let uploaded = self.watch.guard(id, || {
            stream.executes(|| {
                let mut constants: Vec<Image<B>> = constants.into_iter().map(upload).collect();
                if !parts.is_empty() {
                    let packed = constants.pop().and_then(|packed| B::split(packed, parts));
                    constants = packed.ok_or_else(|| internal("weights", "parts do not match the plan"))?;
                }
                let uploaded = Uploaded {
                    wide_factor_type,
                    constants,
                    tables: tables.into_iter().map(|table| transfers.upload_table(table)).collect(),
                };
                if wait {
                    transfers.synchronize()?;
                }
                Ok(uploaded)
            })
        });
        drop(span);
        match uploaded {
            Ok(weights) => {
                self.memory = DeviceMemory::Held(Held { weights, slab: None, kept: Vec::new(), sums: None });
            }
            Err(error) => {
                if matches!(error, EngineError::OutOfMemory { .. }) {
                    self.free(None);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns whether nothing was uploaded yet.
    fn is_empty(&self) -> bool {
        matches!(self.memory, DeviceMemory::Empty)
    }

    /// Returns a result. If it is an error of the device, the session no longer holds anything there: what it held is freed
    /// if memory ran out, and abandoned if the device failed, because freeing may fail again.
    fn release_if_failed<T>(&mut self, result: Result<T, EngineError>) -> Result<T, EngineError> {
        match &result {
            // The memory is needed for a smaller session.
            Err(EngineError::OutOfMemory { .. }) => self.release(),
            // Freeing memory of a failed device may fail again and abort the process.
            Err(EngineError::Device { .. }) => {
                self.is_lost.store(true, Ordering::Relaxed);
                std::mem::forget(std::mem::replace(&mut self.memory, DeviceMemory::Released));
            }
            _ => {}
        }
        result
    }

    /// Frees the device memory of the session, also that which Burn keeps for later sessions of the same stream.
    fn release(&mut self) {
        let memory = std::mem::replace(&mut self.memory, DeviceMemory::Released);
        if self.is_lost.load(Ordering::Relaxed) {
            // Another session that shares tensors has lost the device; see `release_if_failed`.
            std::mem::forget(memory);
        } else if let DeviceMemory::Held(held) = memory {
            self.free(Some(held));
        }
    }

    /// Frees `held`, and what Burn keeps for later sessions of the same stream.
    fn free(&self, held: Option<Held<B>>) {
        let (stream, transfers, id) = (self.stream, &self.transfers, self.id);
        // Errors of a session that ends have no consequences; later sessions have their own watches.
        let _ = PanicWatch::start().guard(id, || {
            stream.executes(|| {
                drop(held);
                transfers.synchronize()?;
                B::memory_cleanup(transfers.device());
                transfers.synchronize()
            })
        });
    }

    /// Refuses inputs whose types or shapes differ from those of the program.
    fn check<'a>(&self, inputs: impl ExactSizeIterator<Item = (ElementType, &'a [usize])>) -> Result<(), EngineError> {
        let wanted = &self.program.inputs;
        if inputs.len() != wanted.len() {
            return Err(EngineError::Input {
                name: "inputs".to_owned(),
                expected: format!("{} inputs", wanted.len()),
                got: inputs.len().to_string(),
            });
        }
        for (input, (dtype, shape)) in wanted.iter().zip(inputs) {
            if shape != input.shape || dtype != ElementType::F32 {
                return Err(EngineError::Input {
                    name: input.name.clone(),
                    expected: format!("{} {:?}", ElementType::F32, input.shape),
                    got: format!("{dtype} {shape:?}"),
                });
            }
        }
        Ok(())
    }

    /// Brings the inputs of a run to the device.
    fn feed(
        &self,
        held: &Held<B>,
        feed: Feed<'_>,
        recorder: &Recorder,
    ) -> Result<BTreeMap<ValueId, Image<B>>, EngineError> {
        let mut values = BTreeMap::new();
        let is_timed = recorder.times_operators();
        let span = match feed {
            Feed::Tensors(inputs) => {
                let bytes: usize = inputs.iter().map(|t| t.len() * size_of::<f32>()).sum();
                let span = recorder.span(Stage::Upload, "inputs").bytes(bytes);
                for (input, tensor) in self.program.inputs.iter().zip(inputs) {
                    // `check` has refused inputs of other types.
                    let host = tensor.as_f32().unwrap_or_default().to_vec();
                    values.insert(input.value, self.transfers.upload(host, input.form));
                }
                Some(span)
            }
            Feed::Contents(contents) => {
                let mut span = recorder.span(Stage::Upload, "inputs");
                for (input, content) in self.program.inputs.iter().zip(contents) {
                    let tensor = match content {
                        Content::Host(tensor) => {
                            // `check_contents` has refused inputs of other types.
                            let host = tensor.as_f32().unwrap_or_default().to_vec();
                            span.add_bytes(host.len() * size_of::<f32>());
                            self.transfers.upload(host, input.form)
                        }
                        Content::Device(_) => resident::image(content, self.id, input.form)
                            .ok_or_else(|| internal(&input.name, "the tensor is on another device"))?,
                    };
                    values.insert(input.value, tensor);
                }
                Some(span)
            }
            Feed::Tiles(starts) => {
                let span = is_timed.then(|| recorder.span(Stage::Op, "tiles of the slab"));
                let slab = held.slab.as_ref().ok_or_else(|| bad_slab("a slab".to_owned(), "none".to_owned()))?;
                if let Some(input) = self.program.inputs.first() {
                    let tiles = B::gather_tiles(slab, starts, input.form, |table| self.transfers.upload_table(table));
                    let tiles = tiles.ok_or_else(|| bad_slab("tiles".to_owned(), "none".to_owned()))?;
                    values.insert(input.value, tiles);
                }
                span
            }
        };
        if is_timed {
            self.transfers.synchronize()?;
        }
        drop(span);
        Ok(values)
    }

    /// Queues all steps of a run, and returns the values that they leave: the outputs.
    fn compute(
        &self,
        held: &Held<B>,
        feed: Feed<'_>,
        recorder: &Recorder,
    ) -> Result<BTreeMap<ValueId, Image<B>>, EngineError> {
        // Work is queued; the device is synchronized after each step only if steps are profiled.
        let is_timed = recorder.times_operators();
        let uploaded = &held.weights;
        let mut values = self.feed(held, feed, recorder)?;
        self.transfers.count_run(self.program.steps.len());
        for step in &self.program.steps {
            let precision = OperatorPrecision::Float;
            let span =
                is_timed.then(|| recorder.span(Stage::Op, step.name.clone()).precision(precision).macs(step.macs));
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
                    let (found, expected) = (described(&tensor.dims()), described(form));
                    return Err(internal(&step.name, &format!("the output has {found} instead of {expected}")));
                }
                values.insert(*output, tensor);
            }
            for value in &step.last_used {
                values.remove(value);
            }
            if is_timed {
                self.transfers.synchronize()?;
            }
            drop(span);
        }
        Ok(values)
    }

    /// Downloads the outputs of a run when they are computed.
    fn download(
        &self,
        values: &BTreeMap<ValueId, Image<B>>,
        recorder: &Recorder,
    ) -> Result<Vec<HostTensor>, EngineError> {
        // Wait for the computation, so that the span below measures the download only.
        self.transfers.synchronize()?;
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
            let host = self.transfers.download(tensor)?;
            span.add_bytes(host.len() * size_of::<f32>());
            outputs.push(HostTensor::new(shape.clone(), host)?);
        }
        Ok(outputs)
    }
}

impl<B: DeviceBackend> DeviceSession<B> {
    /// Runs the program once and downloads its outputs. The weights were uploaded.
    fn run_on(&mut self, feed: Feed<'_>) -> Result<Vec<HostTensor>, EngineError> {
        self.run_with(feed, true, |session, values, recorder| session.download(values, recorder))
    }

    /// Runs the program once, or more often if kernels are timed, and each time passes the outputs to `finish`. Returns the
    /// last result. `waits` says whether `finish` waits for the device, which it must if kernels can be timed. The weights
    /// were uploaded.
    fn run_with<T>(
        &mut self,
        feed: Feed<'_>,
        waits: bool,
        finish: impl Fn(&Self, &BTreeMap<ValueId, Image<B>>, &Recorder) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let DeviceMemory::Held(held) = &self.memory else { return Err(unusable(self.id)) };
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(unusable(self.id));
        }
        let (mut watch, mut tuning) = (self.watch, self.tuning.clone());
        let silent = Recorder::totals_only();
        let result = tuning.run(&self.listener, self.id, |is_recorded| {
            let (recorder, before) = (if is_recorded { &self.recorder } else { &silent }, self.transfers.counted());
            let run = || finish(&*self, &self.compute(held, feed, recorder)?, recorder);
            let result = watch.guard(self.id, || self.stream.executes(run));
            if !is_recorded {
                self.transfers.set_counted(before);
            }
            result
        });
        (self.watch, self.tuning) = (watch, tuning);
        if waits && result.is_ok() {
            self.tuning.end_compiling();
        }
        self.release_if_failed(result)
    }

    /// Returns the form of an input tile.
    fn tile_form(&self) -> Result<Form, EngineError> {
        match self.program.inputs.as_slice() {
            [input] if self.slab_limit_bytes > 0 => Ok(input.form),
            inputs => Err(bad_slab("one image input".to_owned(), format!("{} inputs", inputs.len()))),
        }
    }
}

impl<B: DeviceBackend> Session for DeviceSession<B> {
    fn run(&mut self, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, EngineError> {
        self.check(inputs.iter().map(|tensor| (tensor.dtype(), tensor.shape())))?;
        self.upload_weights(true)?;
        self.run_on(Feed::Tensors(inputs))
    }

    fn report(&self) -> &CompileReport {
        &self.program.report
    }

    fn traffic(&self) -> Option<DeviceTraffic> {
        Some(self.transfers.counted())
    }

    fn resident(&mut self) -> Option<&mut dyn ResidentSession> {
        Some(self)
    }

    fn slabs(&mut self) -> Option<&mut dyn SlabSession> {
        if self.slab_limit_bytes > 0 { Some(self) } else { None }
    }
}

impl<B: DeviceBackend> Drop for DeviceSession<B> {
    fn drop(&mut self) {
        self.release();
    }
}
