//! Compares every edit with a brute-force version on plain arrays, including undo, redo, bounds and counts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use super::*;
use crate::{Plane, Session, SessionOptions};
use cytoscope_volume::VoxelSize;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Zyx = [usize; 3];

/// A plain label volume.
#[derive(Clone, PartialEq)]
struct Dense {
    shape: Zyx,
    um: [f64; 3],
    labels: Vec<u32>,
}

impl std::fmt::Debug for Dense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "labels of {:?}, {:?} µm", self.shape, self.um)
    }
}

impl Dense {
    fn new(shape: Zyx, um: [f64; 3]) -> Self {
        Self { shape, um, labels: vec![0; shape.iter().product()] }
    }

    fn linear_index(&self, [z, y, x]: Zyx) -> usize {
        (z * self.shape[1] + y) * self.shape[2] + x
    }

    fn coords(&self, i: usize) -> Zyx {
        [i / (self.shape[1] * self.shape[2]), i / self.shape[2] % self.shape[1], i % self.shape[2]]
    }

    fn fill(mut self, start: Zyx, end: Zyx, label: u32) -> Self {
        for i in 0..self.labels.len() {
            let at = self.coords(i);
            if (0..3).all(|a| (start[a]..end[a]).contains(&at[a])) {
                self.labels[i] = label;
            }
        }
        self
    }

    fn ball(mut self, center: [f64; 3], radius_um: f64, label: u32) -> Self {
        for i in 0..self.labels.len() {
            if self.distance_um(self.coords(i).map(|c| c as f64), center) <= radius_um {
                self.labels[i] = label;
            }
        }
        self
    }

    fn distance_um(&self, a: [f64; 3], b: [f64; 3]) -> f64 {
        (0..3).map(|i| ((a[i] - b[i]) * self.um[i]).powi(2)).sum::<f64>().sqrt()
    }

    fn inside(&self, i: usize, scope: Scope) -> bool {
        match scope {
            Scope::Volume => true,
            Scope::Slice(plane) => self.coords(i)[plane.axis.index()] == plane.index,
        }
    }

    fn neighbors(&self, i: usize, scope: Scope) -> Vec<usize> {
        let at = self.coords(i);
        let mut found = Vec::new();
        for a in 0..3 {
            for d in [-1isize, 1] {
                let mut to = at;
                let Some(c) = at[a].checked_add_signed(d).filter(|c| *c < self.shape[a]) else { continue };
                to[a] = c;
                if self.inside(self.linear_index(to), scope) {
                    found.push(self.linear_index(to));
                }
            }
        }
        found
    }

    /// Voxels that can be reached from the given ones through voxels for which `pass` is true.
    fn reach(&self, from: Vec<usize>, scope: Scope, pass: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut seen = vec![false; self.labels.len()];
        let mut stack: Vec<usize> = from.into_iter().filter(|i| pass(*i)).collect();
        stack.iter().for_each(|i| seen[*i] = true);
        while let Some(i) = stack.pop() {
            for j in self.neighbors(i, scope) {
                if pass(j) && !std::mem::replace(&mut seen[j], true) {
                    stack.push(j);
                }
            }
        }
        seen
    }

    fn painted(&self, voxels: impl IntoIterator<Item = usize>, label: u32, over: DrawOver) -> Self {
        let mut next = self.clone();
        for i in voxels {
            if over.allows(self.labels[i]) {
                next.labels[i] = label;
            }
        }
        next
    }

    fn connected(&self, label: u32, scope: Scope) -> bool {
        let all: Vec<usize> =
            (0..self.labels.len()).filter(|i| self.labels[*i] == label && self.inside(*i, scope)).collect();
        let seen = self.reach(all[..1].to_vec(), scope, |i| self.labels[i] == label);
        all.iter().all(|i| seen[*i])
    }

    fn session(&self) -> Session {
        let [z, y, x] = self.um;
        let volume = crate::LabelVolume::from_dense(self.shape, VoxelSize::new_um(z, y, x), &self.labels).unwrap();
        Session::in_memory(volume, SessionOptions::default())
    }
}

