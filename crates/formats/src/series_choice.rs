//! The choice of a series of a file, by number or name.

use crate::{
    error::{FormatError, FormatErrorKind},
    file_format::FileFormat,
    image::Image,
    meta::ImageMeta,
    ome_zarr::{PREDICTION_LABELS, is_label_path, is_zarr_folder, is_zarr_zip_name},
    opening::{OpenOptions, open},
};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Number of series that an error message lists.
const LISTED: usize = 20;
/// Number of series that are tried to list the names of all, if the first one cannot be read.
const MAX_TRIED_SERIES: usize = 16;

/// Returns how the names of what is made of a series end, before the kind of result: as in `NAME_s1`; empty for the first
/// series.
pub fn series_suffix(series: usize) -> String {
    if series == 0 { String::new() } else { format!("_s{series}") }
}

/// The series of a file to use: one of them by number or name, or all. As text, digits are a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub enum SeriesChoice {
    /// The number of a series, from 0.
    Index(usize),
    /// The name of a series, in any case.
    Name(String),
    /// All series but the label images of OME-Zarr, written `all`.
    All,
}

/// The form in files: a number or a text.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a series must be a number, from 0, a name or all")]
enum Stored {
    Number(usize),
    Text(String),
}

impl From<Stored> for SeriesChoice {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Number(index) => Self::Index(index),
            Stored::Text(text) => Self::from_text(&text),
        }
    }
}

impl From<SeriesChoice> for Stored {
    fn from(choice: SeriesChoice) -> Self {
        match choice {
            SeriesChoice::Index(index) => Self::Number(index),
            SeriesChoice::Name(name) => Self::Text(name),
            SeriesChoice::All => Self::Text("all".to_owned()),
        }
    }
}

impl Default for SeriesChoice {
    fn default() -> Self {
        Self::Index(0)
    }
}

impl FromStr for SeriesChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::from_text(text))
    }
}

impl fmt::Display for SeriesChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => index.fmt(f),
            Self::Name(name) => f.write_str(name),
            Self::All => f.write_str("all"),
        }
    }
}

