//! `cytoscope info`: describes image files.

use super::failure::{Failure, Outcome};
use super::{eprint_line, print, print_json};
use clap::Args;
use cytoscope_formats::{
    ByteOrder, FileFormat, FormatError, Image, ImageMeta, OpenOptions, SeriesChoice, StoredCompression,
    count_files_outside_series,
};
use cytoscope_storage::{by_count, counted, rounded};
use cytoscope_volume::{Axes, number_text};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Number of series whose names are listed.
const LISTED_SERIES: usize = 24;

#[derive(Args)]
pub(crate) struct Info {
    /// Image files to describe.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Series (position, scene, well) to describe in a multi-series file, by number from 0 or by name.
    #[arg(long, default_value = "0", value_name = "N|NAME")]
    series: SeriesChoice,
    /// Axis order, such as ZYX or TCYX, to use instead of the file's own.
    #[arg(long)]
    axes: Option<Axes>,
    /// Print the metadata as one JSON object, or of several files as a list of objects.
    #[arg(long)]
    json: bool,
}

/// The metadata of an image as JSON.
#[derive(Serialize)]
struct Described {
    #[serde(flatten)]
    meta: ImageMeta,
    /// The files of numbered slices that are read as one stack, in the order of the slices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<PathBuf>,
    /// Number of other files of the same name that are not read, because a number is missing or they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_files: Option<usize>,
}

impl Described {
    fn new(image: &Image) -> Self {
        let files = numbered_files(image);
        let other_files = (!files.is_empty()).then(|| count_files_outside_series(&files));
        Self { meta: image.meta().clone(), files, other_files }
    }
}

impl Info {
    pub(crate) fn run(self) -> Outcome {
        if self.json {
            return self.print_as_json();
        }
        if let [file] = self.files.as_slice() {
            describe(&self.open(file)?);
            return Ok(());
        }
        self.describe_each()
    }

    /// Prints what each of several files contains. A file that cannot be read does not stop the others.
    fn describe_each(&self) -> Outcome {
        let mut described = 0;
        self.for_each(|image| {
            if described > 0 {
                print("");
            }
            describe(image);
            described += 1;
        })
    }

    /// Prints the metadata of one file as an object, and of several as a list, without those that cannot be read.
    fn print_as_json(&self) -> Outcome {
        if let [file] = self.files.as_slice() {
            return print_json(&Described::new(&self.open(file)?));
        }
        let mut described = Vec::new();
        let outcome = self.for_each(|image| described.push(Described::new(image)));
        print_json(&described)?;
        outcome
    }

    /// Opens each of several files and passes it on. Each failure is printed, and the outcome counts them.
    fn for_each(&self, mut pass: impl FnMut(&Image)) -> Outcome {
        let mut failures: Vec<Failure> = Vec::new();
        for file in &self.files {
            match self.open(file) {
                Ok(image) => pass(&image),
                Err(error) => {
                    let failure = Failure::from(error);
                    eprint_line(&format!("failed: {failure}"));
                    failures.push(failure);
                }
            }
        }
        let Some(first) = failures.first() else { return Ok(()) };
        let message = format!("{} of {} files could not be read", failures.len(), self.files.len());
        Err(Failure::new(first.kind(), message))
    }

    fn open(&self, file: &Path) -> Result<Image, FormatError> {
        self.series.open(file, &OpenOptions { axes: self.axes.clone(), ..OpenOptions::default() })
    }
}