/// Compares the labels and counts of a session with plain ones.
fn assert_labels(session: &Session, want: &Dense, what: &str) {
    assert!(session.volume().labels().to_dense() == want.labels, "{what}: the labels differ");
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    want.labels.iter().filter(|l| **l > 0).for_each(|l| *counts.entry(*l).or_default() += 1);
    let got: BTreeMap<u32, u64> =
        session.volume().labels_in_use().map(|l| (l, session.volume().voxel_count(l))).collect();
    assert_eq!(got, counts, "{what}: the counts differ");
    for label in counts.keys() {
        let places: Vec<Zyx> =
            (0..want.labels.len()).filter(|i| want.labels[*i] == *label).map(|i| want.coords(i)).collect();
        assert_eq!(session.volume().label_bounds(*label), label_bounds(&places), "{what}: the box of {label}");
    }
}

fn label_bounds(places: &[Zyx]) -> Option<crate::BoundsZyx> {
    let first = places.first()?;
    let mut bounds = crate::BoundsZyx { start: *first, end: first.map(|c| c + 1) };
    for p in places {
        bounds = bounds.union(&crate::BoundsZyx { start: *p, end: p.map(|c| c + 1) });
    }
    Some(bounds)
}

/// Applies, undoes and redoes an edit, checks the reported change, and returns the result.
fn apply_and_check(before: &Dense, edit: &Edit) -> (Dense, Change) {
    let mut session = before.session();
    let snapshot = session.volume().snapshot();
    let change = session.apply(edit).unwrap();
    let after = Dense { labels: session.volume().labels().to_dense(), ..before.clone() };
    assert_labels(&session, &after, "done");
    let changed: Vec<Zyx> =
        (0..after.labels.len()).filter(|i| after.labels[*i] != before.labels[*i]).map(|i| after.coords(i)).collect();
    assert_eq!((change.bounds, change.voxels), (label_bounds(&changed), changed.len() as u64));
    assert!(snapshot.to_dense() == before.labels, "a snapshot does not change");
    let undone = session.undo().unwrap();
    assert_eq!(undone.as_ref().and_then(|c| c.bounds), change.bounds);
    assert_labels(&session, before, "undone");
    session.redo().unwrap();
    assert_labels(&session, &after, "redone");
    assert_eq!(session.undo_names().next(), (change.voxels > 0).then_some(edit.name().as_str()));
    (after, change)
}

fn check(before: &Dense, edit: &Edit, want: &Dense) {
    let (after, _) = apply_and_check(before, edit);
    let differ = (0..want.labels.len()).find(|i| want.labels[*i] != after.labels[*i]);
    let mismatch = differ.map(|i| (want.coords(i), want.labels[i], after.labels[i]));
    assert_eq!(mismatch, None, "{edit:?}: voxel, expected label, actual label");
}

/// Boxes of a few labels in a volume of several chunks.
fn some_labels(shape: Zyx) -> impl Strategy<Value = Dense> {
    let corner = move || [0..shape[0], 0..shape[1], 0..shape[2]];
    let one = (corner(), [1..12usize, 1..30usize, 1..30usize], prop::sample::select(vec![1u32, 2, 3, 70_000]));
    (prop::collection::vec(one, 0..6), 0.3f64..3.0, 0.3f64..3.0).prop_map(move |(boxes, z, y)| {
        boxes.into_iter().fold(Dense::new(shape, [z, y, 0.7]), |d, (start, size, label)| {
            d.fill(start, [0, 1, 2].map(|a| start[a] + size[a]), label)
        })
    })
}

fn any_over() -> impl Strategy<Value = DrawOver> {
    prop::sample::select(vec![DrawOver::Any, DrawOver::Background, DrawOver::Inside(1), DrawOver::Inside(2)])
}

fn any_scope(shape: Zyx) -> impl Strategy<Value = Scope> {
    (0..4usize, 0..1000usize).prop_map(move |(axis, index)| match SliceAxis::ALL.get(axis) {
        Some(a) => Scope::Slice(Plane::new(*a, index % shape[axis])),
        None => Scope::Volume,
    })
}

