//! Candidates of a prediction: device, precision, tile and threads.

use super::check_canceled;
use super::halving::{
    Candidate, Measured, Search, TimedTrial, Trial, fastest, least_memory, quickest, search_from_default, time_limit,
    timed,
};
use super::progress::TuneProgress;
use crate::cli::child::{self, ChildRun, Scratch};
use crate::cli::failure::Failure;
use crate::cli::maps::{read_maps, relative_l2};
use crate::cli::measured::cores;
use crate::cli::reports::PredictCommandReport;
use cytoscope_engine::select::ERROR_BUDGET;
use cytoscope_engine::{Device, DeviceId, Precision};
use cytoscope_pipeline::predict::{InputReport, NoPass};
use cytoscope_pipeline::{
    CancelToken, DiameterUnit, InferenceSettings, JobErrorKind, Model, Preset, measured_gpu_name,
};
use cytoscope_profile::{Recorder, Stage};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::PRECISION;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Tile sizes Z, Y, X that are tried, in voxels, besides the one that the program chooses.
const TILES: [[usize; 3]; 4] = [[16, 96, 96], [32, 128, 128], [64, 128, 128], [64, 256, 256]];
/// Further shapes, cubes and slabs, for networks that run in tiles; none has more voxels than the largest of [`TILES`].
const FURTHER_TILES: [[usize; 3]; 5] = [[64, 64, 64], [96, 96, 96], [128, 128, 128], [16, 256, 256], [16, 512, 512]];
/// Number of cores from which half of them is also tried.
const MANY_CORES: usize = 4;
/// Relative L2 difference up to which maps count as equal to the maps of 32-bit floats, because sums were taken in
/// another order.
const EXACT: f64 = 1e-5;

/// Settings of a prediction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct InferenceCandidate {
    /// Device that runs the network.
    pub device: DeviceId,
    /// Number format of the network; int8 on the CPU only.
    pub precision: Precision,
    /// Tile size Z, Y, X in voxels; `None` for the size that the program chooses.
    pub tile_zyx: Option<[usize; 3]>,
    /// Number of threads; 0 uses all cores.
    pub threads: usize,
}

impl Candidate for InferenceCandidate {
    fn label(&self) -> String {
        let tile = self.tile_zyx.map_or_else(|| "auto".to_owned(), |[z, y, x]| format!("{z},{y},{x}"));
        let threads = if self.threads == 0 { "all".to_owned() } else { self.threads.to_string() };
        format!("{} {}, tile {tile}, threads {threads}", self.device, self.precision)
    }
}

/// The prediction that is repeated.
pub(super) struct InferenceWorkload<'a> {
    /// Name or path of the model, as `predict --model` takes it.
    pub model: &'a str,
    /// The stack.
    pub data: PathBuf,
    /// Further options of `predict`, such as the voxel size.
    pub options: Vec<String>,
    /// How progress is shown.
    pub progress: TuneProgress,
    /// Records the time of each run.
    pub recorder: &'a Recorder,
}

impl InferenceWorkload<'_> {
    /// Returns the arguments of the program.
    fn arguments(&self, candidate: &InferenceCandidate, out: &Path, trace: &Path) -> Vec<String> {
        let mut arguments = vec![
            "predict".to_owned(),
            format!("--model={}", self.model),
            format!("--out={}", out.display()),
            format!("--trace={}", trace.display()),
            format!("--device={}", candidate.device),
            format!("--precision={}", candidate.precision),
            format!("--threads={}", candidate.threads),
        ];
        arguments.extend(["--stages-only", "--json", "--outputs=maps", "--performance=off"].map(str::to_owned));
        if let Some([z, y, x]) = candidate.tile_zyx {
            arguments.push(format!("--tile={z},{y},{x}"));
        }
        arguments.extend(self.options.iter().cloned());
        arguments.extend(["--".to_owned(), self.data.display().to_string()]);
        arguments
    }
}

