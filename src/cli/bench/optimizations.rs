//! `bench --compare-opts`: how much each optimization of the CPU engine speeds up a network, and whether it changes the
//! output.

use super::metrics::{Figures, Metric, Spread, nested, spreads};
use super::results::{Origin, Store, TaskResult, amount};
use super::tasks::TaskKind;
use crate::cli::failure::Failure;
use crate::cli::maps::relative_l2;
use crate::cli::{eprint_line, print};
use cytoscope_engine::{CompileOptions, DeviceId, Precision, Session};
use cytoscope_engine_cpu::{CpuEngine, Optimizations};
use cytoscope_graph::Tensor;
use cytoscope_pipeline::{Context, Model, PredictJob, calibration_tiles};
use cytoscope_profile::Recorder;
use cytoscope_storage::message;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Least number of timed runs of each row; single runs of a tile are too short to be compared.
pub(super) const MIN_RUNS: usize = 5;
/// Relative L2 difference up to which the output counts as unchanged: other orders of sums round differently.
const ROUNDING: f64 = 1e-4;
/// Instruction set of the row without SIMD kernels.
const PORTABLE: &str = "portable";

/// One way to compile the network.
struct Row {
    name: String,
    precision: Precision,
    optimizations: Optimizations,
    /// Whether it uses portable code only, without instructions that only some CPUs have.
    portable: bool,
}

/// A compiled row and its measurements.
struct Measured {
    row: Row,
    session: Box<dyn Session>,
    /// Values of all outputs of the first run.
    output: Vec<f32>,
    /// Time of each run in seconds.
    run_secs: Vec<f64>,
}

/// Returns the rows: each optimization alone, then all. Rows of 8-bit integers only where the model has such a network.
fn rows(has_int8: bool) -> Vec<Row> {
    let none = Optimizations::none();
    let all = Optimizations::default();
    let row =
        |name: &str, precision, optimizations| Row { name: name.to_owned(), precision, optimizations, portable: false };
    let mut rows = vec![row("baseline", Precision::F32, none)];
    if has_int8 {
        rows.push(row("+ precision (int8)", Precision::Int8, none));
    }
    rows.push(row("+ layout (shared buffers)", Precision::F32, Optimizations { shared_buffers: true, ..none }));
    rows.push(row("+ fusion", Precision::F32, Optimizations { fusion: true, ..none }));
    rows.push(row("+ optimizer (graph rewrites)", Precision::F32, Optimizations { rewrites: true, ..none }));
    if has_int8 {
        rows.push(row("all but precision (f32)", Precision::F32, all));
    }
    let best = if has_int8 { Precision::Int8 } else { Precision::F32 };
    rows.push(row("all", best, all));
    rows.push(Row { portable: true, ..row("all, portable kernels", best, all) });
    rows
}

/// Measures each row on a tile of the stack at `data`, in turns, stores the results after each round, and prints the table.
/// Results hold the times, the ratio to the baseline in the same round, and the difference of the output to the baseline's.
///
/// # Errors
/// The failure to load the model, to read the stack, to run the baseline, or to store the results.
pub(super) fn run(
    context: &Context,
    model: &str,
    data: &Path,
    repeat: usize,
    timestamp: &str,
    store: Store<'_>,
) -> Result<Vec<TaskResult>, Failure> {
    let model = Model::load(model)?;
    let has_int8 = model.precision_on(DeviceId::Cpu, None) == Precision::Int8;
    if !has_int8 {
        eprint_line("note: rows in int8 are left out: the model has no int8 network; cytoscope quantize makes one");
    }
    let prediction = PredictJob::new(vec![data.to_owned()], model.name.clone(), PathBuf::new());
    let tiles = calibration_tiles(context, &model, &[prediction], 1)?;
    let tile =
        tiles.into_iter().next().ok_or_else(|| Failure::bad_input(format!("{}: no tile", data.display())))?.values;
    eprint_line(&format!("a tile of shape {:?}", tile.shape()));
    let mut measured = Vec::new();
    for row in rows(has_int8) {
        context.check()?;
        match compiled(context, &model, &tile, row) {
            Ok(done) => measured.push(done),
            Err((row, error)) if measured.is_empty() => {
                return Err(Failure::new(error.kind(), message!("{}: {error}", row.name)));
            }
            Err((row, error)) => eprint_line(&format!("note: the row \"{}\" is left out: {error}", row.name)),
        }
    }
    let (origin, rounds) = (Origin::of_this_bench(timestamp), repeat.max(MIN_RUNS));
    for round in 1..=rounds {
        eprint_line(&format!("[round {round} of {rounds}]"));
        for one in &mut measured {
            context.check()?;
            let start = Instant::now();
            one.session.run(std::slice::from_ref(&tile))?;
            one.run_secs.push(start.elapsed().as_secs_f64());
        }
        store(&results(&measured, &origin))?;
    }
    for one in &measured {
        let (spreads, error) = compared(&measured, one);
        print_row(&one.row.name, &spreads, error);
    }
    Ok(results(&measured, &origin))
}