impl SeriesChoice {
    fn from_text(text: &str) -> Self {
        let text = text.trim();
        if text.eq_ignore_ascii_case("all") {
            return Self::All;
        }
        text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Index)
    }

    /// Whether this is the first series, which is used if none is chosen.
    pub fn is_first(&self) -> bool {
        *self == Self::Index(0)
    }

    /// Opens the chosen series of a file; of `options`, the series is ignored.
    ///
    /// # Errors
    /// Same as [`open`]; also [`FormatError::Misused`] if the file has no series of this name, or several, or if all series
    /// are chosen and the file has more than one.
    pub fn open(&self, path: &Path, options: &OpenOptions) -> Result<Image, FormatError> {
        if let Self::Index(series) = self {
            return open(path, &OpenOptions { series: *series, ..options.clone() });
        }
        self.open_from(any_series(path, options)?, path, options)
    }

    /// Returns the chosen series. `any` is an open series of the file, which is opened again only for another one.
    fn open_from(&self, any: Image, path: &Path, options: &OpenOptions) -> Result<Image, FormatError> {
        match self.one_of(any.meta())? {
            series if series == any.meta().series => Ok(any),
            series => open(path, &OpenOptions { series, ..options.clone() }),
        }
    }

    /// Like [`SeriesChoice::open`], but opens the only series of a file that has one, whichever is chosen: label images and
    /// results of a position are usually in their own files.
    ///
    /// # Errors
    /// Same as [`SeriesChoice::open`].
    pub fn open_or_only(&self, path: &Path, options: &OpenOptions) -> Result<Image, FormatError> {
        if self.is_first() {
            return open(path, &OpenOptions { series: 0, ..options.clone() });
        }
        let any = any_series(path, options)?;
        if any.meta().series_count <= 1 { Ok(any) } else { self.open_from(any, path, options) }
    }

    /// Same as [`SeriesChoice::open_or_only`]; if no series was chosen, opens the [`label_series`] of a file that has one.
    ///
    /// # Errors
    /// Same as [`SeriesChoice::open`].
    pub fn open_labels(&self, path: &Path, options: &OpenOptions) -> Result<Image, FormatError> {
        match label_series(path).filter(|_| self.is_first()) {
            Some(series) => open(path, &OpenOptions { series, ..options.clone() }),
            None => self.open_or_only(path, options),
        }
    }

    /// Like [`SeriesChoice::open_labels`], for the labels of a stack in another file, of which a series was chosen: the
    /// [`label_series`] counts as the only series of its file, unless another label image is chosen by name.
    ///
    /// # Errors
    /// Same as [`SeriesChoice::open`].
    pub fn open_stack_labels(&self, path: &Path, options: &OpenOptions) -> Result<Image, FormatError> {
        let Some(found) = label_series(path) else { return self.open_or_only(path, options) };
        open(path, &OpenOptions { series: self.label_image_or(found, path, options)?, ..options.clone() })
    }

    /// Like [`SeriesChoice::open_or_only`], for the maps of a stack in another file, of which a series was chosen: the image
    /// beside a [`label_series`] counts as the only series of its file, unless a label image is chosen by name.
    ///
    /// # Errors
    /// Same as [`SeriesChoice::open`].
    pub fn open_stack_maps(&self, path: &Path, options: &OpenOptions) -> Result<Image, FormatError> {
        match label_series(path).filter(|_| !self.is_first()) {
            Some(_) => open(path, &OpenOptions { series: self.label_image_or(0, path, options)?, ..options.clone() }),
            None => self.open_or_only(path, options),
        }
    }

    /// Returns the number of the label image of an OME-Zarr that is chosen by name, or else `found`. Numbers count the images
    /// of the stack's file, and the first image is not the labels of the stack, although it may have the same name.
    ///
    /// # Errors
    /// Same as [`any_series`].
    pub fn label_image_or(&self, found: usize, path: &Path, options: &OpenOptions) -> Result<usize, FormatError> {
        let Self::Name(_) = self else { return Ok(found) };
        let named = self.chosen_indices(any_series(path, options)?.meta());
        let other = named.ok().and_then(|named| named.first().copied()).filter(|series| *series > 0);
        Ok(other.unwrap_or(found))
    }

    /// Returns the number of the chosen series of a file, or 0 if the file has a single one.
    ///
    /// # Errors
    /// Same as [`SeriesChoice::open`].
    pub fn index_or_only(&self, path: &Path, options: &OpenOptions) -> Result<usize, FormatError> {
        if self.is_first() {
            return Ok(0);
        }
        let any = any_series(path, options)?;
        if any.meta().series_count <= 1 { Ok(0) } else { self.one_of(any.meta()) }
    }

    /// Returns the numbers of the chosen series of a file. A number is returned without opening the file.
    ///
    /// # Errors
    /// Same as [`SeriesChoice::open`], except that all series may be chosen.
    pub fn indices_in(&self, path: &Path, options: &OpenOptions) -> Result<Vec<usize>, FormatError> {
        match self {
            Self::Index(index) => Ok(vec![*index]),
            _ => self.chosen_indices(any_series(path, options)?.meta()),
        }
    }

    /// Returns the number of the only chosen series of an open file.
    fn one_of(&self, meta: &ImageMeta) -> Result<usize, FormatError> {
        match self.chosen_indices(meta)?.as_slice() {
            [series] => Ok(*series),
            several => Err(FormatError::misused(
                &meta.path,
                format!("all {} of its series are chosen, expected one", several.len()),
                listed(meta),
            )),
        }
    }

    /// Returns the numbers of the chosen series of an open file.
    ///
    /// # Errors
    /// [`FormatError::Misused`] if the file has no series of the chosen name, or several.
    pub fn chosen_indices(&self, meta: &ImageMeta) -> Result<Vec<usize>, FormatError> {
        let wanted = match self {
            Self::Index(index) => return Ok(vec![*index]),
            Self::All => {
                return Ok((0..meta.series_count.max(1)).filter(|series| !meta.is_label_image(*series)).collect());
            }
            Self::Name(name) => name,
        };
        let wanted_lower = wanted.to_lowercase();
        let has_name = |(_, name): &(usize, &String)| name.trim().to_lowercase() == wanted_lower;
        let found: Vec<usize> = meta.series_names.iter().enumerate().filter(has_name).map(|(i, _)| i).collect();
        match found.as_slice() {
            [_] => Ok(found),
            [] => Err(FormatError::misused(&meta.path, format!("it has no series \"{wanted}\""), listed(meta))),
            several => {
                let numbers: Vec<String> = several.iter().take(LISTED).map(usize::to_string).collect();
                Err(FormatError::misused(
                    &meta.path,
                    format!("{} of its series are named \"{wanted}\"", several.len()),
                    format!("give the number of the series: {}", numbers.join(", ")),
                ))
            }
        }
    }
}

