//! Steps applied one after the other, box by box.

use crate::block::{Block, count, halves, lengths};
use crate::resolve::{Grid, Operation, Reach, Stage};
use crate::{MAX_STEPS, PreprocessError, PreprocessStep};
use cytoscope_volume::{BoxZyx, Samples, VoxelSize, statistics::Quantiles};

/// Where the voxels of a stack come from.
pub trait Source {
    /// Error of a read that failed.
    type Error;

    /// Reads a box that is not empty and inside the stack; returns its values, axes Z, Y, X.
    ///
    /// # Errors
    /// Those of the source.
    fn read(&mut self, bounds: &BoxZyx) -> Result<Vec<f32>, Self::Error>;
}

/// Preprocessing steps resolved for stacks of one shape and voxel size.
#[derive(Debug, Clone, PartialEq)]
pub struct Chain {
    pub(crate) stages: Vec<Stage>,
    shape: [usize; 3],
    voxel_um: VoxelSize,
}

/// Statistics of a whole stack that steps need: for each step, the values of its two percentiles, if it has some and
/// there is a finite value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StackStatistics(Vec<Option<[f64; 2]>>);

/// Slices before a step that reaches along Z, kept for the next slab. Belongs to one stack: one channel of one time
/// point.
#[derive(Debug, Clone, Default)]
pub struct Tails(Vec<Option<Block>>);

/// Voxels of the slabs in which statistics are computed.
pub(crate) const SLAB_VOXELS: usize = 4 << 20;

/// Largest box before a warp that is held at once, in voxels, unless one row of the output needs more: a warp that turns
/// slices could need the whole stack for one of them.
pub(crate) const MAX_WARPED_VOXELS: usize = 64 << 20;

impl Chain {
    /// Resolves steps for a stack of a shape Z, Y, X.
    ///
    /// # Errors
    /// [`PreprocessError`] if a step is invalid or does not fit the stack.
    pub fn new(steps: &[PreprocessStep], shape_zyx: [usize; 3], voxel_um: VoxelSize) -> Result<Self, PreprocessError> {
        if steps.len() > MAX_STEPS {
            return Err(PreprocessError::TooMany { count: steps.len(), max: MAX_STEPS });
        }
        let mut grid = Grid { shape: shape_zyx, voxel_um };
        let stages = steps.iter().map(|step| Stage::new(step, &mut grid)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { stages, shape: grid.shape, voxel_um: grid.voxel_um })
    }

    /// Shape Z, Y, X of the output.
    pub fn shape_zyx(&self) -> [usize; 3] {
        self.shape
    }

    /// Voxel size of the output in µm.
    pub fn voxel_size(&self) -> VoxelSize {
        self.voxel_um
    }

    /// The reach of each step.
    pub fn reaches(&self) -> Vec<Reach> {
        self.stages.iter().map(Stage::reach).collect()
    }

    /// Input voxel Z, Y, X at the position of the first voxel of the output; `None` if a step warps the stack.
    pub fn first_voxel(&self) -> Option<[usize; 3]> {
        self.stages.iter().try_fold([0; 3], |sum: [usize; 3], stage| match &stage.operation {
            Operation::Crop(start) => Some(std::array::from_fn(|a| sum[a] + start[a])),
            Operation::Affine(_) => None,
            _ => Some(sum),
        })
    }

    /// Like [`Chain::first_voxel`], if all steps are crops; such a chain changes no value.
    pub fn crop_start(&self) -> Option<[usize; 3]> {
        let is_crop = |stage: &Stage| matches!(stage.operation, Operation::Crop(_));
        self.first_voxel().filter(|_| self.stages.iter().all(is_crop))
    }

    /// Number of times that [`Chain::statistics`] reads the stack.
    pub fn statistics_passes(&self) -> usize {
        2 * self.stages.iter().filter(|stage| stage.operation.stack_percentiles().is_some()).count()
    }

    /// Reads the stack as often as its steps need statistics of all of it, in slabs.
    ///
    /// # Errors
    /// Those of the source.
    pub fn statistics<S: Source>(&self, source: &mut S) -> Result<StackStatistics, S::Error> {
        let mut found = StackStatistics(vec![None; self.stages.len()]);
        for (index, stage) in self.stages.iter().enumerate() {
            let Some([low, high]) = stage.operation.stack_percentiles() else { continue };
            let mut quantiles = Quantiles::new();
            self.each_slab(index, source, &found, |values| quantiles.add(values))?;
            quantiles.refine(&[low, high]);
            self.each_slab(index, source, &found, |values| quantiles.add(values))?;
            let range = quantiles.percentile(low).zip(quantiles.percentile(high)).map(|(low, high)| [low, high]);
            if let Some(slot) = found.0.get_mut(index) {
                *slot = range;
            }
        }
        Ok(found)
    }

