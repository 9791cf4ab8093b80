//! Predictions that were interrupted continue after their finished slices, bands and time points.

use crate::common::{noise, save_package};
use crate::fixture::Fixture;
use cytoscope_builders::{UNet3d, Weights, unet3d};
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::predict::{Blend, KeepSlices, LiveSink, LiveVolume, TileRequest};
use cytoscope_pipeline::{
    CancelToken, Context, DiameterRequest, Event, JobError, JobErrorKind, Output, PredictJob, PredictOutcome,
    ProgressStage, ResultFormat,
};
use cytoscope_profile::Stage;
use cytoscope_volume::Array;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A stack that is longer than any tile, so that it passes through the network once.
#[test]
fn a_canceled_pass_continues_with_the_slices_that_were_not_finished() {
    let fixture = Fixture::new([96, 12, 530], 4);
    let model = fixture.path("model");
    let config = UNet3d { filters: vec![16, 16], strides: vec![[2, 2, 2]], convs_per_block: 1, ..UNet3d::default() };
    save_package(&unet3d(&config, &Weights::Random { seed: 5 }).unwrap(), &model);
    let (expected, plan) = fixture.predict(&model, TileRequest::default(), "whole");
    assert!(plan.pass.as_ref().is_some_and(|pass| pass.slab_slices < 48), "it passes in several slabs: {plan:?}");
    for (format, out) in [(ResultFormat::Tiff, "out"), (ResultFormat::OmeZarr, "zarr")] {
        let job = PredictJob { resume: true, format, ..fixture.job(&model, TileRequest::default(), out) };
        let cancel = CancelToken::default();
        let sink_cancel = cancel.clone();
        let sink = move |event: &Event| match event {
            Event::Progress(progress)
                if progress.stage == ProgressStage::Predict && progress.done * 3 > progress.total =>
            {
                sink_cancel.cancel();
            }
            _ => {}
        };
        let context = Context { cancel, sink: Arc::new(sink), ..Context::default() };
        let stopped = job.run(&context, &Devices::cpu_only()).unwrap_err();
        assert_eq!(stopped.kind(), JobErrorKind::Canceled);
        let hidden = || std::fs::read_dir(fixture.path(out)).unwrap().count();
        assert_eq!(hidden(), 2, "the finished slices and their record are kept");
        let outcome = job.run(&Context::default(), &Devices::cpu_only()).unwrap();
        let report = &outcome.done[0];
        assert!(report.notes.iter().any(|note| note.message.starts_with("continued after")), "{:?}", report.notes);
        assert!(fixture.maps(out) == expected, "the maps differ");
        assert_eq!(hidden(), report.outputs.len(), "nothing is kept after the job is done");
    }
}

#[test]
fn a_pass_that_was_canceled_after_its_last_slice_predicts_nothing_when_it_continues() {
    let fixture = Fixture::new([96, 12, 530], 4);
    let model = fixture.path("model");
    let config = UNet3d { filters: vec![16, 16], strides: vec![[2, 2, 2]], convs_per_block: 1, ..UNet3d::default() };
    save_package(&unet3d(&config, &Weights::Random { seed: 5 }).unwrap(), &model);
    let (expected, plan) = fixture.predict(&model, TileRequest::default(), "whole");
    assert!(plan.pass.is_some(), "{plan:?}");
    for (format, out) in [(ResultFormat::Tiff, "out"), (ResultFormat::OmeZarr, "zarr")] {
        let job = PredictJob { resume: true, format, ..fixture.job(&model, TileRequest::default(), out) };
        // The last slice is more than a hundredth of the voxels.
        let (stopped, begun) = run_until_part(&job, Some(0), 0.999);
        assert_eq!((stopped.unwrap_err().kind(), begun), (JobErrorKind::Canceled, 1));
        let (outcome, begun) = run_until(&job, None);
        let report = outcome.unwrap().done.pop().unwrap();
        assert_eq!(begun, 0, "slices are predicted again: {:?}", report.notes);
        let has_note = report.notes.iter().any(|note| note.message.starts_with("continued after 96 slices"));
        assert!(has_note && report.parts.is_empty(), "{:?} {:?}", report.notes, report.parts);
        assert!(fixture.maps(out) == expected, "the maps differ");
        let left = std::fs::read_dir(fixture.path(out)).unwrap().count();
        assert_eq!(left, report.outputs.len(), "nothing is kept after the job is done");
    }
}