/// The advice to choose one of the series of a file.
fn listed(meta: &ImageMeta) -> String {
    let label = |index: usize| match meta.series_names.get(index).map(|name| name.trim()) {
        Some(name) if !name.is_empty() => format!("{index} ({name})"),
        _ => index.to_string(),
    };
    let count = meta.series_count.max(1);
    let labels: Vec<String> = (0..count.min(LISTED)).map(label).collect();
    if let [only] = labels.as_slice() {
        return format!("choose {only}");
    }
    let more = if count > LISTED { format!(" to {}", count - 1) } else { String::new() };
    format!("choose one of {}{more}", labels.join(", "))
}

impl ImageMeta {
    /// Returns the name of a series, counted from 0, or one made of its number if the file states none.
    pub fn series_name(&self, series: usize) -> String {
        match self.series_names.get(series).map(|name| name.trim()) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => format!("Series {series}"),
        }
    }

    /// Whether the image is an OME-Zarr folder, or such a folder in a zip.
    pub fn is_ome_zarr(&self) -> bool {
        self.format == FileFormat::OmeZarr
    }

    /// Whether each slice is a file of a numbered series.
    pub fn is_numbered_series(&self) -> bool {
        matches!(self.format, FileFormat::PngSeries | FileFormat::JpegSeries | FileFormat::TiffSeries)
    }

    /// Whether a series other than the first is a label image of an OME-Zarr folder.
    fn is_label_image(&self, series: usize) -> bool {
        let is_label = |name: &String| is_label_path(name);
        series > 0 && self.is_ome_zarr() && self.series_names.get(series).is_some_and(is_label)
    }
}

/// Opens the first series of a file that can be read, for the names of all; of `options`, the series is ignored.
///
/// # Errors
/// Same as [`open`] for the first series, if none of the first 16 can be read.
pub fn any_series(path: &Path, options: &OpenOptions) -> Result<Image, FormatError> {
    let at = |series| open(path, &OpenOptions { series, ..options.clone() });
    at(0).or_else(|error| match error.kind() {
        FormatErrorKind::Malformed | FormatErrorKind::Unsupported | FormatErrorKind::OverLimit => {
            (1..MAX_TRIED_SERIES).find_map(|series| at(series).ok()).ok_or(error)
        }
        _ => Err(error),
    })
}

