//! Names of numbered files.

use cytoscope_volume::Axis;
use std::path::Path;

/// Extensions of TIFF files that can be slices.
const TIFF_EXTENSIONS: [&str; 2] = ["tif", "tiff"];
/// Extensions of other files that can be slices.
const RASTER_EXTENSIONS: [&str; 3] = ["png", "jpg", "jpeg"];
/// Smallest number of digits of the last TIFF slice without a letter: fewer, as in `depth-2.tif` and `depth-3.tif`, tell
/// variants apart more often than slices.
const TIFF_DIGITS: usize = 3;
/// Largest number of digits of a number.
const MAX_DIGITS: usize = 18;

/// Whether a file has the extension of TIFF files that can be slices.
pub(super) fn is_tiff(path: &Path) -> bool {
    slice_extension(path).is_some_and(|extension| TIFF_EXTENSIONS.contains(&extension.as_str()))
}

/// The extension of a file that can be a slice, in lower case. Hidden files cannot.
fn slice_extension(path: &Path) -> Option<String> {
    let extension = path.extension()?.to_str()?.to_lowercase();
    let is_known = TIFF_EXTENSIONS.iter().chain(&RASTER_EXTENSIONS).any(|known| *known == extension);
    (is_known && !path.file_stem()?.to_str()?.starts_with('.')).then_some(extension)
}

/// A number in a file name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number {
    /// The number, at most 18 digits long.
    pub value: u64,
    /// Number of digits as written, leading zeros included.
    pub digits: usize,
    /// Whether it is written with leading zeros.
    pub padded: bool,
}

impl Number {
    fn of(digits: &str) -> Option<Self> {
        let is_number = digits.len() <= MAX_DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
        let value = is_number.then(|| digits.parse().ok()).flatten()?;
        Some(Self { value, digits: digits.len(), padded: digits.len() > 1 && digits.starts_with('0') })
    }

    /// Whether both are written in the same way.
    fn is_written_as(self, other: Self) -> bool {
        self.digits == other.digits || (!self.padded && !other.padded)
    }
}

/// A file name that ends in a number.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Numbered {
    prefix: String,
    extension: String,
    /// The number before the extension.
    pub number: Number,
}

impl Numbered {
    /// Parses the name of a file. `None` if it is hidden, has an extension that slices do not have, or does not end in a
    /// number.
    pub fn of(path: &Path) -> Option<Self> {
        let extension = slice_extension(path)?;
        let stem = path.file_stem()?.to_str()?;
        let prefix = stem.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = Number::of(stem.get(prefix.len()..)?)?;
        Some(Self { prefix: prefix.to_owned(), extension, number })
    }

    /// What the names of a series have in common.
    pub fn key(&self) -> (String, String) {
        (self.prefix.clone(), self.extension.clone())
    }

    /// Whether both names differ only in their number, written in the same way.
    pub fn same_series(&self, other: &Self) -> bool {
        (&self.prefix, &self.extension) == (&other.prefix, &other.extension) && self.number.is_written_as(other.number)
    }

    /// Whether the file can be the last slice of a series.
    pub fn can_be_last(&self) -> bool {
        !TIFF_EXTENSIONS.contains(&self.extension.as_str()) || self.number.digits >= TIFF_DIGITS
    }
}

/// Stands for a number in [`PlaneName::skeleton`].
const PLACE: char = '\0';

/// What may stand between the parts of a name.
const SEPARATORS: [char; 4] = ['_', '-', ' ', '.'];
/// The word before the number of a position in the names of Micro-Manager. It may be among the numbers of axes.
const POSITION: &str = "position";

/// The name of a TIFF file that ends in numbers with the letters of their axes, such as `name_T01_Z005_C1`, `name-t01-ch00` or
/// `name_F001Z01C01`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlaneName {
    /// The name without its extension, with [`PLACE`] for each number.
    skeleton: String,
    extension: String,
    /// Axes in the order of the name, each at most once.
    numbers: Vec<(Axis, Number)>,
}

impl PlaneName {
    /// Parses the name of a file. `None` if it is not a TIFF, has no final number with the letter of an axis, or repeats an
    /// axis.
    pub fn of(path: &Path) -> Option<Self> {
        let extension = slice_extension(path).filter(|_| is_tiff(path))?;
        let stem = path.file_stem()?.to_str()?;
        let (skeleton, numbers) = harmony_numbers(stem).unwrap_or_else(|| final_numbers(stem));
        let is_unique = |(i, (axis, _)): (usize, &(Axis, Number))| !numbers.iter().take(i).any(|(a, _)| a == axis);
        let is_plane = !numbers.is_empty() && numbers.iter().enumerate().all(is_unique);
        is_plane.then_some(Self { skeleton, extension, numbers })
    }

    /// What the names of the planes of an image have in common.
    pub fn key(&self) -> (String, String) {
        (self.skeleton.clone(), self.extension.clone())
    }