/// Distance of a voxel from the line segment from `a` to `b`, in µm.
fn distance_from_line_um(d: &Dense, at: [f64; 3], a: [f64; 3], b: [f64; 3]) -> f64 {
    let um = |p: [f64; 3]| [0, 1, 2].map(|i| p[i] * d.um[i]);
    let (p, a, b) = (um(at), um(a), um(b));
    let along: f64 = (0..3).map(|i| (b[i] - a[i]) * (p[i] - a[i])).sum();
    let length2: f64 = (0..3).map(|i| (b[i] - a[i]).powi(2)).sum();
    let t = if length2 == 0.0 { 0.0 } else { (along / length2).clamp(0.0, 1.0) };
    (0..3).map(|i| (p[i] - a[i] - t * (b[i] - a[i])).powi(2)).sum::<f64>().sqrt()
}

const WIDE: Zyx = [35, 67, 70];

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn strokes_paint_all_voxels_within_the_radius_of_the_line(
        before in some_labels(WIDE),
        points in prop::collection::vec([-5.0f64..40.0, -9.0f64..75.0, -9.0f64..75.0], 1..4),
        whole in any::<bool>(), extra_radius_um in 0.0f64..6.0, shape in 0..4usize, value in prop::sample::select(vec![0u32, 2, 9, 80_000]), over in any_over(),
    ) {
        let mut points = points;
        if whole {
            points.iter_mut().flatten().for_each(|c| *c = c.round());
        }
        // At least half a voxel diagonal; thinner strokes are tested separately.
        let radius_um = before.um.iter().map(|u| u * u).sum::<f64>().sqrt() / 2.0 + 0.01 + extra_radius_um;
        let shape = SliceAxis::ALL.get(shape).map_or(BrushShape::Ball, |a| BrushShape::Disk(*a));
        let mut projected = points.clone();
        let mut only = None;
        if let BrushShape::Disk(axis) = shape {
            let index = points[0][axis.index()].round();
            projected.iter_mut().for_each(|p| p[axis.index()] = index);
            only = Some((axis.index(), index));
        }
        let mut voxels = Vec::new();
        for i in 0..before.labels.len() {
            let at = before.coords(i).map(|c| c as f64);
            if only.is_some_and(|(a, index)| at[a] != index) { continue; }
            let distance_um = projected.windows(2).map(|p| distance_from_line_um(&before, at, p[0], p[1])).fold(before.distance_um(at, projected[0]), f64::min);
            if distance_um <= radius_um * (1.0 + 1e-10) { voxels.push(i); }
        }
        let brush = Brush { shape, radius_um, value, over };
        check(&before, &Edit::Paint { brush, points: points.clone() }, &before.painted(voxels, value, over));
        // Painting the same stroke point by point gives the same undo step.
        let mut at_once = before.session();
        at_once.apply(&Edit::Paint { brush, points: points.clone() }).unwrap();
        let mut live = before.session();
        let mut voxels = live.begin_stroke(brush, points[0]).unwrap().voxels;
        for p in &points[1..] { voxels += live.extend_stroke(*p).unwrap().unwrap().voxels; }
        let change = live.end_stroke().unwrap().unwrap();
        prop_assert_eq!(voxels, change.voxels);
        prop_assert!(live.volume().fingerprint() == at_once.volume().fingerprint());
        live.undo().unwrap();
        assert_labels(&live, &before, "stroke undone");
    }

    #[test]
    fn thin_strokes_have_no_gaps(
        a in [0usize..35, 0..67, 0..70], b in [0usize..35, 0..67, 0..70], radius_um in 0.0f64..0.5, axis_choice in 0..4usize,
    ) {
        let before = Dense::new(WIDE, [2.0, 0.5, 0.5]);
        let mut b = b;
        let shape = SliceAxis::ALL.get(axis_choice).map_or(BrushShape::Ball, |axis| {
            b[axis.index()] = a[axis.index()];
            BrushShape::Disk(*axis)
        });
        let points = [a, b].map(|p| p.map(|c| c as f64)).to_vec();
        let brush = Brush { shape, radius_um, value: 1, over: DrawOver::Any };
        let (after, _) = apply_and_check(&before, &Edit::Paint { brush, points: points.clone() });
        prop_assert!(after.labels[after.linear_index(a)] == 1 && after.labels[after.linear_index(b)] == 1);
        // The painted voxels are close to the line and in one piece; voxels that share only a corner touch, too.
        let mut places: Vec<Zyx> = (0..after.labels.len()).filter(|i| after.labels[*i] == 1).map(|i| after.coords(i)).collect();
        for p in &places {
            let at = p.map(|c| c as f64);
            let near = distance_from_line_um(&Dense { um: [1.0; 3], ..before.clone() }, at, points[0], points[1]);
            prop_assert!(near <= 0.9 || distance_from_line_um(&before, at, points[0], points[1]) <= radius_um + 1e-9);
        }
        let mut reached = vec![places.swap_remove(0)];
        let mut at = 0;
        while at < reached.len() {
            let from = reached[at];
            let (near, rest): (Vec<Zyx>, Vec<Zyx>) = places.into_iter().partition(|p| (0..3).all(|i| p[i].abs_diff(from[i]) <= 1));
            reached.extend(near);
            places = rest;
            at += 1;
        }
        prop_assert!(places.is_empty(), "the stroke is in pieces");
    }

    #[test]
    fn fills_match_a_flood_fill(before in some_labels(WIDE), seed in [0usize..35, 0..67, 0..70], value in 0u32..4, axis in 0..4usize) {
        let scope = SliceAxis::ALL.get(axis).map_or(Scope::Volume, |a| Scope::Slice(Plane::new(*a, seed[a.index()])));
        let from = before.linear_index(seed);
        let old = before.labels[from];
        let seen = before.reach(vec![from], scope, |i| before.labels[i] == old);
        let region: Vec<usize> = (0..seen.len()).filter(|i| seen[*i]).collect();
        check(&before, &Edit::Fill { seed, value, scope }, &before.painted(region, value, DrawOver::Any));
    }

    #[test]
    fn holes_are_voxels_not_connected_to_the_border(
        noise in prop::collection::vec(prop::sample::select(vec![0u32, 0, 1, 1, 1, 1, 1, 2]), 5 * 7 * 8), scope in any_scope([5, 7, 8]), over in any_over(),
    ) {
        let before = Dense { shape: [5, 7, 8], um: [1.0; 3], labels: noise };
        let label = 1;
        prop_assume!((0..before.labels.len()).any(|i| before.labels[i] == label && before.inside(i, scope)));
        let thin = match scope { Scope::Slice(p) => Some(p.axis.index()), Scope::Volume => None };
        let border = (0..before.labels.len()).filter(|i| {
            let at = before.coords(*i);
            before.inside(*i, scope) && (0..3).any(|a| Some(a) != thin && (at[a] == 0 || at[a] + 1 == before.shape[a]))
        }).collect();
        let open = before.reach(border, scope, |i| before.labels[i] != label);
        let holes = (0..before.labels.len()).filter(|i| before.inside(*i, scope) && before.labels[*i] != label && !open[*i]);
        check(&before, &Edit::FillHoles { label, scope, over }, &before.painted(holes.collect::<Vec<_>>(), label, over));
    }

    #[test]
    fn labels_are_deleted_and_merged(before in some_labels(WIDE), scope in any_scope(WIDE), label in 1u32..4, into in 1u32..4) {
        let of = |labels: &[u32]| (0..before.labels.len()).filter(|i| labels.contains(&before.labels[*i]) && before.inside(*i, scope)).collect::<Vec<_>>();
        if of(&[label]).is_empty() {
            let refused = before.session().apply(&Edit::Delete { label, scope });
            let is_missing = matches!(refused, Err(CorrectionError::NoSuchLabel { .. }));
            prop_assert!(is_missing);
        } else {
            check(&before, &Edit::Delete { label, scope }, &before.painted(of(&[label]), 0, DrawOver::Any));
        }
        let merge = Edit::Merge { labels: vec![label, 70_000, label], into, scope };
        if of(&[label, into, 70_000]).is_empty() {
            let refused = before.session().apply(&merge);
            let is_missing = matches!(refused, Err(CorrectionError::NoSuchLabel { .. }));
            prop_assert!(is_missing);
        } else {
            check(&before, &merge, &before.painted(of(&[label, 70_000]), into, DrawOver::Any));
        }
    }

    #[test]
    fn growing_and_shrinking_use_euclidean_distance(
        noise in prop::collection::vec(prop::sample::select(vec![0u32, 0, 0, 1, 1, 1, 2]), 5 * 7 * 8),
        um in [0.3f64..3.0, 0.3f64..3.0, 0.3f64..3.0], by_um in 0.2f64..4.0, scope in any_scope([5, 7, 8]), over in any_over(),
    ) {
        let before = Dense { shape: [5, 7, 8], um, labels: noise };
        let places: Vec<[f64; 3]> = (0..before.labels.len()).map(|i| before.coords(i).map(|c| c as f64)).collect();
        let here: Vec<usize> = (0..before.labels.len()).filter(|i| before.inside(*i, scope)).collect();
        let (own, other): (Vec<usize>, Vec<usize>) = here.iter().partition(|i| before.labels[**i] == 1);
        prop_assume!(!own.is_empty());
        let nearest = |i: usize, to: &[usize]| to.iter().map(|j| before.distance_um(places[i], places[*j])).fold(f64::INFINITY, f64::min);
        let is_borderline = |distance_um: f64| (distance_um - by_um).abs() < 1e-4 * by_um;
        let (to_own, to_other): (Vec<f64>, Vec<f64>) =
            (other.iter().map(|i| nearest(*i, &own)).collect(), own.iter().map(|i| nearest(*i, &other)).collect());
        prop_assume!(!to_own.iter().chain(&to_other).any(|d| is_borderline(*d)));
        let near = |voxels: &[usize], distances_um: &[f64]| voxels.iter().zip(distances_um).filter(|(_, d)| **d <= by_um).map(|(i, _)| *i).collect::<Vec<_>>();
        check(&before, &Edit::Grow { label: 1, by_um, scope, over }, &before.painted(near(&other, &to_own), 1, over));
        check(&before, &Edit::Shrink { label: 1, by_um, scope }, &before.painted(near(&own, &to_other), 0, DrawOver::Any));
    }

    #[test]
    fn splitting_by_seeds_changes_only_the_split_label(
        noise in prop::collection::vec(prop::sample::select(vec![0u32, 1, 1, 1, 1, 2]), 5 * 9 * 8), picks in prop::collection::vec(0..360usize, 2..6), axis in 0..4usize,
    ) {
        let before = Dense { shape: [5, 9, 8], um: [2.0, 0.5, 0.5], labels: noise };
        let scope = SliceAxis::ALL.get(axis).map_or(Scope::Volume, |a| Scope::Slice(Plane::new(*a, 2)));
        let own: Vec<usize> = (0..360).filter(|i| before.labels[*i] == 1 && before.inside(*i, scope)).collect();
        prop_assume!(own.len() > 1);
        let mut seeds: Vec<Zyx> = Vec::new();
        for p in picks {
            let seed = before.coords(own[p % own.len()]);
            if !seeds.contains(&seed) { seeds.push(seed); }
        }
        prop_assume!(seeds.len() > 1);
        let (after, change) = apply_and_check(&before, &Edit::SplitBySeeds { label: 1, seeds: seeds.clone(), scope });
        prop_assert_eq!(&change.new_labels, &(3..2 + seeds.len() as u32).collect::<Vec<_>>());
        for (i, seed) in seeds.iter().enumerate() {
            let want = if i == 0 { 1 } else { change.new_labels[i - 1] };
            prop_assert_eq!(after.labels[after.linear_index(*seed)], want);
        }
        for i in 0..360 {
            let (old, new) = (before.labels[i], after.labels[i]);
            prop_assert!(old == new || (old == 1 && before.inside(i, scope) && change.new_labels.contains(&new)));
        }
    }

    #[test]
    fn interpolated_slices_match_interpolated_distances(
        below in prop::collection::vec(any::<bool>(), 49), above in prop::collection::vec(any::<bool>(), 49), axis in 0..3usize, gap in 2usize..6, over in any_over(),
    ) {
        let axis = SliceAxis::ALL[axis];
        let [rows, columns] = axis.rows_columns();
        let mut shape = [7; 3];
        shape[axis.index()] = gap + 3;
        let mut before = Dense::new(shape, [1.3, 0.7, 0.9]).fill([2, 2, 2], [4, 4, 4], 2);
        // Both shapes contain the voxel in the middle: `interpolate` aligns only shapes that do not overlap.
        let coords = |index: usize, i: usize| { let mut at = [0; 3]; at[axis.index()] = index; at[rows] = i / 7; at[columns] = i % 7; at };
        let set = |mask: &[bool], i: usize| i == 24 || mask[i];
        for i in 0..49 {
            for (index, mask) in [(1, &below), (1 + gap, &above)] {
                let at = before.linear_index(coords(index, i));
                if set(mask, i) { before.labels[at] = 1; } else if before.labels[at] == 1 { before.labels[at] = 0; }
            }
        }
        let um = [before.um[rows], before.um[columns]];
        let signed = |mask: &[bool], i: usize| {
            let distance_um = |j: usize| ((i / 7).abs_diff(j / 7) as f64 * um[0]).hypot((i % 7).abs_diff(j % 7) as f64 * um[1]);
            let inside = set(mask, i);
            let d = (0..49).filter(|j| set(mask, *j) != inside).map(distance_um).fold(f64::INFINITY, f64::min);
            if inside { d } else { -d }
        };
        let mut want = Vec::new();
        for index in 2..1 + gap {
            let t = (index - 1) as f64 / gap as f64;
            for i in 0..49 {
                let mixed = (1.0 - t) * signed(&below, i) + t * signed(&above, i);
                prop_assume!(mixed.abs() > 1e-5);
                if mixed > 0.0 { want.push(before.linear_index(coords(index, i))); }
            }
        }
        // Slice 2 is in the gap, because no slice between the two shapes contains label 1; label 2 there does not matter.
        let edit = Edit::Interpolate { label: 1, axis, at: Some(2), over };
        check(&before, &edit, &before.painted(want, 1, over));
    }
}

