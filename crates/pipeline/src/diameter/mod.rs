//! Object size: rescaling stacks so that their objects have the diameter that a model was trained for.
//!
//! A model may declare a nominal object diameter ([`Model::object_diameter_um`]). The model's voxel size is then
//! multiplied by the ratio of the stack's median object diameter to the nominal one, so that objects have the nominal
//! size on the model's grid. Lengths in the model's segmentation settings are multiplied by the same ratio.
//!
//! The diameter of an object is the diameter of a sphere with the same volume; in stacks of a few slices, that of a circle with
//! the area of its largest section.

mod estimate;
mod guess;
mod job;
mod overview;
mod series;

pub(crate) use estimate::Estimator;
pub use estimate::is_usual_intensity;
pub use job::DiameterJob;
pub(crate) use series::{SeriesDiameter, SeriesEstimator};

use crate::{JobError, Model};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::rounded;
use cytoscope_storage::setting::{DIAMETER, VOXEL_SIZE};
use cytoscope_volume::number_text;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Smallest and largest valid diameter, in µm or voxels.
const DIAMETER_RANGE: [f64; 2] = [0.01, 100_000.0];

/// Which object diameter a prediction uses: a given one, or an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "Json", into = "Json")]
pub enum DiameterRequest {
    /// Estimate it from each stack; from the first, middle and last time point of a series.
    #[default]
    Auto,
    /// Use this diameter in µm, or in voxels along X if the voxel size is unknown.
    Given(f64),
}

/// JSON form of a request: `"auto"` or a number.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "an object diameter must be \"auto\" or a number such as 12.5")]
enum Json {
    Number(f64),
    Text(String),
}

impl From<DiameterRequest> for Json {
    fn from(request: DiameterRequest) -> Self {
        match request {
            DiameterRequest::Auto => Self::Text("auto".to_owned()),
            DiameterRequest::Given(diameter) => Self::Number(diameter),
        }
    }
}

impl TryFrom<Json> for DiameterRequest {
    type Error = String;

    fn try_from(json: Json) -> Result<Self, String> {
        match json {
            Json::Number(diameter) => Self::Given(diameter).checked(),
            Json::Text(text) => text.parse(),
        }
    }
}

impl DiameterRequest {
    /// Checks that the diameter is within [`DIAMETER_RANGE`].
    fn checked(self) -> Result<Self, String> {
        let [min, max] = DIAMETER_RANGE;
        match self {
            Self::Given(diameter) if !(min..=max).contains(&diameter) => Err(format!(
                "object diameter {} is out of range: expected auto, or {min} to {max} (in µm, or in voxels if the voxel \
                 size is unknown)",
                number_text(diameter)
            )),
            valid => Ok(valid),
        }
    }
}

impl FromStr for DiameterRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let number = text.parse::<f64>();
        number.map_or_else(
            |_| Err(format!("invalid object diameter \"{text}\": expected auto, or a number of µm such as 12.5")),
            |diameter| Self::Given(diameter).checked(),
        )
    }
}

impl fmt::Display for DiameterRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Given(diameter) => write!(f, "{diameter}"),
        }
    }
}

/// Unit in which an object diameter is stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiameterUnit {
    /// Micrometers, if the voxel size is known.
    Um,
    /// Voxels along X, if the voxel size is unknown.
    Voxels,
}

impl DiameterUnit {
    /// Returns the unit symbol for display.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Um => "µm",
            Self::Voxels => "voxels",
        }
    }
}

/// How far an estimated object diameter can be relied on. For objects that are darker than their outlines, two measurements are
/// those at neighboring scales, and the certainty is lower if objects of another size look as clear. The range of diameters
/// is that of the 10th to the 90th percentile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// No objects were found: the model's nominal diameter is used.
    None,
    /// One or two objects, two measurements that differ by more than a quarter, or a range of diameters of a factor above 3.
    Low,
    /// Three or more objects, and measurements that differ by less than a quarter.
    Medium,
    /// Eight or more objects, measurements that differ by less than an eighth on a fine grid, a quarter on a coarse one, and a
    /// range of diameters of a factor up to 1.8.
    High,
}

impl Certainty {
    /// Returns the text for display.
    pub fn words(self) -> &'static str {
        match self {
            Self::None => "no objects found",
            Self::Low => "low certainty",
            Self::Medium => "medium certainty",
            Self::High => "high certainty",
        }
    }
}

