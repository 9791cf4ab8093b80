//! The precisions that the driver and the installed headers let a CUDA device compute in.

use cytoscope_engine::Precision;

/// The precisions besides f32, with the lowest compute capability, such as 75 for 7.5, whose tensor cores have them. NVRTC
/// refuses matrix fragments of bf16 below, although CubeCL lists them from 7.0 on.
const FAST: [(Precision, u32); 3] = [(Precision::Tf32, 80), (Precision::F16, 70), (Precision::Bf16, 80)];

/// Returns the precisions of a compute capability, f32 first; only f32 if the capability is unknown, or without the headers
/// that the kernels of the others include.
pub(crate) fn precisions_of(capability: Option<u32>, has_headers: bool) -> Vec<Precision> {
    let has = |least: u32| has_headers && capability.is_some_and(|capability| capability >= least);
    let fast = FAST.into_iter().filter(|(_, least)| has(*least)).map(|(precision, _)| precision);
    std::iter::once(Precision::F32).chain(fast).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precisions_are_those_of_the_tensor_cores_and_headers() {
        use Precision::{Bf16, F16, F32, Tf32};
        let offered = |capability| precisions_of(Some(capability), true);
        assert_eq!(offered(61), [F32]);
        assert_eq!(offered(75), [F32, F16], "Turing");
        assert_eq!(offered(80), [F32, Tf32, F16, Bf16], "Ampere");
        assert_eq!(offered(120), [F32, Tf32, F16, Bf16], "Blackwell");
        assert_eq!(precisions_of(Some(90), false), [F32], "the kernels could not be compiled");
        assert_eq!(precisions_of(None, true), [F32]);
    }
}