    /// Passes the values before the step `level` to `f`, slab by slab.
    fn each_slab<S: Source>(
        &self,
        level: usize,
        source: &mut S,
        statistics: &StackStatistics,
        mut f: impl FnMut(&Samples),
    ) -> Result<(), S::Error> {
        let Some([depth, ny, nx]) = self.stages.get(level).map(|stage| stage.from) else { return Ok(()) };
        let slices = (SLAB_VOXELS / (ny * nx).max(1)).max(1);
        let mut tails = Tails::default();
        for z in (0..depth).step_by(slices) {
            let bounds = [z..(z + slices).min(depth), 0..ny, 0..nx];
            f(&Samples::F32(self.level(level, &bounds, source, statistics, &mut tails)?));
        }
        Ok(())
    }

    /// Computes a box of the output, which must be inside [`Chain::shape_zyx`]; axes Z, Y, X.
    ///
    /// `tails` may be empty or from earlier calls for the same stack; they change the time that this takes, not the
    /// result.
    ///
    /// # Errors
    /// Those of the source.
    pub fn read<S: Source>(
        &self,
        bounds: &BoxZyx,
        source: &mut S,
        statistics: &StackStatistics,
        tails: &mut Tails,
    ) -> Result<Vec<f32>, S::Error> {
        self.level(self.stages.len(), bounds, source, statistics, tails)
    }

    /// Slices to keep before the step `level` for the next slab.
    pub(crate) fn kept_slices(&self, level: usize) -> usize {
        match self.stages.get(level).map(Stage::reach) {
            Some(Reach::Voxels([z, _, _])) => 2 * z,
            _ => 0,
        }
    }

    /// Computes a box of the values before the step `level`; those after the last step if there is none.
    fn level<S: Source>(
        &self,
        level: usize,
        bounds: &BoxZyx,
        source: &mut S,
        statistics: &StackStatistics,
        tails: &mut Tails,
    ) -> Result<Vec<f32>, S::Error> {
        if count(bounds) == 0 {
            return Ok(Vec::new());
        }
        let kept = self.kept_slices(level);
        if kept == 0 {
            return self.computed(level, bounds, source, statistics, tails);
        }
        if tails.0.len() <= level {
            tails.0.resize(level + 1, None);
        }
        let earlier = tails
            .0
            .get_mut(level)
            .and_then(Option::take)
            .filter(|tail| tail.bounds[1..] == bounds[1..] && tail.bounds[0].contains(&bounds[0].start));
        let mut values = Vec::with_capacity(count(bounds));
        let mut from = bounds[0].start;
        if let Some(tail) = earlier {
            let end = tail.bounds[0].end.min(bounds[0].end);
            (from..end).for_each(|z| values.extend_from_slice(tail.slice(z)));
            from = end;
        }
        let rest = [from..bounds[0].end, bounds[1].clone(), bounds[2].clone()];
        if count(&rest) > 0 {
            values.extend(self.computed(level, &rest, source, statistics, tails)?);
        }
        let first = bounds[0].end.saturating_sub(kept).max(bounds[0].start);
        let [_, ny, nx] = lengths(bounds);
        let tail = values.get((first - bounds[0].start) * ny * nx..).unwrap_or_default().to_vec();
        let tail = Block { bounds: [first..bounds[0].end, bounds[1].clone(), bounds[2].clone()], values: tail };
        if let Some(slot) = tails.0.get_mut(level) {
            *slot = Some(tail);
        }
        Ok(values)
    }

    fn computed<S: Source>(
        &self,
        level: usize,
        bounds: &BoxZyx,
        source: &mut S,
        statistics: &StackStatistics,
        tails: &mut Tails,
    ) -> Result<Vec<f32>, S::Error> {
        let Some((index, stage)) = level.checked_sub(1).and_then(|index| Some((index, self.stages.get(index)?))) else {
            return source.read(bounds);
        };
        let sources = stage.sources(bounds);
        if matches!(stage.operation, Operation::Affine(_))
            && count(&sources) > MAX_WARPED_VOXELS
            && let Some(parts) = halves(bounds)
        {
            let mut values = Vec::with_capacity(count(bounds));
            for part in parts {
                values.extend(self.computed(level, &part, source, statistics, tails)?);
            }
            return Ok(values);
        }
        let values = self.level(index, &sources, source, statistics, tails)?;
        let range = statistics.0.get(index).copied().flatten();
        Ok(stage.apply(Block { bounds: sources, values }, bounds, range))
    }
}