/// What decides which tiles are tried.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tiling {
    /// Shape Z, Y, X of the stack on the model's grid, on which tiles are cut: the stack is resampled if the size of its voxels
    /// or objects differs from the model's.
    pub grid_zyx: [usize; 3],
    /// Why the stack is cut into several tiles on the CPU; `None` if it is not, or if that is not known.
    pub no_pass_on_cpu: Option<NoPass>,
}

/// Finds out how the stack is cut into tiles, by one prediction on the first device, and one on the CPU, which is ended if
/// it takes many times as long. Also returns the unit of the object diameter, if it is known. A prediction that fails is
/// ignored: the candidates with the same settings report the failure. If both fail, `file_zyx`, the shape of the stack in its
/// file, is used instead of the shape on the grid.
///
/// # Errors
/// Cancellation.
pub(super) fn tiling(
    devices: &[Device],
    file_zyx: [usize; 3],
    workload: &InferenceWorkload<'_>,
    scratch: &Scratch,
    keep: &[&str],
    cancel: &CancelToken,
) -> Result<(Tiling, Option<DiameterUnit>), Failure> {
    let mut usable = devices.iter().filter(|device| device.usable).map(|device| device.id);
    let first = usable.next();
    let mut found = Tiling { grid_zyx: file_zyx, no_pass_on_cpu: None };
    let (mut limit, mut diameter_unit) = (None, None);
    for device in first.into_iter().chain(usable.find(|id| *id == DeviceId::Cpu)) {
        check_canceled(cancel)?;
        scratch.clear(keep)?;
        workload.progress.preparing(format!("predicting once on {device}, to choose the tile sizes to try"));
        let candidate = InferenceCandidate { device, precision: Precision::F32, tile_zyx: None, threads: 0 };
        match run_once(&candidate, workload, scratch.path(), limit) {
            Ok(None) => {}
            Ok(Some(run)) => {
                limit = Some(time_limit(run.measured.process_secs));
                found.grid_zyx = run.grid_zyx.unwrap_or(found.grid_zyx);
                diameter_unit = run.diameter_unit.or(diameter_unit);
                if device == DeviceId::Cpu {
                    found.no_pass_on_cpu = run.no_pass;
                }
            }
            Err(failure) if failure.kind() == JobErrorKind::Canceled => return Err(failure),
            Err(_) => {}
        }
    }
    Ok((found, diameter_unit))
}

/// Returns the candidates for a stack, those in 32-bit floats first, with whose maps the others are compared. The first one has
/// the tile, the threads and the device that the program prefers.
pub(super) fn candidates(model: &Model, devices: &[Device], tiling: &Tiling) -> Vec<InferenceCandidate> {
    let mut all = Vec::new();
    for device in devices.iter().filter(|device| device.usable) {
        let tiles = tile_sizes(model, device.id, tiling);
        let can_int8 = model.has_int8 && device.id == DeviceId::Cpu;
        let precisions = device.precisions.iter().filter(|p| can_int8 || **p != Precision::Int8);
        let threads = if device.id == DeviceId::Cpu && cores() >= MANY_CORES { vec![0, cores() / 2] } else { vec![0] };
        for &precision in precisions {
            for &tile_zyx in &tiles {
                let with_threads =
                    |threads: &usize| InferenceCandidate { device: device.id, precision, tile_zyx, threads: *threads };
                all.extend(threads.iter().map(with_threads));
            }
        }
    }
    all.sort_by_key(|candidate| candidate.precision != Precision::F32);
    all
}

/// Returns the place of the default among the [`candidates`]: with the tile, the threads and the device of the first one, in the
/// precision that the program prefers there, or else in that of the first one.
pub(super) fn default_place(model: &Model, candidates: &[InferenceCandidate]) -> usize {
    let default = candidates.first().map(|first| {
        let precision = model.precision_on(first.device, None);
        InferenceCandidate { precision, ..first.clone() }
    });
    candidates.iter().position(|candidate| Some(candidate) == default.as_ref()).unwrap_or(0)
}