/// An estimate of the median object diameter of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DiameterEstimate {
    /// Median diameter, in the unit of [`ObjectDiameter::unit`].
    pub diameter: f64,
    /// 10th and 90th percentile of the diameters.
    pub range: [f64; 2],
    /// Number of objects whose diameter was measured.
    pub objects: usize,
    /// How far the estimate can be relied on.
    pub certainty: Certainty,
    /// Factor of the preprocessed intensities: below 1 if the objects are much brighter than those that the model was trained
    /// on, because they fill so little of the stack that its upper percentile is that of the background; above 1 if they are much
    /// dimmer, because its upper percentile is that of something brighter, such as debris.
    #[serde(default = "unscaled", skip_serializing_if = "is_unscaled")]
    pub intensity_factor: f64,
    /// Preprocessed intensity of the background, which is subtracted before the multiplication with the factor; results below 0
    /// are 0. It is 0 unless noise spreads the background over so much of the range that its median is far above the lower
    /// percentile.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub intensity_background: f64,
}

/// How preprocessed intensities are changed: `max(x - background, 0) · factor`, or `x · factor` without a background.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct IntensityChange {
    /// Intensity that becomes 0, as are those below it; 0 if none is subtracted, and negative intensities stay.
    pub background: f64,
    /// Factor of what remains.
    pub factor: f64,
}

impl IntensityChange {
    /// The change that leaves all intensities as they are.
    pub(crate) const NONE: Self = Self { background: 0.0, factor: 1.0 };

    /// Returns the change that makes this intensity 0, and leaves 1 as it is.
    pub(crate) fn without(background: f64) -> Self {
        Self { background, factor: 1.0 / (1.0 - background) }
    }

    /// Returns this change, followed by a multiplication.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self { factor: self.factor * factor, ..self }
    }
}

/// Ratio of the 90th to the 10th percentile of the diameters above which their median is at most of medium certainty. It is that of
/// a normal distribution whose logarithm has a standard deviation of 0.23, as in stacks of one kind of nuclei.
const MAX_CERTAIN_RANGE: f64 = 1.8;
/// Ratio above which it is of low certainty: such objects are of several kinds, or fragments.
const MAX_RANGE: f64 = 3.0;

impl DiameterEstimate {
    /// Returns the estimate with at most the certainty that the range of the diameters allows.
    fn limited_by_range(self) -> Self {
        let [low, high] = self.range;
        let limit = match high / low {
            wide if wide > MAX_RANGE => Certainty::Low,
            wide if wide > MAX_CERTAIN_RANGE => Certainty::Medium,
            _ => Certainty::High,
        };
        Self { certainty: self.certainty.min(limit), ..self }
    }
}

/// The factor of intensities that are not scaled.
fn unscaled() -> f64 {
    1.0
}

/// Returns whether a factor of intensities changes nothing.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_unscaled(factor: &f64) -> bool {
    *factor == unscaled()
}

/// Returns whether subtracting a background changes nothing.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(background: &f64) -> bool {
    *background == 0.0
}

/// Largest factor by which the pixels of a stack are refined. On nuclei of five pixels, factors of 3 and 4.2 find the
/// same nuclei (F1 of one against the other 0.96), and 3 takes a third of the time.
const MAX_REFINEMENT: f64 = 3.0;

/// Width in voxels along X below which objects of a given diameter cannot be found.
const MIN_GIVEN_VOXELS: f64 = 2.0;

/// Object diameters in µm that are not doubted, from bacteria to small embryos. A voxel size in nm that is stated in µm
/// makes nuclei several millimeters wide.
const USUAL_UM: RangeInclusive<f64> = 0.2..=2_000.0;

/// The object diameter that a prediction used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ObjectDiameter {
    /// Diameter of the sphere with the volume of the median object, or in a few slices of the circle with its area, in `unit`.
    pub diameter: f64,
    /// Unit of the diameter: µm, or voxels if the voxel size is unknown.
    pub unit: DiameterUnit,
    /// Voxel size Z, Y, X in that unit. If it is unknown, the slice spacing is estimated from the objects, which are
    /// assumed to have a typical elongation along Z.
    pub voxel: [f64; 3],
    /// The model's nominal diameter in µm.
    pub nominal_um: f64,
    /// The estimate, unless the diameter was given.
    pub estimate: Option<DiameterEstimate>,
}

