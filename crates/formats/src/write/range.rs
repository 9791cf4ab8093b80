//! The smallest and largest value of each channel, collected while writing.

use super::spec::WriteSpec;
use cytoscope_volume::{Array, Element, with_samples};

/// Display ranges: the given one, or the range of values of each channel so far.
#[derive(Debug)]
pub(crate) struct Ranges {
    given: Option<(f64, f64)>,
    channels: Vec<Option<(f64, f64)>>,
}

impl Ranges {
    /// Ranges of no values yet; the display range of `spec`, if it has one, counts for all channels.
    pub fn new(spec: &WriteSpec) -> Self {
        let count = spec.size(cytoscope_volume::Axis::C);
        Self { given: spec.display_range, channels: vec![None; count] }
    }

    /// Adds the planes of a slab, the first of which is plane `first` of the stack.
    pub fn add(&mut self, spec: &WriteSpec, first: usize, slab: &Array) {
        if self.given.is_some() {
            return;
        }
        let plane_len = spec.plane_len();
        for k in 0..slab.samples().len() / plane_len.max(1) {
            let found = with_samples!(slab.samples(), v => range(v.get(k * plane_len..(k + 1) * plane_len).unwrap_or_default()));
            let (Some(found), Some(slot)) = (found, self.channels.get_mut(spec.channel_index(first + k))) else {
                continue;
            };
            *slot = Some(slot.map_or(found, |old| (old.0.min(found.0), old.1.max(found.1))));
        }
    }

    /// The display range of one channel.
    pub fn for_channel(&self, channel: usize) -> (f64, f64) {
        let found = self.given.or_else(|| self.channels.get(channel).copied().flatten());
        non_empty(found.unwrap_or((0.0, 1.0)))
    }

    /// The display range over all channels.
    pub fn for_all_channels(&self) -> (f64, f64) {
        let join = |a: (f64, f64), b: (f64, f64)| (a.0.min(b.0), a.1.max(b.1));
        non_empty(self.given.or_else(|| self.channels.iter().flatten().copied().reduce(join)).unwrap_or((0.0, 1.0)))
    }
}

/// Extends an empty range, so that the lower end is less than the upper.
fn non_empty((low, high): (f64, f64)) -> (f64, f64) {
    if high > low { (low, high) } else { (low, low + 1.0) }
}

fn range<E: Element>(values: &[E]) -> Option<(f64, f64)> {
    let mut rest = values.iter().copied().filter(|v| v.to_f64().is_finite());
    let first = rest.next()?;
    let (low, high) =
        rest.fold((first, first), |(low, high), v| (if v < low { v } else { low }, if v > high { v } else { high }));
    Some((low.to_f64(), high.to_f64()))
}
