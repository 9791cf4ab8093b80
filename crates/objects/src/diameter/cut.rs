//! The diameter of an object that the sides of a stack cut: that of the sphere which shows as many voxels in the stack, and
//! whose visible ends are those of the object.

use super::{FLAT_SLICES, of_circle, of_sphere};

/// Points along each axis of a sphere at which its visible share is sampled.
const SAMPLES: usize = 12;
/// Steps of the bisection: the diameter is then known to 1e-4.
const STEPS: usize = 15;
/// Maximum ratio of the diameter to that of the visible part.
const MAX_RATIO: f64 = 3.0;
/// Share of a sphere or circle that must be visible; of less, its diameter is not known.
const MIN_VISIBLE: f64 = 0.35;
/// Minimum number of whole objects; with fewer, cut objects count, too. The whole objects of a small stack are few, and smaller
/// than most.
const MIN_WHOLE_OBJECTS: usize = 8;

/// The visible part of an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Visible {
    /// Number of its voxels; in a flat stack ([`FLAT_SLICES`]), of those in its largest section.
    pub voxels: f64,
    /// First voxel of its bounding box along Z, Y, X.
    pub low: [usize; 3],
    /// Last voxel of its bounding box along Z, Y, X.
    pub high: [usize; 3],
}

/// Where a sphere of some radius lies along an axis, in voxels.
#[derive(Clone, Copy)]
enum Place {
    /// Its end before the stack is not visible: the other one is here.
    EndsAt(f64),
    /// Its end behind the stack is not visible: the other one is here.
    StartsAt(f64),
    /// Both ends are visible, or none: its center is here.
    CenteredAt(f64),
}

/// A stack, in which the diameters of cut objects are completed.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    shape: [usize; 3],
    voxel: [f64; 3],
    is_flat: bool,
}

impl Frame {
    /// A stack of `shape` (Z, Y, X). `voxel` is the voxel size along Z, Y, X, and diameters are in its unit. `is_flat` is whether
    /// objects are measured in sections, as in stacks of up to [`FLAT_SLICES`] slices.
    pub fn new(shape: [usize; 3], voxel: [f64; 3], is_flat: bool) -> Self {
        Self { shape, voxel, is_flat: is_flat || shape[0] <= FLAT_SLICES }
    }

    /// The axes along which objects are cut.
    fn axes(&self) -> std::ops::Range<usize> {
        usize::from(self.is_flat)..3
    }

    /// Returns whether a side of the stack cuts an object.
    fn cuts(&self, object: &Visible) -> bool {
        self.axes().any(|a| object.low[a] == 0 || object.high[a] + 1 >= self.shape[a])
    }

    /// Returns the diameter of the visible part of an object.
    fn visible_diameter(&self, object: &Visible) -> f64 {
        let unit: f64 = self.axes().map(|a| self.voxel[a]).product();
        if self.is_flat { of_circle(object.voxels * unit) } else { of_sphere(object.voxels * unit) }
    }

    /// Returns the diameters of objects. If enough of them are whole, cut ones are left out, otherwise those of which only a
    /// small part is visible; if that leaves none, the diameters of all visible parts are returned.
    pub fn diameters(&self, objects: &[Visible]) -> Vec<f64> {
        let (cut, whole): (Vec<&Visible>, Vec<&Visible>) = objects.iter().partition(|object| self.cuts(object));
        let mut diameters: Vec<f64> = whole.iter().map(|object| self.visible_diameter(object)).collect();
        if whole.len() >= MIN_WHOLE_OBJECTS {
            return diameters;
        }
        diameters.extend(cut.iter().filter_map(|object| self.completed(object)));
        if diameters.is_empty() {
            return cut.iter().map(|object| self.visible_diameter(object)).collect();
        }
        diameters
    }

    /// Returns the diameter of a cut object; `None` if too little of it is visible.
    fn completed(&self, object: &Visible) -> Option<f64> {
        let size = |a: usize, voxels: usize| voxels as f64 * self.voxel[a];
        let places: [Place; 3] = std::array::from_fn(|a| {
            let (start, end) = (size(a, object.low[a]), size(a, object.high[a] + 1));
            match (object.low[a] == 0, object.high[a] + 1 >= self.shape[a]) {
                (true, false) => Place::EndsAt(end),
                (false, true) => Place::StartsAt(start),
                _ => Place::CenteredAt(0.5 * (start + end)),
            }
        });
        let share = |diameter: f64| self.visible_share(0.5 * diameter, &places);
        let dimensions = if self.is_flat { 2 } else { 3 };
        let visible = self.visible_diameter(object);
        let (mut low, mut high) = (visible, MAX_RATIO * visible);
        for _ in 0..STEPS {
            let middle = 0.5 * (low + high);
            if middle.powi(dimensions) * share(middle) < visible.powi(dimensions) {
                low = middle
            } else {
                high = middle
            }
        }
        let diameter = 0.5 * (low + high);
        (share(diameter) > MIN_VISIBLE).then_some(diameter)
    }

