//! Directions of the axes of NIfTI files, by which files are compared that belong together.

use super::{HEADER_2, Version, version};
use crate::fields::Fields;
use cytoscope_storage::read::open_regular;
use flate2::read::MultiGzDecoder;
use std::io::Read;
use std::path::Path;

/// Letters of the directions along the axes of the scanner, toward larger and smaller positions: right and left, anterior and
/// posterior, superior and inferior.
const LETTERS: [[char; 2]; 3] = [['R', 'L'], ['A', 'P'], ['S', 'I']];

/// Returns the directions that the axes x, y, z of a NIfTI file point to, such as `LPS`. `None` for files of other formats,
/// those that state no orientation, and those that cannot be read.
pub fn nifti_directions(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let is_compressed = name.ends_with(".nii.gz");
    if !is_compressed && !name.ends_with(".nii") {
        return None;
    }
    let file = open_regular(path).ok()?;
    let (mut head, len) = (Vec::new(), HEADER_2 as u64);
    let read = match is_compressed {
        true => MultiGzDecoder::new(file).take(len).read_to_end(&mut head),
        false => file.take(len).read_to_end(&mut head),
    };
    read.ok()?;
    directions(&head)
}

/// Returns the directions that a header states: those of its sform, or else of its qform.
fn directions(head: &[u8]) -> Option<String> {
    let (version, order) = version(head)?;
    let fields = Fields { bytes: head, order };
    let (has_qform, has_sform) = match version {
        Version::One => (fields.i16(252).ok()? > 0, fields.i16(254).ok()? > 0),
        Version::Two => (fields.i32(344).ok()? > 0, fields.i32(348).ok()? > 0),
    };
    // The number of this index after the positions in either version.
    let number = |[one, two]: [usize; 2], index: usize| match version {
        Version::One => fields.f32(one + 4 * index).ok().map(f64::from),
        Version::Two => fields.f64(two + 8 * index).ok(),
    };
    let rows = if has_sform {
        let row = |row: usize| {
            let value = |column: usize| number([280, 400], 4 * row + column);
            Some([value(0)?, value(1)?, value(2)?])
        };
        [row(0)?, row(1)?, row(2)?]
    } else if has_qform {
        let quaternion = |index: usize| number([256, 352], index);
        let is_mirrored = number([76, 104], 0)? < 0.0;
        rotation([quaternion(0)?, quaternion(1)?, quaternion(2)?], is_mirrored)
    } else {
        return None;
    };
    letters(&rows)
}

/// Returns the rotation of a quaternion, of which the last three numbers are given; mirrored, the third axis points to the
/// opposite direction.
fn rotation([b, c, d]: [f64; 3], is_mirrored: bool) -> [[f64; 3]; 3] {
    let a = (1.0 - (b * b + c * c + d * d)).max(0.0).sqrt();
    let sign = if is_mirrored { -1.0 } else { 1.0 };
    [
        [a * a + b * b - c * c - d * d, 2.0 * (b * c - a * d), sign * 2.0 * (b * d + a * c)],
        [2.0 * (b * c + a * d), a * a + c * c - b * b - d * d, sign * 2.0 * (c * d - a * b)],
        [2.0 * (b * d - a * c), 2.0 * (c * d + a * b), sign * (a * a + d * d - b * b - c * c)],
    ]
}

/// Returns the letters of the directions that the columns of a matrix are nearest to; `None` if two are the same.
fn letters(rows: &[[f64; 3]; 3]) -> Option<String> {
    let mut used = [false; 3];
    let mut text = String::new();
    for column in 0..3 {
        let row = (0..3usize).max_by(|a, b| rows[*a][column].abs().total_cmp(&rows[*b][column].abs()))?;
        let value = rows[row][column];
        if used[row] || value == 0.0 || !value.is_finite() {
            return None;
        }
        used[row] = true;
        text.push(LETTERS[row][usize::from(value < 0.0)]);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    /// Returns a header of a version with these rows of its sform, or this quaternion and orientation of its qform.
    fn header(version: u8, sform: Option<[[f32; 3]; 3]>, qform: Option<([f32; 3], f32)>) -> Vec<u8> {
        let mut head = vec![0u8; 544];
        let is_one = version == 1;
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        let length: i32 = if is_one { 348 } else { 540 };
        put(0, &length.to_le_bytes());
        put(if is_one { 344 } else { 4 }, if is_one { b"n+1\0" } else { b"n+2\0" });
        put(if is_one { 252 } else { 344 }, &[u8::from(qform.is_some())]);
        put(if is_one { 254 } else { 348 }, &[u8::from(sform.is_some())]);
        let mut number = |one: usize, two: usize, index: usize, value: f32| match is_one {
            true => put(one + 4 * index, &value.to_le_bytes()),
            false => put(two + 8 * index, &f64::from(value).to_le_bytes()),
        };
        for (r, row) in sform.iter().flatten().enumerate() {
            row.iter().enumerate().for_each(|(c, value)| number(280, 400, 4 * r + c, *value));
        }
        if let Some((quaternion, orientation)) = qform {
            quaternion.iter().enumerate().for_each(|(i, value)| number(256, 352, i, *value));
            number(76, 104, 0, orientation);
        }
        head
    }

    #[test]
    fn directions_are_those_that_nibabel_calls_axis_codes() {
        let [plain, left] = [0.5, -0.5].map(|x| Some([[x, 0.0, 0.1], [0.0, 0.5, 0.0], [0.0, 0.0, 1.0]]));
        let turned = Some([[0.0, 0.0, 2.0], [-0.5, 0.0, 0.0], [0.0, 0.5, 0.0]]);
        let same = Some([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]);
        // A half turn around z, and none.
        let (half, none) = ([0.0, 0.0, 1.0], [0.0; 3]);
        for version in [1, 2] {
            let of = |sform, qform| directions(&header(version, sform, qform));
            for (sform, expected) in [(plain, Some("RAS")), (left, Some("LAS")), (turned, Some("PSR")), (same, None)] {
                assert_eq!(of(sform, Some((none, 1.0))).as_deref(), expected, "version {version}");
            }
            assert_eq!(of(None, Some((none, 1.0))).as_deref(), Some("RAS"));
            assert_eq!(of(None, Some((none, -1.0))).as_deref(), Some("RAI"));
            assert_eq!(of(None, Some((half, 1.0))).as_deref(), Some("LPS"));
            assert_eq!(of(None, None), None);
        }
        assert_eq!(directions(b"no header"), None);
    }

    #[test]
    fn only_files_with_the_name_of_nifti_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = header(1, None, Some(([0.0; 3], 1.0)));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&bytes).unwrap();
        let packed = encoder.finish().unwrap();
        let found = [("a.nii", &bytes), ("a.NII.gz", &packed), ("a.tif", &bytes), ("b.nii.gz", &bytes)].map(
            |(name, content)| {
                std::fs::write(folder.path().join(name), content).unwrap();
                nifti_directions(&folder.path().join(name))
            },
        );
        assert_eq!(found.each_ref().map(|text| text.as_deref()), [Some("RAS"), Some("RAS"), None, None]);
        assert_eq!(nifti_directions(&folder.path().join("missing.nii")), None);
    }
}
