//! The roofline model: how close each operator comes to what the machine can do.
//!
//! An operator cannot be faster than its multiply-accumulates at the machine's peak rate, nor than its bytes at the
//! machine's memory bandwidth. The longer of both times is its lower bound, and the share of the peak is this bound
//! divided by the measured time (Williams, Waterman and Patterson, Roofline, Communications of the ACM 52(4), 2009).

use crate::{OperatorPrecision, OperatorTotal};
use serde::{Deserialize, Serialize};

/// Measured peak rates of a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachinePeak {
    /// The instruction set of the kernels, such as `avx512`.
    pub kernels: String,
    /// Number of threads that computed at the same time.
    pub threads: usize,
    /// Multiply-accumulates of 32-bit floats per second, all threads together.
    pub float_macs_per_sec: f64,
    /// Multiply-accumulates of bf16 values per second; `None` if the kernels have no instructions for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_macs_per_sec: Option<f64>,
    /// Multiply-accumulates of bytes per second; `None` if the kernels have no instructions for them.
    pub int8_macs_per_sec: Option<f64>,
    /// Bytes per second read from and written to memory, all threads together.
    pub memory_bytes_per_sec: f64,
}

/// The machine's rate that limits how fast an operator can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The peak rate of multiply-accumulates.
    Compute,
    /// The rate at which memory is read and written.
    Memory,
}

impl Bound {
    /// Returns the name used in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory",
        }
    }
}

impl MachinePeak {
    /// Returns the peak rate of multiply-accumulates in a number format: that of floats if the kernels have no instructions
    /// for the format.
    pub fn macs_per_sec(&self, precision: OperatorPrecision) -> f64 {
        let own = match precision {
            OperatorPrecision::Float => None,
            OperatorPrecision::Bf16 => self.bf16_macs_per_sec,
            OperatorPrecision::Int8 => self.int8_macs_per_sec,
        };
        own.unwrap_or(self.float_macs_per_sec)
    }

    /// Returns the roof: the highest rate of multiply-accumulates at an arithmetic intensity in multiply-accumulates per
    /// byte.
    pub fn roof_macs_per_sec(&self, macs_per_byte: f64, precision: OperatorPrecision) -> f64 {
        self.macs_per_sec(precision).min(macs_per_byte * self.memory_bytes_per_sec)
    }

    /// Whether all rates are positive and finite, as a roofline needs them.
    pub fn is_valid(&self) -> bool {
        let computed = [Some(self.float_macs_per_sec), self.bf16_macs_per_sec, self.int8_macs_per_sec];
        let rates = computed.into_iter().chain([Some(self.memory_bytes_per_sec)]);
        rates.flatten().all(|rate| rate.is_finite() && rate > 0.0)
    }
}

/// An operator in the roofline model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RooflinePoint {
    /// Operator and name of its node, as in [`OperatorTotal::name`].
    pub name: String,
    /// Measured time of all its runs in seconds.
    pub seconds: f64,
    /// Number of multiply-accumulates of all its runs.
    pub macs: u64,
    /// Bytes of its inputs, weights and outputs, each counted once.
    pub bytes: u64,
    /// Number format that it multiplies in.
    pub precision: OperatorPrecision,
    /// The rate that limits it.
    pub bound: Bound,
    /// Shortest possible time at the machine's peak in seconds.
    pub bound_secs: f64,
    /// Share of the peak: shortest possible time by measured time. It exceeds 1 where data stays in the caches, which
    /// are faster than the measured memory.
    pub share: f64,
}

impl RooflinePoint {
    /// Returns an operator's position; `None` if its time, or both its work and its bytes, are unknown.
    pub fn new(operator: &OperatorTotal, peak: &MachinePeak) -> Option<Self> {
        let precision = operator.precision.unwrap_or(OperatorPrecision::Float);
        let compute_secs = operator.macs as f64 / peak.macs_per_sec(precision);
        let memory_secs = operator.bytes as f64 / peak.memory_bytes_per_sec;
        let bound = if compute_secs > memory_secs { Bound::Compute } else { Bound::Memory };
        let bound_secs = compute_secs.max(memory_secs);
        let is_known = peak.is_valid() && operator.seconds > 0.0 && bound_secs > 0.0;
        is_known.then(|| Self {
            name: operator.name.clone(),
            seconds: operator.seconds,
            macs: operator.macs,
            bytes: operator.bytes,
            precision,
            bound,
            bound_secs,
            share: bound_secs / operator.seconds,
        })
    }

    /// Returns the name for display, with the number format if the operator computes in another than 32-bit floats.
    pub fn shown_name(&self) -> String {
        crate::device::shown_name(&self.name, Some(self.precision))
    }

