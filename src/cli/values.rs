//! Values of options: precisions, sizes, shapes and numbers of threads.

use clap::ValueEnum;
use cytoscope_engine::Precision;
use cytoscope_formats::ChannelRef;
use cytoscope_pipeline::{DiameterRequest, MAX_THREADS};
use cytoscope_storage::counted;
use cytoscope_volume::VoxelSize;

/// A precision on the command line.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PrecisionName {
    Auto,
    F32,
    Tf32,
    F16,
    Bf16,
    Int8,
}

impl PrecisionName {
    /// Returns the precision; `None` selects the best one.
    pub(super) fn precision(self) -> Option<Precision> {
        match self {
            Self::Auto => None,
            Self::F32 => Some(Precision::F32),
            Self::Tf32 => Some(Precision::Tf32),
            Self::F16 => Some(Precision::F16),
            Self::Bf16 => Some(Precision::Bf16),
            Self::Int8 => Some(Precision::Int8),
        }
    }
}

/// Parses a memory size such as `2G`, `512MiB` or a number of bytes; units are powers of 1024. A number of less than a MiB
/// without a unit is refused: its unit was forgotten.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let invalid = || format!("invalid size \"{text}\": expected a number with an optional unit, such as 2G or 512M");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: u64 = match unit.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return Err(invalid()),
    };
    let value: f64 = number.parse().map_err(|_| invalid())?;
    let bytes = (value * factor as f64) as u64;
    if factor == 1 && (1..1 << 20).contains(&bytes) {
        return Err(format!(
            "\"{text}\" stands for {}: give a unit, such as {text}G or {text}M",
            counted(bytes, "byte")
        ));
    }
    Ok(bytes)
}

/// Parses a number of threads; 0 stands for all cores.
pub(super) fn parse_threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n <= MAX_THREADS => Ok(n),
        _ => Err(format!("invalid number of threads \"{text}\": expected 0 (all cores) to {MAX_THREADS}")),
    }
}

/// Returns the number of the first input channel and the channels that are chosen one by one, of the options `--channel` (a
/// number or a name) and `--channels`, which exclude each other.
pub(super) fn chosen_channels(
    channel: Option<ChannelRef>,
    channels: Vec<ChannelRef>,
) -> (Option<usize>, Vec<ChannelRef>) {
    match channel {
        Some(ChannelRef::Index(number)) => (Some(number), channels),
        Some(name) => (None, vec![name]),
        None => (None, channels),
    }
}

/// Parses `Z,Y,X` as three positive lengths in voxels.
pub(super) fn parse_zyx(text: &str) -> Result<[usize; 3], String> {
    let parts: Result<Vec<usize>, _> = text.split(',').map(|p| p.trim().parse()).collect();
    match parts.as_deref() {
        Ok([z, y, x]) if *z > 0 && *y > 0 && *x > 0 => Ok([*z, *y, *x]),
        _ => Err(format!("invalid shape \"{text}\": expected three positive lengths Z,Y,X, such as 64,256,256")),
    }
}

/// Parses `Z,Y,X` as three positive sizes in µm.
pub(super) fn parse_um(text: &str) -> Result<[f64; 3], String> {
    VoxelSize::parse_zyx_um(text).map_err(|error| error.to_string())
}

/// Parses the object diameter of a model in µm.
pub(super) fn parse_nominal_diameter(text: &str) -> Result<f64, String> {
    match text.parse::<DiameterRequest>()? {
        DiameterRequest::Given(diameter) => Ok(diameter),
        DiameterRequest::Auto => {
            Err("expected the object diameter of the training data in µm, such as 12.5".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_units_are_parsed() {
        assert_eq!(parse_bytes("2G"), Ok(2 << 30));
        assert_eq!(parse_bytes("1.5MiB"), Ok(3 << 19));
        assert_eq!(parse_bytes("1234567"), Ok(1_234_567));
        assert_eq!(parse_bytes("2K"), Ok(2048));
        assert!(parse_bytes("2").unwrap_err().contains("2G"));
        assert!(parse_bytes("2 apples").is_err());
        assert_eq!(parse_zyx("1, 2,3"), Ok([1, 2, 3]));
        assert!(parse_zyx("1,0,3").is_err());
    }

    #[test]
    fn the_object_diameter_of_a_model_is_a_number() {
        assert_eq!(parse_nominal_diameter("12.5"), Ok(12.5));
        for (text, words) in [("auto", "training data in µm"), ("0", "0"), ("wide", "wide")] {
            let refused = parse_nominal_diameter(text).unwrap_err();
            assert!(refused.contains(words), "{text}: {refused}");
        }
    }

    #[test]
    fn a_single_channel_is_chosen_by_number_or_by_name() {
        let dapi = ChannelRef::Name("DAPI".to_owned());
        assert_eq!(chosen_channels(Some(ChannelRef::Index(2)), Vec::new()), (Some(2), Vec::new()));
        assert_eq!(chosen_channels(Some(dapi.clone()), Vec::new()), (None, vec![dapi.clone()]));
        assert_eq!(chosen_channels(None, vec![dapi.clone()]), (None, vec![dapi]));
    }

    #[test]
    fn precisions_have_the_same_names_as_in_files() {
        for value in PrecisionName::value_variants() {
            let name = value.to_possible_value().unwrap();
            assert_eq!(name.get_name(), value.precision().map_or("auto", Precision::name));
        }
    }
}
