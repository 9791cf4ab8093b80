//! Measures the time of edits on a cube of SIZE voxels along each axis, 512 by default and at least 256:
//! `cargo run --release -p cytoscope-corrections --example edit_costs [SIZE]`.
#![forbid(unsafe_code)]

use cytoscope_corrections::{
    BoundsZyx, Brush, BrushShape, CorrectionError, DrawOver, Edit, LabelVolume, LoadOptions, Plane, Scope, Session,
    SessionOptions, SliceAxis,
};
use cytoscope_volume::VoxelSize;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Balls with a radius of 11 voxels on a grid of 32 voxels, with consecutive labels.
fn cells(size: usize) -> Vec<u32> {
    let per_side = size / 32;
    let mut labels = vec![0; size * size * size];
    for (i, l) in labels.iter_mut().enumerate() {
        let at = [i / (size * size), i / size % size, i % size];
        let squared_distance: usize = at.iter().map(|c| (c % 32).abs_diff(16).pow(2)).sum();
        if squared_distance <= 121 && at.iter().all(|c| c / 32 < per_side) {
            *l = at.iter().fold(0, |n, c| n * per_side + c / 32) as u32 + 1;
        }
    }
    labels
}

fn duration_text(took: Duration) -> String {
    let micros = took.as_secs_f64() * 1e6;
    if micros < 1000.0 { format!("{micros:.0} µs") } else { format!("{:.2} ms", micros / 1000.0) }
}

/// Runs a function `times` times and prints the median and the longest time.
fn measure<T>(
    what: &str,
    times: usize,
    mut f: impl FnMut(usize) -> Result<T, CorrectionError>,
) -> Result<(), CorrectionError> {
    let mut took = Vec::new();
    for n in 0..times {
        let start = Instant::now();
        black_box(f(n)?);
        took.push(start.elapsed());
    }
    took.sort();
    let median = took.get(times / 2).copied().unwrap_or_default();
    let slowest = took.last().copied().unwrap_or_default();
    println!("{what:<58} median {:>10}   slowest {:>10}", duration_text(median), duration_text(slowest));
    Ok(())
}

/// Smallest size for which all edits lie inside the volume.
const MIN_SIZE: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let size = match std::env::args().nth(1) {
        None => 512,
        Some(text) => text.parse::<usize>().ok().filter(|size| *size >= MIN_SIZE).ok_or_else(|| {
            format!("invalid SIZE \"{text}\": expected a whole number of voxels from {MIN_SIZE}, such as 512")
        })?,
    };
    let folder = std::env::temp_dir().join(format!("cytoscope-edit-costs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|source| CorrectionError::Io {
        file: folder.clone(),
        doing: "making the folder",
        source,
    })?;
    let outcome = run(size, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    Ok(outcome?)
}

fn run(size: usize, folder: &std::path::Path) -> Result<(), CorrectionError> {
    let dense = cells(size);
    let volume = LabelVolume::from_dense([size; 3], VoxelSize::new_um(1.0, 0.25, 0.25), &dense)?;
    drop(dense);
    println!("{size}³ voxels, {} labels, {} MB of labels", volume.label_count(), volume.labels().stored_bytes() >> 20);
    let file = folder.join("cells.tif");
    measure("save", 1, |_| volume.labels().save(&file))?;
    measure("load", 1, |_| LabelVolume::load(&file, &LoadOptions::default()))?;
    measure("fingerprint", 3, |_| Ok(volume.fingerprint()))?;
    measure("snapshot", 9, |_| Ok(volume.snapshot()))?;
    let (mut session, _) = Session::open(volume.clone(), None, &folder.join("journal"), SessionOptions::default())?;
    drop(volume);
    reads(&session, size)?;
    strokes(&mut session, size)?;
    fills(&mut session, size)?;
    shapes(&mut session, size)?;
    splits(&mut session, size)?;
    history(&mut session)?;
    let saved = folder.join("saved.tif");
    let ticket = session.begin_save()?;
    let saved = ticket.save(&saved, &mut |_, _| ControlFlow::Continue(()))?;
    session.mark_saved(saved)?;
    session.close()?;
    let base = LabelVolume::load(&file, &LoadOptions::default())?;
    let mut base = Some(base);
    measure("open the session again (compacted journal)", 1, |_| {
        let Some(base) = base.take() else { return Ok(()) };
        Session::open(base, None, &folder.join("journal"), SessionOptions::default()).map(|_| ())
    })
}