/// Returns the tile sizes to try on a device: multiples of the model's step that keep voxels after their halo is cropped and
/// cut the stack. They are not cut to the length of the stack: on a longer one, such tiles would keep almost nothing. Of sizes
/// that cut this stack into the same tiles, the first is tried. A prediction refuses tiles that exceed its memory budget, which
/// ends their candidate.
fn tile_sizes(model: &Model, device: DeviceId, tiling: &Tiling) -> Vec<Option<[usize; 3]>> {
    let shape_zyx = tiling.grid_zyx;
    // On the CPU, most stacks pass through the network once, which is faster than tiles.
    let runs_in_tiles = device != DeviceId::Cpu || model.reach.is_none() || tiling.no_pass_on_cpu.is_some();
    let further = FURTHER_TILES.into_iter().filter(|_| runs_in_tiles);
    let length = |wanted: usize, a: usize| match (a, model.spatial_axes) {
        (0, 2) => 1,
        _ => model.tile_length(wanted, a),
    };
    let least = |a: usize| model.reach.map_or(1, |reach| 2 * reach[a] + model.step[a]);
    let (mut tiles, mut fitted_tiles) = (vec![None], Vec::new());
    for wanted in TILES.into_iter().chain(further) {
        let tile: [usize; 3] = std::array::from_fn(|a| length(wanted[a], a));
        let fitted: [usize; 3] = std::array::from_fn(|a| length(wanted[a].min(shape_zyx[a]), a));
        // Of a network that takes single slices, a tile holds at most one.
        let is_whole = (3 - model.spatial_axes..3).all(|a| fitted[a] >= shape_zyx[a]);
        let is_large_enough = (0..3).all(|a| tile[a] >= least(a));
        if is_large_enough && !is_whole && !fitted_tiles.contains(&fitted) {
            fitted_tiles.push(fitted);
            tiles.push(Some(tile));
        }
    }
    tiles
}

/// Runs the candidates, of which the one at `default` is the default, in separate processes. If this is interrupted, the search
/// ends with what was measured.
///
/// # Errors
/// Cancellation before anything was measured, or the failure of all candidates.
pub(super) fn run(
    candidates: Vec<InferenceCandidate>,
    default: usize,
    workload: &InferenceWorkload<'_>,
    scratch: &Scratch,
    keep: &[&str],
    cancel: &CancelToken,
) -> Result<Search<InferenceCandidate>, Failure> {
    let mut reference: Option<Vec<f32>> = None;
    // Differences in 32-bit floats by device and tile: a network that normalizes over the tile has other maps in each.
    let mut float_errors: Vec<(DeviceId, Option<[usize; 3]>, f64)> = Vec::new();
    search_from_default(candidates, default, workload.progress, |candidate, limit| {
        check_canceled(cancel)?;
        scratch.clear(keep)?;
        let done = run_once(candidate, workload, scratch.path(), limit)?;
        let Some(InferenceRun { mut measured, maps, .. }) = done else { return Ok(None) };
        if reference.is_none() && candidate.precision == Precision::F32 {
            reference.clone_from(&maps);
        }
        measured.relative_l2 = reference.as_ref().zip(maps).and_then(|(reference, maps)| relative_l2(reference, &maps));
        let (device, tile_zyx, precision) = (candidate.device, candidate.tile_zyx, candidate.precision);
        if precision == Precision::F32 {
            float_errors.extend(measured.relative_l2.map(|error| (device, tile_zyx, error)));
        }
        let float_error =
            float_errors.iter().find(|(id, tile, _)| (*id, *tile) == (device, tile_zyx)).map(|found| found.2);
        match inaccuracy(precision, measured.relative_l2, float_error) {
            Some(problem) => Err(Failure::other(problem)),
            None => Ok(Some(measured)),
        }
    })
}

/// Returns why a float precision cannot become a default: its maps differ from those in 32-bit floats in the same tiles by more
/// than `--precision auto` allows. `None` if it can, or if that is not known. `float_error` is the difference that the tiles cause.
/// Int8 networks have passed the accuracy budget of their quantization.
fn inaccuracy(precision: Precision, relative_l2: Option<f64>, float_error: Option<f64>) -> Option<Message> {
    if matches!(precision, Precision::F32 | Precision::Int8) {
        return None;
    }
    let error = relative_l2? - float_error?;
    // Maps with NaN differ by NaN.
    (error.is_nan() || error > ERROR_BUDGET).then(|| {
        message!(
            "the maps differ from those in 32-bit floats by a relative L2 error of {error:.1e}; {PRECISION} auto allows \
             {ERROR_BUDGET}"
        )
    })
}

