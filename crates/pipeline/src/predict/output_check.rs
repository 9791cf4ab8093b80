//! Finds values that are not finite in what a network returns.

use crate::Note;
use cytoscope_engine::{DeviceId, EngineError, Precision};
use cytoscope_storage::by_count;

/// Counts the output values of a network that are NaN or infinite. In 16 bits, they are an error: the network exceeds
/// the range of the type, and another precision may compute them. In other precisions, the network itself produces
/// them, so they are only counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputCheck {
    device: DeviceId,
    precision: Precision,
    not_finite: u64,
}

impl OutputCheck {
    /// Starts with none.
    pub(crate) fn new(device: DeviceId, precision: Precision) -> Self {
        Self { device, precision, not_finite: 0 }
    }

    /// Checks some of the values.
    ///
    /// # Errors
    /// [`EngineError::NotFinite`] in 16 bits.
    pub(crate) fn add(&mut self, values: &[f32]) -> Result<(), EngineError> {
        let found = values.iter().filter(|value| !value.is_finite()).count();
        self.not_finite += found as u64;
        if found > 0 && self.precision.is_half() {
            let Self { device, precision, not_finite } = *self;
            return Err(EngineError::NotFinite { device, precision, count: not_finite });
        }
        Ok(())
    }

    /// Returns a warning about the values that were found; `None` if there are none.
    pub(crate) fn note(&self) -> Option<Note> {
        let Self { device, precision, not_finite } = self;
        (*not_finite > 0).then(|| {
            let values = by_count(*not_finite, "value of the network is", "values of the network are");
            let these = by_count(*not_finite, "this voxel", "these voxels");
            Note::warning(format!(
                "{not_finite} output {values} NaN or infinite ({precision} on {device}): the prediction at {these} is \
                 meaningless"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn values_that_are_not_finite_are_an_error_in_16_bits_and_a_note_in_32() {
        let bad = [1.0, f32::NAN, -2.0, f32::INFINITY];
        for precision in [Precision::F16, Precision::Bf16] {
            let mut check = OutputCheck::new(DeviceId::Cuda(0), precision);
            assert!(check.add(&[1.0, 65_504.0]).is_ok() && check.note().is_none());
            let said = check.add(&bad).unwrap_err().to_string();
            assert!(
                said.contains("cuda:0") && said.contains(precision.name()) && said.contains("at least 2 "),
                "{said}"
            );
        }
        let mut check = OutputCheck::new(DeviceId::Cpu, Precision::F32);
        check.add(&bad).unwrap();
        check.add(&bad).unwrap();
        let warned = check.note().unwrap().to_string();
        assert!(
            warned.starts_with("warning: 4 output values of the network are NaN or infinite (f32 on cpu)"),
            "{warned}"
        );
    }
}