    /// Returns the share of a sphere or, in a flat stack, a circle that lies in the stack.
    fn visible_share(&self, radius: f64, places: &[Place; 3]) -> f64 {
        let offset = |sample: usize| (2.0 * (sample as f64 + 0.5) / SAMPLES as f64 - 1.0) * radius;
        // The squared distances of samples from the center along each axis, and whether they lie in the stack.
        let along: [Vec<(f64, bool)>; 3] = std::array::from_fn(|a| {
            if !self.axes().contains(&a) {
                return vec![(0.0, true)];
            }
            let center = match places[a] {
                Place::EndsAt(end) => end - radius,
                Place::StartsAt(start) => start + radius,
                Place::CenteredAt(center) => center,
            };
            let extent = self.shape[a] as f64 * self.voxel[a];
            let at = |sample| (offset(sample) * offset(sample), (0.0..=extent).contains(&(center + offset(sample))));
            (0..SAMPLES).map(at).collect()
        });
        let [z, y, x] = &along;
        let (mut all, mut inside) = (0usize, 0usize);
        for (dz, in_z) in z {
            for (dy, in_y) in y {
                for (_, in_x) in x.iter().filter(|(dx, _)| dz + dy + dx < radius * radius) {
                    all += 1;
                    inside += usize::from(*in_z && *in_y && *in_x);
                }
            }
        }
        inside as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The visible part of a sphere in a stack.
    fn sphere(center: [f64; 3], diameter: f64, shape: [usize; 3], voxel: [f64; 3]) -> Visible {
        let mut visible = Visible { voxels: 0.0, low: shape, high: [0; 3] };
        for z in 0..shape[0] {
            for y in 0..shape[1] {
                for x in 0..shape[2] {
                    let at = [z, y, x];
                    let squares = (0..3).map(|a| ((at[a] as f64 + 0.5) * voxel[a] - center[a]).powi(2));
                    if squares.sum::<f64>() < 0.25 * diameter * diameter {
                        visible.voxels += 1.0;
                        for a in 0..3 {
                            visible.low[a] = visible.low[a].min(at[a]);
                            visible.high[a] = visible.high[a].max(at[a]);
                        }
                    }
                }
            }
        }
        visible
    }

    #[test]
    fn spheres_that_are_cut_have_their_own_diameter() {
        let (shape, voxel) = ([24, 60, 60], [1.0, 0.5, 0.5]);
        let frame = Frame::new(shape, voxel, false);
        for center in [
            [12.0, 15.0, 15.0],
            [2.0, 15.0, 15.0],
            [12.0, 0.0, 15.0],
            [12.0, 15.0, 28.0],
            [22.0, 2.0, 15.0],
            [3.0, 28.0, 27.0],
        ] {
            let found = frame.diameters(&[sphere(center, 12.0, shape, voxel)]);
            assert!(matches!(found[..], [d] if (d / 12.0 - 1.0).abs() < 0.08), "{center:?}: {found:?}");
        }
        // A cap of a seventh of the volume: the visible part alone is measured, because there is nothing else.
        let cap = sphere([-3.0, 15.0, 15.0], 12.0, shape, voxel);
        assert!(frame.completed(&cap).is_none());
        assert!(frame.diameters(&[cap])[0] < 7.0);
        let half = sphere([0.0, 15.0, 15.0], 12.0, shape, voxel);
        assert_eq!(frame.diameters(&[cap, half]).len(), 1, "beside others, it does not count");
    }

    #[test]
    fn sections_that_are_cut_have_their_own_diameter() {
        let (shape, voxel) = ([1, 60, 60], [1.0, 0.5, 0.5]);
        let frame = Frame::new(shape, voxel, false);
        for center in [[0.5, 15.0, 15.0], [0.5, 1.0, 15.0], [0.5, 28.0, 2.0]] {
            let found = frame.diameters(&[sphere(center, 12.0, shape, voxel)]);
            assert!(matches!(found[..], [d] if (d / 12.0 - 1.0).abs() < 0.08), "{center:?}: {found:?}");
        }
    }

    #[test]
    fn cut_objects_are_left_out_if_enough_are_whole() {
        let (shape, voxel) = ([20, 50, 50], [1.0; 3]);
        let whole = Visible { voxels: 500.0, low: [5, 20, 20], high: [14, 29, 29] };
        let cut = Visible { low: [0, 20, 20], ..whole };
        let count = |whole_count: usize| {
            let objects: Vec<Visible> = std::iter::repeat_n(whole, whole_count).chain([cut]).collect();
            Frame::new(shape, voxel, false).diameters(&objects).len()
        };
        assert_eq!((count(7), count(8)), (8, 8));
    }
}