#[test]
fn two_touching_balls_are_cut_at_their_neck() {
    let um = [2.0, 0.5, 0.5];
    let before = Dense::new([20, 60, 90], um).ball([10.0, 30.0, 26.0], 10.0, 5).ball([10.0, 30.0, 60.0], 10.0, 5);
    // One seed in the middle, one near the far rim.
    let seeds = vec![[10, 30, 26], [10, 30, 76]];
    let (after, change) = apply_and_check(&before, &Edit::SplitBySeeds { label: 5, seeds, scope: Scope::Volume });
    assert_eq!(change.new_labels, [6]);
    for i in (0..after.labels.len()).filter(|i| before.labels[*i] == 5) {
        let x = after.coords(i)[2];
        if x != 43 {
            assert_eq!(after.labels[i], if x < 43 { 5 } else { 6 }, "{:?}", after.coords(i));
        }
    }
}

#[test]
fn a_part_without_a_neck_is_divided_by_the_nearest_seed() {
    let before = Dense::new([1, 41, 41], [1.0; 3]).ball([0.0, 20.0, 20.0], 18.0, 1);
    let plane = Scope::Slice(Plane::new(SliceAxis::Z, 0));
    let seeds = vec![[0, 20, 10], [0, 20, 28]];
    let (after, _) = apply_and_check(&before, &Edit::SplitBySeeds { label: 1, seeds, scope: plane });
    for i in (0..after.labels.len()).filter(|i| before.labels[*i] == 1) {
        let x = after.coords(i)[2];
        assert!(x == 19 || after.labels[i] == if x < 19 { 1 } else { 2 }, "{x}");
    }
}

