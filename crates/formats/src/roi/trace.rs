//! Outlines of labels along the edges of pixels, and their encoding as `.roi`.

use std::collections::BTreeMap;

/// Position of a region in a stack, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// Slice; 0 if the stack has only one.
    pub z: u32,
    /// Time point; 0 if the stack has only one.
    pub t: u32,
    /// Whether the stack has more than one along several of the axes channel, slice and time: a hyperstack of ImageJ.
    pub is_hyperstack: bool,
}

/// Corners of a closed outline, x and y. The area is on the right-hand side, so outlines of holes run the other way.
pub(crate) type Outline = Vec<[u32; 2]>;

/// The outlines of each label of a plane, in the order of the labels. Pixels that touch at a corner only belong to
/// different outlines.
pub(crate) fn trace(plane: &[u32], width: usize) -> BTreeMap<u32, Vec<Outline>> {
    let mut found: BTreeMap<u32, Vec<Outline>> = BTreeMap::new();
    let grid = Grid { plane, width };
    // Every outline has an edge that runs to the right: the upper edge of a pixel.
    let mut seen = vec![false; plane.len()];
    for (at, label) in plane.iter().enumerate() {
        let (x, y) = ((at % width.max(1)) as i64, (at / width.max(1)) as i64);
        if *label == 0 || seen.get(at) != Some(&false) || grid.is(*label, x, y - 1) {
            continue;
        }
        let outline = grid.follow(*label, x, y, &mut seen);
        found.entry(*label).or_default().push(outline);
    }
    found
}

/// Steps to the right, down, left and up.
const STEPS: [(i64, i64); 4] = [(1, 0), (0, 1), (-1, 0), (0, -1)];

struct Grid<'a> {
    plane: &'a [u32],
    width: usize,
}

impl Grid<'_> {
    /// Index of a pixel; `None` outside of the plane.
    fn index(&self, x: i64, y: i64) -> Option<usize> {
        let (x, y) = (usize::try_from(x).ok()?, usize::try_from(y).ok()?);
        (x < self.width).then(|| y.checked_mul(self.width)?.checked_add(x)).flatten().filter(|i| *i < self.plane.len())
    }

    fn is(&self, label: u32, x: i64, y: i64) -> bool {
        self.index(x, y).and_then(|i| self.plane.get(i)) == Some(&label)
    }

    /// Whether the edge from a corner in a direction has the label on its right-hand side only.
    fn is_edge(&self, label: u32, x: i64, y: i64, direction: usize) -> bool {
        let (right, left) = match direction {
            0 => ((x, y), (x, y - 1)),
            1 => ((x - 1, y), (x, y)),
            2 => ((x - 1, y - 1), (x - 1, y)),
            _ => ((x, y - 1), (x - 1, y - 1)),
        };
        self.is(label, right.0, right.1) && !self.is(label, left.0, left.1)
    }

    /// The outline that begins with the upper edge of a pixel.
    fn follow(&self, label: u32, x0: i64, y0: i64, seen: &mut [bool]) -> Outline {
        let mut outline = vec![[x0 as u32, y0 as u32]];
        let (mut x, mut y, mut direction) = (x0, y0, 0);
        loop {
            if direction == 0
                && let Some(slot) = self.index(x, y).and_then(|i| seen.get_mut(i))
            {
                *slot = true;
            }
            x += STEPS[direction].0;
            y += STEPS[direction].1;
            // Turning right first keeps to the same pixel where two of them touch at a corner.
            let turns = [(direction + 1) % 4, direction, (direction + 3) % 4];
            let next = turns.into_iter().find(|d| self.is_edge(label, x, y, *d)).unwrap_or(0);
            if (x, y, next) == (x0, y0, 0) {
                return outline;
            }
            if next != direction {
                outline.push([x as u32, y as u32]);
            }
            direction = next;
        }
    }
}

/// Version of the format.
const VERSION: u16 = 227;
/// Length of each of the two headers in bytes.
const HEADER: usize = 64;

/// The bytes of a `.roi` file: a traced outline, or a composite region for several outlines.
pub(crate) fn encode(outlines: &[Outline], name: &str, position: Position) -> Vec<u8> {
    let corner = |i: usize, pick: fn(u32, u32) -> u32| {
        outlines.iter().flatten().filter_map(|p| p.get(i)).copied().reduce(pick).unwrap_or(0)
    };
    let (left, top, right, bottom) =
        (corner(0, u32::min), corner(1, u32::min), corner(0, u32::max), corner(1, u32::max));
    let points = match outlines {
        // 16-bit coordinates above 60 535 would be read as negative ones.
        [one] if one.len() <= 65_535 && right.max(bottom) < 60_000 => Some(one),
        _ => None,
    };
    let coordinates: Vec<u8> = match points {
        Some(outline) => {
            let axis = |i: usize, from: u32| {
                outline.iter().filter_map(move |p| p.get(i)).flat_map(move |v| ((v - from) as u16).to_be_bytes())
            };
            axis(0, left).chain(axis(1, top)).collect()
        }
        None => outlines.iter().flat_map(|o| segments(o)).flat_map(f32::to_be_bytes).collect(),
    };
    let header2_at = HEADER + coordinates.len();
    let mut head = vec![0u8; HEADER];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(slot) = head.get_mut(at..at + bytes.len()) {
            slot.copy_from_slice(bytes);
        }
    };
    put(0, super::MAGIC);
    put(4, &VERSION.to_be_bytes());
    for (at, value) in [(8, top), (10, left), (12, bottom), (14, right)] {
        put(at, &(value as u16).to_be_bytes());
    }
    match points {
        Some(outline) => {
            put(6, &[8]);
            put(16, &(outline.len() as u16).to_be_bytes());
        }
        None => {
            put(6, &[1]);
            put(36, &((coordinates.len() / 4) as u32).to_be_bytes());
        }
    }
    // ImageJ finds the region of a hyperstack by channel (0: all of them), slice and time point, and that of another stack by
    // the number of the plane only. A region that states both belongs to all planes of the other stack.
    let (plane, czt) = match position.is_hyperstack {
        true => (0, [0, position.z, position.t]),
        false => (position.z.max(position.t), [0; 3]),
    };
    put(56, &plane.to_be_bytes());
    put(60, &(header2_at as u32).to_be_bytes());
    let mut header2 = vec![0u8; HEADER];
    let text: Vec<u8> = name.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let fields = [czt[0], czt[1], czt[2], (header2_at + HEADER) as u32, (text.len() / 2) as u32];
    let numbers = fields.iter().flat_map(|n| n.to_be_bytes());
    header2.iter_mut().skip(4).zip(numbers).for_each(|(slot, byte)| *slot = byte);
    [head, coordinates, header2, text].concat()
}

/// The segments of an outline: a move, lines, and a close.
fn segments(outline: &[[u32; 2]]) -> Vec<f32> {
    let mut values = Vec::with_capacity(outline.len() * 3 + 1);
    for (i, [x, y]) in outline.iter().enumerate() {
        values.extend([if i == 0 { 0.0 } else { 1.0 }, *x as f32, *y as f32]);
    }
    values.push(4.0);
    values
}
