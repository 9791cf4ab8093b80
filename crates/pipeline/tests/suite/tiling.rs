//! Tiling in the real job: cropped tiles equal the untiled result, Gaussian tiles equal MONAI's sliding window.

use crate::common::{relative_distance, save_package};
use crate::fixture::Fixture;
use cytoscope_builders::{
    DifferenceOfGaussians, DynUNet, UNet3d, Upsampling, Weights, difference_of_gaussians, dynunet, unet3d,
};
use cytoscope_formats::{Container, OpenOptions, WriteSpec, ZarrImageSpec, ZarrWriter, open, write_array};
use cytoscope_graph::{Dim, Graph, Tensor};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::predict::{Blend, NoPass, TileRequest};
use cytoscope_pipeline::{
    CancelToken, Context, DiameterRequest, Event, JobErrorKind, Output, PredictJob, ProgressStage, ResultFormat,
};
use cytoscope_profile::{Recorder, Stage};
use cytoscope_storage::Overwrite;
use cytoscope_volume::{Array, Axes, DType, Samples};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

fn static_network(kind: usize) -> Graph {
    match kind {
        0 => difference_of_gaussians(&DifferenceOfGaussians {
            sigma_small: [0.5, 0.8, 0.8],
            sigma_large: [1.0, 1.6, 2.0],
            truncate: 2.5,
            ..DifferenceOfGaussians::default()
        })
        .unwrap(),
        n => {
            let config = UNet3d {
                filters: vec![4, 8],
                strides: vec![[1 + n % 2, 2, 2]],
                convs_per_block: 1,
                upsampling: if n == 1 { Upsampling::Transposed } else { Upsampling::Nearest },
                ..UNet3d::default()
            };
            unet3d(&config, &Weights::Random { seed: 21 + n as u64 }).unwrap()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cropped_tiles_equal_the_untiled_result(
        kind in 0usize..3,
        shape in [1usize..30, 3usize..50, 44usize..70],
        extra in [1usize..10, 1usize..16, 1usize..16],
        seed in 0u64..1000,
    ) {
        let fixture = Fixture::new(shape, seed);
        let model = fixture.path("model");
        save_package(&static_network(kind), &model);
        let crop = |tile| TileRequest { tile: Some(tile), overlap: None, blend: Some(Blend::Crop), ..TileRequest::default() };
        let (whole, plan) = fixture.predict(&model, crop([80; 3]), "whole");
        prop_assert!((0..3).all(|a| plan.tile[a] >= shape[a]), "{:?} is not untiled for {:?}", plan.tile, shape);
        let (halo, step) = (plan.halo, plan.step);
        prop_assert!(halo.iter().any(|h| *h > 0));
        let tile = std::array::from_fn(|a| 2 * halo[a] + step[a] + extra[a]);
        let (tiled, plan) = fixture.predict(&model, crop(tile), "tiled");
        prop_assert!(plan.tile[2] < shape[2], "{:?} leaves {:?} in one piece", plan.tile, shape);
        let d = relative_distance(&tiled, &whole);
        prop_assert!(d <= 1e-5, "{:?} in tiles of {:?}: {:.2e} of the range", shape, plan.tile, d);
    }
}

/// The tiles at the ends of an axis keep more voxels than those between them.
#[test]
fn tiles_are_chosen_by_the_voxels_that_they_compute() {
    let crop = || TileRequest { blend: Some(Blend::Crop), ..TileRequest::default() };
    let predict = |columns: usize| {
        let fixture = Fixture::new([4, 8, columns], 3);
        let model = fixture.path("model");
        save_package(&static_network(0), &model);
        fixture.predict(&model, crop(), "out").1
    };
    let halo = predict(44).halo[2];
    assert!(halo > 0);
    // Two tiles of 512 columns suffice, three of 384 would compute more.
    let plan = predict(2 * 512 - 2 * halo);
    assert_eq!(plan.tile[2], 512, "{plan:?}");
}

/// The untiled prediction equals the result of the reference executor.
#[test]
fn the_untiled_prediction_equals_the_reference_executor() {
    for (kind, shape) in [(0, [5, 17, 23]), (1, [6, 12, 20]), (2, [4, 16, 8])] {
        let fixture = Fixture::new(shape, 40 + kind as u64);
        let (model, graph) = (fixture.path("model.zip"), static_network(kind));
        save_package(&graph, &model);
        let (got, _) = fixture.predict(&model, TileRequest::default(), "out");
        let x = Tensor::new([&[1, 1][..], &shape].concat(), fixture.values.clone()).unwrap();
        let wanted = cytoscope_reference::run(&graph, &[("x".into(), x)]).unwrap().remove(0);
        let d = relative_distance(&got, wanted.as_f32().unwrap());
        assert!(d < 1e-5, "network {kind}: {d:.2e}");
    }
}

/// Window starts of MONAI's `dense_patch_slices` along one axis.
fn monai_starts(image: usize, roi: usize, overlap: f64) -> Vec<usize> {
    let interval = if roi == image { roi } else { ((roi as f64 * (1.0 - overlap)) as usize).max(1) };
    // scan_num = first d with d * interval + roi >= image, plus one.
    let scans = (0..image).find(|d| d * interval + roi >= image).unwrap() + 1;
    (0..scans).map(|d| (d * interval).saturating_sub((d * interval + roi).saturating_sub(image))).collect()
}

/// MONAI's `compute_importance_map(mode="gaussian", sigma_scale=0.125)`.
fn monai_map(roi: [usize; 3]) -> Vec<f64> {
    let axis = |n: usize| -> Vec<f64> {
        let sigma = 0.125 * n as f64;
        (0..n).map(|i| i as f64 - (n as f64 - 1.0) / 2.0).map(|x| (x * x / (-2.0 * sigma * sigma)).exp()).collect()
    };
    let (z, y, x) = (axis(roi[0]), axis(roi[1]), axis(roi[2]));
    let mut map = Vec::new();
    for a in &z {
        for b in &y {
            for c in &x {
                map.push(a * b * c);
            }
        }
    }
    let min = map.iter().copied().filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
    map.iter().map(|v| v.max(min.max(1e-3))).collect()
}

/// MONAI's `sliding_window_inference` for a volume at least as large as the window.
fn monai_sliding_window(graph: &Graph, values: &[f32], shape: [usize; 3], roi: [usize; 3], overlap: f64) -> Vec<f32> {
    let map = monai_map(roi);
    let at = |z: usize, y: usize, x: usize| (z * shape[1] + y) * shape[2] + x;
    let (mut sums, mut weights) = (vec![0.0f64; values.len()], vec![0.0f64; values.len()]);
    let starts: Vec<Vec<usize>> = (0..3).map(|a| monai_starts(shape[a], roi[a], overlap)).collect();
    for &z0 in &starts[0] {
        for &y0 in &starts[1] {
            for &x0 in &starts[2] {
                let mut places = Vec::new();
                for z in z0..z0 + roi[0] {
                    for y in y0..y0 + roi[1] {
                        places.extend((x0..x0 + roi[2]).map(|x| at(z, y, x)));
                    }
                }
                let window: Vec<f32> = places.iter().map(|p| values[*p]).collect();
                let x = Tensor::new([&[1, 1][..], &roi].concat(), window).unwrap();
                let y = cytoscope_reference::run(graph, &[("x".into(), x)]).unwrap().remove(0);
                for ((place, v), w) in places.iter().zip(y.as_f32().unwrap()).zip(&map) {
                    sums[*place] += f64::from(*v) * w;
                    weights[*place] += w;
                }
            }
        }
    }
    sums.iter().zip(&weights).map(|(s, w)| (s / w) as f32).collect()
}

#[test]
fn gaussian_tiles_are_monais_sliding_window() {
    // A small network whose result depends on the borders of its window, so that the position of every window matters.
    let graph = unet3d(
        &UNet3d { filters: vec![3, 5], strides: vec![[1, 2, 2]], convs_per_block: 1, ..UNet3d::default() },
        &Weights::Random { seed: 77 },
    )
    .unwrap();
    let cases: [([usize; 3], [usize; 3], f64); 6] = [
        ([20, 40, 44], [8, 16, 16], 0.25),
        ([8, 33, 47], [8, 16, 12], 0.5),
        ([13, 30, 30], [5, 12, 20], 0.0),
        ([9, 24, 16], [4, 12, 16], 0.6),
        ([8, 16, 16], [8, 16, 16], 0.25),
        ([31, 17, 18], [6, 16, 16], 0.1),
    ];
    for (i, (shape, roi, overlap)) in cases.into_iter().enumerate() {
        let fixture = Fixture::new(shape, 300 + i as u64);
        let model = fixture.path("model");
        save_package(&graph, &model);
        let request = TileRequest {
            tile: Some(roi),
            overlap: Some(overlap),
            blend: Some(Blend::Gaussian),
            ..TileRequest::default()
        };
        let (got, plan) = fixture.predict(&model, request, "out");
        assert_eq!(plan.tile, roi, "the requested tile is used");
        let wanted = monai_sliding_window(&graph, &fixture.values, shape, roi, overlap);
        let d = relative_distance(&got, &wanted);
        assert!(d < 1e-5, "{shape:?} in windows of {roi:?}, overlap {overlap}: {d:.2e} of the range");
    }
}

#[test]
fn a_network_of_one_input_size_is_predicted_in_tiles_of_this_size() {
    let config = UNet3d { filters: vec![3, 5], strides: vec![[1, 2, 2]], convs_per_block: 1, ..UNet3d::default() };
    let graph = unet3d(&config, &Weights::Random { seed: 77 }).unwrap();
    let roi = [8, 16, 16];
    let mut fixed = graph.clone();
    fixed.values[graph.inputs[0].index()].shape = Some([1, 1, 8, 16, 16].map(Dim::Fixed).to_vec());
    // Larger than a tile, and smaller.
    for (shape, seed) in [([20, 40, 44], 310), ([5, 16, 13], 311)] {
        let fixture = Fixture::new(shape, seed);
        let model = fixture.path("model");
        save_package(&fixed, &model);
        let (got, plan) = fixture.predict(&model, TileRequest::default(), "out");
        let is_larger = shape[0] > roi[0];
        let reason = if is_larger { NoPass::FixedSize } else { NoPass::NotCheaper };
        assert_eq!((plan.tile, plan.no_pass), (roi, Some(reason)));
        assert_eq!(got.len(), fixture.values.len());
        if is_larger {
            let wanted = monai_sliding_window(&graph, &fixture.values, shape, roi, 0.25);
            let d = relative_distance(&got, &wanted);
            assert!(d < 1e-5, "{d:.2e} of the range");
        }
        let blend = TileRequest { blend: Some(Blend::Crop), ..TileRequest::default() };
        let cropped = fixture.job(&model, blend, "crop").run(&Context::default(), &Devices::cpu_only());
        let problem = cropped.map_or_else(
            |error| error.to_string(),
            |outcome| outcome.failed.first().map(|failed| failed.message.clone()).unwrap_or_default(),
        );
        assert_eq!(problem.contains("one size only"), is_larger, "{problem}");
    }
}

#[test]
fn a_constant_stays_constant_for_any_windows() {
    let graph = difference_of_gaussians(&DifferenceOfGaussians::default()).unwrap();
    let mut fixture = Fixture::new([12, 20, 26], 2);
    fixture.values.fill(3.0);
    let array = Array::new(Axes::zyx(), fixture.shape.to_vec(), fixture.values.clone()).unwrap();
    write_array(&fixture.path("stack.npy"), &array, &WriteSpec::of(&array, Container::Npy)).unwrap();
    let model = fixture.path("model");
    save_package(&graph, &model);
    let expected = (1.0 / (1.0 + 2f64.exp())) as f32;
    for overlap in [0.0, 0.3, 0.75] {
        let request = TileRequest {
            tile: Some([5, 9, 11]),
            overlap: Some(overlap),
            blend: Some(Blend::Gaussian),
            ..TileRequest::default()
        };
        let (got, _) = fixture.predict(&model, request, "out");
        let worst = cytoscope_testkit::largest_difference(&got, &vec![expected; got.len()]);
        assert!(worst < 1e-6, "overlap {overlap}: {worst}");
    }
}

/// The peak memory is known before the first voxel is computed, in a pass and in tiles.
#[test]
fn the_plan_is_reported_before_inference() {
    // Wider than any tile, so that it passes through the network once.
    let fixture = Fixture::new([24, 12, 530], 4);
    let model = fixture.path("model");
    let config = UNet3d { filters: vec![16, 16], strides: vec![[2, 2, 2]], convs_per_block: 1, ..UNet3d::default() };
    save_package(&unet3d(&config, &Weights::Random { seed: 5 }).unwrap(), &model);
    for (blend, out) in [(None, "pass"), (Some(Blend::Crop), "tiles")] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink_seen = Arc::clone(&seen);
        let sink = move |event: &Event| sink_seen.lock().unwrap().push(event.clone());
        let context = Context { sink: Arc::new(sink), ..Context::default() };
        let job = fixture.job(&model, TileRequest { blend, ..TileRequest::default() }, out);
        let outcome = job.run(&context, &Devices::cpu_only()).unwrap();
        let report = &outcome.done[0];
        let stated = report.plan.as_ref().unwrap();
        assert_eq!(stated.pass.is_some(), blend.is_none(), "{stated:?}");
        let seen = seen.lock().unwrap();
        let is_plan =
            |e: &Event| matches!(e, Event::Planned { input, plan } if *input == fixture.input() && **plan == *stated);
        let planned = seen.iter().position(is_plan).unwrap();
        let is_inference =
            |e: &Event| matches!(e, Event::Progress(progress) if progress.stage == ProgressStage::Predict);
        let began = seen.iter().position(is_inference).unwrap();
        assert!(planned < began, "event {planned} follows event {began}");
        assert!(stated.text().contains(&cytoscope_profile::bytes_text(stated.stated_peak_bytes)));
    }
}

/// The chunks of an OME-Zarr stack that are kept between reads are part of the stated peak memory.
#[test]
fn the_stated_memory_includes_what_the_reader_of_a_stack_keeps() {
    let fixture = Fixture::new([16, 40, 48], 3);
    let model = fixture.path("model");
    save_package(&static_network(1), &model);
    let [z, y, x] = fixture.shape;
    let path = fixture.path("same.zarr");
    let mut writer = ZarrWriter::create(&path, ZarrImageSpec::new("same", [1, 1, z, y, x], DType::F32)).unwrap();
    let slab = writer.slab_depth(0);
    for (i, values) in fixture.values.chunks(slab * y * x).enumerate() {
        writer.write(0, [0, 0, i * slab], &Samples::F32(values.to_vec())).unwrap();
    }
    let _ = writer.finish().unwrap().publish(Overwrite::Refuse).unwrap();
    let tiles = TileRequest { tile: Some([16, 40, 40]), ..TileRequest::default() };
    let stated = |input: PathBuf, out: &str| {
        let (format, memory_budget_bytes) = (ResultFormat::Tiff, Some(1 << 30));
        let job = fixture.job(&model, tiles.clone(), out);
        let job = PredictJob { inputs: vec![input], axes: None, format, memory_budget_bytes, ..job };
        let outcome = job.run(&Context::default(), &Devices::cpu_only()).unwrap();
        outcome.done[0].plan.as_ref().unwrap().stated_peak_bytes
    };
    let [plain, zarr] = [(fixture.input(), "plain"), (path.clone(), "zarr")].map(|(input, out)| stated(input, out));
    let kept = open(&path, &OpenOptions::default()).unwrap().cache_bytes();
    assert!(kept >= (4 * z * y * x) as u64, "{kept}");
    assert_eq!(zarr, plain + kept, "{plain} bytes are stated for a TIFF stack");
}

#[test]
fn the_reason_for_tiles_is_that_of_the_request_or_of_the_stack() {
    let fixture = Fixture::new([8, 12, 60], 4);
    let model = fixture.path("model");
    save_package(&static_network(1), &model);
    let reason = |tiles: TileRequest, out: &str| fixture.predict(&model, tiles, out).1.no_pass;
    let tile = TileRequest { tile: Some([8, 12, 40]), ..TileRequest::default() };
    assert_eq!(reason(tile, "tile"), Some(NoPass::TileGiven));
    let blend = TileRequest { blend: Some(Blend::Crop), ..TileRequest::default() };
    assert_eq!(reason(blend, "blend"), Some(NoPass::BlendGiven));
    // One tile covers it.
    assert_eq!(reason(TileRequest::default(), "whole"), Some(NoPass::NotCheaper));
}

/// Whole rows of a wide stack do not fit a small memory budget, but bands of columns do.
#[test]
fn a_wide_stack_passes_in_bands_of_columns_within_a_small_memory_budget() {
    let fixture = Fixture::new([16, 12, 4000], 4);
    let model = fixture.path("model");
    let config = UNet3d { filters: vec![16, 16], strides: vec![[2, 2, 2]], convs_per_block: 1, ..UNet3d::default() };
    save_package(&unet3d(&config, &Weights::Random { seed: 5 }).unwrap(), &model);
    let predict = |budget_bytes: u64, out: &str| {
        let memory_budget_bytes = Some(budget_bytes);
        let job = PredictJob { memory_budget_bytes, ..fixture.job(&model, TileRequest::default(), out) };
        job.run(&Context::default(), &Devices::cpu_only()).unwrap().done.pop()
    };
    // The first budget with which it is predicted.
    let mut budgets = (56..400).step_by(8).map(|mib: u64| mib << 20);
    let (budget_bytes, report) = budgets.find_map(|bytes| Some((bytes, predict(bytes, "small")?))).unwrap();
    let plan = report.plan.unwrap();
    assert!(plan.pass.as_ref().is_some_and(|pass| pass.bands_x > 1), "{plan:?}");
    assert!(plan.text().contains(" X, "), "{}", plan.text());
    assert!(plan.stated_peak_bytes <= budget_bytes, "{plan:?}");
    let report = predict(2 << 30, "large").unwrap();
    assert!(report.plan.is_some_and(|plan| plan.pass.is_none_or(|pass| pass.bands_x == 1)));
    let distance = relative_distance(&fixture.maps("small"), &fixture.maps("large"));
    assert!(distance <= 1e-5, "{distance:.2e} of the range");
}

/// The memory that a job is said to need is enough, and not much more than it needs, although whole rows of the stack would
/// take more, and segmenting its maps takes more than the budget.
#[test]
fn the_memory_that_is_stated_for_a_wide_stack_is_that_of_bands_of_columns() {
    let (folder, shape) = (tempfile::tempdir().unwrap(), [4, 1100, 3000]);
    let fixture = Fixture { folder, shape, values: Vec::new() };
    let values: Vec<u8> = (0..shape.iter().product::<usize>()).map(|i| (i % 7) as u8).collect();
    let array = Array::new(Axes::zyx(), shape.to_vec(), values).unwrap();
    write_array(&fixture.path("stack.npy"), &array, &WriteSpec::of(&array, Container::Npy)).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei");
    // The memory that is stated if this budget is too small; otherwise the job is canceled when it is planned.
    let stated = |mib: u64| {
        let cancel = CancelToken::default();
        let sink_seen = cancel.clone();
        let sink = move |event: &Event| {
            if matches!(event, Event::Planned { .. }) {
                sink_seen.cancel();
            }
        };
        let job = PredictJob {
            memory_budget_bytes: Some(mib << 20),
            outputs: [Output::Labels].into(),
            voxel_um: Some([0.5, 0.3, 0.3]),
            diameter: DiameterRequest::Given(7.5),
            ..fixture.job(&model, TileRequest::default(), "out")
        };
        let context = Context { cancel, sink: Arc::new(sink), ..Context::default() };
        match job.run(&context, &Devices::cpu_only()) {
            Err(error) => {
                assert_eq!(error.kind(), JobErrorKind::Canceled, "{error}");
                None
            }
            Ok(outcome) => {
                let message = &outcome.failed[0].message;
                let (_, needed_text) = message.split_once("needs about ").expect(message);
                Some(needed_text.split(' ').next().unwrap().parse::<u64>().unwrap())
            }
        }
    };
    let needed = stated(64).unwrap();
    assert_eq!(stated(needed), None, "{needed} MiB are not enough");
    assert!(stated(needed * 85 / 100).is_some(), "much less than {needed} MiB is enough");
}

/// A slab of OME-Zarr is written from a few slices of the prediction at once, although the model's grid is finer.
#[test]
fn maps_on_a_finer_grid_are_resampled_for_ome_zarr_slice_by_slice() {
    let fixture = Fixture::new([12, 24, 24], 4);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei-dog");
    let job = |format: ResultFormat, out: &str| PredictJob {
        format,
        voxel_um: Some([1.75, 0.8, 0.8]),
        diameter: DiameterRequest::Given(4.0),
        ..fixture.job(&model, TileRequest::default(), out)
    };
    let context = Context { recorder: Recorder::new(), ..Context::default() };
    let outcome = job(ResultFormat::OmeZarr, "zarr").run(&context, &Devices::cpu_only()).unwrap();
    let [depth, height, width] = outcome.done[0].grid_zyx.unwrap();
    assert!(depth > 24 && height > 48, "the grid is not finer");
    let spans = context.recorder.spans_since(0, usize::MAX);
    let most_bytes =
        spans.iter().filter(|span| span.name == "spool" && span.stage == Stage::Read).map(|span| span.bytes).max();
    let slices = most_bytes.unwrap().div_ceil((height * width * size_of::<f32>()) as u64);
    assert!(slices < depth as u64 / 4, "{slices} of {depth} slices are read at once");
    assert!(job(ResultFormat::Tiff, "tiff").run(&Context::default(), &Devices::cpu_only()).unwrap().failed.is_empty());
    let values = |name: &str| {
        let image = open(&fixture.path(name), &OpenOptions::default()).unwrap();
        image.read_all().unwrap().samples().to_f32()
    };
    assert!(values("zarr/stack_probability.zarr") == values("tiff/stack_probability.tif"), "the maps differ");
}

/// With these extents, tiles of 32 voxels compute a little less than larger ones, whose statistics are closer to those of the
/// whole stack.
#[test]
fn a_network_that_normalizes_over_its_tiles_gets_large_ones() {
    let fixture = Fixture::new([4, 260, 300], 4);
    let model = fixture.path("model");
    let config = DynUNet { filters: vec![2, 4], strides: vec![1, 2], ..DynUNet::default() };
    save_package(&dynunet(&config, &Weights::Random { seed: 3 }).unwrap(), &model);
    let (_, plan) = fixture.predict(&model, TileRequest::default(), "out");
    assert_eq!(plan.no_pass, Some(NoPass::NormalizesOverTile));
    assert!(plan.tile[1] >= 128 && plan.tile[2] >= 128, "{plan:?}");
}
