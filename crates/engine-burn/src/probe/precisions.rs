//! The precisions that the driver and the installed headers let a CUDA device compute in, and which of them work.

use cytoscope_engine::{Precision, Shortcoming};

/// The precisions besides f32, with the lowest compute capability, such as 75 for 7.5, whose tensor cores have them. NVRTC
/// refuses matrix fragments of bf16 below, although CubeCL lists them from 7.0 on.
const FAST: [(Precision, u32); 3] = [(Precision::Tf32, 80), (Precision::F16, 70), (Precision::Bf16, 80)];

/// Returns the precisions of a compute capability, f32 first; only f32 if the capability is unknown, or without the headers
/// that the kernels of the others include.
pub(crate) fn supported_precisions(capability: Option<u32>, has_headers: bool) -> Vec<Precision> {
    let has = |least: u32| has_headers && capability.is_some_and(|capability| capability >= least);
    let fast = FAST.into_iter().filter(|(_, least)| has(*least)).map(|(precision, _)| precision);
    std::iter::once(Precision::F32).chain(fast).collect()
}

/// What the tests of a device's precisions have found so far.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tested {
    /// The precisions that work.
    pub good: Vec<Precision>,
    /// Those whose test failed, with its error.
    pub failed: Vec<(Precision, String)>,
    /// Those whose test has not ended; the first one is tested next.
    pub untested: Vec<Precision>,
}

impl Tested {
    /// Returns why precisions are not used.
    pub(crate) fn shortcomings(&self) -> Vec<Shortcoming> {
        let mut all = failures(self.failed.clone());
        if !self.untested.is_empty() {
            all.push(Shortcoming::UntestedPrecisions { precisions: self.untested.clone() });
        }
        all
    }
}

/// Returns the shortcomings of precisions whose tests failed; those with equal errors are together.
pub(crate) fn failures(failed: Vec<(Precision, String)>) -> Vec<Shortcoming> {
    let mut together: Vec<(Vec<Precision>, String)> = Vec::new();
    for (precision, error) in failed {
        match together.iter_mut().find(|(_, known)| *known == error) {
            Some((precisions, _)) => precisions.push(precision),
            None => together.push((vec![precision], error)),
        }
    }
    let shortcoming = |(precisions, error)| Shortcoming::FailedPrecisions { precisions, error };
    together.into_iter().map(shortcoming).collect()
}

/// Tests each of the precisions that are offered, so that one that fails does not hide the others. Before each test, `report`
/// receives what was found so far, because the driver may crash or hang in it.
///
/// # Errors
/// The error of the test in f32, after which no other precision is tested.
pub(crate) fn test_each(
    offered: &[Precision],
    mut check: impl FnMut(Precision) -> Result<(), String>,
    mut report: impl FnMut(&Tested),
) -> Result<Tested, String> {
    let mut tested = Tested { good: Vec::new(), failed: Vec::new(), untested: offered.to_vec() };
    for (index, &precision) in offered.iter().enumerate() {
        report(&tested);
        match check(precision) {
            Ok(()) => tested.good.push(precision),
            Err(error) if precision == Precision::F32 => return Err(error),
            Err(error) => tested.failed.push((precision, error)),
        }
        tested.untested = offered.get(index + 1..).unwrap_or_default().to_vec();
    }
    Ok(tested)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_precision_that_fails_does_not_hide_the_others() {
        use Precision::{Bf16, F16, F32, Tf32};
        let offered = [F32, Tf32, F16, Bf16];
        // Tests the precisions, of which those in `bad` fail with these errors, and returns which were tested, too.
        let test = |bad: &[(Precision, &str)]| {
            let mut checked = Vec::new();
            let check = |precision: Precision| {
                checked.push(precision);
                let error = bad.iter().find(|(failing, _)| *failing == precision);
                error.map_or(Ok(()), |(_, error)| Err((*error).to_owned()))
            };
            let found = test_each(&offered, check, |_| ()).map(|tested| (tested.good.clone(), tested.shortcomings()));
            (found, checked)
        };
        let failed = |precisions: &[Precision], error: &str| Shortcoming::FailedPrecisions {
            precisions: precisions.to_vec(),
            error: error.to_owned(),
        };
        assert_eq!(test(&[]), (Ok((offered.to_vec(), Vec::new())), offered.to_vec()));
        let (found, _) = test(&[(Tf32, "wrong")]);
        assert_eq!(found, Ok((vec![F32, F16, Bf16], vec![failed(&[Tf32], "wrong")])));
        let (found, _) = test(&[(F16, "wrong"), (Bf16, "no kernel")]);
        assert_eq!(found, Ok((vec![F32, Tf32], vec![failed(&[F16], "wrong"), failed(&[Bf16], "no kernel")])));
        let (found, checked) = test(&[(Tf32, "wrong"), (F16, "wrong"), (Bf16, "wrong")]);
        assert_eq!(found, Ok((vec![F32], vec![failed(&[Tf32, F16, Bf16], "wrong")])));
        assert_eq!(checked, offered);
        let gone = [(F32, "lost"), (Tf32, "gone"), (F16, "gone"), (Bf16, "gone")];
        assert_eq!(test(&gone), (Err("lost".to_owned()), vec![F32]), "the device does not work at all");
    }

    #[test]
    fn what_was_found_is_reported_before_each_test() {
        use Precision::{F16, F32, Tf32};
        let mut reported = Vec::new();
        let check = |precision: Precision| if precision == Tf32 { Err("wrong".to_owned()) } else { Ok(()) };
        let tested = test_each(&[F32, Tf32, F16], check, |so_far| reported.push(so_far.clone())).unwrap();
        let state = |good: &[Precision], failed: &[Precision], untested: &[Precision]| Tested {
            good: good.to_vec(),
            failed: failed.iter().map(|precision| (*precision, "wrong".to_owned())).collect(),
            untested: untested.to_vec(),
        };
        let before =
            [state(&[], &[], &[F32, Tf32, F16]), state(&[F32], &[], &[Tf32, F16]), state(&[F32], &[Tf32], &[F16])];
        assert_eq!(reported, before);
        assert_eq!(tested, state(&[F32, F16], &[Tf32], &[]));
        let untested = Shortcoming::UntestedPrecisions { precisions: vec![Tf32, F16] };
        assert_eq!(before[1].shortcomings(), [untested]);
    }

    #[test]
    fn precisions_are_those_of_the_tensor_cores_and_headers() {
        use Precision::{Bf16, F16, F32, Tf32};
        let offered = |capability| supported_precisions(Some(capability), true);
        assert_eq!(offered(61), [F32]);
        assert_eq!(offered(75), [F32, F16], "Turing");
        assert_eq!(offered(80), [F32, Tf32, F16, Bf16], "Ampere");
        assert_eq!(offered(120), [F32, Tf32, F16, Bf16], "Blackwell");
        assert_eq!(supported_precisions(Some(90), false), [F32], "the kernels could not be compiled");
        assert_eq!(supported_precisions(None, true), [F32]);
    }
}
