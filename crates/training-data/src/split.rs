//! Split into training, validation and test set.

mod group;

pub use group::Group;

use crate::cut::{CutAxis, MIN_EXTENT, StackCut, last_quarter};
use crate::dataset::{Pair, Part, StackWindow};
use crate::error::{TrainingDataError, check_range};
use crate::stack::{Role, Stack, open_image};
use group::grouped;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// How pairs are divided into training, validation and test set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SplitOptions {
    /// Fraction of the pairs in the validation set, 0 to 0.9; at least one pair if there are two or more.
    pub fraction: f64,
    /// Seed of the random choice.
    pub seed: u64,
    /// Which pairs stay together in one set.
    pub group: Group,
    /// Whether a split defined by the data is used.
    pub given: bool,
    /// Names of further pairs that stay together: those with identical images, as returned by
    /// [`crate::Report::copies`].
    pub together: Vec<Vec<String>>,
    /// Number of objects of pairs by name, as returned by [`crate::Report::objects`]. The validation set is drawn from
    /// the half of the groups with more objects per pair if that is large enough: a score on few objects says little about a
    /// network.
    pub objects: BTreeMap<String, usize>,
    /// Places at which stacks of labels can be cut, by the name of the pair, as returned by [`crate::Report::cuts`].
    pub cuts: BTreeMap<String, StackCut>,
    /// Names of pairs that are drawn for the validation set only if there are no others: those that the start model, or the
    /// run so far, was trained on.
    pub avoid: BTreeSet<String>,
    /// Validation set of an earlier split, as returned by [`Split::validation_names`]; it takes precedence. Pairs of the same
    /// groups are in the validation set, too, unless they are to be avoided, or none would be left for training. Names that do
    /// not exist are ignored. If none exists, or the names leave no training pair, a new split is made.
    pub keep: Vec<String>,
}

impl Default for SplitOptions {
    fn default() -> Self {
        Self {
            fraction: 0.2,
            seed: 0,
            group: Group::default(),
            given: true,
            together: Vec::new(),
            objects: BTreeMap::new(),
            cuts: BTreeMap::new(),
            avoid: BTreeSet::new(),
            keep: Vec::new(),
        }
    }
}

/// Training, validation and test set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// Pairs that weights are fitted to.
    pub train: Vec<Pair>,
    /// Validation set; a part of the image if there is only one.
    pub validation: Vec<Pair>,
    /// Pairs that no decision of a training run uses.
    pub test: Vec<Pair>,
    /// Description of how the split was made, as a sentence.
    pub how: String,
}

/// How the suffix of a name in [`Split::validation_names`] begins if only the end of the image is in the validation set.
const END_SUFFIX: &str = " (its end";

/// Where the part of a stack that is in the validation set begins; it extends to the end of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndPlace {
    /// At the first voxel of the last quarter along the longer one of Y and X.
    LastQuarter,
    /// At this voxel along an axis.
    At(CutAxis, usize),
}

impl EndPlace {
    /// Returns the place at which a stack was cut into these two parts.
    fn between(start: &StackWindow, end: &StackWindow) -> Self {
        let is_divided = |axis: &CutAxis| start.start_zyx[axis.index()] != end.start_zyx[axis.index()];
        let Some(axis) = [CutAxis::Y, CutAxis::X].into_iter().find(is_divided) else { return Self::LastQuarter };
        let (mut whole, first) = (start.size_zyx, start.size_zyx[axis.index()]);
        whole[axis.index()] += end.size_zyx[axis.index()];
        if (axis, first) == last_quarter(whole) { Self::LastQuarter } else { Self::At(axis, first) }
    }

    /// Returns the suffix of the name of a pair.
    fn suffix(self) -> String {
        match self {
            Self::LastQuarter => format!("{END_SUFFIX})"),
            Self::At(axis, first) => format!("{END_SUFFIX}, from {} {first})", axis.name()),
        }
    }

