//! Memory does not grow with the number of slices.

use crate::common::Desk;
use cytoscope_formats::{Container, StackWriter, WriteSpec};
use cytoscope_volume::{Array, DType, VoxelSize};

/// A stack made of one simulated block, side by side and over and over.
fn tall(desk: &Desk, name: &str, block: &Array, slices: usize, edge: usize) {
    let [depth, by, bx] = [block.shape()[0], block.shape()[1], block.shape()[2]];
    let values: Vec<u16> = block.samples().to_f32().iter().map(|v| *v as u16).collect();
    let mut spec = WriteSpec::new(Container::ImageJ, "ZYX".parse().unwrap(), vec![slices, edge, edge], DType::U16);
    spec.voxel_size_um = VoxelSize::new_um(1.75, 0.8, 0.8);
    let mut writer = StackWriter::create(&desk.path(name), &spec).unwrap();
    for z in 0..slices {
        // There and back, so that nuclei go on across blocks.
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

/// What two runs of one job may differ by.
const ALLOCATOR_BYTES: f64 = (8 << 20) as f64;

fn peak(desk: &Desk, name: &str, options: &[&str]) -> (u64, u64) {
    let report = desk.run(&[&["predict", name, "--out", "o", "--json"], options].concat()).json();
    let one = &report["inputs"][0];
    let actual = one["actual_peak_bytes"].as_u64().unwrap();
    let stated = one["plan"]["stated_peak_bytes"].as_u64().unwrap();
    eprintln!("{name} {options:?}: {} MiB held, {} MiB stated, {:.1} s", actual >> 20, stated >> 20, one["seconds"]);
    std::fs::remove_dir_all(desk.path("o")).unwrap();
    (actual, stated)
}

fn compare(desk: &Desk, short: usize, long: usize, edge: usize, options: &[&str]) {
    let block = desk.image(&desk.nuclei("16,128,128", 1));
    tall(desk, "short.tif", &block, short, edge);
    tall(desk, "long.tif", &block, long, edge);
    let (a, stated_a) = peak(desk, "short.tif", options);
    let (b, stated_b) = peak(desk, "long.tif", options);
    // A few MiB are the allocator's own affair.
    assert!(b as f64 <= a as f64 * 1.2 + ALLOCATOR_BYTES, "{short} slices take {a} bytes, {long} slices {b}");
    assert!(a <= stated_a && b <= stated_b, "more was held than stated: {a} of {stated_a}, {b} of {stated_b}");
}

#[test]
fn ten_times_the_slices_take_the_same_memory() {
    compare(&Desk::new(), 32, 320, 256, &["--model", "nuclei-dog", "--tile", "28,128,128", "--outputs", "maps"]);
}

#[test]
#[ignore = "half a gigabyte of pixels: some minutes and 8 GB of disk; run with --ignored"]
fn a_thousand_slices_take_the_memory_of_sixty_four() {
    compare(&Desk::new(), 64, 1024, 512, &[]);
}