impl ObjectDiameter {
    /// Returns the ratio of the diameter to the model's nominal one. The model's voxel size and the lengths in its
    /// segmentation settings are multiplied by it.
    pub fn scale(&self) -> f64 {
        self.diameter / self.nominal_um
    }

    /// Returns the factor of the model's voxel size `model_um` (Z, Y, X in µm) that gives the grid of the prediction:
    /// [`Self::scale`], or more if that refined the stack's pixels more than [`MAX_REFINEMENT`] times. Objects of fewer
    /// than seven pixels then appear smaller to the model than its nominal diameter.
    pub(crate) fn grid_scale(&self, model_um: [f64; 3]) -> f64 {
        self.scale().max(self.voxel[2] / (model_um[2] * MAX_REFINEMENT))
    }

    /// Returns how the preprocessed intensities are changed; not at all if the diameter was given.
    pub(crate) fn intensity_change(&self) -> IntensityChange {
        self.estimate.map_or(IntensityChange::NONE, |estimate| IntensityChange {
            background: estimate.intensity_background,
            factor: estimate.intensity_factor,
        })
    }

    /// Returns a note on the change of the intensities; `None` if they stay as they are.
    pub(crate) fn intensity_note(&self) -> Option<Message> {
        let IntensityChange { background, factor } = self.intensity_change();
        if background > 0.0 {
            return Some(message!(
                "after the model's preprocessing, the background is at {background:.2} of the range, as with strong noise: this is \
                 subtracted from the model's input, which is then multiplied by {factor:.2}; to prevent this, give {DIAMETER}"
            ));
        }
        let reason = match factor {
            dimmed if dimmed < unscaled() => "too bright for the model, because they fill so little of the stack",
            boosted if boosted > unscaled() => {
                "too dim for the model, because other parts of the stack are much brighter"
            }
            _ => return None,
        };
        let factor = if factor < 0.01 { format!("{factor:.1e}") } else { format!("{factor:.2}") };
        Some(message!(
            "after the model's preprocessing, the objects are {reason}: its input is multiplied by {factor}; to prevent this, \
             give {DIAMETER}"
        ))
    }

    /// Returns a note if a given diameter is probably not the one that was meant, because such objects have hardly a voxel or are
    /// larger than a slice. `zyx` is the shape of the stack, `grid_zyx` that on the model's grid, in voxels.
    pub(crate) fn doubt_note(&self, zyx: [usize; 3], grid_zyx: [usize; 3]) -> Option<Message> {
        let Self { diameter, unit, voxel, estimate: None, .. } = *self else { return None };
        let [height, width] = [1, 2].map(|a| zyx[a] as f64 * voxel[a]);
        let symbol = unit.symbol();
        let problem = if diameter < MIN_GIVEN_VOXELS * voxel[2] {
            format!("are only {:.1} voxels wide", diameter / voxel[2])
        } else if diameter > height.max(width) {
            format!("are larger than a slice of {height:.1} × {width:.1} {symbol}")
        } else {
            return None;
        };
        let resized = match grid_zyx[2] as f64 / zyx[2].max(1) as f64 {
            enlarged if enlarged > 1.0 => format!(", enlarged {enlarged:.1} times along X"),
            reduced if reduced < 1.0 => format!(", reduced {:.1} times along X", 1.0 / reduced),
            _ => String::new(),
        };
        let check = match unit {
            DiameterUnit::Um => message!("check {DIAMETER}, which is in µm, and the voxel size"),
            DiameterUnit::Voxels => {
                message!("check {DIAMETER}, which is in voxels along X, because the voxel size is unknown")
            }
        };
        Some(message!(
            "the given object diameter is probably not the one that was meant: objects of {} {symbol} {problem}, and the network \
             sees a stack of {grid_zyx:?} voxels{resized}; {check}",
            number_text(rounded(diameter))
        ))
    }

