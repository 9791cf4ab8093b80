//! Devices and precisions, and their names.

use crate::EngineError;
use cytoscope_profile::{RunDevice, RunPrecision};
use cytoscope_storage::message::Message;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Identifies a device that models run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceId {
    /// An NVIDIA GPU by its CUDA index.
    Cuda(usize),
    /// A GPU (or software device) of Vulkan, Metal or DX12 by its index.
    Wgpu(usize),
    /// The CPU with all its cores.
    Cpu,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceId::Cuda(i) => write!(f, "cuda:{i}"),
            DeviceId::Wgpu(i) => write!(f, "wgpu:{i}"),
            DeviceId::Cpu => f.write_str("cpu"),
        }
    }
}

impl FromStr for DeviceId {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Self, EngineError> {
        let bad = || EngineError::BadDevice { text: text.to_owned() };
        let (kind, index) = match text.split_once(':') {
            Some((kind, index)) => (kind, index.parse().map_err(|_| bad())?),
            None => (text, 0),
        };
        match kind {
            "cuda" => Ok(DeviceId::Cuda(index)),
            "wgpu" => Ok(DeviceId::Wgpu(index)),
            "cpu" if !text.contains(':') => Ok(DeviceId::Cpu),
            _ => Err(bad()),
        }
    }
}

impl TryFrom<String> for DeviceId {
    type Error = EngineError;

    fn try_from(text: String) -> Result<Self, EngineError> {
        text.parse()
    }
}

impl From<DeviceId> for String {
    fn from(id: DeviceId) -> String {
        id.to_string()
    }
}

impl From<DeviceId> for RunDevice {
    fn from(id: DeviceId) -> RunDevice {
        id.to_string().as_str().into()
    }
}

/// A requested device, or the request to choose one. As text, `auto` or the name of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceRequest {
    /// The device on which a short run of the model is fastest.
    #[default]
    Auto,
    /// The device with this id, or an error if it is not usable.
    Device(DeviceId),
}

impl FromStr for DeviceRequest {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Self, EngineError> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Device) }
    }
}

impl fmt::Display for DeviceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Device(id) => id.fmt(f),
        }
    }
}

impl TryFrom<String> for DeviceRequest {
    type Error = EngineError;

    fn try_from(text: String) -> Result<Self, EngineError> {
        text.parse()
    }
}

impl From<DeviceRequest> for String {
    fn from(request: DeviceRequest) -> String {
        request.to_string()
    }
}

/// The number format a network computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit float.
    F32,
    /// 32-bit storage; convolutions may round their factors to 10 mantissa bits (NVIDIA tensor cores).
    Tf32,
    /// 16-bit float.
    F16,
    /// 16-bit float with the exponent range of a 32-bit float.
    Bf16,
    /// 8-bit integers with 32-bit accumulation.
    Int8,
}

impl Precision {
    /// Returns whether values have 16 bits.
    pub fn is_half(self) -> bool {
        matches!(self, Precision::F16 | Precision::Bf16)
    }
}

cytoscope_storage::named! {
    /// Returns the name used on the command line and in files.
    pub fn name(Precision) {
        F32 => "f32",
        Tf32 => "tf32",
        F16 => "f16",
        Bf16 => "bf16",
        Int8 => "int8",
    }
}

impl FromStr for Precision {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Self, EngineError> {
        [Precision::F32, Precision::Tf32, Precision::F16, Precision::Bf16, Precision::Int8]
            .into_iter()
            .find(|p| p.name() == text)
            .ok_or_else(|| EngineError::BadPrecision { text: text.to_owned() })
    }
}

impl From<Precision> for RunPrecision {
    fn from(precision: Precision) -> RunPrecision {
        precision.name().into()
    }
}

/// Why a usable device is slower than it could be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Shortcoming {
    /// Headers are missing that some kernels need.
    MissingHeaders {
        /// Names of the headers.
        headers: Vec<String>,
        /// The feature that needs the headers, and how to install them.
        advice: String,
    },
    /// The hardware has these precisions, but a test of them failed.
    FailedPrecisions {
        /// The precisions that are not used.
        precisions: Vec<Precision>,
        /// The error of the test.
        error: String,
    },
    /// The hardware has these precisions, but there was no time to test them.
    UntestedPrecisions {
        /// The precisions that are not used.
        precisions: Vec<Precision>,
    },
}

impl fmt::Display for Shortcoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |of: &[Precision]| of.iter().map(|precision| precision.name()).collect::<Vec<&str>>().join(", ");
        match self {
            Self::MissingHeaders { advice, .. } => f.write_str(advice),
            Self::FailedPrecisions { precisions, error } => write!(f, "{} cannot be used: {error}", names(precisions)),
            Self::UntestedPrecisions { precisions } => {
                write!(f, "there was no time to test {}: look for devices again", names(precisions))
            }
        }
    }
}

/// A device of this machine, usable or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Identifier, such as `cuda:0`.
    pub id: DeviceId,
    /// Product name, as the driver reports it.
    pub name: String,
    /// Total memory of the device in bytes; `None` if unknown.
    pub memory_bytes: Option<u64>,
    /// Memory that was free when the device was listed, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Whether models can run on it.
    pub usable: bool,
    /// Why the device is usable, or why not and how to fix that. For a usable device, the shortcomings follow.
    pub reason: String,
    /// Why a usable device is slower than it could be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shortcomings: Vec<Shortcoming>,
    /// Precisions that networks can run in on this device.
    pub precisions: Vec<Precision>,
    /// Identity of the code that runs kernels, such as driver, architecture and compiler, or the CPU's instruction set;
    /// part of the key of everything that is cached by device.
    #[serde(default)]
    pub driver: String,
}