/// One run of a candidate.
struct InferenceRun {
    measured: Measured,
    /// The predicted maps, if they can be read.
    maps: Option<Vec<f32>>,
    /// Shape Z, Y, X of the stack on the model's grid, if it is reported.
    grid_zyx: Option<[usize; 3]>,
    /// Unit of the object diameter, if the model has one.
    diameter_unit: Option<DiameterUnit>,
    /// Why the stack was predicted in several tiles; `None` for one pass or one tile.
    no_pass: Option<NoPass>,
}

/// Returns which device and precision replaced those of a candidate, and why; `None` if the whole stack was predicted as the
/// candidate states.
fn replaced(candidate: &InferenceCandidate, input: &InputReport) -> Option<String> {
    let InferenceCandidate { device, precision, .. } = *candidate;
    let (ran_on, ran_in) = (input.device.id, input.precision);
    let is_whole = (ran_on, ran_in) == (device, precision) && input.parts.is_empty();
    let why = if ran_on == device { String::new() } else { format!(": {}", input.device.why) };
    (!is_whole).then(|| format!("a prediction on {device} in {precision} ended on {ran_on} in {ran_in}{why}"))
}

/// Runs a candidate once.
///
/// # Errors
/// The failure of the process, or [`JobErrorKind::Other`] if another device or precision took over.
fn run_once(
    candidate: &InferenceCandidate,
    workload: &InferenceWorkload<'_>,
    scratch: &Path,
    limit: Option<Duration>,
) -> Result<Option<InferenceRun>, Failure> {
    let trace = scratch.join("trace.json");
    let arguments = workload.arguments(candidate, &scratch.join("out"), &trace);
    let span = workload.recorder.span(Stage::Run, format!("predict on {}", candidate.label()));
    let done: Option<ChildRun<PredictCommandReport>> = child::run(&arguments, &trace, limit)?;
    span.finish();
    let Some(ChildRun { report, run, total_secs }) = done else { return Ok(None) };
    let first = report.inputs.first().map(|input| &input.0);
    if let Some(problem) = first.and_then(|input| replaced(candidate, input)) {
        return Err(Failure::other(problem));
    }
    let facts = &run.record.facts;
    let measured = Measured {
        secs: facts.inputs.iter().map(|input| input.seconds).sum(),
        process_secs: total_secs,
        peak_bytes: facts.peak_bytes,
        relative_l2: None,
    };
    let grid_zyx = first.and_then(|input| input.grid_zyx);
    let diameter_unit = first.and_then(|input| input.diameter.as_ref()).map(|diameter| diameter.unit);
    let plan = first.and_then(|input| input.plan.as_ref());
    let is_cut = |tile: [usize; 3]| grid_zyx.is_none_or(|grid| (0..3).any(|a| tile[a] < grid[a]));
    let no_pass = plan.filter(|plan| is_cut(plan.tile)).and_then(|plan| plan.no_pass.clone());
    Ok(Some(InferenceRun { measured, maps: read_maps(&report), grid_zyx, diameter_unit, no_pass }))
}

