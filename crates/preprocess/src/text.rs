//! Preprocessing steps as text: `gaussian:sigma=1um`.

use crate::{Length, Lengths, MAX_STEPS, PreprocessError, PreprocessStep};
use std::{fmt, str::FromStr};

/// The steps and their parameters, for messages.
const STEPS: [(&str, &str); 11] = [
    ("gaussian", "sigma (such as 1um, 1.5 voxels, or 0/1/1 along Z/Y/X)"),
    ("median", "radius (such as 1 voxel, 0.5um, or 0/1/1 along Z/Y/X)"),
    ("tophat", "radius (such as 15um or 15 voxels)"),
    ("rolling-ball", "radius (such as 20um or 20 voxels) and, optionally, height (in units of the image)"),
    ("clahe", "tiles (8 by default) and clip (0.01 by default)"),
    ("stretch", "low (1 by default) and high (99.8 by default), in percent"),
    ("normalize-slices", "low (1 by default) and high (99.8 by default), in percent"),
    ("invert", "no parameters"),
    ("deskew", "angle in degrees and, optionally, step (such as 0.5um)"),
    ("affine", "matrix (12 numbers separated by /)"),
    ("crop", "z, y or x (such as 10-50, without the last index)"),
];

/// Default percentiles that become 0 and 1 when contrast is stretched or slices are normalized.
const LOW: f64 = 1.0;
const HIGH: f64 = 99.8;

/// Number of characters of an unknown step's name that the message shows.
const MAX_SHOWN_CHARS: usize = 60;

/// Parses a list of steps separated by commas.
///
/// # Errors
/// [`PreprocessError`] that names the first invalid step.
pub fn parse_steps(text: &str) -> Result<Vec<PreprocessStep>, PreprocessError> {
    let steps = text.split(',').map(str::parse).collect::<Result<Vec<PreprocessStep>, _>>()?;
    if steps.len() > MAX_STEPS {
        return Err(PreprocessError::TooMany { count: steps.len(), max: MAX_STEPS });
    }
    Ok(steps)
}

/// The parameters of a step's text that have not been read yet.
struct Parameters<'a> {
    step: &'static str,
    expected: &'static str,
    rest: Vec<(&'a str, &'a str)>,
}

impl<'a> Parameters<'a> {
    /// Returns the error that the step's parameters are invalid, with those that are expected.
    fn refuse(&self, problem: String) -> PreprocessError {
        PreprocessError::parameter(self.step, problem, self.expected)
    }

    /// Removes a parameter, and returns its text; `None` if it is not given.
    fn take(&mut self, name: &str) -> Option<&'a str> {
        let at = self.rest.iter().position(|(key, _)| *key == name)?;
        Some(self.rest.remove(at).1)
    }

    fn require(&mut self, name: &str) -> Result<&'a str, PreprocessError> {
        self.take(name).ok_or_else(|| self.refuse(format!("{name} is missing")))
    }

    fn number(&self, name: &str, text: &str) -> Result<f64, PreprocessError> {
        text.trim().parse().map_err(|_| self.refuse(format!("{name}={text} is not a number")))
    }

    fn number_or(&mut self, name: &str, default: f64) -> Result<f64, PreprocessError> {
        self.take(name).map_or(Ok(default), |text| self.number(name, text))
    }

    /// Reads one length, such as `1.5um` or `2 voxels`.
    fn length(&mut self, name: &str) -> Result<Length, PreprocessError> {
        let (number, unit) = split_unit(self.require(name)?);
        let value = self.number(name, number)?;
        Ok(if unit == Some(Unit::Um) { Length::Um(value) } else { Length::Voxels(value) })
    }

    /// Reads one length for all axes, or three along Z, Y, X, such as `0/1/1um`.
    fn lengths(&mut self, name: &str) -> Result<Lengths, PreprocessError> {
        let text = self.require(name)?;
        let parts: Vec<(&str, Option<Unit>)> = text.split('/').map(split_unit).collect();
        // The unit at the end is that of all lengths; each may state it.
        let last_unit = parts.last().and_then(|(_, unit)| *unit);
        if parts.iter().any(|(_, unit)| unit.is_some() && *unit != last_unit) {
            return Err(self.refuse(format!("{name}={text} does not end in the unit of all lengths")));
        }
        let values = parts.iter().map(|(number, _)| self.number(name, number)).collect::<Result<Vec<f64>, _>>()?;
        let zyx = match values.as_slice() {
            [all] => [*all; 3],
            [z, y, x] => [*z, *y, *x],
            _ => return Err(self.refuse(format!("{name}={text} is neither one length nor three"))),
        };
        Ok(if last_unit == Some(Unit::Um) { Lengths::Um(zyx) } else { Lengths::Voxels(zyx) })
    }

    /// Reads a range `A-B` of indices, without `B`; `None` if it is not given.
    fn range(&mut self, name: &str) -> Result<Option<[usize; 2]>, PreprocessError> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let bounds: Option<[usize; 2]> =
            text.split_once('-').and_then(|(a, b)| Some([a.trim().parse().ok()?, b.trim().parse().ok()?]));
        bounds.map(Some).ok_or_else(|| self.refuse(format!("{name}={text} is not a range")))
    }

    /// Refuses parameters that were not read: those that the step does not have, and repeated ones.
    fn finish(&self) -> Result<(), PreprocessError> {
        match self.rest.first() {
            None => Ok(()),
            Some((name, _)) => Err(self.refuse(format!("there is no parameter {name}, or it was given twice"))),
        }
    }
}