    /// Returns the arithmetic intensity in multiply-accumulates per byte; `None` if the operator multiplies nothing or
    /// its bytes are unknown.
    pub fn macs_per_byte(&self) -> Option<f64> {
        (self.macs > 0 && self.bytes > 0).then(|| self.macs as f64 / self.bytes as f64)
    }

    /// Returns the measured rate in multiply-accumulates per second.
    pub fn macs_per_sec(&self) -> f64 {
        self.macs as f64 / self.seconds
    }
}

/// Returns the positions of all operators whose time and work are known, in the order of `operators`.
pub fn roofline(operators: &[OperatorTotal], peak: &MachinePeak) -> Vec<RooflinePoint> {
    operators.iter().filter_map(|operator| RooflinePoint::new(operator, peak)).collect()
}

/// Returns the share of the peak of all operators together: the sum of their shortest possible times, divided by
/// `operators_secs`. This is the measured time of all of them, including those that have no point because their work is
/// unknown; `None` without points.
pub fn share_of_peak(points: &[RooflinePoint], operators_secs: f64) -> Option<f64> {
    let bound_secs: f64 = points.iter().map(|point| point.bound_secs).sum();
    (!points.is_empty() && operators_secs > 0.0).then(|| bound_secs / operators_secs)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    fn peak() -> MachinePeak {
        MachinePeak {
            kernels: "avx2".to_owned(),
            threads: 2,
            float_macs_per_sec: 100.0,
            bf16_macs_per_sec: Some(150.0),
            int8_macs_per_sec: Some(400.0),
            memory_bytes_per_sec: 10.0,
        }
    }

    fn operator(name: &str, seconds: f64, macs: u64, bytes: u64) -> OperatorTotal {
        OperatorTotal { name: name.to_owned(), count: 1, seconds, macs, bytes, precision: None }
    }

    #[test]
    fn the_share_is_of_the_bound_that_limits_the_operator() {
        // 1000 MAC take 10 s at least, 20 bytes take 2 s.
        let conv = RooflinePoint::new(&operator("Conv a", 40.0, 1000, 20), &peak()).unwrap();
        assert_eq!((conv.bound, conv.bound_secs, conv.share), (Bound::Compute, 10.0, 0.25));
        assert_eq!((conv.macs_per_byte(), conv.macs_per_sec()), (Some(50.0), 25.0));
        // The same work on bytes takes 2.5 s at least; 50 bytes take 5 s.
        let in_int8 = OperatorTotal { precision: Some(OperatorPrecision::Int8), ..operator("Conv a", 10.0, 1000, 50) };
        let int8 = RooflinePoint::new(&in_int8, &peak()).unwrap();
        assert_eq!((int8.bound, int8.share), (Bound::Memory, 0.5));
        let without = MachinePeak { int8_macs_per_sec: None, ..peak() };
        assert_eq!(RooflinePoint::new(&in_int8, &without).unwrap().share, 1.0);
        let in_bf16 = OperatorTotal { precision: Some(OperatorPrecision::Bf16), ..operator("Conv a", 10.0, 1000, 0) };
        assert_eq!(RooflinePoint::new(&in_bf16, &peak()).unwrap().bound_secs, 1000.0 / 150.0);
        // An operator that only moves data has a share, but no intensity.
        let resize = RooflinePoint::new(&operator("Resize r", 4.0, 0, 20), &peak()).unwrap();
        assert_eq!((resize.bound, resize.share, resize.macs_per_byte()), (Bound::Memory, 0.5, None));
        let points = [conv, resize];
        assert_eq!(share_of_peak(&points, 44.0), Some(12.0 / 44.0));
        // Operators whose work is unknown took as long again.
        assert_eq!(share_of_peak(&points, 88.0), Some(12.0 / 88.0));
        assert_eq!(share_of_peak(&[], 44.0), None);
        assert_eq!(share_of_peak(&points, 0.0), None);
    }

    #[test]
    fn the_roof_rises_with_the_intensity_up_to_the_peak() {
        assert_eq!(peak().roof_macs_per_sec(1.0, OperatorPrecision::Float), 10.0);
        assert_eq!(peak().roof_macs_per_sec(10.0, OperatorPrecision::Float), 100.0);
        assert_eq!(peak().roof_macs_per_sec(20.0, OperatorPrecision::Float), 100.0);
        assert_eq!(peak().roof_macs_per_sec(20.0, OperatorPrecision::Int8), 200.0);
    }

    #[test]
    fn operators_of_unknown_work_and_peaks_that_were_not_measured_have_no_point() {
        let all = [operator("a", 1.0, 0, 0), operator("b", 0.0, 5, 5), operator("c", 1.0, 5, 0)];
        let names: Vec<String> = roofline(&all, &peak()).into_iter().map(|point| point.name).collect();
        assert_eq!(names, ["c"]);
        assert!(roofline(&all, &MachinePeak { memory_bytes_per_sec: 0.0, ..peak() }).is_empty());
    }
}
