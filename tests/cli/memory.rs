//! Memory does not grow with the number of slices.

use crate::common::Fixture;
use cytoscope_builders::{UNet3d, Weights, unet3d};
use cytoscope_formats::{Container, StackWriter, WriteSpec};
use cytoscope_volume::{Array, DType, VoxelSize};

/// Writes a stack of one simulated block, tiled laterally and mirrored along Z.
fn write_stack(fixture: &Fixture, name: &str, block: &Array, slices: usize, edge: usize) {
    let [depth, by, bx] = [block.shape()[0], block.shape()[1], block.shape()[2]];
    let values: Vec<u16> = block.samples().to_f32().iter().map(|v| *v as u16).collect();
    let mut spec = WriteSpec::new(Container::ImageJ, "ZYX".parse().unwrap(), vec![slices, edge, edge], DType::U16);
    spec.voxel_size_um = VoxelSize::new_um(1.75, 0.8, 0.8);
    let mut writer = StackWriter::create(&fixture.path(name), &spec).unwrap();
    for z in 0..slices {
        // Mirrored, so that nuclei continue across blocks.
        let at = if z / depth % 2 == 0 { z % depth } else { depth - 1 - z % depth };
        let mut plane = Vec::with_capacity(edge * edge);
        for y in 0..edge {
            let row = &values[(at * by + y % by) * bx..][..bx];
            plane.extend((0..edge).map(|x| row[x % bx]));
        }
        writer.write(&Array::new("ZYX".parse().unwrap(), vec![1, edge, edge], plane).unwrap()).unwrap();
    }
    writer.finish().unwrap();
}

/// Allocator overhead by which two runs of a job may differ.
const ALLOCATOR_BYTES: f64 = (8 << 20) as f64;

fn peak(fixture: &Fixture, name: &str, options: &[&str]) -> (u64, u64) {
    let report = fixture.run(&[&["predict", name, "--out", "o", "--json"], options].concat()).json();
    let one = &report["inputs"][0];
    let actual = one["actual_peak_bytes"].as_u64().unwrap();
    let stated = one["plan"]["stated_peak_bytes"].as_u64().unwrap();
    eprintln!("{name} {options:?}: {} MiB held, {} MiB stated, {:.1} s", actual >> 20, stated >> 20, one["seconds"]);
    std::fs::remove_dir_all(fixture.path("o")).unwrap();
    (actual, stated)
}

/// Compares a short and a long stack, and returns the memory in bytes that is stated for the long one.
fn compare(fixture: &Fixture, short: usize, long: usize, edge: usize, options: &[&str]) -> u64 {
    let block = fixture.image(&fixture.nuclei("16,128,128", 1));
    write_stack(fixture, "short.tif", &block, short, edge);
    write_stack(fixture, "long.tif", &block, long, edge);
    let (a, stated_a) = peak(fixture, "short.tif", options);
    let (b, stated_b) = peak(fixture, "long.tif", options);
    // A few MiB are allocator overhead.
    assert!(b as f64 <= a as f64 * 1.2 + ALLOCATOR_BYTES, "{short} slices take {a} bytes, {long} slices {b}");
    assert!(a <= stated_a && b <= stated_b, "more was held than stated: {a} of {stated_a}, {b} of {stated_b}");
    stated_b
}

#[test]
fn ten_times_the_slices_need_the_same_memory() {
    let options = ["--model", "nuclei-dog", "--diameter", "12", "--tile", "28,128,128", "--outputs", "maps"];
    compare(&Fixture::new(), 32, 320, 192, &options);
}

#[test]
fn a_pass_and_its_objects_keep_to_the_stated_memory() {
    let fixture = Fixture::new();
    let block = fixture.image(&fixture.nuclei("16,128,128", 1));
    write_stack(&fixture, "crowded.tif", &block, 64, 448);
    // On a coarser grid, the objects take more memory than the network.
    let grid = ["--voxel-size", "1,0.4,0.4", "--diameter", "12"];
    let rest = ["--device", "cpu", "--outputs", "labels", "--threads", "2"];
    let (held, stated) = peak(&fixture, "crowded.tif", &[&grid[..], &rest].concat());
    let ratio = held as f64 / stated as f64;
    assert!((0.75..1.1).contains(&ratio), "{held} bytes were held, {stated} were stated");
}

