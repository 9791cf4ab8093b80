//! Object size: bringing the objects of a stack to the diameter that a model was trained for.
//!
//! A model may state a nominal object diameter ([`Model::object_diameter_um`]). The model's voxel size is then multiplied by
//! the ratio of the stack's median object diameter to the nominal one, so that the network sees objects of its own size
//! whatever the voxel size. Lengths of the model's segmentation settings are multiplied by the same ratio.
//!
//! A diameter is that of the sphere with the object's volume.

mod estimate;
mod job;

pub(crate) use estimate::{Estimator, Found};
pub use job::DiameterJob;

use crate::{JobError, Model};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Smallest and largest diameter that can be given, in µm or voxels.
const DIAMETER_RANGE: [f64; 2] = [0.01, 100_000.0];

/// The object diameter asked for.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum DiameterRequest {
    /// Estimated from each stack.
    #[default]
    Auto,
    /// This many µm; voxels along X where the voxel size is unknown.
    Given(f64),
}

/// How a request is written in JSON: `"auto"` or a number.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Text(String),
}

impl From<DiameterRequest> for Written {
    fn from(request: DiameterRequest) -> Self {
        match request {
            DiameterRequest::Auto => Self::Text("auto".to_owned()),
            DiameterRequest::Given(diameter) => Self::Number(diameter),
        }
    }
}

impl TryFrom<Written> for DiameterRequest {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(diameter) => Self::Given(diameter).checked(),
            Written::Text(text) => text.parse(),
        }
    }
}

impl DiameterRequest {
    /// Refuses a diameter that no object has.
    fn checked(self) -> Result<Self, String> {
        let [least, most] = DIAMETER_RANGE;
        match self {
            Self::Given(diameter) if !(least..=most).contains(&diameter) => Err(format!(
                "an object diameter of {diameter} is out of range: expected auto, or {least} to {most} (in µm; in voxels where the voxel size is unknown)"
            )),
            sound => Ok(sound),
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
            |_| Err(format!("\"{text}\" is no object diameter: expected auto, or a number of µm such as 12.5")),
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

/// What a diameter counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiameterUnit {
    /// Micrometres.
    Um,
    /// Voxels along X, where the voxel size is unknown.
    Voxels,
}

impl DiameterUnit {
    /// As it is written after a number.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Um => "µm",
            Self::Voxels => "voxels",
        }
    }
}

/// How far an estimate can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// Nothing that looks like an object was found: the model's nominal diameter is used.
    None,
    /// One or two objects, or two measurements that differ by more than a quarter.
    Low,
    /// Three or more objects, and measurements that differ by less than a quarter.
    Medium,
    /// Eight or more objects, and measurements that differ by less than an eighth.
    High,
}

impl Certainty {
    /// As it is written for people.
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
    /// Median diameter, in the unit of the report.
    pub diameter: f64,
    /// 10th and 90th percentile of the objects measured.
    pub range: [f64; 2],
    /// Objects measured.
    pub objects: usize,
    /// How far it can be trusted.
    pub certainty: Certainty,
}

/// The object diameter that a prediction used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ObjectDiameter {
    /// Diameter used.
    pub diameter: f64,
    /// What it counts in.
    pub unit: DiameterUnit,
    /// Voxel size Z, Y, X in that unit. Where it is unknown, the distance of slices is estimated so that objects are about as
    /// long along Z as microscopes draw them.
    pub voxel: [f64; 3],
    /// The model's nominal diameter in µm.
    pub nominal_um: f64,
    /// The estimate, where the diameter was not given.
    pub estimate: Option<DiameterEstimate>,
}

impl ObjectDiameter {
    /// How much larger than the model's nominal objects those of the stack are: factor on the model's voxel size and on the
    /// lengths of its segmentation settings.
    pub fn scale(&self) -> f64 {
        self.diameter / self.nominal_um
    }

    /// A sentence for the report.
    pub fn sentence(&self) -> String {
        let slices = match self.unit {
            DiameterUnit::Um => String::new(),
            DiameterUnit::Voxels => {
                format!("; slices taken as {:.1} voxels apart (--voxel-size says it)", self.voxel[0])
            }
        };
        self.diameter_sentence() + &slices
    }

    fn diameter_sentence(&self) -> String {
        let Self { diameter, unit, nominal_um, .. } = self;
        let unit = unit.symbol();
        match &self.estimate {
            None => format!("object diameter {diameter:.1} {unit}, as given (the model's is {nominal_um} µm)"),
            Some(e) if e.certainty == Certainty::None => format!(
                "no objects were found to estimate their diameter by: {diameter:.1} {unit} is assumed (--diameter gives another)"
            ),
            Some(e) => format!(
                "object diameter {diameter:.1} {unit}, estimated from {} objects of {:.1} to {:.1} {unit} ({}; --diameter gives another)",
                e.objects,
                e.range[0],
                e.range[1],
                e.certainty.words()
            ),
        }
    }
}

/// Refuses a diameter for a model that has no nominal one.
///
/// # Errors
/// [`JobError::WrongUse`].
pub(crate) fn check(request: DiameterRequest, model: &Model) -> Result<(), JobError> {
    request.checked().map_err(JobError::WrongUse)?;
    match request {
        DiameterRequest::Given(_) if model.object_diameter_um.is_none() => Err(JobError::WrongUse(format!(
            "{} states no object diameter to bring objects to: leave --diameter out",
            model.name
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for wrong in ["", "nan", "inf", "12 µm"] {
            assert!(wrong.parse::<DiameterRequest>().is_err(), "{wrong}");
        }
    }
}