    /// Whether both names differ only in their numbers, written in the same way.
    pub fn same_image(&self, other: &Self) -> bool {
        let pairs = || self.numbers.iter().zip(&other.numbers);
        (&self.skeleton, &self.extension) == (&other.skeleton, &other.extension)
            && self.numbers.len() == other.numbers.len()
            && pairs().all(|((_, a), (_, b))| a.is_written_as(*b))
    }

    /// Numbers along T, Z, C; 0 along axes that are not in the name.
    pub fn position(&self) -> [u64; 3] {
        [Axis::T, Axis::Z, Axis::C]
            .map(|axis| self.numbers.iter().find(|(a, _)| *a == axis).map_or(0, |(_, n)| n.value))
    }

    /// The name of the file of another plane, in which the numbers of `padded` are written with leading zeros.
    pub fn at(&self, position: [u64; 3], padded: &[Option<usize>], extension: &str) -> String {
        let mut pieces = self.skeleton.split(PLACE);
        let mut name = pieces.next().unwrap_or_default().to_owned();
        for (i, (piece, (axis, _))) in pieces.zip(&self.numbers).enumerate() {
            let at = [Axis::T, Axis::Z, Axis::C].iter().position(|a| a == axis);
            let value = at.and_then(|at| position.get(at)).copied().unwrap_or(0);
            let digits = padded.get(i).copied().flatten().unwrap_or(1);
            name.push_str(&format!("{value:0digits$}"));
            name.push_str(piece);
        }
        format!("{name}.{extension}")
    }

    /// The number of digits of each number that is written with leading zeros.
    pub fn padding(&self) -> Vec<Option<usize>> {
        self.numbers.iter().map(|(_, number)| number.padded.then_some(number.digits)).collect()
    }
}

/// The skeleton of a name, and the numbers with the letters of axes at its end; no numbers if there are none.
fn final_numbers(stem: &str) -> (String, Vec<(Axis, Number)>) {
    let mut rest = stem;
    // From the end: what follows the numbers, and the numbers.
    let mut pieces: Vec<String> = Vec::new();
    let mut numbers = Vec::new();
    loop {
        if let Some((before, tokens)) = last_numbers(rest) {
            for token in tokens {
                pieces.push(format!("{}{PLACE}", token.letters));
                numbers.push((token.axis, token.number));
            }
            rest = before;
        } else if let Some((before, position)) = last_position(rest).filter(|_| !numbers.is_empty()) {
            pieces.push(position.to_owned());
            rest = before;
        } else {
            break;
        }
        let Some(before) = rest.strip_suffix(SEPARATORS) else { break };
        pieces.push(rest.get(before.len()..).unwrap_or_default().to_owned());
        rest = before;
    }
    pieces.push(rest.to_owned());
    pieces.reverse();
    numbers.reverse();
    (pieces.concat(), numbers)
}

/// The parts of a name of Harmony, the program of Opera Phenix and Operetta: row, column, field, plane, channel, time point,
/// state, and flim state.
const HARMONY: [(&str, Option<Axis>); 8] = [
    ("r", None),
    ("c", None),
    ("f", None),
    ("p", Some(Axis::Z)),
    ("-ch", Some(Axis::C)),
    ("sk", Some(Axis::T)),
    ("fk", None),
    ("fl", None),
];

/// The same for a name of Harmony, such as `r01c02f03p04-ch1sk1fk1fl1`; `None` for other names.
fn harmony_numbers(stem: &str) -> Option<(String, Vec<(Axis, Number)>)> {
    let mut rest = stem;
    let (mut skeleton, mut numbers) = (String::new(), Vec::new());
    for (letters, axis) in HARMONY {
        let tail = rest.strip_prefix(letters)?;
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (digits, after) = tail.split_at_checked(end)?;
        let number = Number::of(digits)?;
        skeleton.push_str(letters);
        match axis {
            Some(axis) => {
                skeleton.push(PLACE);
                numbers.push((axis, number));
            }
            None => skeleton.push_str(digits),
        }
        rest = after;
    }
    rest.is_empty().then_some((skeleton, numbers))
}

/// A number with the letters of its axis.
struct Token<'a> {
    letters: &'a str,
    axis: Axis,
    number: Number,
}

/// Returns the numbers with the letters of axes that a text ends in, such as `Z005` or `C001Z005`, the last one first, and the
/// text before them. `None` if there are none, or if the text before them may be a part of the first one, as in `zone1`.
fn last_numbers(text: &str) -> Option<(&str, Vec<Token<'_>>)> {
    let mut rest = text;
    let mut tokens = Vec::new();
    while let Some((before, token)) = last_number(rest) {
        tokens.push(token);
        rest = before;
    }
    let first = tokens.last()?;
    let are_apart = match rest.chars().next_back() {
        None => true,
        Some(before) if SEPARATORS.contains(&before) => true,
        Some(before) if before.is_ascii_digit() => tokens.len() > 1 && !(first.axis == Axis::C && ends_in_row(rest)),
        // A capital begins a word.
        Some(before) => tokens.len() > 1 && before.is_ascii_lowercase() && is_capital(first.letters),
    };
    are_apart.then_some((rest, tokens))
}