    /// Returns the name of the pair and the place of a name with a suffix; `None` for other names.
    fn from_name(name: &str) -> Option<(&str, Self)> {
        let (pair, suffix) = name.split_at(name.rfind(END_SUFFIX)?);
        if suffix == Self::LastQuarter.suffix() {
            return Some((pair, Self::LastQuarter));
        }
        let place = suffix.strip_prefix(END_SUFFIX)?.strip_prefix(", from ")?.strip_suffix(')')?;
        let (axis, first) = place.split_once(' ')?;
        let axis = [CutAxis::Y, CutAxis::X].into_iter().find(|known| known.name() == axis)?;
        Some((pair, Self::At(axis, first.parse().ok()?)))
    }
}

impl Split {
    /// Returns the names of the validation set, for [`SplitOptions::keep`]. A part of an image is `NAME (its end)` if it is the
    /// last quarter, otherwise `NAME (its end, from X 150)`: the place stays the same if labels are added.
    pub fn validation_names(&self) -> Vec<String> {
        let start = |pair: &Pair| self.train.iter().find(|t| t.name == pair.name).and_then(|t| t.window);
        let name = |pair: &Pair| match (start(pair), pair.window) {
            (Some(start), Some(end)) => format!("{}{}", pair.name, EndPlace::between(&start, &end).suffix()),
            _ => pair.name.clone(),
        };
        self.validation.iter().map(name).collect()
    }
}

/// Splits pairs. The result depends on names, fraction and seed, but not on the order of the pairs.
///
/// If there is only one image, the validation set is its end, from the place of [`SplitOptions::cuts`] on; for stains, the
/// last quarter along the longer one of its Y and X axes. If the data assign pairs to parts but none to training, all pairs are
/// taken from their validation set, or else from their test set, which [`Split::how`] says.
///
/// # Errors
/// [`TrainingDataError::Parameter`] if there are no pairs or the fraction is out of range; [`TrainingDataError`] if an
/// image that has to be split cannot be read or is too small, or its labels cannot be on both sides.
pub fn split(pairs: &[Pair], options: &SplitOptions) -> Result<Split, TrainingDataError> {
    check_range("the share of validation", options.fraction, 0.0..=0.9, "0 to 0.9")?;
    if let Some(split) = keep_validation(pairs, options)? {
        return Ok(sorted(split));
    }
    let of = |part| pairs.iter().filter(move |p| p.part == Some(part)).cloned().collect::<Vec<_>>();
    let (given_train, given_validation, given_test) = (of(Part::Train), of(Part::Validation), of(Part::Test));
    let free: Vec<Pair> = pairs.iter().filter(|p| p.part.is_none()).cloned().collect();
    let can_train = given_train.len() + free.len();
    if options.given && can_train > 0 && !given_validation.is_empty() {
        let mut train = given_train;
        train.extend(free);
        let how = "The split is the one defined by the data.".to_owned();
        return Ok(sorted(Split { train, validation: given_validation, test: given_test, how }));
    }
    let (pool, test) = if options.given && can_train > 0 {
        let mut pool = given_train;
        pool.extend(free);
        (pool, given_test)
    } else if options.given && !given_validation.is_empty() {
        // There is no training set, but the test set stays what it is.
        (given_validation, given_test)
    } else {
        (pairs.to_vec(), Vec::new())
    };
    if pool.is_empty() {
        return Err(TrainingDataError::Parameter {
            what: "the number of pairs to split",
            got: "0".to_owned(),
            expected: "at least one: see the problems of the data",
        });
    }
    let mut groups = grouped(&pool, options.group, &options.together);
    if groups.len() < 2 {
        groups = grouped(&pool, Group::None, &options.together);
    }
    let is_one = groups.len() < 2;
    let mut split =
        if is_one { crop_all(&pool, test, options)? } else { draw_validation_groups(groups, test, options) };
    if options.given && can_train == 0 {
        let used = if split.test.is_empty() { "their split is not used" } else { "only their test set is used" };
        split.how = format!("The data assign no pair to training, so {used}. {}", split.how);
    }
    Ok(sorted(split))
}

/// Returns the place at which the stack of a pair was cut, or else the place for another pair of the same image.
fn kept_place(name: &str, places: &BTreeMap<&str, EndPlace>, together: &[Vec<String>]) -> Option<EndPlace> {
    let mut copies = together.iter().filter(|copies| copies.iter().any(|copy| copy == name)).flatten();
    places.get(name).or_else(|| copies.find_map(|copy| places.get(copy.as_str()))).copied()
}

