//! The precisions that the driver and the installed headers let a CUDA device compute in, and which of them work.

use cytoscope_engine::{Precision, Shortcoming};

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

/// Tests each of the precisions that are offered besides f32, so that one that fails does not hide the others, and f32 if none
/// of them works. Returns the precisions that work, f32 first, and those that failed, with equal errors together.
///
/// # Errors
/// The error of the first test if all fail.
pub(crate) fn working(
    offered: &[Precision],
    mut check: impl FnMut(Precision) -> Result<(), String>,
) -> Result<(Vec<Precision>, Vec<Shortcoming>), String> {
    let mut good = Vec::new();
    let mut failed: Vec<(Vec<Precision>, String)> = Vec::new();
    for precision in offered.iter().copied().filter(|precision| *precision != Precision::F32) {
        let Err(error) = check(precision) else {
            good.push(precision);
            continue;
        };
        match failed.iter_mut().find(|(_, known)| *known == error) {
            Some((precisions, _)) => precisions.push(precision),
            None => failed.push((vec![precision], error)),
        }
    }
    if good.is_empty()
        && let Err(error) = check(Precision::F32)
    {
        // The first error is the cause.
        return Err(failed.into_iter().next().map_or(error, |(_, first)| first));
    }
    good.insert(0, Precision::F32);
    let shortcoming = |(precisions, error)| Shortcoming::FailedPrecisions { precisions, error };
    Ok((good, failed.into_iter().map(shortcoming).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_precision_that_fails_does_not_hide_the_others() {
        use Precision::{Bf16, F16, F32, Tf32};
        let offered = [F32, Tf32, F16, Bf16];
        // Tests the precisions, of which those in `bad` fail with these errors, and returns which were tested, too.
        let test = |offered: &[Precision], bad: &[(Precision, &str)]| {
            let mut tested = Vec::new();
            let found = working(offered, |precision| {
                tested.push(precision);
                let error = bad.iter().find(|(failing, _)| *failing == precision);
                error.map_or(Ok(()), |(_, error)| Err((*error).to_owned()))
            });
            (found, tested)
        };
        let failed = |precisions: &[Precision], error: &str| Shortcoming::FailedPrecisions {
            precisions: precisions.to_vec(),
            error: error.to_owned(),
        };
        assert_eq!(test(&offered, &[]), (Ok((offered.to_vec(), Vec::new())), vec![Tf32, F16, Bf16]));
        let (found, _) = test(&offered, &[(Tf32, "wrong")]);
        assert_eq!(found, Ok((vec![F32, F16, Bf16], vec![failed(&[Tf32], "wrong")])), "the first");
        let (found, _) = test(&offered, &[(F16, "wrong"), (Bf16, "no kernel")]);
        assert_eq!(found, Ok((vec![F32, Tf32], vec![failed(&[F16], "wrong"), failed(&[Bf16], "no kernel")])));
        let all = [(Tf32, "wrong"), (F16, "wrong"), (Bf16, "wrong")];
        let (found, tested) = test(&offered, &all);
        assert_eq!(found, Ok((vec![F32], vec![failed(&[Tf32, F16, Bf16], "wrong")])));
        assert_eq!(tested, [Tf32, F16, Bf16, F32]);
        let (found, _) = test(&offered, &[(Tf32, "lost"), (F16, "gone"), (Bf16, "gone"), (F32, "gone")]);
        assert_eq!(found, Err("lost".to_owned()), "the first error is the cause");
        assert_eq!(test(&[F32], &[(F32, "wrong")]), (Err("wrong".to_owned()), vec![F32]));
    }

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
