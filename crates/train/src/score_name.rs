//! Names of scores, as reports, checkpoints and packages contain them.

use cytoscope_training_data::TargetKind;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A score of a network, ordered by name; serialized as this name, such as `f1@0.5`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ScoreName {
    /// Dice of the foreground: `dice`.
    Dice,
    /// F1 of objects that are matched at an IoU: `f1@0.5`.
    F1 {
        /// Minimum IoU of a match in percent.
        iou_percent: u8,
    },
    /// A score that this version of the program does not compute.
    Other(String),
    /// Pearson's correlation: `pearson` is the mean over all stains, `pearson actin` the correlation of one stain.
    Pearson(Option<String>),
    /// Panoptic quality of objects that are matched at an IoU: `pq@0.5`.
    PanopticQuality {
        /// Minimum IoU of a match in percent.
        iou_percent: u8,
    },
    /// Peak signal-to-noise ratio in dB, the mean over all stains: `psnr_db`.
    PsnrDb,
    /// Structural similarity, the mean over all stains: `ssim`.
    Ssim,
}

impl ScoreName {
    /// Returns the name of F1 at an IoU from 0 to 1.
    pub fn f1(iou: f64) -> Self {
        Self::F1 { iou_percent: percent(iou) }
    }

    /// Returns the name of panoptic quality at an IoU from 0 to 1.
    pub fn panoptic_quality(iou: f64) -> Self {
        Self::PanopticQuality { iou_percent: percent(iou) }
    }

    /// Returns the score of a name; `None` if this version of the program does not compute it.
    fn known(name: &str) -> Option<Self> {
        let score = match name {
            "dice" => Self::Dice,
            "pearson" => Self::Pearson(None),
            "psnr_db" => Self::PsnrDb,
            "ssim" => Self::Ssim,
            _ => match (name.strip_prefix("pearson "), name.split_once('@')) {
                (Some(stain), _) => Self::Pearson(Some(stain.to_owned())),
                (None, Some(("f1", iou))) => Self::f1(iou.parse().ok()?),
                (None, Some(("pq", iou))) => Self::panoptic_quality(iou.parse().ok()?),
                _ => return None,
            },
        };
        // A name with another number of digits is kept as it is.
        (score.to_string() == name).then_some(score)
    }
}

fn percent(iou: f64) -> u8 {
    (iou * 100.0).round() as u8
}

impl fmt::Display for ScoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let iou = |percent: &u8| f64::from(*percent) / 100.0;
        match self {
            Self::Dice => f.write_str("dice"),
            Self::F1 { iou_percent } => write!(f, "f1@{}", iou(iou_percent)),
            Self::Other(name) => f.write_str(name),
            Self::Pearson(None) => f.write_str("pearson"),
            Self::Pearson(Some(stain)) => write!(f, "pearson {stain}"),
            Self::PanopticQuality { iou_percent } => write!(f, "pq@{}", iou(iou_percent)),
            Self::PsnrDb => f.write_str("psnr_db"),
            Self::Ssim => f.write_str("ssim"),
        }
    }
}

impl From<String> for ScoreName {
    fn from(name: String) -> Self {
        Self::known(&name).unwrap_or(Self::Other(name))
    }
}

impl From<ScoreName> for String {
    fn from(score: ScoreName) -> Self {
        score.to_string()
    }
}

/// The validation score that networks are compared by; serialized as its [name](SelectionMetric::name).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SelectionMetric {
    /// Panoptic quality of objects that are matched at an IoU of 0.5.
    #[serde(rename = "panoptic quality at IoU 0.5")]
    PanopticQuality,
    /// Dice of the foreground.
    Dice,
    /// Pearson's correlation, the mean over all stains.
    Pearson,
}

impl SelectionMetric {
    /// Returns the score that decides for a kind of target.
    pub(crate) fn of(target: TargetKind) -> Self {
        match target {
            TargetKind::Regression => Self::Pearson,
            TargetKind::Semantic => Self::Dice,
            TargetKind::Instances | TargetKind::Boundary { .. } | TargetKind::Distance { .. } | TargetKind::Flow => {
                Self::PanopticQuality
            }
        }
    }
}

cytoscope_storage::named! {
    /// Returns the name of the score in reports and model cards.
    pub fn name(SelectionMetric) {
        PanopticQuality => "panoptic quality at IoU 0.5",
        Dice => "Dice",
        Pearson => "Pearson",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};
    use std::collections::BTreeMap;

    #[test]
    fn scores_keep_their_names_and_order_in_reports() {
        let stored = json!({
            "dice": 0.1, "f1@0.5": 0.2, "f1@0.7": 0.3, "f1@0.75": 0.4, "f1@0.9": 0.5, "mean": 0.6, "pearson": 0.7,
            "pearson actin": 0.8, "pearson dna": 0.9, "pq@0.5": 1.0, "psnr_db": 30.0, "ssim": 0.5,
        });
        let scores: BTreeMap<ScoreName, f64> = from_value(stored.clone()).unwrap();
        assert_eq!(serde_json::to_string(&scores).unwrap(), stored.to_string());
        let value = |name: ScoreName| scores.get(&name).copied();
        assert_eq!((value(ScoreName::f1(0.75)), value(ScoreName::panoptic_quality(0.5))), (Some(0.4), Some(1.0)));
        assert_eq!(value(ScoreName::Pearson(Some("dna".to_owned()))), Some(0.9));
        assert_eq!(value(ScoreName::Other("mean".to_owned())), Some(0.6));
        // Names of other versions of the program are kept, even if they look like known ones.
        for name in ["f1@0.50", "f1@", "f1@2.567", "f1@x", "pq@-1", "F1@0.5", ""] {
            assert_eq!(ScoreName::from(name.to_owned()), ScoreName::Other(name.to_owned()));
        }
    }

    #[test]
    fn reports_name_the_score_that_decides() {
        for metric in [SelectionMetric::PanopticQuality, SelectionMetric::Dice, SelectionMetric::Pearson] {
            assert_eq!(json!(metric), metric.name());
        }
    }
}
