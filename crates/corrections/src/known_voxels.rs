//! Which voxels of corrected labels are known: all, or only those of corrected slices or objects.

use crate::CorrectionError;
use crate::chunks::LabelSnapshot;
use crate::geometry::SliceAxis;
use std::collections::BTreeSet;

/// The ignore label of voxels whose label is not known; training ignores them.
pub const UNKNOWN_LABEL: u32 = u16::MAX as u32;

/// Width of the rim around a corrected object in which background is known, in voxels of a slice.
const RIM_VOXELS: usize = 3;

/// Which voxels of corrected labels are known, and therefore used for training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KnownVoxels {
    /// All voxels count, corrected or not.
    #[default]
    All,
    /// Voxels of Z slices in which a label was changed.
    CorrectedSlices,
    /// Voxels of changed objects, which gained or lost voxels, erased voxels, and a rim of background around both: three
    /// voxels wide within a slice, and the voxels above and below in the adjacent slices.
    CorrectedObjects,
}

/// Labels that are known in some voxels only, slice by slice.
pub(crate) struct KnownLabels<'a> {
    labels: &'a LabelSnapshot,
    base: Option<&'a LabelSnapshot>,
    which: KnownVoxels,
    objects: BTreeSet<u32>,
}

impl<'a> KnownLabels<'a> {
    /// Compares labels with those before correction (`None`: empty labels).
    ///
    /// # Errors
    /// Same as [`LabelSnapshot::slice`].
    pub(crate) fn new(
        labels: &'a LabelSnapshot,
        base: Option<&'a LabelSnapshot>,
        which: KnownVoxels,
    ) -> Result<Self, CorrectionError> {
        let mut known = Self { labels, base, which, objects: BTreeSet::new() };
        if which == KnownVoxels::CorrectedObjects {
            for z in 0..labels.shape_zyx()[0] {
                let (now, before) = known.both(z)?;
                // An object that lost voxels has changed, too.
                let changed = now.iter().zip(&before).filter(|(n, b)| n != b).flat_map(|(n, b)| [*n, *b]);
                known.objects.extend(changed.filter(|label| *label > 0));
            }
        }
        Ok(known)
    }

    /// Whether anything was corrected.
    pub(crate) fn is_any(&self) -> Result<bool, CorrectionError> {
        for z in 0..self.labels.shape_zyx()[0] {
            let (now, before) = self.both(z)?;
            if now != before {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A slice after and before correction.
    fn both(&self, z: usize) -> Result<(Vec<u32>, Vec<u32>), CorrectionError> {
        let now = self.labels.slice(SliceAxis::Z, z)?;
        let before = match self.base {
            Some(base) => base.slice(SliceAxis::Z, z)?,
            None => vec![0; now.len()],
        };
        Ok((now, before))
    }

    /// Which voxels of a slice, given after and before correction, belong to changed objects or were erased.
    fn corrected(&self, now: &[u32], before: &[u32]) -> Vec<bool> {
        let is_corrected = |(n, b): (&u32, &u32)| if *n > 0 { self.objects.contains(n) } else { *b > 0 };
        now.iter().zip(before).map(is_corrected).collect()
    }

    /// A slice with [`UNKNOWN_LABEL`] where the label is not known.
    pub(crate) fn slice(&self, z: usize) -> Result<Vec<u32>, CorrectionError> {
        let (mut now, before) = self.both(z)?;
        match self.which {
            KnownVoxels::All => {}
            KnownVoxels::CorrectedSlices if now == before => now.fill(UNKNOWN_LABEL),
            KnownVoxels::CorrectedSlices => {}
            KnownVoxels::CorrectedObjects => {
                let [nz, ny, nx] = self.labels.shape_zyx();
                let own = self.corrected(&now, &before);
                let mut near = dilated(&own, ny, nx);
                for beside in [z.checked_sub(1), Some(z + 1).filter(|z| *z < nz)].into_iter().flatten() {
                    let (now, before) = self.both(beside)?;
                    let corrected = self.corrected(&now, &before);
                    near.iter_mut().zip(corrected).for_each(|(near, corrected)| *near |= corrected);
                }
                for ((label, own), near) in now.iter_mut().zip(own).zip(near) {
                    if !(own || (near && *label == 0)) {
                        *label = UNKNOWN_LABEL;
                    }
                }
            }
        }
        Ok(now)
    }
}

/// A mask of a slice, dilated by [`RIM_VOXELS`] along both axes.
fn dilated(mask: &[bool], ny: usize, nx: usize) -> Vec<bool> {
    let mut rows = vec![false; mask.len()];
    for (line, out) in mask.chunks_exact(nx.max(1)).zip(rows.chunks_exact_mut(nx.max(1))) {
        for x in (0..nx).filter(|x| line[*x]) {
            out[x.saturating_sub(RIM_VOXELS)..(x + RIM_VOXELS + 1).min(nx)].fill(true);
        }
    }
    let mut all = vec![false; mask.len()];
    for y in 0..ny {
        for near in y.saturating_sub(RIM_VOXELS)..(y + RIM_VOXELS + 1).min(ny) {
            for x in 0..nx {
                all[y * nx + x] |= rows[near * nx + x];
            }
        }
    }
    all
}