/// Returns a box of 64³ voxels in the middle.
fn middle_box(size: usize) -> BoundsZyx {
    BoundsZyx { start: [size / 2; 3], end: [size / 2 + 64; 3] }
}

/// Returns the voxel of edit `n` in the middle slice.
fn place(size: usize, n: usize) -> [usize; 3] {
    [size / 2, 40 + n * 97 % (size - 80), 40 + n * 57 % (size - 80)]
}

/// Returns the label of the cell with number `n` in a row near the middle.
fn label(size: usize, n: usize) -> u32 {
    ((size / 32 * 3 + 5) * (size / 32) + n) as u32 + 1
}

fn reads(session: &Session, size: usize) -> Result<(), CorrectionError> {
    for axis in SliceAxis::ALL {
        measure(&format!("read a slice across {axis:?}"), 9, |n| session.volume().slice(axis, size / 2 + n))?;
    }
    let box64 = middle_box(size);
    measure("read a box of 64³", 9, |_| session.volume().labels().read(&box64))
}

fn strokes(session: &mut Session, size: usize) -> Result<(), CorrectionError> {
    let (middle, place) = (size / 2, |n: usize| place(size, n));
    for (what, shape, radius_um) in [
        ("dab, disk of 5 µm in Z (20 voxels)", BrushShape::Disk(SliceAxis::Z), 5.0),
        ("dab, disk of 5 µm in Y", BrushShape::Disk(SliceAxis::Y), 5.0),
        ("dab, disk of 5 µm in X", BrushShape::Disk(SliceAxis::X), 5.0),
        ("dab, ball of 5 µm", BrushShape::Ball, 5.0),
    ] {
        let brush = Brush { shape, radius_um, value: 60_000, over: DrawOver::Any };
        measure(what, 50, |n| {
            let points = vec![place(n).map(|c| c as f64)];
            session.apply(&Edit::Paint { brush, points })
        })?;
    }
    measure("fill all background in 3-D", 1, |_| {
        session.apply(&Edit::Fill { seed: [0, 0, 0], value: 60_005, scope: Scope::Volume })
    })?;
    measure("undo that", 1, |_| session.undo())?;
    let brush = Brush { shape: BrushShape::Disk(SliceAxis::Z), radius_um: 5.0, value: 60_001, over: DrawOver::Any };
    measure("stroke of 200 voxels in Z, at once", 20, |n| {
        let [z, y, x] = place(n).map(|c| c as f64);
        session.apply(&Edit::Paint { brush, points: vec![[z, y, x], [z, y + 30.0, (x + 200.0).min(size as f64)]] })
    })?;
    session.begin_stroke(brush, [middle as f64; 3])?;
    measure("one mouse move (8 voxels) of a live stroke", 50, |n| {
        session.extend_stroke([middle as f64, middle as f64, middle as f64 + 8.0 * (n % 20) as f64])
    })?;
    measure("its end", 1, |_| session.end_stroke())?;
    let snapshot = session.volume().snapshot();
    measure("dab in a chunk shared with a snapshot (copied)", 20, |n| {
        let [z, y, x] = place(n + 60).map(|c| c as f64);
        session.apply(&Edit::Paint { brush, points: vec![[z - 40.0, y, x]] })
    })?;
    drop(snapshot);
    Ok(())
}

