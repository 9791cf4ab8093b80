//! A session on a device: weights are uploaded once, and inputs at every run, unless they are tiles of a slab that was
//! uploaded before. Outputs are downloaded at every run.

use crate::exec::{self, Image, Uploaded};
use crate::form::{Form, count};
use crate::guard::PanicWatch;
use crate::plan::{Constant, Kind, Output, Program, Source};
use crate::transfer::Transfers;
use crate::tuning::TuningState;
use burn_tensor::backend::Backend;
use burn_tensor::{StreamId, Tensor};
use cytoscope_engine::{
    CompileOptions, CompileReport, Device, DeviceId, EngineError, Precision, SLAB_COPIES, Session, SlabSession,
    TuningListener, UNKNOWN_DEVICE_SLAB_BYTES,
};
use cytoscope_graph::{ElementType, Tensor as HostTensor, ValueId};
use cytoscope_profile::{DeviceTraffic, Recorder, Stage};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A compiled program on a device of backend `B`.
pub(crate) struct DeviceSession<B: Backend> {
    program: Program,
    memory: DeviceMemory<B>,
    transfers: Transfers<B>,
    id: DeviceId,
    /// Whether convolutions of 32-bit tensors may not use kernels that round their factors to TF32.
    exact: bool,
    /// Panics of device threads since the session was created fail its next run.
    watch: PanicWatch,
    tuning: TuningState,
    listener: TuningListener,
    /// Burn orders work by stream. Its default stream is the calling thread's, but a session may move between threads.
    stream: StreamId,
    recorder: Recorder,
    /// Maximum size of a slab in bytes; 0 if the graph does not take tiles of one.
    slab_limit_bytes: u64,
}

/// What a session holds in device memory.
enum DeviceMemory<B: Backend> {
    /// Nothing yet. Weights are uploaded before the first run: some sessions are compiled for their report alone.
    Empty,
    /// Weights, and maybe a slab.
    Held(Held<B>),
    /// Nothing any more: the device has failed or run out of memory.
    Released,
}

/// What is uploaded before a run.
struct Held<B: Backend> {
    weights: Uploaded<B>,
    /// Slices of a volume, of which tiles are the input.
    slab: Option<Image<B>>,
    /// Parts of outputs that were kept and not yet taken.
    kept: Vec<Image<B>>,
}