/// Stops a job in this way after a third of its voxels.
fn stop_after_a_third(job: &PredictJob, stop: fn(&CancelToken)) {
    let cancel = CancelToken::default();
    let sink_cancel = cancel.clone();
    let sink = move |event: &Event| match event {
        Event::Progress(progress) if progress.stage == ProgressStage::Predict && progress.done * 3 > progress.total => {
            stop(&sink_cancel)
        }
        _ => {}
    };
    let context = Context { cancel, sink: Arc::new(sink), ..Context::default() };
    let stopped = job.run(&context, &Devices::cpu_only()).unwrap_err();
    assert_eq!(stopped.kind(), JobErrorKind::Canceled);
}

#[test]
fn a_note_says_that_slices_are_kept_whenever_a_prediction_is_canceled() {
    let fixture = Fixture::new([64, 48, 48], 4);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei-dog");
    // While it predicts, and while it finds objects in the complete map.
    for stage in [ProgressStage::Predict, ProgressStage::Objects] {
        let job = PredictJob {
            outputs: [Output::Labels].into(),
            voxel_um: Some([1.2, 0.6, 0.6]),
            diameter: DiameterRequest::Given(12.0),
            keep_slices: KeepSlices::Always,
            ..fixture.job(&model, TileRequest { tile: Some([32, 48, 48]), ..TileRequest::default() }, "out")
        };
        let (cancel, notes) = (CancelToken::default(), Arc::new(Mutex::new(0)));
        let (sink_cancel, counted) = (cancel.clone(), Arc::clone(&notes));
        let sink = move |event: &Event| match event {
            Event::Progress(progress) if progress.stage == stage && progress.done * 3 > progress.total => {
                sink_cancel.cancel();
            }
            Event::Note(note) if note.message.contains("slices are kept beside the results") => {
                *counted.lock().unwrap() += 1;
            }
            _ => {}
        };
        let context = Context { cancel, sink: Arc::new(sink), ..Context::default() };
        let stopped = job.run(&context, &Devices::cpu_only()).unwrap_err();
        assert_eq!((stopped.kind(), *notes.lock().unwrap()), (JobErrorKind::Canceled, 1), "{stage:?}");
        assert_eq!(std::fs::read_dir(fixture.path("out")).unwrap().count(), 2, "the slices and their record");
    }
}

#[test]
fn slices_that_are_kept_without_resuming_are_continued_replaced_or_discarded() {
    let fixture = Fixture::new([96, 12, 530], 4);
    let model = fixture.path("model");
    let config = UNet3d { filters: vec![16, 16], strides: vec![[2, 2, 2]], convs_per_block: 1, ..UNet3d::default() };
    save_package(&unet3d(&config, &Weights::Random { seed: 5 }).unwrap(), &model);
    let (expected, _) = fixture.predict(&model, TileRequest::default(), "whole");
    let job = |resume: bool, keep_slices: KeepSlices| PredictJob {
        resume,
        keep_slices,
        ..fixture.job(&model, TileRequest::default(), "out")
    };
    let files = || std::fs::read_dir(fixture.path("out")).unwrap().count();
    stop_after_a_third(&job(false, KeepSlices::Always), CancelToken::cancel);
    assert_eq!(files(), 2, "the finished slices and their record are kept");
    // A later run continues them.
    let outcome = job(true, KeepSlices::Auto).run(&Context::default(), &Devices::cpu_only()).unwrap();
    let report = &outcome.done[0];
    assert!(report.notes.iter().any(|note| note.message.starts_with("continued after")), "{:?}", report.notes);
    assert!(fixture.maps("out") == expected, "the maps differ");
    assert_eq!(files(), report.outputs.len(), "nothing is kept after the job is done");
    // A run that neither resumes nor keeps slices removes those of an earlier one.
    std::fs::remove_dir_all(fixture.path("out")).unwrap();
    stop_after_a_third(&job(false, KeepSlices::Always), CancelToken::cancel);
    stop_after_a_third(&job(false, KeepSlices::Never), CancelToken::cancel);
    assert_eq!(files(), 0);
    // The stack is small.
    stop_after_a_third(&job(false, KeepSlices::Auto), CancelToken::cancel);
    assert_eq!(files(), 0);
    // A job that is canceled for good discards its slices, unless an earlier run has kept them.
    stop_after_a_third(&job(false, KeepSlices::Always), CancelToken::discard);
    assert_eq!(files(), 0);
    stop_after_a_third(&job(true, KeepSlices::Auto), CancelToken::discard);
    assert_eq!(files(), 2);
    // With other options, they are not used, and a note says so.
    let other = PredictJob { voxel_um: Some([2.0, 1.0, 1.0]), ..job(true, KeepSlices::Auto) };
    let outcome = other.run(&Context::default(), &Devices::cpu_only()).unwrap();
    let report = &outcome.done[0];
    let (unused, continued) = ("predicted from the beginning: the slices", "continued after");
    assert!(report.notes.iter().any(|note| note.message.starts_with(unused)), "{:?}", report.notes);
    assert!(!report.notes.iter().any(|note| note.message.starts_with(continued)), "{:?}", report.notes);
    // The same holds if their file has changed.
    stop_after_a_third(&job(true, KeepSlices::Auto), CancelToken::cancel);
    let mut paths = std::fs::read_dir(fixture.path("out")).unwrap().map(|entry| entry.unwrap().path());
    let kept = paths.find(|path| path.to_string_lossy().ends_with(".cytoscope-growing")).unwrap();
    let mut bytes = std::fs::read(&kept).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&kept, bytes).unwrap();
    let outcome = job(true, KeepSlices::Auto).run(&Context::default(), &Devices::cpu_only()).unwrap();
    let report = &outcome.done[0];
    let changed = "the slices that were finished before are computed again";
    assert!(report.notes.iter().any(|note| note.message.starts_with(changed)), "{:?}", report.notes);
    assert!(fixture.maps("out") == expected, "the maps differ");
}