/// Compiles a row and runs it once.
fn compiled(context: &Context, model: &Model, tile: &Tensor, row: Row) -> Result<Measured, (Row, Failure)> {
    let engine = if row.portable { CpuEngine::for_kernels(PORTABLE) } else { Some(CpuEngine::new()) };
    let Some(engine) = engine else {
        return Err((row, Failure::other(format!("the CPU engine has no {PORTABLE} kernels on this machine"))));
    };
    let engine = engine.with_optimizations(row.optimizations);
    let options = CompileOptions { recorder: Recorder::totals_only(), ..context.compile_options(row.precision, 0) };
    let first = model.compile(&engine, tile.shape(), &options).and_then(|mut session| {
        let outputs = session.run(std::slice::from_ref(tile))?;
        Ok((session, outputs))
    });
    match first {
        Ok((session, outputs)) => {
            let output = outputs.iter().filter_map(Tensor::as_f32).flatten().copied().collect();
            Ok(Measured { row, session, output, run_secs: Vec::new() })
        }
        Err(error) => Err((row, error.into())),
    }
}

/// Returns the results of all rows.
fn results(measured: &[Measured], origin: &Origin) -> Vec<TaskResult> {
    let of = |one: &Measured| {
        let (spreads, _) = compared(measured, one);
        origin.result(&one.row.name, TaskKind::Inference, one.run_secs.len(), nested(&spreads))
    };
    measured.iter().map(of).collect()
}

/// Returns the figures of a row, compared with the first one, and the difference of the output.
fn compared(measured: &[Measured], one: &Measured) -> (BTreeMap<String, Spread>, Option<f64>) {
    let baseline = measured.first().unwrap_or(one);
    let error = relative_l2(&baseline.output, &one.output);
    let times = one.run_secs.iter().zip(&baseline.run_secs);
    let figures: Vec<Figures> = times
        .map(|(secs, baseline_secs)| {
            let mut figures = Figures::from([
                (Metric::RunSecs.name().to_owned(), *secs),
                (Metric::SpeedUp.name().to_owned(), baseline_secs / secs.max(f64::MIN_POSITIVE)),
                (Metric::ArenaBytes.name().to_owned(), one.session.report().arena_bytes as f64),
            ]);
            figures.extend(error.map(|error| (Metric::RelativeL2.name().to_owned(), error)));
            figures
        })
        .collect();
    (spreads(&figures), error)
}

fn print_row(name: &str, spreads: &BTreeMap<String, Spread>, error: Option<f64>) {
    let Some((secs, ratio)) = spreads.get(Metric::RunSecs.name()).zip(spreads.get(Metric::SpeedUp.name())) else {
        return;
    };
    let arena = spreads
        .get(Metric::ArenaBytes.name())
        .map_or_else(String::new, |bytes| amount(Metric::ArenaBytes.name(), bytes.median));
    let output = match error {
        Some(error) if error <= ROUNDING => format!("output unchanged ({error:.1e})"),
        Some(error) => format!("relative L2 {error:.1e}"),
        None => "output of another size".to_owned(),
    };
    print(&format!(
        "{name:30} {:>9} {:.2}× ({:.2} to {:.2})  {arena:>9}  {output}",
        amount(Metric::RunSecs.name(), secs.median),
        ratio.median,
        ratio.min,
        ratio.max
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_optimization_has_a_row_of_its_own_and_all_come_last() {
        let names = |has_int8| rows(has_int8).into_iter().map(|row| row.name).collect::<Vec<String>>();
        assert_eq!(names(true).len(), names(false).len() + 2);
        assert!(names(false).iter().all(|name| !name.contains("int8")));
        let all = rows(true);
        let on = |row: &Row| {
            let Optimizations { rewrites, fusion, shared_buffers } = row.optimizations;
            usize::from(rewrites) + usize::from(fusion) + usize::from(shared_buffers)
        };
        assert_eq!(all.iter().map(on).collect::<Vec<usize>>(), [0, 0, 1, 1, 1, 3, 3, 3]);
        assert_eq!((all[0].precision, all[6].precision), (Precision::F32, Precision::Int8));
    }
}