/// Returns the number with the letters of an axis that a text ends in, and the text before it.
fn last_number(text: &str) -> Option<(&str, Token<'_>)> {
    let before_digits = text.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = Number::of(text.get(before_digits.len()..)?)?;
    let before_word = before_digits.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let word = before_digits.get(before_word.len()..)?;
    if let Some(axis) = axis_of(word) {
        return Some((before_word, Token { letters: word, axis, number }));
    }
    let (before, letter) = before_digits.split_at_checked(before_digits.len().checked_sub(1)?)?;
    let axis = axis_of(letter).filter(|_| is_capital(letter))?;
    before.ends_with(|c: char| c.is_ascii_lowercase()).then_some((before, Token { letters: letter, axis, number }))
}

/// The axis that the letters before a number stand for.
fn axis_of(letters: &str) -> Option<Axis> {
    match letters.to_ascii_lowercase().as_str() {
        "t" | "time" => Some(Axis::T),
        "z" => Some(Axis::Z),
        "c" | "ch" | "channel" => Some(Axis::C),
        _ => None,
    }
}

fn is_capital(letters: &str) -> bool {
    letters.starts_with(|c: char| c.is_ascii_uppercase())
}

/// Whether a text ends in the number of a row, which the number of a column follows: `r02` is before `c03`.
fn ends_in_row(text: &str) -> bool {
    text.trim_end_matches(|c: char| c.is_ascii_digit()).ends_with(['r', 'R'])
}

/// Returns the number of a position that a text ends in, with its word, and the text before it.
fn last_position(text: &str) -> Option<(&str, &str)> {
    let word = text.trim_end_matches(|c: char| c.is_ascii_digit());
    let before = word.strip_suffix(POSITION).filter(|_| word.len() < text.len())?;
    Some((before, text.get(before.len()..)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn numbers_with_letters_at_the_end_of_a_name_are_axes() {
        let position = |name: &str| PlaneName::of(Path::new(name)).map(|plane| plane.position());
        for (name, expected) in [
            ("img_Z0012.tif", [0, 12, 0]),
            ("a_b_T003_Z0012_C1.tif", [3, 12, 1]),
            ("a_t3_z012_ch01.TIFF", [3, 12, 1]),
            ("s_C001Z002T003.tif", [3, 2, 1]),
            ("t007.tif", [7, 0, 0]),
            // Other separators, words, and capitals that begin a word.
            ("a-Z003-C02.tif", [0, 3, 2]),
            ("a Z003 C02.tif", [0, 3, 2]),
            ("a.z003.c02.tif", [0, 3, 2]),
            ("a_time004_z3.tif", [4, 3, 0]),
            ("ExpZ003C02.tif", [0, 3, 2]),
            // Names of Yokogawa and Micro-Manager.
            ("Plate_B03_T0001F002L01A01Z03C02.tif", [0, 3, 2]),
            ("img_channel001_position004_time000000002_z003.tif", [2, 3, 1]),
            ("r01c02f03p04-ch2sk5fk1fl1.tiff", [5, 4, 2]),
        ] {
            assert_eq!(position(name), Some(expected), "{name}");
        }
        // Results of a time point, two numbers of one axis, words, other files.
        for name in [
            "a_t1_labels.tif",
            "a_z1_z2.tif",
            "a_zone1.tif",
            "a_z.tif",
            "c1_0003.tif",
            "a_z1.png",
            ".a_z1.tif",
            "1.tif",
            // One number that may belong to the text before it, a column of a plate, a position alone.
            "a3c0001.tif",
            "ExpC001.tif",
            "expz001.tif",
            "plate_r01c02.tif",
            "r01c02z003.tif",
            "a_position001.tif",
            "r01c02f03p04-ch2sk5fk1fl1x.tiff",
        ] {
            assert_eq!(position(name), None, "{name}");
        }
    }

    #[test]
    fn other_planes_are_named_like_the_known_one() {
        let name = PlaneName::of(Path::new("a_T3_Z0012_C1.tif")).unwrap();
        assert_eq!(name.at([10, 7, 2], &name.padding(), "tif"), "a_T10_Z0007_C2.tif");
        let same = |other: &str| PlaneName::of(Path::new(other)).unwrap().same_image(&name);
        assert!(same("a_T44_Z0001_C9.tif"));
        assert!(!same("a_T44_Z001_C9.tif") && !same("b_T3_Z0012_C1.tif") && !same("a_T03_Z0012_C1.tif"));
        assert!(!same("a-T44_Z0001_C9.tif"));
        let name = PlaneName::of(Path::new("i_channel001_position004_time02_z3.tif")).unwrap();
        assert_eq!(name.at([5, 4, 0], &name.padding(), "tif"), "i_channel000_position004_time05_z4.tif");
        let other_position = PlaneName::of(Path::new("i_channel001_position005_time02_z3.tif")).unwrap();
        assert!(!other_position.same_image(&name));
    }
}
