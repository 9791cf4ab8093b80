//! Passes a volume through the network once, slab by slab along Z: slices go in, and finished slices come out.
//!
//! Three stages overlap: one thread reads, resamples and normalizes the next slab, the job's own thread runs the network,
//! and one thread stores the finished slices and writes the maps. The queues between them hold [`QUEUED_SLABS`] slabs.

use super::grid::ModelView;
use super::live::Live;
use super::maps::Store;
use super::pass_plan::{PassBand, inside};
use crate::model::Model;
use crate::{Context, JobError, Meter};
use cytoscope_engine::{DeviceId, EngineError, OutputPlanes, RollingSession};
use cytoscope_graph::{GraphError, Tensor};
use cytoscope_profile::Stage;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

/// Slabs that wait between two stages.
pub(super) const QUEUED_SLABS: usize = 1;

/// A pass over one volume.
pub(super) struct Pass<'a> {
    /// Cancellation, progress and spans of the job.
    pub context: &'a Context,
    /// The model whose network is passed, for its channels and, in messages, its name.
    pub model: &'a Model,
    /// Z, Y, X of the volume, extended to what the network accepts.
    pub size: [usize; 3],
    /// The first slice that passes.
    pub first_z: usize,
    /// The compiled network, which keeps its state from slab to slab.
    pub session: &'a mut dyn RollingSession,
    /// Bands, each of which is passed from the first slice to the last.
    pub bands: &'a [PassBand],
    /// Number of slices that are passed at once.
    pub slab_slices: usize,
    /// Multiply-accumulate operations of the whole pass.
    pub macs: u64,
    /// Whether reading and writing run in threads beside the network.
    pub overlaps: bool,
}

/// Takes what the network returns.
pub(super) struct Emitter<'a> {
    /// The model whose network is passed, for its channels and, in messages, its name.
    pub model: &'a Model,
    /// The first slice that passes.
    pub first_z: usize,
    /// Slices that are already stored.
    pub finished: usize,
    /// Bands of the pass; only their kept rows and columns are stored.
    pub bands: &'a [PassBand],
    /// Z, Y, X of the volume on the model's grid.
    pub shape: [usize; 3],
    /// Receives the kept rows and columns of finished slices.
    pub store: Store<'a>,
    /// Counts finished voxels on the model's grid.
    pub meter: Meter<'a>,
    /// Receives finished slices, if present.
    pub live: Option<Live<'a>>,
}

/// Reads the slabs of a pass. Voxels outside the volume, up to the size that the network accepts, repeat its last ones.
struct Slabs<'a> {
    context: &'a Context,
    model: &'a Model,
    size: [usize; 3],
    first_z: usize,
    bands: &'a [PassBand],
    slab_slices: usize,
}