/// The inputs of a run.
#[derive(Clone, Copy)]
enum Feed<'a> {
    /// Tensors of the host.
    Tensors(&'a [HostTensor]),
    /// Tiles of the slab that start at these positions Z, Y, X.
    Tiles(&'a [[usize; 3]]),
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
    EngineError::Device { device, reason: "the device failed in an earlier run: restart the program".to_owned() }
}

/// Returns the error for a slab or tile that does not fit.
fn bad_slab(expected: String, got: String) -> EngineError {
    EngineError::Input { name: "slab".to_owned(), expected, got }
}

/// Returns the error of a plan that does not fit its program.
fn internal(place: &str, what: &str) -> EngineError {
    EngineError::Internal { place: place.to_owned(), reason: what.to_owned() }
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
    /// Prepares a program for a device. Kernel timings are cached in `cache`.
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
        // A part is left for what Burn allocates besides tensors.
        let free_bytes = (available_bytes < u64::MAX).then(|| (available_bytes / 8 * 7).saturating_sub(needed_bytes));
        let slab_limit_bytes = slab_limit(&program, id, free_bytes);
        let mut watch = PanicWatch::start();
        program.report.backend = watch.guard(id, || Ok(B::name(device)))?;
        Ok(Self {
            tuning: TuningState::of(cache, id, &description(&program, exact)),
            program,
            memory: DeviceMemory::Empty,
            transfers: Transfers::new(device.clone(), id),
            id,
            exact,
            watch,
            listener: options.tuning.clone(),
            stream: new_stream(),
            recorder: options.recorder.clone(),
            slab_limit_bytes,
        })
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
        let (id, exact, stream, transfers) = (self.id, self.exact, self.stream, &self.transfers);
        let upload = |constant: Constant| {
            let uploaded = transfers.upload(constant.values, constant.form);
            constant.half.into_iter().fold(uploaded, exec::cast)
        };
        let span = self.recorder.span(Stage::Upload, "weights").bytes(self.program.report.weight_bytes as usize);
        let uploaded = self.watch.guard(id, || {
            stream.executes(|| {
                let uploaded = Uploaded {
                    widen_f16: matches!(id, DeviceId::Wgpu(_)),
                    exact,
                    constants: constants.into_iter().map(upload).collect(),
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
            Ok(weights) => self.memory = DeviceMemory::Held(Held { weights, slab: None, kept: Vec::new() }),
            Err(error) => {
                if matches!(error, EngineError::OutOfMemory { .. }) {
                    self.free(None);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives up what the session holds on the device if it failed. Nothing of that can be trusted.
    fn after<T>(&mut self, result: Result<T, EngineError>) -> Result<T, EngineError> {
        match &result {
            // The memory is needed for a smaller session.
            Err(EngineError::OutOfMemory { .. }) => self.release(),
            // Freeing memory of a failed device may fail again and abort the process.
            Err(EngineError::Device { .. }) => {
                std::mem::forget(std::mem::replace(&mut self.memory, DeviceMemory::Released));
            }
            _ => {}
        }
        result
    }

    /// Frees the device memory of the session, also that which Burn keeps for later sessions of the same stream.
    fn release(&mut self) {
        if let DeviceMemory::Held(held) = std::mem::replace(&mut self.memory, DeviceMemory::Released) {
            self.free(Some(held));
        }
    }

    /// Frees `held`, and what Burn keeps for later sessions of the same stream.
    fn free(&self, held: Option<Held<B>>) {
        let (stream, transfers, id) = (self.stream, &self.transfers, self.id);
        // Errors of a session that ends have no consequences; later sessions have watches of their own.
        let _ = PanicWatch::start().guard(id, || {
            stream.executes(|| {
                drop(held);
                transfers.synchronize()?;
                B::memory_cleanup(transfers.device());
                transfers.synchronize()
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

    /// Brings the inputs of a run to the device.
    fn feed(
        &self,
        held: &Held<B>,
        feed: Feed<'_>,
        recorder: &Recorder,
    ) -> Result<BTreeMap<ValueId, Image<B>>, EngineError> {
        let mut values = BTreeMap::new();
        let each = recorder.times_operators();
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
            Feed::Tiles(starts) => {
                let span = each.then(|| recorder.span(Stage::Op, "tiles of the slab"));
                let slab = held.slab.as_ref().ok_or_else(|| bad_slab("a slab".to_owned(), "none".to_owned()))?;
                if let Some(input) = self.program.inputs.first() {
                    let tiles = exec::gather_tiles(slab, starts, input.form);
                    let tiles = tiles.ok_or_else(|| bad_slab("tiles".to_owned(), "none".to_owned()))?;
                    values.insert(input.value, tiles);
                }
                span
            }
        };
        if each {
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
        let each = recorder.times_operators();
        let uploaded = &held.weights;
        let mut values = self.feed(held, feed, recorder)?;
        self.transfers.count_run(self.program.steps.len());
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
            if each {
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

impl<B: Backend> DeviceSession<B> {
    /// Runs the program once and downloads its outputs. The weights were uploaded.
    fn run_on(&mut self, feed: Feed<'_>) -> Result<Vec<HostTensor>, EngineError> {
        self.run_with(feed, |session, values, recorder| session.download(values, recorder))
    }

    /// Runs the program once, or more often if kernels are timed, and each time passes the outputs to `finish`, which
    /// must wait for the device. Returns the last result. The weights were uploaded.
    fn run_with<T>(
        &mut self,
        feed: Feed<'_>,
        finish: impl Fn(&Self, &BTreeMap<ValueId, Image<B>>, &Recorder) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let DeviceMemory::Held(held) = &self.memory else { return Err(unusable(self.id)) };
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
        self.after(result)
    }

    /// Returns the form of the input, of which a slab is a larger piece.
    fn tile_form(&self) -> Result<Form, EngineError> {
        match self.program.inputs.as_slice() {
            [input] if self.slab_limit_bytes > 0 => Ok(input.form),
            inputs => Err(bad_slab("one image input".to_owned(), format!("{} inputs", inputs.len()))),
        }
    }
}

impl<B: Backend> SlabSession for DeviceSession<B> {
    fn slab_limit_bytes(&self) -> u64 {
        self.slab_limit_bytes
    }

    fn load(&mut self, kept_planes: usize, planes: HostTensor) -> Result<(), EngineError> {
        let tile = self.tile_form()?;
        let found = planes.shape().to_vec();
        let form = match found.as_slice() {
            &[channels, depth, rows, columns] if channels == tile[1] && depth > 0 => {
                [1, channels, depth, rows, columns]
            }
            _ => {
                return Err(bad_slab(
                    format!("planes of shape [{}, planes, rows, columns]", tile[1]),
                    format!("{found:?}"),
                ));
            }
        };
        let slab_bytes = count(&form) / form[2] * kept_planes.saturating_add(form[2]) * size_of::<f32>();
        if slab_bytes as u64 > self.slab_limit_bytes {
            return Err(bad_slab(format!("at most {} bytes", self.slab_limit_bytes), format!("{slab_bytes} bytes")));
        }
        let Some(values) = planes.into_f32() else {
            return Err(bad_slab(ElementType::F32.to_string(), "another type".to_owned()));
        };
        let kept = match &self.memory {
            DeviceMemory::Held(Held { slab: Some(slab), .. }) => slab.dims(),
            _ => [0; 5],
        };
        if kept_planes > 0 && (kept_planes > kept[2] || [kept[1], kept[3], kept[4]] != [form[1], form[3], form[4]]) {
            return Err(bad_slab(format!("planes like those of the slab {kept:?}"), format!("{form:?}")));
        }
        self.upload_weights(false)?;
        let DeviceMemory::Held(held) = &mut self.memory else { return Err(unusable(self.id)) };
        let earlier = held.slab.take();
        let (id, stream, transfers) = (self.id, self.stream, &self.transfers);
        let span = self.recorder.span(Stage::Upload, "slab").bytes(values.len() * size_of::<f32>());
        let slab = self.watch.guard(id, || {
            stream.executes(|| {
                let planes = transfers.upload(values, form);
                let slab = match earlier {
                    Some(earlier) if kept_planes > 0 => {
                        let last = earlier.slice_dim(2, kept[2] - kept_planes..kept[2]);
                        Tensor::cat(vec![last, planes], 2)
                    }
                    _ => planes,
                };
                // Errors must be seen here: those of earlier work are lost when kernels are timed.
                transfers.synchronize()?;
                Ok(slab)
            })
        });
        drop(span);
        let slab = self.after(slab)?;
        if let DeviceMemory::Held(held) = &mut self.memory {
            held.slab = Some(slab);
        }
        Ok(())
    }

    fn run_tiles(&mut self, starts: &[[usize; 3]]) -> Result<Vec<HostTensor>, EngineError> {
        self.check_tiles(starts)?;
        self.run_on(Feed::Tiles(starts))
    }

    fn run_kept(
        &mut self,
        starts: &[[usize; 3]],
        output: usize,
        kept: &[[Range<usize>; 3]],
    ) -> Result<(), EngineError> {
        self.check_tiles(starts)?;
        let tile = self.tile_form()?;
        let value = match self.program.outputs.get(output) {
            Some(Output::Value { value, .. }) if kept.len() <= starts.len() => *value,
            _ => return Err(bad_slab("a computed output and tiles to keep".to_owned(), format!("output {output}"))),
        };
        let parts = self.run_with(Feed::Tiles(starts), |session, values, _| {
            let tensor = values.get(&value).ok_or_else(|| internal("outputs", "an output was not computed"))?;
            let found = tensor.dims();
            if found[0] != tile[0] || found[2..] != tile[2..] {
                return Err(bad_slab(format!("{} tiles of {:?} voxels", tile[0], &tile[2..]), format!("{found:?}")));
            }
            let parts = kept.iter().enumerate().map(|(sample, ranges)| exec::copy_part(tensor, sample, ranges));
            let parts: Option<Vec<Image<B>>> = parts.collect();
            session.transfers.synchronize()?;
            parts.ok_or_else(|| bad_slab(format!("parts of tiles of {:?} voxels", &tile[2..]), format!("{kept:?}")))
        })?;
        if let DeviceMemory::Held(held) = &mut self.memory {
            held.kept.extend(parts);
        }
        Ok(())
    }

    fn take_kept(&mut self, columns: usize) -> Result<HostTensor, EngineError> {
        let DeviceMemory::Held(held) = &mut self.memory else { return Err(unusable(self.id)) };
        let parts = std::mem::take(&mut held.kept);
        if parts.is_empty() || columns == 0 || !parts.len().is_multiple_of(columns) {
            return Err(bad_slab(format!("rows of {columns} tiles"), format!("{} tiles", parts.len())));
        }
        let (id, stream, transfers) = (self.id, self.stream, &self.transfers);
        let mut span = self.recorder.span(Stage::Download, "slab");
        let taken = self.watch.guard(id, || {
            stream.executes(|| {
                let (mut parts, mut rows) = (parts.into_iter(), Vec::new());
                loop {
                    let row: Vec<Image<B>> = parts.by_ref().take(columns).collect();
                    if row.is_empty() {
                        break;
                    }
                    rows.push(Tensor::cat(row, 4));
                }
                let whole: Image<B> = Tensor::cat(rows, 3);
                let shape = whole.dims()[1..].to_vec();
                Ok((shape, transfers.download(whole)?))
            })
        });
        span.add_bytes(taken.as_ref().map_or(0, |(_, values)| values.len() * size_of::<f32>()));
        drop(span);
        let (shape, values) = self.after(taken)?;
        Ok(HostTensor::new(shape, values)?)
    }
}

impl<B: Backend> DeviceSession<B> {
    /// Refuses positions that are not one for each sample, or whose tiles exceed the slab.
    fn check_tiles(&self, starts: &[[usize; 3]]) -> Result<(), EngineError> {
        let tile = self.tile_form()?;
        let DeviceMemory::Held(Held { slab: Some(slab), .. }) = &self.memory else {
            return Err(bad_slab("a slab".to_owned(), "none".to_owned()));
        };
        let slab = slab.dims();
        let is_inside = |start: &[usize; 3]| {
            (0..3).all(|a| start[a].checked_add(tile[a + 2]).is_some_and(|end| end <= slab[a + 2]))
        };
        if starts.len() != tile[0] || !starts.iter().all(is_inside) {
            return Err(bad_slab(
                format!("{} tiles of {:?} inside {slab:?}", tile[0], &tile[2..]),
                format!("{starts:?}"),
            ));
        }
        Ok(())
    }
}

impl<B: Backend> Session for DeviceSession<B> {
    fn run(&mut self, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, EngineError> {
        self.check(inputs)?;
        self.upload_weights(true)?;
        self.run_on(Feed::Tensors(inputs))
    }

    fn report(&self) -> &CompileReport {
        &self.program.report
    }

    fn traffic(&self) -> Option<DeviceTraffic> {
        Some(self.transfers.counted())
    }

    fn slabs(&mut self) -> Option<&mut dyn SlabSession> {
        if self.slab_limit_bytes > 0 { Some(self) } else { None }
    }
}

impl<B: Backend> Drop for DeviceSession<B> {
    fn drop(&mut self) {
        self.release();
    }
}