#[test]
fn a_line_cuts_a_slice_or_the_whole_label() {
    let before = Dense::new([9, 40, 80], [1.0; 3]).fill([1, 5, 5], [8, 35, 75], 3).fill([0, 0, 0], [1, 2, 2], 9);
    let points = vec![[4.0, 0.0, 30.0], [4.0, 39.0, 34.0]];
    for through in [false, true] {
        let edit = Edit::SplitByLine { label: 3, axis: SliceAxis::Z, points: points.clone(), through };
        let (after, change) = apply_and_check(&before, &edit);
        assert_eq!(change.new_labels, [10]);
        for i in (0..after.labels.len()).filter(|i| before.labels[*i] == 3) {
            let [z, y, x] = after.coords(i);
            let line = 30.0 + y as f64 / 39.0 * 4.0;
            let cut = through || z == 4;
            if (x as f64 - line).abs() > 1.0 {
                // The larger part, at the right, keeps the label.
                assert_eq!(after.labels[i], if cut && (x as f64) < line { 10 } else { 3 }, "{:?}", [z, y, x]);
            }
        }
        let scope = if through { Scope::Volume } else { Scope::Slice(Plane::new(SliceAxis::Z, 4)) };
        assert!(after.connected(3, scope) && after.connected(10, scope));
    }
    // The same for slices across Y and X. A line that ends inside the label is refused.
    for axis in [SliceAxis::Y, SliceAxis::X] {
        let mut points = vec![[4.0, 20.0, 20.0]; 2];
        points[0][0] = -3.0;
        points[1][0] = 12.0;
        let edit = Edit::SplitByLine { label: 3, axis, points: points.clone(), through: true };
        let other = if axis == SliceAxis::Y { 2 } else { 1 };
        let (after, change) = apply_and_check(&before, &edit);
        for i in (0..after.labels.len()).filter(|i| before.labels[*i] == 3) {
            let at = after.coords(i)[other];
            let smaller = if axis == SliceAxis::Y { at < 20 } else { at > 20 };
            assert!(at == 20 || (after.labels[i] == change.new_labels[0]) == smaller, "{axis:?} {at}");
        }
        points[1][0] = 4.0;
        let edit = Edit::SplitByLine { label: 3, axis, points, through: true };
        let refused = before.session().apply(&edit);
        assert!(matches!(refused, Err(CorrectionError::NotPossible { label: 3, .. })), "{refused:?}");
    }
}