/// Cropped tiles, and windows that overlap along Z.
#[test]
fn a_canceled_prediction_in_tiles_continues_with_the_slices_that_were_not_finished() {
    let fixture = Fixture::new([96, 12, 140], 4);
    let model = fixture.path("model");
    let config = UNet3d { filters: vec![8, 8], strides: vec![[2, 2, 2]], convs_per_block: 1, ..UNet3d::default() };
    save_package(&unet3d(&config, &Weights::Random { seed: 5 }).unwrap(), &model);
    for (blend, overlap) in [(Blend::Crop, None), (Blend::Gaussian, Some(0.5))] {
        let request =
            || TileRequest { tile: Some([32, 12, 64]), blend: Some(blend), overlap, ..TileRequest::default() };
        let (expected, plan) = fixture.predict(&model, request(), &format!("whole {blend:?}"));
        assert!(plan.pass.is_none(), "{plan:?}");
        for (format, out) in
            [(ResultFormat::Tiff, format!("tiff {blend:?}")), (ResultFormat::OmeZarr, format!("zarr {blend:?}"))]
        {
            let job = PredictJob { resume: true, format, ..fixture.job(&model, request(), &out) };
            let cancel = CancelToken::default();
            let sink_cancel = cancel.clone();
            let sink = move |event: &Event| match event {
                Event::Progress(progress)
                    if progress.stage == ProgressStage::Predict && progress.done * 2 > progress.total =>
                {
                    sink_cancel.cancel();
                }
                _ => {}
            };
            let context = Context { cancel, sink: Arc::new(sink), ..Context::default() };
            let stopped = job.run(&context, &Devices::cpu_only()).unwrap_err();
            assert_eq!(stopped.kind(), JobErrorKind::Canceled);
            let hidden = || std::fs::read_dir(fixture.path(&out)).unwrap().count();
            assert_eq!(hidden(), 2, "the finished slices and their record are kept");
            let outcome = job.run(&Context::default(), &Devices::cpu_only()).unwrap();
            let report = &outcome.done[0];
            let note = report.notes.iter().find_map(|note| note.message.strip_prefix("continued after "));
            let finished: usize = note.and_then(|note| note.split(' ').next()?.parse().ok()).unwrap_or(0);
            assert!((1..96).contains(&finished), "{:?}", report.notes);
            assert!(fixture.maps(&out) == expected, "{blend:?}: the maps differ");
            assert_eq!(hidden(), report.outputs.len(), "nothing is kept after the job is done");
        }
    }
}

/// Cancels a job with the first slices that it receives.
struct CancelWithFirst {
    cancel: CancelToken,
    /// First slice and number of slices of each region.
    regions: Mutex<Vec<[usize; 2]>>,
}