/// The unit of a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Um,
    Voxels,
}

/// The texts that units are written as; `\u{3bc}` is the Greek letter, which looks like the micro sign.
const UNITS: [(&str, Unit); 7] = [
    ("um", Unit::Um),
    ("µm", Unit::Um),
    ("\u{3bc}m", Unit::Um),
    ("voxels", Unit::Voxels),
    ("voxel", Unit::Voxels),
    ("vx", Unit::Voxels),
    ("px", Unit::Voxels),
];

/// Returns a length without its unit, and the unit, if one is stated.
fn split_unit(text: &str) -> (&str, Option<Unit>) {
    let text = text.trim();
    let split = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)));
    split.map_or((text, None), |(number, unit)| (number.trim_end(), Some(unit)))
}

impl FromStr for PreprocessStep {
    type Err = PreprocessError;

    fn from_str(text: &str) -> Result<Self, PreprocessError> {
        let mut parts = text.trim().split(':');
        let name = parts.next().unwrap_or_default().trim();
        let unknown = || {
            let expected = STEPS.map(|(known, _)| known).join(", ");
            PreprocessError::UnknownStep { name: name.chars().take(MAX_SHOWN_CHARS).collect(), expected }
        };
        let known = STEPS.into_iter().find(|(known, _)| *known == name);
        let (step, expected) = known.ok_or_else(unknown)?;
        let mut parameters = Parameters { step, expected, rest: Vec::new() };
        for part in parts {
            let Some((key, value)) = part.split_once('=') else {
                return Err(parameters.refuse(format!("\"{part}\" has no \"=\"")));
            };
            parameters.rest.push((key.trim(), value.trim()));
        }
        let p = &mut parameters;
        let parsed = match step {
            "gaussian" => Self::Gaussian { sigma: p.lengths("sigma")? },
            "median" => Self::Median { radius: p.lengths("radius")? },
            "tophat" => Self::Tophat { radius: p.length("radius")? },
            "rolling-ball" => {
                let radius = p.length("radius")?;
                let height = p.take("height").map(|text| p.number("height", text)).transpose()?;
                Self::RollingBall { radius, height }
            }
            "clahe" => {
                let text = p.take("tiles").unwrap_or("8");
                let tiles = text.parse::<u32>().map_err(|_| p.refuse(format!("tiles={text} is not a whole number")))?;
                Self::Clahe { tiles, clip: p.number_or("clip", 0.01)? }
            }
            "stretch" => Self::Stretch { low: p.number_or("low", LOW)?, high: p.number_or("high", HIGH)? },
            "normalize-slices" => {
                Self::NormalizeSlices { low: p.number_or("low", LOW)?, high: p.number_or("high", HIGH)? }
            }
            "invert" => Self::Invert,
            "deskew" => {
                let angle = p.require("angle")?;
                let angle_degrees = p.number("angle", angle.trim_end_matches("deg").trim_end_matches('°'))?;
                let step_um = match p.take("step") {
                    None => None,
                    Some(text) => match split_unit(text) {
                        (number, Some(Unit::Um)) => Some(p.number("step", number)?),
                        _ => return Err(p.refuse(format!("step={text} has no unit: give it in µm, such as 0.5um"))),
                    },
                };
                Self::Deskew { angle_degrees, step_um }
            }
            "affine" => {
                let text = p.require("matrix")?;
                let values = text.split('/').map(|n| p.number("matrix", n)).collect::<Result<Vec<f64>, _>>()?;
                let count = values.len();
                let matrix: [f64; 12] =
                    values.try_into().map_err(|_| p.refuse(format!("matrix has {count} numbers")))?;
                Self::Affine { matrix }
            }
            "crop" => Self::Crop { z: p.range("z")?, y: p.range("y")?, x: p.range("x")? },
            _ => return Err(unknown()),
        };
        parameters.finish()?;
        parsed.check()?;
        Ok(parsed)
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Um(v) => write!(f, "{v}um"),
            Self::Voxels(v) => write!(f, "{v}"),
        }
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Um([z, y, x]) | Self::Voxels([z, y, x])) = self;
        if z == y && y == x {
            write!(f, "{z}")?;
        } else {
            write!(f, "{z}/{y}/{x}")?;
        }
        f.write_str(if matches!(self, Self::Um(_)) { "um" } else { "" })
    }
}