#[test]
fn fragments_of_an_unsteady_line_get_no_labels() {
    let before = Dense::new([1, 60, 60], [1.0; 3]).fill([0, 5, 5], [1, 55, 55], 1);
    // A small loop in the line cuts off a few voxels.
    let points = [[0.0, 30.0], [20.0, 30.0], [20.0, 33.0], [24.0, 33.0], [24.0, 30.0], [20.0, 30.0], [59.0, 30.0]];
    let points = points.map(|[y, x]| [0.0, y, x]).to_vec();
    let (after, change) =
        apply_and_check(&before, &Edit::SplitByLine { label: 1, axis: SliceAxis::Z, points, through: false });
    assert_eq!(change.new_labels, [2]);
    assert!(after.labels.iter().zip(&before.labels).all(|(a, b)| (*a > 0) == (*b > 0)));
}

#[test]
fn oblique_objects_stay_connected() {
    let disk = |d: Dense, z: usize, x: f64| {
        let mut d = d;
        for i in 0..d.labels.len() {
            let at = d.coords(i);
            if at[0] == z && (at[1] as f64 - 20.0).hypot(at[2] as f64 - x) <= 6.0 {
                d.labels[i] = 4;
            }
        }
        d
    };
    let before = disk(disk(Dense::new([12, 40, 60], [1.0; 3]), 1, 10.0), 9, 42.0);
    let edit = Edit::Interpolate { label: 4, axis: SliceAxis::Z, at: None, over: DrawOver::Background };
    let (after, _) = apply_and_check(&before, &edit);
    for z in 1..10 {
        let want = disk(Dense::new([12, 40, 60], [1.0; 3]), z, 10.0 + 4.0 * (z - 1) as f64);
        let range = z * 2400..(z + 1) * 2400;
        assert!(after.labels[range.clone()] == want.labels[range], "slice {z}");
    }
    let refused =
        before.session().apply(&Edit::Interpolate { label: 4, axis: SliceAxis::Z, at: Some(10), over: DrawOver::Any });
    assert!(matches!(refused, Err(CorrectionError::NotPossible { .. })), "{refused:?}");
}

