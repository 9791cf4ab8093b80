//! `train --compare-precision`: whether mixed precision costs accuracy.

use super::search::beside;
use crate::cli::child::Scratch;
use crate::cli::failure::Failure;
use crate::cli::print;
use cytoscope_pipeline::Context;
use cytoscope_pipeline::devices::Devices;
use cytoscope_profile::Recorder;
use cytoscope_storage::counted;
use cytoscope_storage::message;
use cytoscope_storage::setting::PRECISION;
use cytoscope_train::{
    PairDifference, PrecisionComparison, TrainConfig, TrainJob, TrainPrecision, TrainReport, TrainSink,
};

/// Kind of the working folder, as stored in its marker file.
const FOLDER_KIND: &str = cytoscope_storage::folder_kind::COMPARE_PRECISION;

/// Refuses a comparison for a training run that does not compute in 16-bit floats.
///
/// # Errors
/// Wrong use, with the option that is missing.
pub(super) fn check(config: &TrainConfig) -> Result<(), Failure> {
    match config.precision {
        TrainPrecision::F16 | TrainPrecision::Bf16 => Ok(()),
        TrainPrecision::Auto | TrainPrecision::F32 | TrainPrecision::Tf32 => Err(Failure::wrong_use(
            "--compare-precision compares mixed precision with 32-bit floats, but this training run computes in 32-bit \
             floats",
        )
        .and_next(message!("add {PRECISION} f16 or bf16, which need a GPU"))),
    }
}

/// Trains again in 32-bit floats, on the same device and for as many steps, in a folder that is removed afterwards.
///
/// # Errors
/// The failure of that training.
pub(super) fn compare(
    job: &TrainJob,
    mixed: &TrainReport,
    context: &Context,
    devices: &Devices,
    on_event: &TrainSink<'_>,
) -> Result<PrecisionComparison, Failure> {
    let scratch = Scratch::create(beside(&job.out, "f32"), FOLDER_KIND)?;
    // A comparison that was killed left its checkpoint.
    scratch.clear(&[])?;
    let full = job.in_full_precision(mixed, devices.list(), scratch.path().join("model"));
    context.note("training again in 32-bit floats, to compare the scores");
    // The shares of time in its status refer to this run.
    let context = Context { recorder: Recorder::totals_only(), ..context.clone() };
    let report = full.run(&context, devices, on_event)?;
    Ok(PrecisionComparison::new(mixed, &report))
}

/// Prints the comparison with a mixed-precision run.
pub(super) fn print_comparison(full: &PrecisionComparison, mixed: &TrainReport) {
    let speed_up = full.step_secs / mixed.step_secs.max(f64::MIN_POSITIVE);
    print(&format!(
        "  the same training in f32: {} of {:.3} s ({speed_up:.2}× the time of mixed precision)",
        counted(full.steps, "step"),
        full.step_secs
    ));
    for (name, difference) in &full.differences {
        let score = full.scores.get(name).copied().unwrap_or(f64::NAN);
        print(&format!("    {name}: {score:.4} in f32, mixed precision differs by {difference:+.4}"));
    }
    full.pairs.iter().for_each(|pairs| print(&pairs_line(pairs)));
}

/// Returns the line of the differences of the validation pairs.
fn pairs_line(pairs: &PairDifference) -> String {
    let (mean, count) = (pairs.mean, counted(pairs.count, "validation pair"));
    let error = pairs.standard_error.map_or_else(String::new, |e| format!(" ± {e:.4} (standard error)"));
    format!("    mean over {count}: {mean:+.4}{error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_of_a_single_pair_has_no_standard_error() {
        let line = |count, standard_error| pairs_line(&PairDifference { count, mean: 0.01, standard_error });
        assert_eq!(line(1, None), "    mean over 1 validation pair: +0.0100");
        assert_eq!(line(2, Some(0.02)), "    mean over 2 validation pairs: +0.0100 ± 0.0200 (standard error)");
    }

    #[test]
    fn only_mixed_precision_is_compared() {
        let config = |precision| TrainConfig { precision, ..TrainConfig::default() };
        for precision in [TrainPrecision::Auto, TrainPrecision::F32, TrainPrecision::Tf32] {
            assert!(check(&config(precision)).unwrap_err().to_string().contains("--precision f16"));
        }
        assert!(check(&config(TrainPrecision::F16)).is_ok() && check(&config(TrainPrecision::Bf16)).is_ok());
    }
}