/// Returns the names, and the names of all pairs with the same images.
fn with_copies<'a>(names: &BTreeSet<&'a str>, together: &'a [Vec<String>]) -> BTreeSet<&'a str> {
    let are_copies = |copies: &&Vec<String>| copies.iter().any(|name| names.contains(name.as_str()));
    let copies = together.iter().filter(are_copies).flatten().map(String::as_str);
    names.iter().copied().chain(copies).collect()
}

/// Returns the names of the pairs in the groups of these pairs of the validation set, such as later time points of a sample,
/// apart from those that are to be avoided; none if all pairs are one group, or no pair would be left for training.
fn with_groups(pairs: &[Pair], validated: &BTreeSet<&str>, options: &SplitOptions) -> BTreeSet<String> {
    if validated.is_empty() {
        return BTreeSet::new();
    }
    let groups = grouped(pairs, options.group, &options.together);
    if groups.len() < 2 {
        return BTreeSet::new();
    }
    let is_validated = |group: &Vec<Pair>| group.iter().any(|pair| validated.contains(pair.name.as_str()));
    let names = groups.into_values().filter(is_validated).flatten().map(|pair| pair.name);
    let names: BTreeSet<String> = names.filter(|name| !options.avoid.contains(name)).collect();
    let is_left = |pair: &Pair| !validated.contains(pair.name.as_str()) && !names.contains(&pair.name);
    if pairs.iter().any(is_left) { names } else { BTreeSet::new() }
}

/// Returns the split that keeps an earlier validation set; `None` if there is none.
fn keep_validation(pairs: &[Pair], options: &SplitOptions) -> Result<Option<Split>, TrainingDataError> {
    let names: BTreeSet<&str> = options.keep.iter().map(String::as_str).collect();
    let existing: BTreeSet<&str> = pairs.iter().map(|p| p.name.as_str()).collect();
    let whole: BTreeSet<&str> = existing.intersection(&names).copied().collect();
    let named_ends = names.iter().filter_map(|name| EndPlace::from_name(name));
    let places: BTreeMap<&str, EndPlace> = named_ends.filter(|(name, _)| existing.contains(name)).collect();
    let ends: BTreeSet<&str> = places.keys().copied().collect();
    // Other pairs of an image in the validation set must not be in the training set.
    let (all_whole, all_ends) = (with_copies(&whole, &options.together), with_copies(&ends, &options.together));
    let of_groups = with_groups(pairs, &whole, options);
    let (mut train, mut validation, mut test) = (Vec::new(), Vec::new(), Vec::new());
    for pair in pairs {
        let name = pair.name.as_str();
        let given = pair.part.filter(|_| options.given && !whole.contains(name) && !ends.contains(name));
        if all_whole.contains(name) || given == Some(Part::Validation) {
            validation.push(pair.clone());
        } else if given == Some(Part::Test) {
            test.push(pair.clone());
        } else if all_ends.contains(name) {
            let (start, end, _) = split_stack(pair, options, kept_place(name, &places, &options.together))?;
            train.push(start);
            validation.push(end);
        } else if given.is_none() && of_groups.contains(name) {
            validation.push(pair.clone());
        } else {
            train.push(pair.clone());
        }
    }
    let there = whole.len() + ends.len();
    if there == 0 || train.is_empty() {
        return Ok(None);
    }
    let gone = names.len().saturating_sub(there);
    let left = match gone {
        0 => String::new(),
        1 => "; 1 of its pairs no longer exists".to_owned(),
        _ => format!("; {gone} of its pairs no longer exist"),
    };
    let how = format!("The validation set is the earlier one, {} of {} pairs{left}.", validation.len(), pairs.len());
    Ok(Some(Split { train, validation, test, how }))
}

fn sorted(mut split: Split) -> Split {
    for pairs in [&mut split.train, &mut split.validation, &mut split.test] {
        pairs.sort_by(|a, b| (&a.name, &a.image.path).cmp(&(&b.name, &b.image.path)));
    }
    split
}

