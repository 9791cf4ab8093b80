//! Deserialization of report types that lower crates only serialize.

use cytoscope_engine::OpFallback;
use cytoscope_objects::matching::Matching;
use cytoscope_objects::regression::Regression;
use serde::{Deserialize, Deserializer};

#[derive(Deserialize)]
#[serde(remote = "OpFallback")]
struct OpFallbackFields {
    op: String,
    count: usize,
    #[serde(skip)]
    is_cheap: bool,
}

#[derive(Deserialize)]
struct OpFallbackRead(#[serde(with = "OpFallbackFields")] OpFallback);

/// Deserializes the operators that the engine has no kernel for.
pub(crate) fn fallbacks<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<OpFallback>, D::Error> {
    Ok(Vec::<OpFallbackRead>::deserialize(from)?.into_iter().map(|f| f.0).collect())
}

#[derive(Deserialize)]
#[serde(remote = "Matching")]
struct MatchingFields {
    threshold: f64,
    tp: u64,
    fp: u64,
    r#fn: u64,
    precision: f64,
    recall: f64,
    accuracy: f64,
    f1: f64,
    n_true: u64,
    n_pred: u64,
    mean_true_score: f64,
    mean_matched_score: f64,
    panoptic_quality: f64,
}

#[derive(Deserialize)]
struct MatchingRead(#[serde(with = "MatchingFields")] Matching);

/// Deserializes object scores.
pub(crate) fn matchings<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Matching>, D::Error> {
    Ok(Vec::<MatchingRead>::deserialize(from)?.into_iter().map(|m| m.0).collect())
}

#[derive(Deserialize)]
#[serde(remote = "Regression")]
struct RegressionFields {
    pearson: Option<f64>,
    psnr_db: Option<f64>,
    ssim: Option<f64>,
    #[serde(deserialize_with = "number")]
    mse: f64,
}

#[derive(Deserialize)]
struct RegressionRead(#[serde(with = "RegressionFields")] Regression);

/// Deserializes optional intensity scores.
pub(crate) fn regression<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Regression>, D::Error> {
    Ok(Option::<RegressionRead>::deserialize(from)?.map(|r| r.0))
}

/// Deserializes required intensity scores.
pub(crate) fn scores<'de, D: Deserializer<'de>>(from: D) -> Result<Regression, D::Error> {
    Ok(RegressionRead::deserialize(from)?.0)
}

/// Deserializes a number; NaN is `null` in JSON.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}
