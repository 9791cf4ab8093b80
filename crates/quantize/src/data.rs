//! The data that ranges and errors are measured on: tiles of stacks, or the package's test tensors.

use crate::{QuantizeJob, QuantizeMode};
use cytoscope_graph::Tensor;
use cytoscope_model_package::Package;
use cytoscope_pipeline::packages::{network_inputs, test_inputs};
use cytoscope_pipeline::{
    CalibrationTile, Context, JobError, Model, Note, PredictJob, calibration_tiles, join_tensors,
};
use cytoscope_storage::message;
use cytoscope_storage::setting::CALIBRATE;
use std::path::PathBuf;

/// Maximum number of tiles for calibration and measurement.
pub const MAX_TILES: usize = 16;
/// Maximum number of tiles for quantization-aware training.
pub const MAX_QAT_TILES: usize = 96;
/// Maximum number of tiles that errors are measured on, if enough others are left.
const MAX_HELD_OUT: usize = 12;

/// The tiles of a job.
pub(crate) struct CalibrationData {
    /// Tiles that ranges and bias corrections are computed from.
    pub calibration: Vec<CalibrationTile>,
    /// Tiles that errors are measured on.
    pub held_out: Vec<CalibrationTile>,
    /// Input tensors for quantization-aware training; empty in the other modes.
    pub training: Vec<Tensor>,
}

impl QuantizeJob {
    /// Splits the `given` tiles, or reads the tiles of the job if there are none.
    pub(crate) fn calibration_data(
        &self,
        context: &Context,
        package: &Package,
        float: &Model,
        given: &[CalibrationTile],
        notes: &mut Vec<Note>,
    ) -> Result<CalibrationData, JobError> {
        let is_qat = self.mode == QuantizeMode::Qat;
        let max_tiles = if is_qat { MAX_QAT_TILES } else { MAX_TILES };
        let tiles = match given {
            [] => self.read_tiles(context, package, float, max_tiles, notes)?,
            given => subsample(given.to_vec(), max_tiles.min(given.len())),
        };
        let (calibration, held_out) = split(tiles, notes);
        let training: Vec<Tensor> = calibration.iter().filter(|_| is_qat).map(|t| t.values.clone()).collect();
        // Calibration and bias correction use as many tiles as without training.
        let count = if calibration.len() > MAX_TILES { MAX_TILES * 3 / 4 } else { calibration.len() };
        Ok(CalibrationData { calibration: subsample(calibration, count), held_out, training })
    }

    /// Returns the tiles of the calibration data, or of the package's test tensors.
    fn read_tiles(
        &self,
        context: &Context,
        package: &Package,
        float: &Model,
        max_tiles: usize,
        notes: &mut Vec<Note>,
    ) -> Result<Vec<CalibrationTile>, JobError> {
        let mut predictions = self.predictions.clone();
        if !self.calibrate.is_empty() {
            predictions.push(PredictJob::new(self.calibrate.clone(), self.model.clone(), PathBuf::new()));
        }
        if !predictions.is_empty() {
            return calibration_tiles(context, float, &predictions, max_tiles);
        }
        let path = &package.path;
        let own = package.test_tensors().map_err(|e| JobError::model(path.display().to_string(), e))?;
        let (raw, from) = match (own, self.mode) {
            (Some((inputs, _)), _) => {
                notes.push(Note::info(message!(
                    "calibrated on the package's test tensor alone: use {CALIBRATE} with stacks like those that the model \
                     will be used on"
                )));
                (inputs, "its test tensor")
            }
            (None, QuantizeMode::Dynamic) => {
                notes.push(Note::info(message!(
                    "errors and times were measured on a synthetic tile: give stacks with {CALIBRATE}"
                )));
                (test_inputs(package)?, "a synthetic tile")
            }
            (None, QuantizeMode::Static | QuantizeMode::Qat) => {
                return Err(JobError::Mismatch {
                    path: path.clone(),
                    problem: "it has no test tensors to calibrate with".into(),
                    next_step: message!("give stacks with {CALIBRATE}, like those that the model will be used on"),
                });
            }
        };
        let from = format!("{}: {from}", path.display());
        let tile = |values: Tensor| {
            if values.as_f32().is_none_or(|v| v.is_empty() || v.iter().any(|x| !x.is_finite())) {
                return Err(JobError::Mismatch {
                    path: path.clone(),
                    problem: "its test tensor contains values that are not finite 32-bit floats".into(),
                    next_step: message!("give stacks with {CALIBRATE}"),
                });
            }
            Ok(CalibrationTile { values, from: from.clone() })
        };
        let values = join_tensors(network_inputs(package, &raw)?).ok_or_else(|| JobError::Mismatch {
            path: path.clone(),
            problem: "its test tensors are not 32-bit floats of the same size, apart from the channels".into(),
            next_step: message!("give stacks with {CALIBRATE}"),
        })?;
        Ok(vec![tile(values)?])
    }
}

/// Returns `wanted` of the tiles, evenly spaced.
fn subsample(tiles: Vec<CalibrationTile>, wanted: usize) -> Vec<CalibrationTile> {
    let count = tiles.len();
    let is_taken = |i: usize| i * wanted / count.max(1) != (i + 1) * wanted / count.max(1);
    tiles.into_iter().enumerate().filter(|(i, _)| is_taken(*i)).map(|(_, t)| t).collect()
}

/// Splits tiles into calibration and held-out tiles: every fourth is held out, or fewer of more than 48. A single tile is
/// used for both.
fn split(tiles: Vec<CalibrationTile>, notes: &mut Vec<Note>) -> (Vec<CalibrationTile>, Vec<CalibrationTile>) {
    if tiles.len() < 2 {
        notes.push(Note::info("errors were measured on the calibration tile, because there is only one tile"));
        return (tiles.clone(), tiles);
    }
    let every = tiles.len().min((tiles.len() / MAX_HELD_OUT).max(4));
    let (mut calibration, mut held_out) = (Vec::new(), Vec::new());
    for (i, tile) in tiles.into_iter().enumerate() {
        if i % every == every - 1 { held_out.push(tile) } else { calibration.push(tile) }
    }
    (calibration, held_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tile_in_four_is_held_out_and_twelve_of_many() {
        for (count, held_out) in [(2, 1), (4, 1), (16, 4), (48, 12), (60, 12), (MAX_QAT_TILES, 12)] {
            let tile = |index: usize| CalibrationTile { values: Tensor::scalar(index as f32), from: index.to_string() };
            let (calibration, held) = split((0..count).map(tile).collect(), &mut Vec::new());
            assert_eq!((calibration.len(), held.len()), (count - held_out, held_out), "{count} tiles");
            assert!(held.iter().all(|held| calibration.iter().all(|tile| tile.from != held.from)), "{count} tiles");
        }
    }
}