/// Returns the mean number of objects per pair; a pair whose number is not known counts as one without objects.
fn mean_objects(pairs: &[Pair], options: &SplitOptions) -> f64 {
    let objects = |pair: &Pair| options.objects.get(&pair.name).copied().unwrap_or(0) as f64;
    pairs.iter().map(objects).sum::<f64>() / pairs.len().max(1) as f64
}

/// Returns the median over the groups of [`mean_objects`].
fn median_objects<'a>(groups: impl Iterator<Item = &'a Vec<Pair>>, options: &SplitOptions) -> f64 {
    let mut means: Vec<f64> = groups.map(|pairs| mean_objects(pairs, options)).collect();
    means.sort_by(f64::total_cmp);
    means.get(means.len() / 2).copied().unwrap_or(0.0)
}

/// The order in which groups are drawn: first those that are not avoided, of these first those with many objects, and of
/// these in random order.
type DrawOrder = (bool, bool, [u8; 32]);

/// Draws groups for the validation set until its fraction is reached. There must be at least two groups.
fn draw_validation_groups(groups: BTreeMap<String, Vec<Pair>>, test: Vec<Pair>, options: &SplitOptions) -> Split {
    let sizes: Vec<usize> = groups.values().map(Vec::len).collect();
    let (count, total): (usize, usize) = (sizes.len(), sizes.iter().sum());
    let [smallest, largest] = [sizes.iter().min(), sizes.iter().max()].map(|n| n.copied().unwrap_or(0));
    let few_objects = median_objects(groups.values(), options);
    let mut drawn: Vec<(DrawOrder, Vec<Pair>)> = groups
        .into_iter()
        .map(|(key, pairs)| {
            let mut hash = Sha256::new();
            hash.update(options.seed.to_le_bytes());
            hash.update(key.as_bytes());
            let avoided = pairs.iter().any(|pair| options.avoid.contains(&pair.name));
            ((avoided, mean_objects(&pairs, options) < few_objects, hash.finalize().into()), pairs)
        })
        .collect();
    drawn.sort_by_key(|(order, _)| *order);
    let wanted = ((options.fraction * total as f64).round() as usize).min(total.saturating_sub(1)).max(1);
    let (mut train, mut validation) = (Vec::new(), Vec::new());
    let mut left = count;
    for (_, pairs) in drawn {
        // At least one group is left for training. At least one is used for validation: if all are too large, one of the
        // smallest.
        let fits = validation.len() + pairs.len() <= wanted.max(smallest);
        if validation.len() < wanted && fits && (left > 1 || validation.is_empty()) {
            validation.extend(pairs);
        } else {
            train.extend(pairs);
        }
        left -= 1;
    }
    let together = if largest > 1 { format!(", {count} groups kept together") } else { String::new() };
    let (n, seed) = (validation.len(), options.seed);
    let verb = if n == 1 { "is" } else { "are" };
    let how = format!("{n} of {total} pairs {verb} in the validation set (seed {seed}{together}).");
    Split { train, validation, test, how }
}

/// Splits the only image: its end is the validation set.
fn crop_all(pairs: &[Pair], test: Vec<Pair>, options: &SplitOptions) -> Result<Split, TrainingDataError> {
    let (mut train, mut validation, mut place) = (Vec::new(), Vec::new(), String::new());
    for pair in pairs {
        let (start, end, at) = split_stack(pair, options, None)?;
        train.push(start);
        validation.push(end);
        place = at;
    }
    let what = if pairs.len() == 1 { "pair" } else { "image" };
    let how = format!("There is only one {what}: {place}, is the validation set.");
    Ok(Split { train, validation, test, how })
}

/// Returns the place at which the stack of a pair is cut. It is determined by the pair of the same image with the most
/// objects, so that all targets of an image are cut at the same place. `None` for stains, and for labels that were not
/// checked.
///
/// # Errors
/// [`TrainingDataError::Data`] if no cut leaves labels on both sides.
fn find_stack_cut(pair: &Pair, options: &SplitOptions) -> Result<Option<StackCut>, TrainingDataError> {
    let copies = options.together.iter().find(|copies| copies.contains(&pair.name));
    let names = copies.map_or_else(|| std::slice::from_ref(&pair.name), Vec::as_slice);
    let cut = names.iter().filter_map(|name| options.cuts.get(name)).max_by_key(|cut| cut.objects);
    let objects = names.iter().filter_map(|name| options.objects.get(name)).max().copied();
    let problem = match (cut, objects) {
        (Some(cut), _) => return Ok(Some(*cut)),
        (None, None) => return Ok(None),
        (None, Some(0)) => "its labels contain no objects",
        (None, Some(_)) => "its labels cannot be divided into a part for training and one for validation",
    };
    let problem = format!("there is no other image for validation, and {problem}");
    let next_step = "label at least two objects that are apart along Y or X, or add a second image";
    Err(TrainingDataError::data(&pair.target.path, problem, next_step))
}

