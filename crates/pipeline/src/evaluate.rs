//! Predictions against truth, file by file and together.

use crate::predict::expand_inputs;
use crate::stack::{Extents, Stack};
use crate::{Context, JobError, wire};
use cytoscope_formats::{Image, ImageMeta, OpenOptions};
use cytoscope_objects::errors::{ErrorSummary, Errors, Grid};
use cytoscope_objects::matching::{Matching, Overlaps, THRESHOLDS};
use cytoscope_objects::regression::{Regression, regression};
use cytoscope_volume::{Element, Samples, with_samples};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Scores predictions: label images by matching objects, others by intensity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluateJob {
    /// A file or a folder.
    pub prediction: PathBuf,
    /// A file or a folder of matching names.
    pub truth: PathBuf,
    /// True objects of fewer voxels count neither as found nor as missed, and predicted objects that mostly lie on them neither as
    /// right nor as wrong; see [`Overlaps::ignoring_below`].
    #[serde(default)]
    pub ignore_below_voxels: u64,
}

/// One pair's scores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairReport {
    /// The prediction.
    pub prediction: PathBuf,
    /// The truth.
    pub truth: PathBuf,
    /// Object scores at each threshold; empty for intensities.
    #[serde(deserialize_with = "wire::matchings")]
    pub instances: Vec<Matching>,
    /// Intensity scores; absent for objects.
    #[serde(deserialize_with = "wire::regression")]
    pub regression: Option<Regression>,
    /// What kinds of errors there are, by object size; absent for intensities.
    #[serde(default)]
    pub errors: Option<ErrorSummary>,
    /// What does not count for its size; absent for intensities.
    #[serde(default)]
    pub ignored: Option<Ignored>,
}

/// Objects that do not count because the true ones are too small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ignored {
    /// True objects of fewer voxels.
    pub below_voxels: u64,
    /// True objects ignored.
    pub true_objects: u64,
    /// Predicted objects ignored, more than half of each lying on ignored true ones.
    pub predictions: u64,
}

/// All scores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluateReport {
    /// Each pair.
    pub pairs: Vec<PairReport>,
    /// Object scores of all pairs together.
    #[serde(deserialize_with = "wire::matchings")]
    pub instances: Vec<Matching>,
    /// Mean intensity scores over pairs.
    #[serde(deserialize_with = "wire::regression")]
    pub regression: Option<Regression>,
    /// Files without a partner.
    pub unpaired: Vec<PathBuf>,
    /// Errors of all pairs together; absent for intensities.
    #[serde(default)]
    pub errors: Option<ErrorSummary>,
    /// What does not count in any pair; absent for intensities.
    #[serde(default)]
    pub ignored: Option<Ignored>,
}

/// Endings that tell what a file of a pair is, not which pair it belongs to.
const ROLES: [&str; 17] = [
    "raw",
    "probability",
    "labels",
    "label",
    "clean",
    "masks",
    "mask",
    "img",
    "image",
    "gt",
    "truth",
    "seg",
    "pred",
    "prediction",
    "target",
    "signal",
    "objects",
];

/// The part of a name that pairs have in common.
pub(crate) fn pair_key(path: &Path) -> String {
    let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
    let mut key = name.split(".ome.").next().unwrap_or(&name).to_owned();
    if let Some(at) = key.rfind('.').filter(|at| *at > 0) {
        key.truncate(at);
    }
    while let Some((front, role)) = key.rsplit_once(['_', '-']) {
        if front.is_empty() || !ROLES.contains(&role) {
            break;
        }
        key = front.to_owned();
    }
    key
}

/// What a file holds by its name, where that tells.
pub(crate) fn looks_like_labels(path: &Path) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
    ["label", "mask", "seg", "gt"].iter().any(|r| name.contains(r))
}

/// Files by key; of several with one key the label image is kept.
fn by_key(path: &Path) -> Result<BTreeMap<String, PathBuf>, JobError> {
    let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
    for file in expand_inputs(&[path.to_owned()])? {
        let key = pair_key(&file);
        match found.get(&key) {
            Some(kept) if looks_like_labels(kept) || !looks_like_labels(&file) => {}
            _ => _ = found.insert(key, file),
        }
    }
    Ok(found)
}