impl LiveSink for CancelWithFirst {
    fn begin(&self, _volume: &LiveVolume<'_>) {}

    fn tile(&self, start_zyx: [usize; 3], size_zyx: [usize; 3], _values: &[f32]) {
        self.regions.lock().unwrap().push([start_zyx[0], size_zyx[0]]);
        // Meanwhile, the other stages process as much as they can.
        std::thread::sleep(Duration::from_millis(100));
        self.cancel.cancel();
    }
}

#[test]
fn a_pass_that_is_canceled_while_it_runs_ends_within_a_few_slabs() {
    // Deeper than any tile.
    let shape = [600, 12, 24];
    let fixture = Fixture::new(shape, 4);
    let model = fixture.path("model");
    let config = UNet3d { filters: vec![16, 16], strides: vec![[2, 2, 2]], convs_per_block: 1, ..UNet3d::default() };
    save_package(&unet3d(&config, &Weights::Random { seed: 5 }).unwrap(), &model);
    let cancel = CancelToken::default();
    let sink = CancelWithFirst { cancel: cancel.clone(), regions: Mutex::default() };
    let planned = Arc::new(Mutex::new(None));
    let sink_cancel = Arc::clone(&planned);
    let events = move |event: &Event| {
        if let Event::Planned { plan, .. } = event {
            *sink_cancel.lock().unwrap() = Some(plan.clone());
        }
    };
    let context = Context { cancel, sink: Arc::new(events), ..Context::default() };
    let job = fixture.job(&model, TileRequest::default(), "out");
    let stopped = job.run_live(&context, &Devices::cpu_only(), Some(&sink)).unwrap_err();
    assert_eq!(stopped.kind(), JobErrorKind::Canceled);
    let plan = planned.lock().unwrap().take().unwrap();
    let slab = plan.pass.unwrap().slab_slices;
    let regions = sink.regions.lock().unwrap();
    assert_eq!(regions.len(), 1, "slices are passed on after the job was canceled: {regions:?}");
    // The slices that the first ones depend on, and a few slabs: one that is computed and one that waits after the network,
    // one that waits before it, and one that is read.
    let [first, count] = regions[0];
    let most = first + count + plan.halo[0] + 6 * slab;
    let totals = context.recorder.totals();
    let voxels = totals.iter().find(|total| total.stage == Stage::Read).map_or(0, |total| total.voxels as usize);
    let read = voxels / (shape[1] * shape[2]);
    assert!(read <= most && most < shape[0], "{read} slices of {} were read, expected at most {most}", shape[0]);
}

/// Runs a job, and cancels it in the time point `canceled`, counted from 0, when half of its voxels are predicted. Returns
/// the result, and the number of time points that were predicted.
fn run_until(job: &PredictJob, canceled: Option<usize>) -> (Result<PredictOutcome, JobError>, usize) {
    run_until_part(job, canceled, 0.5)
}

/// Like [`run_until`], but this part of the voxels is predicted.
fn run_until_part(job: &PredictJob, canceled: Option<usize>, part: f64) -> (Result<PredictOutcome, JobError>, usize) {
    // Number of time points that have begun, and voxels of the last one that are predicted.
    let progress = Arc::new(Mutex::new((0usize, u64::MAX)));
    let cancel = CancelToken::default();
    let (sink_cancel, seen) = (cancel.clone(), Arc::clone(&progress));
    let sink = move |event: &Event| {
        let Event::Progress(progress) = event else { return };
        if progress.stage != ProgressStage::Predict {
            return;
        }
        let (begun, done) = &mut *seen.lock().unwrap();
        *begun += usize::from(progress.done < *done);
        *done = progress.done;
        let is_due = progress.done as f64 > part * progress.total as f64;
        if canceled.is_some_and(|time| *begun == time + 1) && is_due {
            sink_cancel.cancel();
        }
    };
    let context = Context { cancel, sink: Arc::new(sink), ..Context::default() };
    let result = job.run(&context, &Devices::cpu_only());
    let begun = progress.lock().unwrap().0;
    (result, begun)
}

/// A pass over each time point, and tiles.
#[test]
fn a_canceled_time_series_continues_at_its_time_point_and_slab() {
    for (shape, tile, filters) in [([96, 12, 530], None, 16), ([64, 12, 140], Some([32, 12, 64]), 8)] {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Fixture { folder, shape, values: noise(8, 3 * shape.iter().product::<usize>()) };
        let (axes, all) = ("TZYX".parse().unwrap(), [&[3][..], &shape].concat());
        let array = Array::new(axes, all, fixture.values.clone()).unwrap();
        write_array(&fixture.path("stack.tif"), &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let model = fixture.path("model");
        let filters = vec![filters; 2];
        let config = UNet3d { filters, strides: vec![[2, 2, 2]], convs_per_block: 1, ..UNet3d::default() };
        save_package(&unet3d(&config, &Weights::Random { seed: 5 }).unwrap(), &model);
        let job = |out: &str, resume: bool| {
            let tiles = TileRequest { tile, ..TileRequest::default() };
            PredictJob { axes: None, resume, ..fixture.job(&model, tiles, out) }
        };
        let (whole, begun) = run_until(&job("whole", false), None);
        let whole = whole.unwrap();
        let report = &whole.done[0];
        assert_eq!((report.times, begun), (3, 3));
        let plan = report.plan.as_ref().unwrap();
        assert_eq!(plan.pass.is_some(), tile.is_none(), "{plan:?}");
        let resumed = job("out", true);
        let (stopped, begun) = run_until(&resumed, Some(1));
        assert_eq!((stopped.unwrap_err().kind(), begun), (JobErrorKind::Canceled, 2));
        let (outcome, begun) = run_until(&resumed, None);
        let outcome = outcome.unwrap();
        let report = &outcome.done[0];
        assert_eq!(begun, 2, "the first time point is not predicted again");
        let note =
            report.notes.iter().find_map(|note| note.message.strip_prefix("continued after 1 of 3 time points and "));
        let finished: usize = note.and_then(|note| note.split(' ').next()?.parse().ok()).unwrap_or(0);
        assert!((1..shape[0]).contains(&finished), "{:?}", report.notes);
        let bytes = |out: &str| std::fs::read(fixture.path(out).join("stack_prediction.tif")).unwrap();
        assert!(bytes("out") == bytes("whole"), "the maps differ");
        let left = std::fs::read_dir(fixture.path("out")).unwrap().count();
        assert_eq!(left, report.outputs.len(), "nothing is kept after the job is done");
    }
}

/// Slices of a pass in bands are complete only in its last band.
#[test]
fn a_canceled_pass_in_bands_continues_after_its_finished_bands() {
    let shape = [16, 12, 4000];
    for times in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Fixture { folder, shape, values: noise(8, times * shape.iter().product::<usize>()) };
        let (axes, all) = ("TZYX".parse().unwrap(), [&[times][..], &shape].concat());
        let array = Array::new(axes, all, fixture.values.clone()).unwrap();
        write_array(&fixture.path("stack.tif"), &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let model = fixture.path("model");
        let config =
            UNet3d { filters: vec![16, 16], strides: vec![[2, 2, 2]], convs_per_block: 1, ..UNet3d::default() };
        save_package(&unet3d(&config, &Weights::Random { seed: 5 }).unwrap(), &model);
        let job = |out: &str, resume: bool, budget_bytes: u64| PredictJob {
            axes: None,
            resume,
            memory_budget_bytes: Some(budget_bytes),
            ..fixture.job(&model, TileRequest::default(), out)
        };
        // The first budget with which it is predicted.
        let whole = |bytes: u64| run_until(&job("whole", false, bytes), None).0.unwrap().done.pop();
        let mut budgets = (56..400).step_by(8).map(|mib: u64| mib << 20);
        let (budget_bytes, report) = budgets.find_map(|bytes| Some((bytes, whole(bytes)?))).unwrap();
        let pass = report.plan.unwrap().pass.unwrap();
        let bands = pass.bands * pass.bands_x;
        assert!(bands > 1, "{pass:?}");
        // In the last of two bands, which overlap, or later.
        let stop = || run_until_part(&job("out", true, budget_bytes), Some(times - 1), 0.75).0;
        let stopped = stop();
        assert_eq!(stopped.unwrap_err().kind(), JobErrorKind::Canceled);
        let files = || std::fs::read_dir(fixture.path("out")).unwrap().count();
        assert_eq!(files(), 2, "the finished bands and their record are kept");
        let (outcome, begun) = run_until(&job("out", true, budget_bytes), None);
        let report = outcome.unwrap().done.pop().unwrap();
        let note = report
            .notes
            .iter()
            .find_map(|note| note.message.strip_suffix(" bands that an interrupted run had finished"));
        let mut possible = (1..bands).map(|finished| format!("continued after {finished} of {bands}"));
        assert!(possible.any(|expected| note == Some(expected.as_str())), "{:?}", report.notes);
        assert_eq!(begun, 1, "only the last time point is predicted");
        let bytes = |out: &str| std::fs::read(fixture.path(out).join("stack_prediction.tif")).unwrap();
        assert!(bytes("out") == bytes("whole"), "the maps differ");
        assert_eq!(files(), report.outputs.len(), "nothing is kept after the job is done");
        // With other bands, the pass starts over, and a note says so.
        std::fs::remove_dir_all(fixture.path("out")).unwrap();
        assert!(stop().is_err());
        let report = run_until(&job("out", true, 2 << 30), None).0.unwrap().done.pop().unwrap();
        let has = |text: &str| report.notes.iter().any(|note| note.message.contains(text));
        assert!(has("the bands that were finished are computed again"), "{:?}", report.notes);
    }
}