    /// Returns a description with the assumed slice spacing, if the voxel size is unknown.
    pub fn text(&self) -> Message {
        let slices = match self.unit {
            DiameterUnit::Um => Message::default(),
            DiameterUnit::Voxels => {
                message!("; the slice spacing is assumed to be {:.1} voxels (set it with {VOXEL_SIZE})", self.voxel[0])
            }
        };
        message!("{}{slices}", self.diameter_text())
    }

    /// Returns a description for the report, without the slice spacing.
    pub(crate) fn diameter_text(&self) -> Message {
        let Self { diameter, unit, nominal_um, .. } = self;
        let is_unusual = matches!(unit, DiameterUnit::Um) && !USUAL_UM.contains(diameter);
        let unit = unit.symbol();
        let text = match &self.estimate {
            None => message!("object diameter {diameter:.1} {unit}, as given (the model's is {nominal_um} µm)"),
            Some(e) if e.certainty == Certainty::None => message!(
                "no objects were found to estimate the object diameter: {diameter:.1} {unit} is assumed (set it with \
                 {DIAMETER})"
            ),
            Some(e) => {
                let [low, high] = e.range;
                let objects = match e.objects {
                    1 => "one object".to_owned(),
                    many => format!("{many} objects of {low:.1} to {high:.1} {unit}"),
                };
                message!(
                    "object diameter {diameter:.1} {unit}, estimated from {objects} ({}; set it with {DIAMETER})",
                    e.certainty.words()
                )
            }
        };
        if is_unusual {
            message!(
                "{text}; objects of this size are unusual: the voxel size is probably in another unit (set it with \
                 {VOXEL_SIZE})"
            )
        } else {
            text
        }
    }
}