impl EvaluateJob {
    /// Runs the job.
    ///
    /// # Errors
    /// [`JobError`] if nothing pairs up, a file cannot be read, or the shapes of a pair differ.
    pub fn run(&self, context: &Context) -> Result<EvaluateReport, JobError> {
        let mut unpaired = Vec::new();
        let pairs: Vec<(PathBuf, PathBuf)> = if self.prediction.is_file() && self.truth.is_file() {
            vec![(self.prediction.clone(), self.truth.clone())]
        } else {
            let (predictions, mut truths) = (by_key(&self.prediction)?, by_key(&self.truth)?);
            let mut pairs = Vec::new();
            for (key, prediction) in predictions {
                match truths.remove(&key) {
                    Some(truth) => pairs.push((prediction, truth)),
                    None => unpaired.push(prediction),
                }
            }
            unpaired.extend(truths.into_values());
            pairs
        };
        if pairs.is_empty() {
            return Err(JobError::Mismatch {
                path: self.prediction.clone(),
                problem: format!("no file pairs up with one in {}", self.truth.display()),
                next_step: "name them alike, such as cell1_labels.tif in both folders".to_owned(),
            });
        }
        let mut meter = context.meter("evaluate", pairs.len() as u64, "files");
        let (mut reports, mut errors) = (Vec::new(), Vec::new());
        for (prediction, truth) in pairs {
            let (report, found) = score(context, &prediction, &truth, self.ignore_below_voxels)?;
            reports.push(report);
            errors.extend(found);
            meter.add(1)?;
        }
        let columns: Vec<Vec<Matching>> = (0..THRESHOLDS.len())
            .map(|i| reports.iter().filter_map(|r: &PairReport| r.instances.get(i).cloned()).collect())
            .collect();
        let instances = columns.iter().filter_map(|c| Matching::pooled(c)).collect();
        let scores: Vec<Regression> = reports.iter().filter_map(|r| r.regression).collect();
        let mean = |f: fn(&Regression) -> Option<f64>| {
            let known: Vec<f64> = scores.iter().filter_map(f).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        let regression = (!scores.is_empty()).then(|| Regression {
            pearson: mean(|r| r.pearson),
            psnr_db: mean(|r| r.psnr_db),
            ssim: mean(|r| r.ssim),
            mse: mean(|r| Some(r.mse)).unwrap_or(f64::NAN),
        });
        let ignored = reports.iter().filter_map(|r| r.ignored).reduce(|a, b| Ignored {
            true_objects: a.true_objects + b.true_objects,
            predictions: a.predictions + b.predictions,
            ..a
        });
        if ignored.is_none() && self.ignore_below_voxels > 0 {
            context.note("No file holds labels: there are no small objects to ignore.");
        }
        let errors = (!errors.is_empty()).then(|| ErrorSummary::pooled(&errors));
        Ok(EvaluateReport { pairs: reports, instances, regression, unpaired, errors, ignored })
    }
}

/// Scores of a pair, and the errors of label images for pooling.
fn score(
    context: &Context,
    prediction: &Path,
    truth: &Path,
    ignore_below_voxels: u64,
) -> Result<(PairReport, Option<(Errors, Grid)>), JobError> {
    let open = |p: &Path| cytoscope_formats::open(p, &OpenOptions::default());
    let (a, b) = (open(prediction)?, open(truth)?);
    let (ea, eb) = (Extents::of(a.meta()), Extents::of(b.meta()));
    if (ea.zyx, ea.times) != (eb.zyx, eb.times) {
        return Err(JobError::Mismatch {
            path: prediction.to_owned(),
            problem: format!(
                "shape {:?} at {} times does not fit {} ({:?} at {})",
                ea.zyx,
                ea.times,
                truth.display(),
                eb.zyx,
                eb.times
            ),
            next_step: "compare images of one shape".to_owned(),
        });
    }
    let labels = !a.meta().dtype.is_float() && (!b.meta().dtype.is_float() || looks_like_labels(truth));
    let mut report = PairReport {
        prediction: prediction.to_owned(),
        truth: truth.to_owned(),
        instances: Vec::new(),
        regression: None,
        errors: None,
        ignored: None,
    };
    let mut errors = None;
    if labels {
        let mut overlaps = Overlaps::new();
        for time in 0..ea.times {
            each_slab(context, &a, &b, time, &mut |p, t| {
                // Objects of different times are different objects.
                Ok(overlaps.add(&integers(&t, time), &integers(&p, time))?)
            })?;
        }
        let counted = overlaps.ignoring_below(ignore_below_voxels);
        report.instances = counted.matching(&THRESHOLDS);
        report.ignored = Some(Ignored {
            below_voxels: ignore_below_voxels,
            true_objects: (overlaps.truth().len() - counted.truth().len()) as u64,
            predictions: (overlaps.prediction().len() - counted.prediction().len()) as u64,
        });
        let voxel_um = voxel_um(b.meta()).or_else(|| voxel_um(a.meta()));
        let grid = Grid { voxel_um, flat: ea.zyx[0] == 1 };
        let found = Errors::of(&counted);
        report.errors = Some(found.summary(grid));
        errors = Some((found, grid));
    } else {
        let (mut p_all, mut t_all) = (Vec::new(), Vec::new());
        for time in 0..ea.times {
            each_slab(context, &a, &b, time, &mut |p, t| {
                p_all.extend(p.to_f32());
                t_all.extend(t.to_f32());
                Ok(())
            })?;
        }
        let shape = [ea.zyx[0] * ea.times, ea.zyx[1], ea.zyx[2]];
        report.regression = Some(regression(&t_all, &p_all, shape)?);
    }
    Ok((report, errors))
}

/// Voxel size Z, Y, X in µm as a file states it; `None` if it leaves out or misstates any that matters.
fn voxel_um(meta: &ImageMeta) -> Option<[f64; 3]> {
    let stated = |v: Option<f64>| v.filter(|v| v.is_finite() && *v > 0.0);
    let size = meta.voxel_size_um;
    let z = if Extents::of(meta).zyx[0] == 1 { Some(1.0) } else { stated(size.z) };
    Some([z?, stated(size.y)?, stated(size.x)?])
}

/// Bits left of a label for the time point it was seen at.
const TIME_SHIFT: u32 = 22;

fn integers(samples: &Samples, time: usize) -> Vec<u32> {
    fn of<E: Element>(values: &[E], time: u32) -> Vec<u32> {
        values.iter().map(|v| v.to_f64() as u32).map(|l| if l == 0 { 0 } else { l ^ (time << TIME_SHIFT) }).collect()
    }
    with_samples!(samples, v => of(v, time as u32))
}

fn each_slab(
    context: &Context,
    a: &Image,
    b: &Image,
    time: usize,
    f: &mut dyn FnMut(Samples, Samples) -> Result<(), JobError>,
) -> Result<(), JobError> {
    let (a, b) = (Stack::new(a, time), Stack::new(b, time));
    let depth = a.extents.zyx[0];
    let step = a.slab_slices();
    for z in (0..depth).step_by(step) {
        let range = z..(z + step).min(depth);
        f(a.read(context, 0, range.clone())?, b.read(context, 0, range)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_pair_have_one_key() {
        for name in [
            "emb1_t2_raw.tif",
            "emb1_t2_labels.tif",
            "emb1_t2_raw_labels.tif",
            "emb1_t2_raw_probability.tif",
            "emb1_t2_prediction.tif",
            "EMB1_T2_labels_clean.tif",
            "emb1_t2.ome.tif",
        ] {
            assert_eq!(pair_key(Path::new(name)), "emb1_t2", "{name}");
        }
        assert_eq!(pair_key(Path::new("raw.tif")), "raw");
    }
}