#[test]
fn impossible_edits_are_refused_and_change_nothing() {
    let before = Dense::new([4, 5, 6], [1.0; 3]).fill([1, 1, 1], [3, 3, 3], 7);
    let brush = |radius_um: f64| Brush { shape: BrushShape::Ball, radius_um, value: 1, over: DrawOver::Any };
    let slice = Scope::Slice(Plane::new(SliceAxis::Y, 5));
    let edits = [
        Edit::Paint { brush: brush(f64::NAN), points: vec![[0.0; 3]] },
        Edit::Paint { brush: brush(-1.0), points: vec![[0.0; 3]] },
        Edit::Paint { brush: brush(1.0), points: vec![[0.0; 3], [0.0, f64::INFINITY, 0.0]] },
        Edit::Fill { seed: [4, 0, 0], value: 1, scope: Scope::Volume },
        Edit::Fill { seed: [0, 0, 0], value: 1, scope: slice },
        Edit::Delete { label: 8, scope: Scope::Volume },
        Edit::Delete { label: 0, scope: Scope::Volume },
        Edit::Delete { label: 7, scope: Scope::Slice(Plane::new(SliceAxis::Z, 0)) },
        Edit::Merge { labels: vec![1, 2], into: 3, scope: Scope::Volume },
        Edit::Merge { labels: vec![7], into: 0, scope: Scope::Volume },
        Edit::SplitBySeeds { label: 7, seeds: vec![[1, 1, 1], [1, 1, 1]], scope: Scope::Volume },
        Edit::SplitBySeeds { label: 7, seeds: vec![[1, 1, 1], [0, 0, 0]], scope: Scope::Volume },
        Edit::SplitByLine { label: 7, axis: SliceAxis::Z, points: vec![], through: true },
        Edit::SplitByLine { label: 7, axis: SliceAxis::Z, points: vec![[9.0, 0.0, 0.0]; 2], through: true },
        Edit::Interpolate { label: 7, axis: SliceAxis::Z, at: None, over: DrawOver::Any },
        Edit::Grow { label: 7, by_um: 0.0, scope: Scope::Volume, over: DrawOver::Any },
        Edit::Shrink { label: 7, by_um: f64::NAN, scope: Scope::Volume },
        Edit::FillHoles { label: 9, scope: Scope::Volume, over: DrawOver::Any },
    ];
    for edit in edits {
        let mut session = before.session();
        let refused = session.apply(&edit).expect_err(&format!("{edit:?}"));
        assert!(refused.to_string().len() > 20, "{refused}");
        assert_labels(&session, &before, "refused");
        assert_eq!(session.undo_names().count(), 0);
    }
    let one_voxel = Edit::SplitBySeeds { label: 7, seeds: vec![[1, 1, 1], [1, 1, 1]], scope: Scope::Volume };
    let refused = before.session().apply(&one_voxel).unwrap_err().to_string();
    assert!(refused.contains("all seeds are at the same voxel"), "{refused}");
    // Points far outside the volume are not an error: nothing changes.
    let mut session = before.session();
    let outside = Edit::Paint { brush: brush(2.0), points: vec![[-1e8, 0.0, 0.0], [-9e8, 9e8, 3.0]] };
    assert_eq!(session.apply(&outside).unwrap().bounds, None);
    assert_eq!(session.undo_names().count(), 0);
}