/// Refuses an invalid diameter, and any given diameter for a model without a nominal one.
///
/// # Errors
/// [`JobError::WrongUse`] with the reason.
pub(crate) fn check(request: DiameterRequest, model: &Model) -> Result<(), JobError> {
    request.checked().map_err(JobError::wrong_use)?;
    match request {
        DiameterRequest::Given(_) if model.object_diameter_um.is_none() => Err(JobError::wrong_use_with(
            message!("the model {} declares no object diameter, so {DIAMETER} has no effect", model.name),
            "leave the option out",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_a_similar_brightness_as_in_the_training_data_are_predicted_as_they_are() {
        for (ratio, is_usual) in [(1.0, true), (3.2, true), (0.12, true), (3.4, false), (0.1, false), (f64::NAN, false)]
        {
            assert_eq!(is_usual_intensity(ratio), is_usual, "{ratio}");
        }
    }

    #[test]
    fn objects_of_unusual_size_are_doubted() {
        let text = |diameter, unit| {
            let found = ObjectDiameter { diameter, unit, voxel: [1.0; 3], nominal_um: 9.0, estimate: None };
            found.text()
        };
        for (diameter, is_doubted) in [(0.01, true), (0.5, false), (9.0, false), (900.0, false), (11_000.0, true)] {
            assert_eq!(text(diameter, DiameterUnit::Um).contains("in another unit"), is_doubted, "{diameter}");
        }
        assert!(!text(3_000.0, DiameterUnit::Voxels).contains("in another unit"));
    }

    #[test]
    fn diameters_that_spread_widely_are_less_certain() {
        let limited = |certainty, range| {
            let estimate = DiameterEstimate {
                diameter: 9.0,
                range,
                objects: 24,
                certainty,
                intensity_factor: 1.0,
                intensity_background: 0.0,
            };
            estimate.limited_by_range()
        };
        for (certainty, range, expected) in [
            (Certainty::High, [7.2, 11.5], Certainty::High),
            (Certainty::High, [6.6, 12.4], Certainty::Medium),
            (Certainty::High, [3.0, 12.0], Certainty::Low),
            (Certainty::Medium, [9.0, 9.0], Certainty::Medium),
            (Certainty::Low, [6.6, 12.4], Certainty::Low),
            (Certainty::None, [9.0, 9.0], Certainty::None),
        ] {
            let found = limited(certainty, range);
            assert_eq!((found.certainty, found.range, found.objects), (expected, range, 24), "{certainty:?} {range:?}");
        }
    }

    #[test]
    fn a_given_diameter_of_hardly_a_voxel_or_more_than_a_slice_is_doubted() {
        let size = |diameter, unit| {
            let voxel = if unit == DiameterUnit::Um { [2.0, 0.4, 0.4] } else { [5.0, 1.0, 1.0] };
            ObjectDiameter { diameter, unit, voxel, nominal_um: 12.0, estimate: None }
        };
        let note =
            |size: ObjectDiameter, grid_zyx| size.doubt_note([10, 50, 100], grid_zyx).map(|note| note.to_string());
        let small = note(size(0.6, DiameterUnit::Um), [40, 150, 300]).unwrap_or_default();
        assert!(small.contains("objects of 0.6 µm are only 1.5 voxels wide"), "{small}");
        assert!(small.contains("a stack of [40, 150, 300] voxels, enlarged 3.0 times along X"), "{small}");
        assert!(small.contains("check --diameter, which is in µm"), "{small}");
        let large = note(size(500.0, DiameterUnit::Um), [1, 2, 4]).unwrap_or_default();
        assert!(large.contains("objects of 500 µm are larger than a slice of 20.0 × 40.0 µm"), "{large}");
        assert!(large.contains("a stack of [1, 2, 4] voxels, reduced 25.0 times along X"), "{large}");
        let counted = note(size(120.0, DiameterUnit::Voxels), [10, 50, 100]).unwrap_or_default();
        assert!(counted.contains("objects of 120 voxels are larger than a slice of 50.0 × 100.0 voxels"), "{counted}");
        assert!(counted.contains("in voxels along X, because the voxel size is unknown"), "{counted}");
        for usual in [0.9, 12.0, 39.0] {
            assert_eq!(note(size(usual, DiameterUnit::Um), [10, 50, 100]), None, "{usual}");
        }
        let (certainty, range) = (Certainty::Low, [500.0; 2]);
        let estimate = DiameterEstimate {
            diameter: 500.0,
            range,
            objects: 1,
            certainty,
            intensity_factor: 1.0,
            intensity_background: 0.0,
        };
        let estimated = ObjectDiameter { estimate: Some(estimate), ..size(500.0, DiameterUnit::Um) };
        assert_eq!(note(estimated, [1, 2, 4]), None, "it was not given");
    }

    #[test]
    fn the_note_on_a_factor_of_the_intensities_states_it_however_small_it_is() {
        let note_on = |intensity_background, intensity_factor| {
            let (certainty, range) = (Certainty::Low, [9.0; 2]);
            let estimate = DiameterEstimate {
                diameter: 9.0,
                range,
                objects: 1,
                certainty,
                intensity_factor,
                intensity_background,
            };
            let estimate = Some(estimate);
            ObjectDiameter { diameter: 9.0, unit: DiameterUnit::Um, voxel: [1.0; 3], nominal_um: 9.0, estimate }
                .intensity_note()
        };
        let note = |factor| note_on(0.0, factor);
        assert_eq!(note(1.0), None);
        let noisy = note_on(0.42, 1.724).map(|note| note.to_string()).unwrap_or_default();
        assert!(noisy.contains("is at 0.42 of the range") && noisy.contains("multiplied by 1.72"), "{noisy}");
        let texts = [(3.456e-10, "by 3.5e-10; to"), (0.042, "by 0.04; to"), (3.0, "by 3.00; to")];
        for (factor, text) in texts {
            assert!(note(factor).is_some_and(|note| note.contains(text)), "{factor}");
        }
    }

    #[test]
    fn a_request_is_auto_or_a_number_in_json_and_on_the_command_line() {
        for (text, request) in [("\"auto\"", DiameterRequest::Auto), ("12.5", DiameterRequest::Given(12.5))] {
            assert_eq!(serde_json::from_str::<DiameterRequest>(text).unwrap(), request);
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(text.trim_matches('"').parse(), Ok(request));
        }
        for wrong in ["0", "-3", "1e9", "\"large\"", "null"] {
            assert!(serde_json::from_str::<DiameterRequest>(wrong).is_err(), "{wrong}");
        }
        // Objects of JSON are met in jobs that are written by hand.
        let error = serde_json::from_str::<DiameterRequest>("{\"given\": 8.0}").unwrap_err().to_string();
        assert!(error.contains("an object diameter must be \"auto\" or a number"), "{error}");
        for wrong in ["", "nan", "inf", "12 µm"] {
            assert!(wrong.parse::<DiameterRequest>().is_err(), "{wrong}");
        }
    }
}