impl fmt::Display for PreprocessStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Self::Gaussian { sigma } => write!(f, "{name}:sigma={sigma}"),
            Self::Median { radius } => write!(f, "{name}:radius={radius}"),
            Self::Tophat { radius } => write!(f, "{name}:radius={radius}"),
            Self::RollingBall { radius, height } => {
                write!(f, "{name}:radius={radius}")?;
                height.map_or(Ok(()), |height| write!(f, ":height={height}"))
            }
            Self::Clahe { tiles, clip } => write!(f, "{name}:tiles={tiles}:clip={clip}"),
            Self::Stretch { low, high } | Self::NormalizeSlices { low, high } => {
                write!(f, "{name}:low={low}:high={high}")
            }
            Self::Invert => f.write_str(name),
            Self::Deskew { angle_degrees, step_um } => {
                write!(f, "{name}:angle={angle_degrees}")?;
                step_um.map_or(Ok(()), |step| write!(f, ":step={step}um"))
            }
            Self::Affine { matrix } => {
                let numbers: Vec<String> = matrix.iter().map(f64::to_string).collect();
                write!(f, "{name}:matrix={}", numbers.join("/"))
            }
            Self::Crop { z, y, x } => {
                f.write_str(name)?;
                for (axis, range) in [("z", z), ("y", y), ("x", x)] {
                    if let Some([from, to]) = range {
                        write!(f, ":{axis}={from}-{to}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn every_step_survives_its_text_and_its_json() {
        let mut steps = PreprocessStep::usual();
        steps.extend(
            parse_steps(
                "gaussian:sigma=0/1.5/1.5um,rolling-ball:radius=20um:height=300,deskew:angle=-31.5:step=0.5um,\
                 affine:matrix=1/0/0/0/0/1/0/-2.5/0/0/1/0,crop:z=10-50:x=0-512,stretch,clahe",
            )
            .unwrap(),
        );
        for step in steps {
            assert_eq!(step.to_string().parse(), Ok(step.clone()));
            let json = serde_json::to_string(&step).unwrap();
            assert_eq!(serde_json::from_str::<PreprocessStep>(&json).unwrap(), step, "{json}");
        }
    }

    #[test]
    fn each_of_several_lengths_may_have_the_unit_of_the_last_one() {
        let sigma = |text: &str| match format!("gaussian:sigma={text}").parse::<PreprocessStep>() {
            Ok(PreprocessStep::Gaussian { sigma }) => Some(sigma),
            _ => None,
        };
        for text in ["0/1/2um", "0um/1um/2um", "0/1 µm/2 µm"] {
            assert_eq!(sigma(text), Some(Lengths::Um([0.0, 1.0, 2.0])), "{text}");
        }
        for text in ["0/1/2", "0/1/2 voxels", "0voxels/1voxels/2voxels"] {
            assert_eq!(sigma(text), Some(Lengths::Voxels([0.0, 1.0, 2.0])), "{text}");
        }
        assert_eq!(sigma("1.5um"), Some(Lengths::Um([1.5; 3])));
        for text in ["1um/1/1", "1voxel/1um/1um", "1um/1um/1voxel", "1umum"] {
            assert_eq!(sigma(text), None, "{text}");
        }
    }

    #[test]
    fn errors_name_the_step_and_its_parameters() {
        for (text, named) in [
            ("blur:sigma=1", "expected one of gaussian, median, tophat"),
            ("gaussian", "gaussian: sigma is missing; expected sigma"),
            ("gaussian:sigma=1:radius=2", "there is no parameter radius"),
            ("gaussian:sigma=1/2", "neither one length nor three"),
            ("gaussian:sigma=1um/1/1", "sigma=1um/1/1 does not end in the unit of all lengths"),
            ("gaussian:sigma=0", "one of them above 0"),
            ("median:radius", "has no \"=\""),
            ("tophat:radius=wide", "radius=wide is not a number"),
            ("clahe:tiles=0", "1 to 64 tiles"),
            ("stretch:low=99:high=1", "low below high"),
            ("invert:high=255", "there is no parameter high, or it was given twice; expected no parameters"),
            ("deskew:angle=30:step=0.5", "give it in µm"),
            ("deskew:angle=90", "1° to 89°"),
            ("affine:matrix=1/2", "matrix has 2 numbers"),
            ("crop", "no range was given"),
            ("crop:z=5-5", "the range 5-5 is empty"),
        ] {
            let message = text.parse::<PreprocessStep>().unwrap_err().to_string();
            assert!(message.contains(named), "{text}: {message}");
        }
    }
}