#[test]
fn slices_along_every_axis_match_the_array() {
    let mut dense = Dense::new([34, 66, 67], [1.0; 3]);
    dense.labels.iter_mut().enumerate().for_each(|(i, l)| *l = (i as u32).wrapping_mul(2_654_435_761) >> 12);
    let session = dense.session();
    for axis in SliceAxis::ALL {
        for index in [0, 31, 32, 33] {
            let plane = Scope::Slice(Plane::new(axis, index));
            let want: Vec<u32> =
                (0..dense.labels.len()).filter(|i| dense.inside(*i, plane)).map(|i| dense.labels[i]).collect();
            assert!(session.volume().slice(axis, index).unwrap() == want, "{axis:?} {index}");
        }
        assert!(session.volume().slice(axis, 67).is_err());
    }
    assert_eq!(session.volume().get([33, 65, 66]), dense.labels.last().copied());
    assert_eq!(session.volume().get([34, 0, 0]), None);
}

#[test]
fn free_labels_are_found_above_and_in_gaps() {
    let dense = Dense { shape: [1, 1, 4], um: [1.0; 3], labels: vec![1, 3, u32::MAX, 0] };
    assert_eq!(dense.session().new_label().unwrap(), 2);
    assert_eq!(dense.session().volume().free_labels(3).unwrap(), [2, 4, 5]);
    // Only one label above the largest is unused.
    let dense = Dense { labels: vec![1, 3, u32::MAX - 1, 0], ..dense };
    assert_eq!(dense.session().volume().free_labels(1).unwrap(), [u32::MAX]);
    assert_eq!(dense.session().volume().free_labels(2).unwrap(), [2, 4]);
    let dense = Dense { labels: vec![1, 3, 0, 0], ..dense };
    assert_eq!(dense.session().new_label().unwrap(), 4);
    assert_eq!(dense.session().volume().free_labels(2).unwrap(), [4, 5]);
}