fn fills(session: &mut Session, size: usize) -> Result<(), CorrectionError> {
    let slice = |n: usize| Scope::Slice(Plane::new(SliceAxis::Z, 16 + 32 * (n % (size / 32))));
    measure("fill a cell in a slice", 20, |n| {
        session.apply(&Edit::Fill { seed: [16 + 32 * (n % (size / 32)), 16, 16], value: 60_002, scope: slice(n) })
    })?;
    measure("fill the background of a slice", 5, |n| {
        session.apply(&Edit::Fill { seed: [16 + 32 * n, 0, 0], value: 60_003, scope: slice(n) })
    })?;
    measure("fill a cell in 3-D", 20, |n| {
        session.apply(&Edit::Fill {
            seed: [20, 48 + 32 * (n / 8), 48 + 32 * (n % 8)],
            value: 60_004,
            scope: Scope::Volume,
        })
    })
}

fn shapes(session: &mut Session, size: usize) -> Result<(), CorrectionError> {
    let label = |n: usize| label(size, n);
    measure("fill holes of a cell in 3-D", 9, |n| {
        session.apply(&Edit::FillHoles { label: label(n), scope: Scope::Volume, over: DrawOver::Background })
    })?;
    measure("grow a cell by 1 µm in 3-D", 9, |n| {
        session.apply(&Edit::Grow { label: label(n), by_um: 1.0, scope: Scope::Volume, over: DrawOver::Background })
    })?;
    measure("shrink it again", 9, |n| {
        session.apply(&Edit::Shrink { label: label(n), by_um: 1.0, scope: Scope::Volume })
    })?;
    measure("merge two cells", 9, |n| {
        session.apply(&Edit::Merge { labels: vec![label(2 * n)], into: label(2 * n + 1), scope: Scope::Volume })
    })?;
    measure("split them by two seeds in 3-D", 9, |n| {
        let bounds = session.volume().label_bounds(label(2 * n + 1)).unwrap_or(middle_box(size));
        let middle = |a: usize| (bounds.start[a] + bounds.end[a]) / 2;
        let seeds = vec![[middle(0), middle(1), bounds.start[2] + 8], [middle(0), middle(1), bounds.end[2] - 8]];
        session.apply(&Edit::SplitBySeeds { label: label(2 * n + 1), seeds, scope: Scope::Volume })
    })
}

fn splits(session: &mut Session, size: usize) -> Result<(), CorrectionError> {
    let (label, other) = (|n: usize| label(size, n), |n: usize| label(size, 20 + n));
    let middles: Vec<usize> =
        (0..9).filter_map(|n| session.volume().label_bounds(other(n))).map(|b| (b.start[0] + b.end[0]) / 2).collect();
    measure("delete 7 slices of a cell", middles.len(), |n| {
        let slices = middles.get(n).map_or(0..0, |z| z - 3..z + 4);
        slices.into_iter().try_for_each(|z| {
            let scope = Scope::Slice(Plane::new(SliceAxis::Z, z));
            session.apply(&Edit::Delete { label: other(n), scope }).map(|_| ())
        })
    })?;
    measure("interpolate them", middles.len(), |n| {
        session.apply(&Edit::Interpolate { label: other(n), axis: SliceAxis::Z, at: None, over: DrawOver::Any })
    })?;
    measure("cut a cell in two by a line, through all slices", middles.len(), |n| {
        let b = session.volume().label_bounds(other(n)).unwrap_or(middle_box(size));
        let x = (b.start[2] + b.end[2]) as f64 / 2.0;
        let points =
            vec![[b.start[0] as f64, b.start[1] as f64 - 2.0, x], [b.start[0] as f64, b.end[1] as f64 + 2.0, x]];
        session.apply(&Edit::SplitByLine { label: other(n), axis: SliceAxis::Z, points, through: true })
    })?;
    measure("delete a cell", 9, |n| session.apply(&Edit::Delete { label: label(2 * n + 1), scope: Scope::Volume }))
}

fn history(session: &mut Session) -> Result<(), CorrectionError> {
    measure("undo", 100, |_| session.undo())?;
    measure("redo", 100, |_| session.redo())?;
    println!(
        "{} steps, {} KB to undo, journal {} KB",
        session.undo_names().count(),
        session.undo_bytes() >> 10,
        session.journal_bytes() >> 10
    );
    measure("compact the journal", 1, |_| session.compact())
}