/// Returns the number of the label image in an OME-Zarr folder or zip file with one other image: that of a prediction, or the
/// only one. `None` for other files, and if the image is a label image itself, or has several.
pub fn label_series(path: &Path) -> Option<usize> {
    if !is_zarr_folder(path) && !is_zarr_zip_name(path) {
        return None;
    }
    let image = open(path, &OpenOptions::default()).ok()?;
    let meta = image.meta();
    let labels: Vec<usize> = (0..meta.series_count).filter(|series| meta.is_label_image(*series)).collect();
    if image.is_label_image() || meta.series_count != labels.len() + 1 {
        return None;
    }
    let is_of_prediction = |series: &&usize| meta.series_names.get(**series).is_some_and(|n| n == PREDICTION_LABELS);
    match labels.as_slice() {
        [only] => Some(*only),
        several => several.iter().find(is_of_prediction).copied(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::{ZarrImageSpec, ZarrWriter, pack_zarr};
    use cytoscope_storage::Overwrite;
    use cytoscope_volume::{DType, Samples};

    /// An image with label images of these names, which are not written yet.
    fn zarr(path: &Path, names: &[&str]) -> ZarrWriter {
        let spec = |name: &str| ZarrImageSpec::new(name, [1, 1, 1, 2, 2], DType::U16);
        let mut writer = ZarrWriter::create(path, spec("image")).unwrap();
        let labels: Vec<usize> = names.iter().map(|name| writer.add_labels(spec(name)).unwrap()).collect();
        for (value, image) in std::iter::once(0).chain(labels).enumerate() {
            writer.write(image, [0; 3], &Samples::U16(vec![value as u16; 4])).unwrap();
        }
        writer
    }

    #[test]
    fn the_label_image_of_an_ome_zarr_is_found_in_folders_and_zip_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let publish = |name: &str, names: &[&str]| {
            zarr(&at(name), names).finish().unwrap().publish(Overwrite::Refuse).unwrap();
            label_series(&at(name))
        };
        assert_eq!(publish("none.zarr", &[]), None);
        assert_eq!(publish("one.zarr", &["cells"]), Some(1));
        assert_eq!(publish("two.zarr", &["cells", "nuclei"]), None, "the user has to choose");
        assert_eq!(publish("ours.zarr", &["cells", "objects"]), Some(2));
        assert_eq!(label_series(&at("one.zarr/labels/cells")), None, "it is a label image itself");
        pack_zarr(zarr(&at("one.ozx"), &["cells"]).finish().unwrap(), &|| true).unwrap().unwrap().publish().unwrap();
        assert_eq!(label_series(&at("one.ozx")), Some(1));
        let first = |choice: &SeriesChoice, name: &str| {
            let image = choice.open_labels(&at(name), &OpenOptions::default()).unwrap();
            image.read_all().unwrap().samples().to_f32()[0]
        };
        for name in ["one.zarr", "one.ozx"] {
            assert_eq!(first(&SeriesChoice::default(), name), 1.0, "{name}");
            assert_eq!(first(&SeriesChoice::Name("image".to_owned()), name), 0.0, "{name}");
        }
        assert_eq!(first(&SeriesChoice::default(), "none.zarr"), 0.0);
    }

    #[test]
    fn the_series_of_a_stack_does_not_choose_among_the_maps_and_labels_of_its_prediction() {
        let folder = tempfile::tempdir().unwrap();
        let [packed, ours] = ["x.ozx", "x.zarr"].map(|name| folder.path().join(name));
        let names = ["cells", "objects"];
        pack_zarr(zarr(&packed, &names).finish().unwrap(), &|| true).unwrap().unwrap().publish().unwrap();
        zarr(&ours, &names).finish().unwrap().publish(Overwrite::Refuse).unwrap();
        let first = |image: Result<Image, FormatError>| image.unwrap().read_all().unwrap().samples().to_f32()[0];
        let options = OpenOptions::default();
        for (choice, labels, maps) in [
            ("0", 2.0, 0.0),
            ("1", 2.0, 0.0),
            ("7", 2.0, 0.0),
            ("B/3/0", 2.0, 0.0),
            ("image", 2.0, 0.0),
            ("labels/cells", 1.0, 1.0),
        ] {
            let series: SeriesChoice = choice.parse().unwrap();
            for path in [&packed, &ours] {
                assert_eq!(first(series.open_stack_labels(path, &options)), labels, "{choice}");
                assert_eq!(first(series.open_stack_maps(path, &options)), maps, "{choice}");
            }
        }
    }

    #[test]
    fn a_series_is_a_number_a_name_or_all_in_text_and_json() {
        let parsed: Vec<SeriesChoice> = ["2", " B/3/0 ", "ALL"].iter().map(|text| text.parse().unwrap()).collect();
        let expected = [SeriesChoice::Index(2), SeriesChoice::Name("B/3/0".to_owned()), SeriesChoice::All];
        assert_eq!(parsed, expected);
        let json = serde_json::to_string(&parsed).unwrap();
        assert_eq!(json, r#"[2,"B/3/0","all"]"#);
        assert_eq!(serde_json::from_str::<Vec<SeriesChoice>>(&json).unwrap(), expected);
        assert!(SeriesChoice::default().is_first());
    }
}
