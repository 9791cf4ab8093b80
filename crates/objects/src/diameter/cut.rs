//! The diameter of an object that the sides of a stack cut: that of the sphere which shows as many voxels in the stack, and
//! whose visible ends are those of the object.

use super::{FLAT_SLICES, of_circle, of_sphere};

/// Points along each axis of a sphere at which its visible share is sampled.
const SAMPLES: usize = 16;
/// Factor from one diameter that is tried to the next.
const STEP: f64 = 1.02;
/// Maximum ratio of the diameter to that of the visible part.
const MAX_RATIO: f64 = 3.0;
/// Share of a sphere or circle that must be visible; of less, its diameter is not known.
const MIN_VISIBLE: f64 = 0.35;
/// Minimum number of whole objects; with fewer, cut objects count, too. The whole objects of a small stack are few, and smaller
/// than most.
const MIN_WHOLE_OBJECTS: usize = 8;
/// Minimum number of objects that are cut along few axes; with fewer, those that are cut along more axes count, too. An object
/// that is cut along one axis is completed with certainty: along two, spheres of different sizes may show the same ends and as
/// many voxels, and the smallest one counts.
const MIN_CLEAR_OBJECTS: usize = 4;

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
    End(f64),
    /// Its end behind the stack is not visible: the other one is here.
    Start(f64),
    /// Both ends are visible, or none: its center is here.
    Center(f64),
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

    /// Returns the number of axes along which sides of the stack cut an object.
    fn cut_axes(&self, object: &Visible) -> usize {
        self.axes().filter(|a| object.low[*a] == 0 || object.high[*a] + 1 >= self.shape[*a]).count()
    }

    /// Returns the diameter of the visible part of an object.
    fn visible_diameter(&self, object: &Visible) -> f64 {
        let unit: f64 = self.axes().map(|a| self.voxel[a]).product();
        if self.is_flat { of_circle(object.voxels * unit) } else { of_sphere(object.voxels * unit) }
    }

    /// Returns the diameters of objects. If enough of them are whole, cut ones are left out, otherwise those of which only a
    /// small part is visible; if that leaves none, the diameters of all visible parts are returned.
    pub fn diameters(&self, objects: &[Visible]) -> Vec<f64> {
        let mut by_cuts: [Vec<&Visible>; 4] = Default::default();
        objects.iter().for_each(|object| by_cuts[self.cut_axes(object)].push(object));
        let [whole, cut @ ..] = &by_cuts;
        let mut diameters: Vec<f64> = whole.iter().map(|object| self.visible_diameter(object)).collect();
        if whole.len() >= MIN_WHOLE_OBJECTS {
            return diameters;
        }
        for objects in cut {
            diameters.extend(objects.iter().filter_map(|object| self.completed(object)));
            if diameters.len() >= MIN_CLEAR_OBJECTS {
                break;
            }
        }
        if diameters.is_empty() {
            return objects.iter().map(|object| self.visible_diameter(object)).collect();
        }
        diameters
    }

    /// Returns the diameter of a cut object; `None` if too little of it is visible.
    fn completed(&self, object: &Visible) -> Option<f64> {
        let size = |a: usize, voxels: usize| voxels as f64 * self.voxel[a];
        let places: [Place; 3] = std::array::from_fn(|a| {
            let (start, end) = (size(a, object.low[a]), size(a, object.high[a] + 1));
            match (object.low[a] == 0, object.high[a] + 1 >= self.shape[a]) {
                (true, false) => Place::End(end),
                (false, true) => Place::Start(start),
                _ => Place::Center(0.5 * (start + end)),
            }
        });
        let share = |diameter: f64| self.visible_share(0.5 * diameter, &places);
        let dimensions = if self.is_flat { 2 } else { 3 };
        let visible = self.visible_diameter(object);
        // The visible size, relative to that of the object. With the ends fixed, spheres of several diameters may have the same.
        let relative = |diameter: f64| (diameter / visible).powi(dimensions) * share(diameter);
        let mut nearest = (relative(visible), visible);
        let mut diameter = visible;
        while nearest.0 < 1.0 && diameter < MAX_RATIO * visible {
            diameter *= STEP;
            let size = relative(diameter);
            if size > nearest.0 {
                nearest = (size, diameter);
            }
        }
        (share(nearest.1) > MIN_VISIBLE).then_some(nearest.1)
    }

    /// Returns the share of a sphere or, in a flat stack, a circle that lies in the stack.
    fn visible_share(&self, radius: f64, places: &[Place; 3]) -> f64 {
        let width = 2.0 * radius / SAMPLES as f64;
        // The squared distances of samples from the center along each axis, and the share of each that lies in the stack.
        let along: [Vec<(f64, f64)>; 3] = std::array::from_fn(|a| {
            if !self.axes().contains(&a) {
                return vec![(0.0, 1.0)];
            }
            let center = match places[a] {
                Place::End(end) => end - radius,
                Place::Start(start) => start + radius,
                Place::Center(center) => center,
            };
            let extent = self.shape[a] as f64 * self.voxel[a];
            let sample = |sample: usize| {
                let start = center - radius + sample as f64 * width;
                let inside = ((start + width).min(extent) - start.max(0.0)).max(0.0) / width;
                ((start + 0.5 * width - center).powi(2), inside)
            };
            (0..SAMPLES).map(sample).collect()
        });
        let [z, y, x] = &along;
        let (mut all, mut inside) = (0.0, 0.0);
        for (dz, in_z) in z {
            for (dy, in_y) in y {
                for (_, in_x) in x.iter().filter(|(dx, _)| dz + dy + dx < radius * radius) {
                    all += 1.0;
                    inside += in_z * in_y * in_x;
                }
            }
        }
        inside / f64::max(all, 1.0)
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
        for center in [[12.0, 15.0, 15.0], [2.0, 15.0, 15.0], [12.0, 0.0, 15.0], [12.0, 15.0, 28.0], [23.0, 15.0, 15.0]]
        {
            let found = frame.diameters(&[sphere(center, 12.0, shape, voxel)]);
            assert!(matches!(found[..], [d] if (d / 12.0 - 1.0).abs() < 0.06), "{center:?}: {found:?}");
        }
        for center in [[22.0, 2.0, 15.0], [3.0, 28.0, 27.0]] {
            let object = sphere(center, 12.0, shape, voxel);
            let (found, visible) = (frame.diameters(&[object])[0], frame.visible_diameter(&object));
            assert!(found < 12.5 && found > 1.03 * visible, "{center:?}: {found}, visible {visible}");
            let four = [[2.0, 15.0, 15.0], [12.0, 1.0, 15.0], [12.0, 15.0, 29.0], [12.0, 15.0, 15.0]];
            let clear: Vec<Visible> = four.iter().map(|center| sphere(*center, 12.0, shape, voxel)).collect();
            assert_eq!(frame.diameters(&[&clear[..], &[object]].concat()).len(), 4, "others are clearer");
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
        for center in [[0.5, 15.0, 15.0], [0.5, 1.0, 15.0], [0.5, 15.0, 28.0]] {
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