/// Prints the path of an image, and what the file contains.
fn describe(image: &Image) {
    let meta = image.meta();
    let shape: Vec<String> =
        meta.axes.iter().zip(&meta.shape).map(|(axis, n)| format!("{} {n}", axis.letter())).collect();
    print(&format!("{}", meta.path.display()));
    print(&format!("  format      {}", format_text(meta.format, meta.compression, meta.byte_order)));
    print(&format!("  axes        {}", if shape.is_empty() { "a single value".to_owned() } else { shape.join(", ") }));
    print(&format!("  samples     {}", meta.dtype));
    let v = meta.voxel_size_um;
    print(&format!("  voxel size  z {}, y {}, x {}", length_text(v.z), length_text(v.y), length_text(v.x)));
    if meta.origin_um != [0.0; 3] {
        let [z, y, x] = meta.origin_um;
        print(&format!("  origin      z {z}, y {y}, x {x} µm"));
    }
    if let Some(seconds) = meta.time_interval_secs {
        print(&format!("  interval    {seconds} s"));
    }
    for (i, channel) in meta.channels.iter().enumerate().filter(|(_, c)| !c.name.is_empty()) {
        print(&format!("  channel {i}   {}", channel.name));
    }
    for level in meta.levels.iter().skip(1) {
        print(&format!("  level       {} {:?}", level.name, level.shape_full));
    }
    if meta.series_count > 1 {
        print(&format!("  series      {} of {} (--series selects another)", meta.series, meta.series_count));
        let named = meta.series_names.iter().enumerate().filter(|(_, name)| !name.is_empty());
        for (i, name) in named.take(LISTED_SERIES) {
            print(&format!("  series {i:<4} {name}"));
        }
        if meta.series_names.len() > LISTED_SERIES {
            print("  …           --json lists all series");
        }
    }
    let files = numbered_files(image);
    if let [first, .., last] = files.as_slice() {
        let name = |p: &PathBuf| p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        print(&format!("  files       {}, {} to {}: one slice each", files.len(), name(first), name(last)));
        let others = count_files_outside_series(&files);
        if others > 0 {
            let left_out = by_count(
                others,
                "is left out: a number is missing, or it differs",
                "are left out: a number is missing, or they differ",
            );
            print(&format!("  note        {} of this name {left_out}", counted(others, "other file")));
        }
    }
    if let Some(why) = &meta.read_as_slices {
        print(&format!("  axes        {why}"));
    }
    for sentence in &meta.not_applied {
        print(&format!("  note        {sentence}"));
    }
    if meta.missing_planes > 0 {
        let missing = counted(meta.missing_planes, "plane");
        let are = by_count(meta.missing_planes, "is", "are");
        print(&format!("  missing     {missing} {are} not in the file and read as zeros"));
    }
}

/// Returns the files of numbered slices that are read as one stack; none of other images.
fn numbered_files(image: &Image) -> Vec<PathBuf> {
    if image.meta().is_numbered_series() { image.files() } else { Vec::new() }
}

/// Returns a length in µm as text.
fn length_text(um: Option<f64>) -> String {
    um.map_or_else(|| "unknown".to_owned(), |um| format!("{} µm", number_text(rounded(um))))
}

/// Returns a description of a file format, such as `ImageJ TIFF, uncompressed, big-endian`.
fn format_text(format: FileFormat, compression: StoredCompression, order: ByteOrder) -> String {
    let name = match format {
        FileFormat::Tiff => "TIFF",
        FileFormat::BigTiff => "BigTIFF",
        FileFormat::TiffSeries => "TIFF series",
        FileFormat::ImageJ => "ImageJ TIFF",
        FileFormat::OmeTiff => "OME-TIFF",
        FileFormat::OmeZarr => "OME-Zarr",
        FileFormat::Npy => "NPY",
        FileFormat::Cellpose => "Cellpose",
        FileFormat::ImageJRoi => "ImageJ regions of interest",
        FileFormat::Nifti => "NIfTI",
        FileFormat::Nrrd => "NRRD",
        FileFormat::MetaImage => "MetaImage",
        FileFormat::Mrc => "MRC",
        FileFormat::Png => "PNG",
        FileFormat::PngSeries => "PNG series",
        FileFormat::Jpeg => "JPEG",
        FileFormat::JpegSeries => "JPEG series",
        FileFormat::Czi => "Zeiss CZI",
        FileFormat::Nd2 => "Nikon ND2",
        FileFormat::Lif => "Leica LIF",
        FileFormat::Imaris => "Imaris",
        FileFormat::BigDataViewer => "BigDataViewer",
        FileFormat::Hdf5 => "HDF5",
        FileFormat::Lsm => "Zeiss LSM",
        FileFormat::MetaMorph => "MetaMorph STK",
        FileFormat::FluoView => "Olympus FluoView",
        FileFormat::Oif => "Olympus OIF",
        FileFormat::Oib => "Olympus OIB",
        FileFormat::ScanImage => "ScanImage",
        FileFormat::Svs => "Aperio SVS",
        FileFormat::Ndpi => "Hamamatsu NDPI",
        FileFormat::Memory => "memory",
    };
    let compression = match compression {
        StoredCompression::None => "uncompressed",
        other => other.as_str(),
    };
    let order = match order {
        ByteOrder::Little => "little-endian",
        ByteOrder::Big => "big-endian",
    };
    format!("{name}, {compression}, {order}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_the_names_that_they_are_known_by() {
        let text = |format| format_text(format, StoredCompression::Zlib, ByteOrder::Little);
        assert_eq!(text(FileFormat::Hdf5), "HDF5, zlib, little-endian");
        assert_eq!(text(FileFormat::Czi), "Zeiss CZI, zlib, little-endian");
        assert_eq!(text(FileFormat::PngSeries), "PNG series, zlib, little-endian");
    }

    #[test]
    fn small_lengths_are_not_shown_as_zero() {
        let texts = [Some(1e-6), Some(0.108_333_333), Some(1.0), None].map(length_text);
        assert_eq!(texts, ["0.000001 µm", "0.108333 µm", "1 µm", "unknown"]);
    }
}