/// Returns the settings of each preset, from the candidates that were run on these devices. Without known memory or
/// differences, presets that need them are left out.
pub(super) fn presets(trials: &[Trial<InferenceCandidate>], devices: &[Device]) -> BTreeMap<Preset, InferenceSettings> {
    let all = timed(trials);
    let least_error = all.iter().filter_map(|(trial, _)| trial.relative_l2).min_by(f64::total_cmp);
    let most_accurate = least_error.and_then(|least| {
        let is_exact = |error: f64| error <= least.max(EXACT);
        quickest(all.iter().copied().filter(|(trial, _)| trial.relative_l2.is_some_and(is_exact)))
    });
    let chosen = [
        (Preset::Fastest, fastest(&all)),
        (Preset::LeastMemory, least_memory(&all)),
        (Preset::MostAccurate, most_accurate),
    ];
    let settings = |(trial, secs): TimedTrial<'_, InferenceCandidate>| {
        let InferenceCandidate { device, precision, tile_zyx, threads } = trial.candidate;
        let (device_name, peak_bytes, relative_l2) =
            (measured_gpu_name(device, devices), trial.peak_bytes, trial.relative_l2);
        InferenceSettings { device, device_name, precision, tile_zyx, threads, secs, peak_bytes, relative_l2 }
    };
    chosen.into_iter().filter_map(|(preset, found)| Some((preset, settings(found?)))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::halving::TrialEnd;
    use super::*;

    fn trial(
        precision: Precision,
        secs: f64,
        peak_bytes: u64,
        relative_l2: f64,
        end: TrialEnd,
    ) -> Trial<InferenceCandidate> {
        let candidate = InferenceCandidate { device: DeviceId::Cpu, precision, tile_zyx: None, threads: 0 };
        Trial { candidate, secs: vec![secs], peak_bytes: Some(peak_bytes), relative_l2: Some(relative_l2), end }
    }

    #[test]
    fn tiles_that_a_prediction_would_refuse_are_not_tried() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nuclei-dog");
        let mut model = Model::load(path.to_str().unwrap()).unwrap();
        // A tile needs 2 · 46 + 8 rows and columns.
        (model.reach, model.step) = (Some([7, 46, 46]), [1, 8, 8]);
        let on_cpu = |grid_zyx| tile_sizes(&model, DeviceId::Cpu, &Tiling { grid_zyx, no_pass_on_cpu: None });
        let tiles = on_cpu([100, 400, 400]);
        assert_eq!(tiles, [None, Some([32, 128, 128]), Some([64, 128, 128]), Some([64, 256, 256])]);
        assert_eq!(on_cpu([10, 90, 90]), [None], "the others hold the whole stack");
        let mut slices = model.clone();
        (slices.spatial_axes, slices.reach) = (2, Some([0, 7, 7]));
        let tiling = Tiling { grid_zyx: [50, 200, 200], no_pass_on_cpu: None };
        let on_slices = tile_sizes(&slices, DeviceId::Cpu, &tiling);
        assert_eq!(on_slices, [None, Some([1, 96, 96]), Some([1, 128, 128])], "256 rows hold whole slices");
        // On this stack, 32 and 64 slices are the same.
        assert_eq!(on_cpu([20, 400, 400]), [None, Some([32, 128, 128]), Some([64, 256, 256])]);
    }

    #[test]
    fn the_default_has_the_precision_that_the_program_prefers_on_its_device() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nuclei-dog");
        let mut model = Model::load(path.to_str().unwrap()).unwrap();
        let candidates = |device, precisions: &[Precision]| -> Vec<InferenceCandidate> {
            let of = |precision: &Precision| InferenceCandidate {
                device,
                precision: *precision,
                tile_zyx: None,
                threads: 0,
            };
            precisions.iter().map(of).collect()
        };
        model.has_int8 = true;
        let on_cpu = candidates(DeviceId::Cpu, &[Precision::F32, Precision::Int8]);
        assert_eq!(default_place(&model, &on_cpu), 1);
        let on_gpu = candidates(DeviceId::Cuda(0), &[Precision::F32, Precision::F16, Precision::Tf32]);
        assert_eq!(default_place(&model, &on_gpu), 2);
        assert_eq!(default_place(&model, &on_gpu[..2]), 0, "the GPU lacks tf32");
        model.has_int8 = false;
        assert_eq!(default_place(&model, &on_cpu), 0);
    }

    #[test]
    fn networks_that_run_in_tiles_try_cubes_and_slabs() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nuclei-dog");
        let mut model = Model::load(path.to_str().unwrap()).unwrap();
        (model.reach, model.step) = (Some([7, 7, 7]), [1, 8, 8]);
        let in_tiles = |model: &Model, device, grid_zyx, no_pass_on_cpu| -> Vec<[usize; 3]> {
            let tiling = Tiling { grid_zyx, no_pass_on_cpu };
            tile_sizes(model, device, &tiling).into_iter().flatten().collect()
        };
        let on = |model: &Model, device, shape| in_tiles(model, device, shape, None);
        let further = [[64, 64, 64], [96, 96, 96], [128, 128, 128], [16, 256, 256], [16, 512, 512]];
        let on_gpu = on(&model, DeviceId::Cuda(0), [100, 400, 400]);
        assert!(further.iter().all(|tile| on_gpu.contains(tile)), "{on_gpu:?}");
        let on_cpu = on(&model, DeviceId::Cpu, [100, 400, 400]);
        assert!(further.iter().all(|tile| !on_cpu.contains(tile)), "one pass is faster: {on_cpu:?}");
        // The network cannot pass, or a pass exceeds the memory.
        for reason in [
            NoPass::Operator { op: "Softmax".to_owned(), node: "attention".to_owned() },
            NoPass::Memory { needed_bytes: 2, budget_bytes: 1 },
        ] {
            assert_eq!(in_tiles(&model, DeviceId::Cpu, [100, 400, 400], Some(reason)), on_gpu);
        }
        // A network that normalizes over the tile.
        model.reach = None;
        assert_eq!(on(&model, DeviceId::Cpu, [100, 400, 400]), on_gpu);
        let small = on(&model, DeviceId::Cpu, [10, 90, 90]);
        assert_eq!(small, [[64, 64, 64]], "the others hold the whole stack");
    }

    #[test]
    fn float_precisions_that_change_the_maps_are_left_out_as_with_automatic_precision() {
        let error = 2.0 * ERROR_BUDGET;
        let problem = inaccuracy(Precision::Bf16, Some(error), Some(0.0)).unwrap();
        assert!(problem.contains("1.0e-2") && problem.contains("allows 0.005"), "{problem}");
        assert!(inaccuracy(Precision::F16, Some(f64::NAN), Some(0.0)).is_some(), "maps with NaN");
        let kept = [
            (Precision::Bf16, Some(ERROR_BUDGET), Some(0.0)),
            // The maps in 32-bit floats in the same tiles differ as much.
            (Precision::Bf16, Some(error), Some(error)),
            (Precision::F16, Some(error), None),
            (Precision::F16, None, Some(0.0)),
            (Precision::F32, Some(error), Some(error)),
            (Precision::Int8, Some(error), Some(0.0)),
        ];
        assert!(
            kept.into_iter().all(|(precision, error, float_error)| inaccuracy(precision, error, float_error).is_none())
        );
    }

    #[test]
    fn each_preset_has_the_settings_that_are_best_for_it() {
        let slower = || TrialEnd::Slower { round: 1 };
        let trials = [
            trial(Precision::F32, 4.0, 800, 0.0, slower()),
            trial(Precision::Tf32, 3.0, 900, 1e-6, slower()),
            trial(Precision::F16, 2.0, 102, 1e-3, slower()),
            trial(Precision::Bf16, 9.0, 100, 1e-2, slower()),
            trial(Precision::Int8, 1.0, 300, 1e-2, TrialEnd::Fastest),
        ];
        let found = presets(&trials, &[]);
        let precision = |preset| found.get(&preset).map(|s| s.precision);
        assert_eq!(precision(Preset::Fastest), Some(Precision::Int8));
        assert_eq!(precision(Preset::LeastMemory), Some(Precision::F16), "the faster of two that hold the same");
        assert_eq!(precision(Preset::MostAccurate), Some(Precision::Tf32), "the faster of two without a difference");
        // The default won the final within the spread, although the shortest time is that of another one.
        let trials = [
            trial(Precision::F32, 1.1, 800, 0.0, TrialEnd::Fastest),
            trial(Precision::Tf32, 1.0, 800, 1e-6, TrialEnd::WithinSpread),
        ];
        for (preset, settings) in presets(&trials, &[]) {
            assert_eq!(settings.precision, Precision::F32, "{preset}");
        }
    }
}
