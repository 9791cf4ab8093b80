//! The errors of compiling and running a model.

use crate::{DeviceId, Engine, Precision};
use cytoscope_graph::GraphError;
use cytoscope_profile::bytes_text;
use cytoscope_storage::by_count;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::QUANTIZE;

/// Advice at the end of [`EngineError::OutOfMemory`].
const MEMORY_ADVICE: &str = "use smaller tiles, or in training a smaller batch";
/// Advice at the end of [`EngineError::NotFinite`].
const RANGE_ADVICE: &str = "choose f32";

/// A failure to compile or run a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine does not support an operator; the caller may use another engine.
    #[error("the {engine} engine does not support {op} (node \"{node}\"): choose another device for this model")]
    UnsupportedOp {
        /// Name of the engine.
        engine: &'static str,
        /// The operator, and which of its features is not supported.
        op: String,
        /// Name of the node in the model.
        node: String,
    },
    /// The engine does not support the requested precision.
    #[error("the {engine} engine does not support {precision}; supported: {has}")]
    UnsupportedPrecision {
        /// Name of the engine.
        engine: &'static str,
        /// The requested precision.
        precision: Precision,
        /// The supported precisions, as text.
        has: Message,
    },
    /// No device of the machine computes in the requested precision.
    #[error("no device here computes in {precision}; supported: {has}")]
    NoPrecision {
        /// The requested precision.
        precision: Precision,
        /// The devices and their precisions, as text.
        has: Message,
    },
    /// Int8 was requested for a model that is not quantized.
    #[error(
        "int8 was requested, but the model is not quantized for the {engine} engine: it has no convolution between \
         QuantizeLinear and DequantizeLinear nodes; quantize the model with {}, or choose f32",
        QUANTIZE
    )]
    NotQuantized {
        /// Name of the engine.
        engine: &'static str,
    },
    /// The model is invalid or does not fit its inputs.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The type, shape or number of the inputs is not the one that the session was compiled for.
    #[error("input \"{name}\": expected {expected}, got {got}")]
    Input {
        /// Name of the input.
        name: String,
        /// The expected type and shape.
        expected: String,
        /// The type and shape that were passed.
        got: String,
    },
    /// The session needs more memory than is available.
    #[error("{}; {}", memory_finding(*.device, *.needed_bytes, *.available_bytes), MEMORY_ADVICE)]
    OutOfMemory {
        /// Device whose memory is exhausted.
        device: DeviceId,
        /// Bytes that the session or one of its buffers needs; 0 if the device does not report it.
        needed_bytes: u64,
        /// Bytes that are free, or that the budget allows; 0 if that is unknown.
        available_bytes: u64,
    },
    /// The device or its driver failed.
    #[error("{device} failed: {reason}")]
    Device {
        /// Device that failed.
        device: DeviceId,
        /// The message of the device or its driver.
        reason: Message,
    },
    /// Outputs are NaN or infinite in a precision that may be the reason; another one may compute them.
    #[error("{}; {}", range_finding(*.device, *.precision, *.count), RANGE_ADVICE)]
    NotFinite {
        /// Device that computed the values.
        device: DeviceId,
        /// Precision in which the network ran.
        precision: Precision,
        /// Number of such values that were found before the prediction was ended.
        count: u64,
    },
    /// The device does not exist, or cannot run models.
    #[error("{device} cannot be used: {reason}")]
    Unavailable {
        /// The requested device.
        device: DeviceId,
        /// Why it cannot be used, and which devices exist.
        reason: Message,
    },
    /// The text is not the name of a device.
    #[error("unknown device \"{text}\": expected auto, cpu, cuda[:i] or wgpu[:i]")]
    BadDevice {
        /// The text that was parsed.
        text: String,
    },
    /// The text is not the name of a precision.
    #[error("unknown precision \"{text}\": expected auto, f32, tf32, f16, bf16 or int8")]
    BadPrecision {
        /// The text that was parsed.
        text: String,
    },
    /// A kernel rejected its buffers: a bug in an engine.
    #[error("internal error in {place}: {reason}; please report this bug")]
    Internal {
        /// Step or module that failed.
        place: String,
        /// What was inconsistent.
        reason: Message,
    },
}

impl EngineError {
    /// Returns the message without its advice to the user, for notes about what is done instead.
    pub fn finding(&self) -> Message {
        match self {
            Self::OutOfMemory { device, needed_bytes, available_bytes } => {
                memory_finding(*device, *needed_bytes, *available_bytes).into()
            }
            Self::NotFinite { device, precision, count } => range_finding(*device, *precision, *count).into(),
            other => Message::of(other),
        }
    }

    /// Returns the error for a precision that is not among those that an engine offers on its device.
    pub fn unsupported_precision(engine: &dyn Engine, precision: Precision, offered: &[Precision]) -> Self {
        let names = Message::from(offered.iter().map(|p| p.name()).collect::<Vec<_>>().join(", "));
        let parts: Vec<Message> = std::iter::once(names).chain(engine.device().shortcoming()).collect();
        Self::UnsupportedPrecision { engine: engine.name(), precision, has: Message::joined(&parts, "; ") }
    }
}

/// Returns the message of [`EngineError::OutOfMemory`] without its advice.
fn memory_finding(device: DeviceId, needed_bytes: u64, available_bytes: u64) -> String {
    let amounts = match (needed_bytes, available_bytes) {
        (0, _) => String::new(),
        (needed, 0) => format!(": {} needed", bytes_text(needed)),
        (needed, available) => format!(": {} needed, {} available", bytes_text(needed), bytes_text(available)),
    };
    format!("not enough memory on {device}{amounts}")
}

/// Returns the message of [`EngineError::NotFinite`] without its advice.
fn range_finding(device: DeviceId, precision: Precision, count: u64) -> String {
    let values = by_count(count, "value of the network is", "values of the network are");
    format!(
        "at least {count} output {values} NaN or infinite in {precision} on {device}, probably because values exceed the \
         range of this type"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_memory_is_stated_in_units_that_are_easy_to_read() {
        let message = |needed_bytes: u64, available_bytes: u64| {
            EngineError::OutOfMemory { device: DeviceId::Cuda(0), needed_bytes, available_bytes }.to_string()
        };
        let advice = "; use smaller tiles, or in training a smaller batch";
        assert_eq!(message(0, 0), format!("not enough memory on cuda:0{advice}"));
        assert_eq!(message(32 << 20, 0), format!("not enough memory on cuda:0: 32 MiB needed{advice}"));
        let both = format!("not enough memory on cuda:0: 3.00 GiB needed, 512 MiB available{advice}");
        assert_eq!(message(3 << 30, 512 << 20), both);
    }

    #[test]
    fn notes_about_another_attempt_give_no_advice() {
        let device = DeviceId::Cuda(0);
        let full = EngineError::OutOfMemory { device, needed_bytes: 0, available_bytes: 0 };
        assert_eq!(full.finding().as_str(), "not enough memory on cuda:0");
        let wide = EngineError::NotFinite { device, precision: Precision::F16, count: 3 };
        assert!(wide.finding().ends_with("exceed the range of this type"), "{}", wide.finding());
        assert_eq!(wide.to_string(), format!("{}; choose f32", wide.finding()));
        let lost = EngineError::Device { device, reason: "it has no power".into() };
        assert_eq!(lost.finding(), Message::of(&lost));
    }
}