impl Pass<'_> {
    /// Runs the whole volume.
    ///
    /// # Errors
    /// [`JobError`] if the volume cannot be read, the network fails, the slices cannot be stored, or the job is
    /// canceled.
    pub(super) fn run(&mut self, view: &mut ModelView<'_>, emitter: &mut Emitter<'_>) -> Result<(), JobError> {
        let Self { context, model, size, first_z, bands, slab_slices, .. } = *self;
        let slabs = Slabs { context, model, size, first_z, bands, slab_slices: slab_slices.max(1) };
        if self.overlaps { self.overlapped(&slabs, view, emitter) } else { self.in_turn(&slabs, view, emitter) }
    }

    /// Runs the stages one after the other, slab by slab.
    fn in_turn(
        &mut self,
        slabs: &Slabs<'_>,
        view: &mut ModelView<'_>,
        emitter: &mut Emitter<'_>,
    ) -> Result<(), JobError> {
        let mut left = slabs.slabs_per_band();
        let mut band = 0;
        self.begin(band)?;
        slabs.read(view, &mut |input| {
            if left == 0 {
                (band, left) = (band + 1, slabs.slabs_per_band());
                self.begin(band)?;
            }
            left -= 1;
            emitter.put(band, self.push(input)?)?;
            while left == 0
                && let Some(made) = self.finish()?
            {
                emitter.put(band, made)?;
            }
            Ok(true)
        })
    }

    /// Starts to pass the band with this number.
    fn begin(&mut self, band: usize) -> Result<(), JobError> {
        let bands = self.bands;
        let band = bands.get(band).ok_or_else(|| JobError::Internal(format!("pass: there is no band {band}")))?;
        Ok(self.session.begin(band.index)?)
    }

    /// Runs the stages in threads. If one fails, its queues close, and the others end.
    fn overlapped(
        &mut self,
        slabs: &Slabs<'_>,
        view: &mut ModelView<'_>,
        emitter: &mut Emitter<'_>,
    ) -> Result<(), JobError> {
        let failed = |e: std::io::Error| {
            let reason = format!("cannot start a thread: {e}").into();
            JobError::Engine(EngineError::Device { device: DeviceId::Cpu, reason })
        };
        std::thread::scope(|scope| {
            let (read, to_network) = sync_channel::<Tensor>(QUEUED_SLABS);
            let (made, to_writer) = sync_channel::<(usize, Vec<OutputPlanes>)>(QUEUED_SLABS);
            let reader = std::thread::Builder::new().name("read".to_owned());
            let reading =
                reader.spawn_scoped(scope, move || slabs.read(view, &mut |input| Ok(read.send(input).is_ok())));
            let reading = reading.map_err(failed)?;
            let writer = std::thread::Builder::new().name("write".to_owned());
            let writing = writer
                .spawn_scoped(scope, move || to_writer.iter().try_for_each(|(band, planes)| emitter.put(band, planes)));
            let writing = writing.map_err(failed)?;
            let computed = self.network(slabs, &to_network, &made);
            // Without these ends, the other stages would wait forever.
            drop((to_network, made));
            let [read, written] = [reading, writing].map(|stage| match stage.join() {
                Ok(ended) => ended,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            read.and(written).and(computed)
        })
    }

    /// Passes slabs through the network until none are left or the receiver of the results has stopped.
    fn network(
        &mut self,
        slabs: &Slabs<'_>,
        input: &Receiver<Tensor>,
        output: &SyncSender<(usize, Vec<OutputPlanes>)>,
    ) -> Result<(), JobError> {
        for band in 0..self.bands.len() {
            self.begin(band)?;
            for _ in 0..slabs.slabs_per_band() {
                let Some(slab) = self.receive(input) else { return Ok(()) };
                let made = self.push(slab)?;
                if !self.send(output, (band, made)) {
                    return Ok(());
                }
            }
            while let Some(made) = self.finish()? {
                if !self.send(output, (band, made)) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns the next slab, or `None` if reading failed.
    fn receive(&self, input: &Receiver<Tensor>) -> Option<Tensor> {
        match input.try_recv() {
            Ok(slab) => Some(slab),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                let _span = self.context.recorder.span(Stage::Stall, "for reading");
                input.recv().ok()
            }
        }
    }

    /// Passes on finished planes of a band; `false` if writing failed.
    fn send(&self, output: &SyncSender<(usize, Vec<OutputPlanes>)>, made: (usize, Vec<OutputPlanes>)) -> bool {
        match output.try_send(made) {
            Ok(()) => true,
            Err(TrySendError::Disconnected(_)) => false,
            Err(TrySendError::Full(made)) => {
                let _span = self.context.recorder.span(Stage::Stall, "for writing");
                output.send(made).is_ok()
            }
        }
    }

    fn push(&mut self, input: Tensor) -> Result<Vec<OutputPlanes>, JobError> {
        self.context.check()?;
        let slices = input.shape().get(2).copied().unwrap_or(0);
        let all = self.size[0].saturating_sub(self.first_z).max(1) * self.bands.len().max(1);
        let macs = (self.macs as f64 * slices as f64 / all as f64) as u64;
        let _span = self.context.recorder.span(Stage::Compute, "slab").voxels(input.len()).macs(macs);
        self.session.push(input).map_err(canceled)
    }

    /// Computes the next of the planes that remain after the last slice, if there are any.
    fn finish(&mut self) -> Result<Option<Vec<OutputPlanes>>, JobError> {
        self.context.check()?;
        let _span = self.context.recorder.span(Stage::Compute, "last slabs");
        self.session.finish().map_err(canceled)
    }
}

/// Returns the error of a job whose network was interrupted, or failed.
pub(super) fn canceled(error: EngineError) -> JobError {
    match error {
        EngineError::Graph(GraphError::Interrupted) => JobError::Canceled,
        other => other.into(),
    }
}

impl Slabs<'_> {
    /// Returns the number of slabs of a band.
    fn slabs_per_band(&self) -> usize {
        self.size[0].saturating_sub(self.first_z).div_ceil(self.slab_slices)
    }

    /// Reads the slabs of all bands, one band after the other, until `take` returns `false`.
    fn read(
        &self,
        view: &mut ModelView<'_>,
        take: &mut dyn FnMut(Tensor) -> Result<bool, JobError>,
    ) -> Result<(), JobError> {
        for band in self.bands {
            let [rows, columns] = inside(band, view.shape);
            let is_whole = self.bands.len() == 1 && [rows.len(), columns.len()] == view.shape[1..];
            let goes_on = if is_whole {
                self.read_band(view, 0, band, take)?
            } else {
                // Only the rows and columns of the band are read and resampled.
                let stack = view.stack_part([rows.clone(), columns.clone()]);
                let mut part = view.part_view(&stack, [rows.clone(), columns]);
                let goes_on = self.read_band(&mut part, rows.start, band, take)?;
                view.add_found(&part);
                goes_on
            };
            if !goes_on {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads the slabs of a band from a view whose first row is row `origin` of the volume, and whose columns are those of the
    /// band.
    fn read_band(
        &self,
        view: &mut ModelView<'_>,
        origin: usize,
        band: &PassBand,
        take: &mut dyn FnMut(Tensor) -> Result<bool, JobError>,
    ) -> Result<bool, JobError> {
        view.read_in_order();
        for z in (self.first_z..self.size[0]).step_by(self.slab_slices) {
            let count = self.slab_slices.min(self.size[0] - z);
            // Past the end, the reader repeats the last slice of a range that starts inside the volume.
            let first = z.min(view.shape[0].saturating_sub(1));
            let slices = view.read(self.context, first..first + count)?;
            if !take(self.input(slices, view.shape, origin, band, count)?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the rows and columns of a band in `count` slices `[C][z][Y][X]` as the network takes them. The first of the
    /// slices' rows is row `origin` of the volume; their columns are those of the band that are in the volume.
    fn input(
        &self,
        slices: Vec<f32>,
        [_, rows, width]: [usize; 3],
        origin: usize,
        band: &PassBand,
        count: usize,
    ) -> Result<Tensor, JobError> {
        let (channels, fed, columns) = (self.model.input_channels, &band.rows.fed, band.columns.len);
        let tensor_shape = [1, channels, count, fed.len(), columns];
        if [fed.start, fed.len(), columns] == [origin, rows, width] {
            return Ok(Tensor::new(tensor_shape, slices)?);
        }
        let _span = self.context.recorder.span(Stage::Upload, "slab");
        let mut values = Vec::with_capacity(channels * count * fed.len() * columns);
        for slice in slices.chunks_exact((rows * width).max(1)) {
            for y in fed.clone() {
                let at = y.saturating_sub(origin).min(rows.saturating_sub(1)) * width;
                let row = slice.get(at..at + width).unwrap_or_default();
                values.extend_from_slice(row);
                values.extend(std::iter::repeat_n(row.last().copied().unwrap_or(0.0), columns.saturating_sub(width)));
            }
        }
        Ok(Tensor::new(tensor_shape, values)?)
    }
}

impl Emitter<'_> {
    /// Stores what is in the volume of the finished slices of the band with this number.
    fn put(&mut self, band: usize, made: Vec<OutputPlanes>) -> Result<(), JobError> {
        let bands = self.bands;
        let Some(PassBand { rows, columns: span, .. }) = bands.get(band) else {
            return Err(JobError::Internal(format!("pass: there is no band {band}")));
        };
        let (rows, first_y, columns) = (rows.kept.len(), rows.kept.start, span.len);
        let (width, in_band) = (span.keep_len, span.kept_in_tile());
        let channels = self.model.output_channels;
        let [depth, height, _] = self.shape;
        for made in made.into_iter().filter(|made| made.output == self.model.output_index) {
            let found = made.planes.shape().to_vec();
            let first = made.first_z + self.first_z;
            let planes = found.get(2).copied().unwrap_or(0);
            let fits = found == [1, channels, planes, rows, columns] && made.first_y == first_y;
            let Some(values) = made.planes.into_f32().filter(|_| fits) else {
                return Err(JobError::model(
                    self.model.name.clone(),
                    format!(
                        "its output has shape {found:?} for {planes} slices, expected {:?}: only models whose output has \
                         the same shape as their input can be run in one pass",
                        [1, channels, planes, rows, columns]
                    ),
                ));
            };
            let skipped = self.finished.saturating_sub(first).min(planes);
            let count = depth.saturating_sub(first).min(planes).saturating_sub(skipped);
            let first = first + skipped;
            let kept = height.saturating_sub(first_y).min(rows);
            if count == 0 || kept == 0 {
                continue;
            }
            let values = if [count, kept, columns] == [planes, rows, width] {
                values
            } else {
                let mut kept_values = Vec::with_capacity(channels * count * kept * width);
                for channel in values.chunks_exact((planes * rows * columns).max(1)) {
                    for slice in channel.chunks_exact((rows * columns).max(1)).skip(skipped).take(count) {
                        for row in slice.chunks_exact(columns.max(1)).take(kept) {
                            kept_values.extend_from_slice(row.get(in_band.clone()).unwrap_or_default());
                        }
                    }
                }
                kept_values
            };
            self.store.put(first..first + count, [first_y..first_y + kept, span.kept_in_volume()], &values)?;
            if let Some(live) = &self.live {
                live.tile([first, first_y, span.keep_start], [count, kept, width], values);
            }
            if first + count == depth {
                self.store.finish_band();
            }
            self.meter.add((count * kept * width) as u64)?;
        }
        self.store.write_ready()
    }
}

#[cfg(test)]
#[path = "pass_tests.rs"]
mod tests;
