//! Splits weights for instructions that add the products of two neighboring channels in 16 bits, with saturation.
//!
//! An input is at most 255, so the sum of two products is exact as long as the sum of the two weights is between
//! −128 and 128. The part that exceeds this is moved to [`Excess`] weights, which the kernels multiply separately, so
//! that sums stay exact. Each of them costs as much as the quad that it was taken from.

use crate::CHANNEL_BLOCK;

/// Number of weights of a quad of input channels, for a block of output channels.
pub(crate) const QUAD_WEIGHTS: usize = 4 * CHANNEL_BLOCK;

/// Largest magnitude of the sum of a pair of weights: 255 · 128 fits 16 bits.
const LARGEST_PAIR: i16 = 128;

/// The part of a quad's weights that was moved out because a sum of pairs could overflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Excess {
    /// Index of the input block, in the group.
    pub in_block: usize,
    /// Index of the tap in the kernel.
    pub tap: usize,
    /// Index of the quad in the input block.
    pub quad: usize,
    /// In the order of the quad's own weights.
    pub weights: [i8; QUAD_WEIGHTS],
}

/// Takes the excess from the weights of one block of output channels, `[input block][tap][quad][QUAD_WEIGHTS]`.
pub(crate) fn split(values: &mut [i8], taps: usize, quads: usize) -> Vec<Excess> {
    let mut all = Vec::new();
    for (at, own) in values.chunks_exact_mut(QUAD_WEIGHTS).enumerate() {
        let mut weights = [0; QUAD_WEIGHTS];
        for (pair, taken) in own.as_chunks_mut::<2>().0.iter_mut().zip(weights.chunks_exact_mut(2)) {
            let sum = i16::from(pair[0]) + i16::from(pair[1]);
            // At most 127, or −128, and of the same sign as both weights.
            let excess = (sum - sum.clamp(-LARGEST_PAIR, LARGEST_PAIR)) as i8;
            pair[0] -= excess;
            taken[0] = excess;
        }
        if weights != [0; QUAD_WEIGHTS] {
            let (in_block, tap, quad) = (at / quads / taps, at / quads % taps, at % quads);
            all.push(Excess { in_block, tap, quad, weights });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_weights_is_split_into_pairs_whose_products_fit_16_bits() {
        let fits = |a: i8, b: i8| {
            [[0, 0], [0, 255], [255, 0], [255, 255]]
                .iter()
                .all(|[x, y]| i16::try_from(i32::from(a) * x + i32::from(b) * y).is_ok())
        };
        for a in i8::MIN..=i8::MAX {
            for b in i8::MIN..=i8::MAX {
                let mut values = [0; QUAD_WEIGHTS];
                values[6..8].copy_from_slice(&[a, b]);
                let excess = split(&mut values, 1, 1);
                assert_eq!(excess.is_empty(), fits(a, b), "{a} {b}");
                let taken = excess.first().map_or([0, 0], |e| [e.weights[6], e.weights[7]]);
                assert!(fits(values[6], values[7]) && fits(taken[0], taken[1]), "{a} {b}");
                let sums = [(a, values[6], taken[0]), (b, values[7], taken[1])];
                assert!(sums.iter().all(|(of, own, taken)| *of == own + taken), "{a} {b}");
            }
        }
    }

    #[test]
    fn excess_weights_know_their_place() {
        let (taps, quads) = (3, 4);
        let mut values = vec![1; 2 * taps * quads * QUAD_WEIGHTS];
        let at = (taps + 2) * quads + 3;
        values[at * QUAD_WEIGHTS..][..2].copy_from_slice(&[-100, -90]);
        let excess = split(&mut values, taps, quads);
        let places: Vec<_> = excess.iter().map(|e| (e.in_block, e.tap, e.quad, e.weights[0])).collect();
        assert_eq!(places, [(1, 2, 3, -62)]);
    }
}