#[test]
fn slices_that_are_resampled_for_tiles_are_part_of_the_stated_memory() {
    let fixture = Fixture::new();
    let block = fixture.image(&fixture.nuclei("16,128,128", 1));
    write_stack(&fixture, "fine.tif", &block, 16, 768);
    // The model's grid has a quarter of the rows and columns of the stack.
    let grid = ["--model", "nuclei-dog", "--voxel-size", "1.75,0.2,0.2", "--diameter", "19"];
    let (held, stated) =
        peak(&fixture, "fine.tif", &[&grid[..], &["--tile", "28,64,64", "--outputs", "maps"]].concat());
    // All slices as floats, and those that are kept for the next tiles.
    assert!(held >= 2 * 16 * 768 * 768 * 4, "{held}: the slices are no longer held at once");
    assert!(held <= stated, "more was held than stated: {held} of {stated}");
}

/// A file in Fortran order, of which many slices are read at once, is checked before its prediction is planned.
#[test]
fn slices_are_read_ahead_within_the_memory_budget_from_the_start() {
    let fixture = Fixture::new();
    fixture.unet(8);
    // 200 time points of 8 slices, which lie between each other.
    let text = format!("{:<117}\n", "{'descr': '|u1', 'fortran_order': True, 'shape': (200, 8, 256, 256), }");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend((0..200 * 8 * 256 * 256).map(|i: usize| (i / 200 % 251) as u8));
    std::fs::write(fixture.path("stack.npy"), bytes).unwrap();
    let stack = ["--axes", "TZYX", "--time", "0", "--model", "net.onnx", "--outputs", "maps", "--device", "cpu"];
    let (held, stated) = peak(&fixture, "stack.npy", &[&stack[..], &["--memory-budget", "120M"]].concat());
    assert!(stated <= 120 << 20, "{stated} bytes are stated");
    assert!(held as f64 <= 1.1 * stated as f64, "{held} bytes were held, {stated} were stated");
}

#[test]
fn the_weights_of_the_model_are_part_of_the_stated_memory() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,64,64", 1);
    // A convolution of 28 MB, which is computed for few voxels.
    let config = UNet3d { filters: vec![8, 512], strides: vec![[2, 8, 8]], ..UNet3d::default() };
    cytoscope_onnx::save(&unet3d(&config, &Weights::Random { seed: 3 }).unwrap(), &fixture.path("net.onnx")).unwrap();
    let options = ["--model", "net.onnx", "--outputs", "maps", "--device", "cpu"];
    let (held, stated) = peak(&fixture, &raw, &options);
    // Those of the model, and the packed ones.
    assert!(stated >= (48 << 20) + 2 * 512 * 512 * 27 * 4, "{stated} bytes are stated");
    let ratio = held as f64 / stated as f64;
    assert!((0.75..1.1).contains(&ratio), "{held} bytes were held, {stated} were stated");
}

#[test]
fn preprocessing_steps_are_part_of_the_stated_memory() {
    let fixture = Fixture::new();
    let steps = ["--preprocess", "gaussian:sigma=2,tophat:radius=3,stretch:low=1:high=99"];
    // Smoothed stacks would be estimated to have smaller objects, and take several times as long.
    let plain = ["--model", "nuclei-dog", "--diameter", "12", "--tile", "28,128,128", "--outputs", "maps"];
    let options = [&plain[..], &steps].concat();
    let with = compare(&fixture, 96, 192, 192, &options);
    let (_, without) = peak(&fixture, "long.tif", &plain);
    // Percentiles are computed in slabs of 64 of these slices, which are smoothed from slabs of 64 + 2 · 8.
    let slice_bytes = 192 * 192 * 4;
    assert!(with >= without + (64 + 80) * slice_bytes, "{with} bytes are stated with steps, {without} without");
}

#[test]
#[ignore = "half a gigabyte of pixels: some minutes and 8 GB of disk; run with --ignored"]
fn a_thousand_slices_need_the_memory_of_sixty_four() {
    compare(&Fixture::new(), 64, 1024, 512, &[]);
}