/// Splits the stack of a pair, at the place of an earlier split if there is one. Returns its start, its end and a description
/// of the end.
fn split_stack(
    pair: &Pair,
    options: &SplitOptions,
    earlier: Option<EndPlace>,
) -> Result<(Pair, Pair, String), TrainingDataError> {
    let whole = match pair.window {
        Some(window) => window,
        None => {
            let stack = Stack::of(&pair.image, Role::Image, &open_image(&pair.image)?)?;
            StackWindow { start_zyx: [0; 3], size_zyx: stack.zyx }
        }
    };
    let (longer, quarter) = last_quarter(whole.size_zyx);
    if whole.size_zyx[longer.index()] < MIN_EXTENT {
        return Err(TrainingDataError::data(
            &pair.image.path,
            format!(
                "there is no other image for validation, and a stack of {:?} voxels is too small to be split",
                whole.size_zyx
            ),
            "add a second image",
        ));
    }
    // A cut is a place in the whole stack.
    let cut = if pair.window.is_none() && earlier.is_none() { find_stack_cut(pair, options)? } else { None };
    let is_inside = |axis: CutAxis, first: usize| (1..whole.size_zyx[axis.index()]).contains(&first);
    let cut = cut.filter(|cut| is_inside(cut.axis, cut.first));
    let (axis, first) = match earlier {
        Some(EndPlace::At(axis, first)) if is_inside(axis, first) => (axis, first),
        _ => cut.map_or((longer, quarter), |cut| (cut.axis, cut.first)),
    };
    let extent = whole.size_zyx[axis.index()];
    let part = |start: usize, size: usize, part: Part| {
        let mut window = whole;
        window.start_zyx[axis.index()] += start;
        window.size_zyx[axis.index()] = size;
        Pair { window: Some(window), part: Some(part), ..pair.clone() }
    };
    let place = if (axis, first) == (longer, quarter) { "the last quarter of its" } else { "the end of its" };
    let objects = match cut {
        None => String::new(),
        Some(StackCut { validation_objects: 0, .. }) => ", with a part of its objects".to_owned(),
        Some(StackCut { validation_objects, objects, .. }) => {
            format!(", with {validation_objects} of {objects} objects")
        }
    };
    let words = format!("{place} {} axis, from voxel {first} on{objects}", axis.name());
    Ok((part(0, first, Part::Train), part(first, extent - first, Part::Validation), words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<Pair> {
        names.iter().map(|n| Pair::new(*n, format!("{n}_raw.tif"), format!("{n}_labels.tif"))).collect()
    }

    #[test]
    fn the_validation_set_has_many_objects() {
        // Time points of a growing embryo: 2 to 42 nuclei.
        let names: Vec<String> = (0..11).map(|t| format!("Emb01_t{:03}", 50 * t + 1)).collect();
        let pairs = named(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let objects: BTreeMap<String, usize> = names.iter().enumerate().map(|(i, n)| (n.clone(), 2 + 4 * i)).collect();
        let mut drawn = BTreeSet::new();
        for seed in 0..30 {
            let options = SplitOptions { seed, objects: objects.clone(), ..SplitOptions::default() };
            let split = split(&pairs, &options).unwrap();
            assert_eq!((split.train.len(), split.validation.len()), (9, 2));
            assert!(split.validation.iter().all(|pair| objects[&pair.name] >= 22), "{:?}", split.validation_names());
            drawn.extend(split.validation_names());
        }
        assert_eq!(drawn.len(), 6, "each pair of the upper half is drawn by some seed");
    }

    #[test]
    fn the_split_does_not_depend_on_the_order_and_keeps_groups() {
        let names: Vec<String> = (1..=11).flat_map(|e| ["t251", "t501"].map(|t| format!("Emb{e:02}_{t}"))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut pairs = named(&names);
        for seed in 0..20 {
            let options = SplitOptions { seed, ..SplitOptions::default() };
            let one = split(&pairs, &options).unwrap();
            pairs.reverse();
            assert_eq!(split(&pairs, &options).unwrap(), one);
            assert_eq!(one.train.len() + one.validation.len(), 22);
            assert_eq!(one.validation.len(), 4);
            let keys = |p: &[Pair]| p.iter().map(|p| p.name[..5].to_owned()).collect::<BTreeSet<_>>();
            assert!(keys(&one.train).is_disjoint(&keys(&one.validation)));
        }
        let seeds: BTreeSet<String> = (0..20)
            .map(|seed| {
                split(&pairs, &SplitOptions { seed, ..SplitOptions::default() }).unwrap().validation[0].name.clone()
            })
            .collect();
        assert!(seeds.len() > 3);
    }

    #[test]
    fn two_pairs_are_split_even_if_they_belong_to_one_group() {
        let pairs = named(&["Emb1_t1", "Emb1_t2"]);
        for fraction in [0.0, 0.5, 0.9] {
            let got = split(&pairs, &SplitOptions { fraction, ..SplitOptions::default() }).unwrap();
            assert_eq!((got.train.len(), got.validation.len()), (1, 1));
        }
    }

    #[test]
    fn copies_stay_together_and_other_groups_are_validated() {
        // Six pairs of one image and of several samples: with another pair of these samples, they are one group of
        // seven.
        let names = ["a_t1", "b_t1", "c1", "c2", "c3", "c4", "a_t2", "d", "e", "f"];
        let pairs = named(&names);
        let together = vec![["a_t1", "b_t1", "c1", "c2", "c3", "c4"].map(str::to_owned).to_vec()];
        let alone = grouped(&pairs, Group::ByTime, &together);
        assert_eq!(alone.keys().map(String::as_str).collect::<Vec<_>>(), ["a", "d", "e", "f"]);
        assert_eq!(alone["a"].len(), 7);
        for seed in 0..50 {
            let options = SplitOptions { seed, together: together.clone(), ..SplitOptions::default() };
            let got = split(&pairs, &options).unwrap();
            // The large group is never the validation set.
            assert_eq!((got.train.len(), got.validation.len()), (8, 2), "{seed}");
            assert!(got.validation.iter().all(|p| ["d", "e", "f"].contains(&p.name.as_str())));
        }
        // Overlapping sets are merged.
        let chain: Vec<Vec<String>> =
            names.windows(2).take(8).map(|w| w.iter().map(|n| (*n).to_owned()).collect()).collect();
        assert_eq!(grouped(&pairs, Group::None, &chain).len(), 2);
    }

    #[test]
    fn an_earlier_validation_set_is_kept() {
        let pairs = named(&["a", "b", "c", "d", "e"]);
        let first = split(&pairs, &SplitOptions { seed: 3, fraction: 0.4, ..SplitOptions::default() }).unwrap();
        let keep = first.validation_names();
        assert_eq!(keep.len(), 2);
        let names = |pairs: &[Pair]| pairs.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
        // For any seed and fraction. Added pairs go to the training set.
        let more = named(&["a", "a2", "b", "c", "d", "e", "f", "g"]);
        let options = SplitOptions { seed: 9, keep: keep.clone(), ..SplitOptions::default() };
        let again = split(&pairs, &options).unwrap();
        assert_eq!((&again.train, &again.validation), (&first.train, &first.validation));
        let got = split(&more, &options).unwrap();
        assert_eq!((names(&got.validation), got.train.len()), (keep.clone(), 6));
        // Except for another pair of an image in the validation set.
        let together = vec![vec![keep[0].clone(), "g".to_owned()]];
        let got = split(&more, &SplitOptions { together, ..options.clone() }).unwrap();
        assert_eq!(names(&got.validation), [keep.clone(), vec!["g".to_owned()]].concat());
        // Missing pairs are reported. If all are missing, or no training pair would be left, a new split is made.
        let gone: Vec<Pair> = pairs.iter().filter(|p| p.name != keep[0]).cloned().collect();
        let got = split(&gone, &options).unwrap();
        assert_eq!(names(&got.validation), keep[1..]);
        assert!(got.how.contains("; 1 of its pairs no longer exists."), "{}", got.how);
        let all_gone: Vec<Pair> = pairs.iter().filter(|p| !keep.contains(&p.name)).cloned().collect();
        assert_eq!(split(&all_gone, &options).unwrap().validation.len(), 1);
        let only: Vec<Pair> = pairs.iter().filter(|p| keep.contains(&p.name)).cloned().collect();
        let got = split(&only, &options).unwrap();
        assert_eq!((got.train.len(), got.validation.len()), (1, 1));
        // The test set of the data is not used for training.
        let mut marked = more;
        marked.iter_mut().filter(|p| p.name == "f").for_each(|p| p.part = Some(Part::Test));
        assert_eq!(names(&split(&marked, &options).unwrap().test), ["f"]);
    }

    #[test]
    fn new_time_points_of_a_sample_in_the_validation_set_are_not_trained_on() {
        let pairs = named(&["a_t1", "a_t2", "b_t1", "b_t2", "c_t1"]);
        let validated = |pairs: &[Pair], avoid: &[&str]| {
            let avoid = avoid.iter().map(|name| (*name).to_owned()).collect();
            split(pairs, &SplitOptions { keep: vec!["a_t1".to_owned()], avoid, ..SplitOptions::default() })
                .unwrap()
                .validation_names()
        };
        assert_eq!(validated(&pairs, &["b_t1"]), ["a_t1", "a_t2"]);
        // The earlier split was that of a single sample.
        assert_eq!(validated(&pairs, &["a_t2"]), ["a_t1"]);
        assert_eq!(validated(&pairs[..2], &[]), ["a_t1"]);
        // There is no other sample to train on.
        let options = SplitOptions { keep: vec!["a_t1".to_owned(), "b_t1".to_owned()], ..SplitOptions::default() };
        assert_eq!(split(&pairs[..4], &options).unwrap().validation_names(), options.keep);
        let mut given = pairs.clone();
        given[1].part = Some(Part::Train);
        assert_eq!(validated(&given, &[]), ["a_t1"]);
    }

    #[test]
    fn a_split_defined_by_the_data_is_used() {
        let mut pairs = named(&["a", "b", "c", "d"]);
        pairs[0].part = Some(Part::Validation);
        pairs[3].part = Some(Part::Test);
        let got = split(&pairs, &SplitOptions::default()).unwrap();
        assert_eq!(got.validation[0].name, "a");
        assert_eq!(got.train.len(), 2);
        assert_eq!(got.test[0].name, "d");
        // If the data define only a training set, the validation set is taken from it.
        pairs.iter_mut().for_each(|p| p.part = Some(Part::Train));
        let got = split(&pairs, &SplitOptions::default()).unwrap();
        assert_eq!((got.train.len(), got.validation.len()), (3, 1));
        // If they define no training set, it is taken from the validation set, or else from all pairs.
        let assign = |parts: [Part; 4]| {
            let mut pairs = named(&["a", "b", "c", "d"]);
            pairs.iter_mut().zip(parts).for_each(|(pair, part)| pair.part = Some(part));
            split(&pairs, &SplitOptions::default()).unwrap()
        };
        let got = assign([Part::Validation, Part::Validation, Part::Validation, Part::Test]);
        assert_eq!((got.train.len(), got.validation.len(), got.test[0].name.as_str()), (2, 1, "d"));
        let start = "The data assign no pair to training, so only their test set is used. ";
        assert!(got.how.starts_with(start) && got.how.contains("1 of 3"), "{}", got.how);
        for unused in [[Part::Test; 4], [Part::Validation; 4]] {
            let how = assign(unused).how;
            assert!(how.starts_with("The data assign no pair to training, so their split is not used. "), "{how}");
        }
        let got = assign([Part::Test; 4]);
        assert_eq!((got.train.len(), got.validation.len(), got.test.len()), (3, 1, 0));
        assert!(split(&[], &SplitOptions::default()).is_err());
    }
}