impl Device {
    /// Returns a usable device with these precisions of which nothing else is known.
    pub fn named(id: DeviceId, name: &str, precisions: &[Precision]) -> Self {
        Self {
            id,
            name: name.to_owned(),
            memory_bytes: None,
            free_bytes: None,
            usable: true,
            reason: String::new(),
            shortcomings: Vec::new(),
            precisions: precisions.to_vec(),
            driver: String::new(),
        }
    }

    /// Returns the precisions of training steps: f32 on a CPU, all float precisions of a GPU.
    pub fn training_precisions(&self) -> Vec<Precision> {
        match self.id {
            DeviceId::Cpu => vec![Precision::F32],
            DeviceId::Cuda(_) | DeviceId::Wgpu(_) => {
                self.precisions.iter().copied().filter(|precision| *precision != Precision::Int8).collect()
            }
        }
    }

    /// Returns the fastest 32-bit precision of the device: TF32 where it has it, otherwise f32.
    pub fn fast_precision(&self) -> Precision {
        if self.precisions.contains(&Precision::Tf32) { Precision::Tf32 } else { Precision::F32 }
    }

    /// Returns why the device is usable, or why not. Options and commands are found in the text, because a process that
    /// tested the device has written it.
    pub fn reason_message(&self) -> Message {
        Message::parse(self.reason.as_str())
    }

    /// Returns what keeps a usable device from its full speed, and how to change that; `None` if nothing is known. Options and
    /// commands are found as in [`Device::reason_message`].
    pub fn shortcoming(&self) -> Option<Message> {
        let texts: Vec<String> = self.shortcomings.iter().map(Shortcoming::to_string).collect();
        (self.usable && !texts.is_empty()).then(|| Message::parse(texts.join("; ")))
    }

    /// Returns the bytes that a session may hold at most: the free memory, or all of it if that is unknown; `None` if
    /// both are unknown.
    pub fn available_bytes(&self) -> Option<u64> {
        self.free_bytes.or(self.memory_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_runs_name_devices_and_precisions_as_the_command_line_does() {
        for (id, is_cpu) in [(DeviceId::Cpu, true), (DeviceId::Cuda(0), false), (DeviceId::Wgpu(1), false)] {
            let recorded = RunDevice::from(id);
            assert_eq!((recorded.as_str(), recorded.is_cpu()), (id.to_string().as_str(), is_cpu));
            assert_eq!(serde_json::to_value(recorded).unwrap(), id.to_string());
        }
        for (precision, is_int8) in [(Precision::Int8, true), (Precision::F32, false)] {
            let recorded = RunPrecision::from(precision);
            assert_eq!((recorded.to_string().as_str(), recorded.is_int8()), (precision.name(), is_int8));
        }
    }

    #[test]
    fn a_usable_device_says_why_it_is_slower_than_it_could_be() {
        let headers = vec!["mma.h".to_owned()];
        let missing = Shortcoming::MissingHeaders { headers, advice: "tf32 needs mma.h; install it".to_owned() };
        let (precisions, error) = (vec![Precision::Tf32, Precision::F16], "wrong results".to_owned());
        let failed = Shortcoming::FailedPrecisions { precisions, error };
        let stored = serde_json::json!({
            "id": "cuda:0", "name": "a GPU", "memory_bytes": null, "usable": true, "reason": "works; really",
            "precisions": ["f32"]
        });
        let good: Device = serde_json::from_value(stored).unwrap();
        assert_eq!(good.shortcoming(), None, "a semicolon in the reason is not a shortcoming");
        let untested = Shortcoming::UntestedPrecisions { precisions: vec![Precision::Bf16] };
        let slow = Device { shortcomings: vec![missing, failed, untested], ..good };
        let text = "tf32 needs mma.h; install it; tf32, f16 cannot be used: wrong results; there was no time to test bf16: look \
                    for devices again";
        assert_eq!(slow.shortcoming().as_deref(), Some(text));
        let json = serde_json::to_value(&slow).unwrap();
        assert_eq!(json["shortcomings"][0]["kind"], "missing_headers");
        assert_eq!(serde_json::from_value::<Device>(json).unwrap(), slow);
        assert_eq!(Device { usable: false, ..slow }.shortcoming(), None);
    }

    #[test]
    fn requested_devices_are_text_in_json_as_on_the_command_line() {
        for (text, request) in [
            ("auto", DeviceRequest::Auto),
            ("cpu", DeviceRequest::Device(DeviceId::Cpu)),
            ("cuda:0", DeviceRequest::Device(DeviceId::Cuda(0))),
            ("wgpu:2", DeviceRequest::Device(DeviceId::Wgpu(2))),
        ] {
            assert_eq!(text.parse::<DeviceRequest>().unwrap(), request);
            assert_eq!(serde_json::to_value(request).unwrap(), text);
            assert_eq!(serde_json::from_value::<DeviceRequest>(text.into()).unwrap(), request);
        }
        assert_eq!("cuda".parse::<DeviceRequest>().unwrap(), DeviceRequest::Device(DeviceId::Cuda(0)));
        for wrong in ["", "Auto", "gpu", "cpu:0", "cuda:x"] {
            let error = serde_json::from_value::<DeviceRequest>(wrong.into()).unwrap_err().to_string();
            assert_eq!(error, format!("unknown device \"{wrong}\": expected auto, cpu, cuda[:i] or wgpu[:i]"));
        }
    }
}
