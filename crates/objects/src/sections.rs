//! The sections of objects by slices, and the smallest surface of a body with these sections.
//!
//! Crofton's formula underestimates large faces that are parallel to the slices, whereas the areas of sections are exact. Let n be
//! the unit normal of a surface. Seen along Z, its area is the integral of |n_z|. The perimeters of its sections, integrated along
//! Z, are the integral of √(1 − n_z²). By Minkowski's inequality, the surface is at least the root of the sum of the squares of
//! these two integrals; that of a plate is their sum.

use crate::crofton::{ALONG_Z, DIRECTIONS, IN_SLICE};
use crate::diameter::circle_diameter;

/// Area of the smaller end section, divided by that of the largest section: up to the first value, the object may be round, and
/// from the second one on, it is a plate. For a ball in three slices or more, the ratio is at most 3/4.
const END_SHARES: [f64; 2] = [0.8, 0.9];
/// Diameter divided by thickness of an object in two slices, with the same meaning as in [`END_SHARES`]. The sections of a ball may
/// be equal; then the ratio is at most √2.
const WIDTHS: [f64; 2] = [1.5, 2.0];

/// Crossings of an outline along the directions in a slice.
type Outline = [u64; IN_SLICE];

/// The sections of all objects, accumulated slice by slice.
#[derive(Debug, Clone)]
pub(crate) struct Sections {
    /// The objects by slot; the background comes first.
    objects: Vec<Object>,
    /// Number of slices that were begun.
    slices: usize,
    /// Slots of the objects in the slice that was begun last.
    present: Vec<u32>,
    /// Those in the slice before.
    before: Vec<u32>,
}

/// The last section of an object, and sums over its sections.
#[derive(Debug, Clone, Default)]
struct Object {
    /// Number of slices that were begun with its last section.
    slice: usize,
    /// Whether the object is not in the slice before its last section.
    is_start: bool,
    /// Voxels of the last section.
    voxels: u64,
    /// Outline of the last section.
    outline: Outline,
    /// Sum of all outlines.
    outlines: Outline,
    /// Number of sections.
    sections: u64,
    /// Voxels of the largest section.
    largest: u64,
    /// Voxels of the end sections, which have no section of the object above or none below. A section with neither counts twice.
    end_voxels: u64,
    /// Sum of the outlines of the end sections.
    end_outlines: Outline,
    /// Voxels of the smallest end section.
    smallest_end: Option<u64>,
}

impl Sections {
    /// No objects but the background.
    pub fn new() -> Self {
        Self { objects: vec![Object::default()], slices: 0, present: Vec::new(), before: Vec::new() }
    }

    /// Adds an object, whose slot is the next one.
    pub fn add_object(&mut self) {
        self.objects.push(Object::default());
    }

    /// Begins the next slice.
    pub fn begin_slice(&mut self) {
        self.slices += 1;
        std::mem::swap(&mut self.present, &mut self.before);
        self.present.clear();
    }

    /// Adds voxels of the object of a slot to its section in the slice that was begun.
    pub fn add_voxels(&mut self, slot: u32, count: usize) {
        let object = &mut self.objects[slot as usize];
        if object.slice != self.slices {
            object.is_start = object.sections == 0 || object.slice + 1 != self.slices;
            object.slice = self.slices;
            object.sections += 1;
            object.voxels = 0;
            self.present.push(slot);
        }
        object.voxels += count as u64;
    }

    /// Ends the slice that was begun; `crossings` are those by slot in all slices so far.
    pub fn end_slice(&mut self, crossings: &[[u64; DIRECTIONS.len()]]) {
        for slot in &self.present {
            let object = &mut self.objects[*slot as usize];
            for (k, count) in crossings[*slot as usize].iter().take(IN_SLICE).enumerate() {
                object.outline[k] = count - object.outlines[k];
                object.outlines[k] = *count;
            }
            object.largest = object.largest.max(object.voxels);
            if object.is_start {
                object.add_end();
            }
        }
        for slot in &self.before {
            let object = &mut self.objects[*slot as usize];
            if object.slice != self.slices {
                object.add_end();
            }
        }
    }

    /// Returns the smallest surface in µm² of a body with the sections of the object of a slot, from its crossings, the size of a
    /// voxel (Z, Y, X) and the weights of [`crate::crofton::perimeter_weights`]. It is that of a plate if the object is one, as
    /// each object in a single slice.
    pub fn surface(
        &self,
        slot: u32,
        crossings: &[u64; DIRECTIONS.len()],
        voxel_um: [f64; 3],
        perimeter_weights: &[f64; DIRECTIONS.len()],
    ) -> f64 {
        let object = &self.objects[slot as usize];
        let [height, dy, dx] = voxel_um;
        let perimeter = |outline: &Outline| -> f64 {
            outline.iter().zip(perimeter_weights).map(|(n, weight)| *n as f64 * weight).sum()
        };
        let ends = object.end_voxels as f64 * dy * dx;
        let between_ends = crossings[ALONG_Z] as f64 * dy * dx - ends;
        // The body reaches half a slice beyond the centers of its end sections.
        let end_walls = perimeter(&object.end_outlines) * height / 2.0;
        let walls = perimeter(&object.outlines) * height - end_walls;
        ends + between_ends.hypot(walls) + object.plate_share(voxel_um) * end_walls
    }
}

impl Object {
    /// Counts the last section as an end section.
    fn add_end(&mut self) {
        self.end_voxels += self.voxels;
        self.end_outlines.iter_mut().zip(self.outline).for_each(|(sum, count)| *sum += count);
        self.smallest_end = Some(self.smallest_end.map_or(self.voxels, |smallest| smallest.min(self.voxels)));
    }

    /// Returns 1 for a plate, whose walls reach to its end faces, 0 for an object that may be round, and a value in between.
    fn plate_share(&self, [height, dy, dx]: [f64; 3]) -> f64 {
        let above = |value: f64, [low, high]: [f64; 2]| ((value - low) / (high - low)).clamp(0.0, 1.0);
        let largest = self.largest as f64;
        let equal_ends = above(self.smallest_end.unwrap_or(0) as f64 / largest.max(1.0), END_SHARES);
        match self.sections {
            1 => 1.0,
            2 => equal_ends * above(circle_diameter(largest * dy * dx) / (2.0 * height), WIDTHS),
            _ => equal_ends,
        }
    }
}
