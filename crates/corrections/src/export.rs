//! Export of corrected labels as training data: a raw stack, its labels, and a row in the dataset's table.
//!
//! A dataset is a folder with `NAME_raw.tif`, `NAME_labels.tif` and `dataset.csv`, whose columns `raw` and `seg`
//! contain the file names relative to the folder. For pairs that are only partly labeled, the column `ignore` contains
//! the ignore label. Existing columns and rows are kept. Nothing is overwritten: if a name is taken, a number is
//! appended.

use crate::CorrectionError;
use crate::chunks::LabelSnapshot;
use crate::files::{Stack, plane};
use crate::known_voxels::{KnownLabels, KnownVoxels, UNKNOWN_LABEL};
use crate::limits::MAX_TABLE_BYTES;
use cytoscope_formats::{Channel, Compression, Container, Image, OpenOptions, StackWriter, WriteSpec, open};
use cytoscope_storage::lock::ResultsLock;
use cytoscope_storage::read::open_regular;
use cytoscope_storage::write::atomic_write;
use cytoscope_volume::{Axes, DType, Samples, VoxelSize};
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// File name of the dataset's table.
const TABLE: &str = "dataset.csv";
/// Longest name of a pair in bytes.
const MAX_NAME_BYTES: usize = 120;
/// Largest number that is appended to a name that is taken.
const MAX_NUMBER: u32 = 100_000;

/// The image that the labels belong to.
#[derive(Debug, Clone, PartialEq)]
pub struct RawSource<'a> {
    /// Path of the image file.
    pub path: &'a Path,
    /// Index of the image, if the file holds several.
    pub series: usize,
    /// Axes that replace those of the file.
    pub axes: Option<Axes>,
    /// Voxel size Z, Y, X in µm that replaces that of the file, and of the labels.
    pub voxel_um: Option<[f64; 3]>,
    /// Index of the channel; required if there are several.
    pub channel: Option<usize>,
    /// Index of the time point; required if there are several.
    pub time: Option<usize>,
}

/// Files of a pair that was added to a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedPair {
    /// The name, with a number if the given name was taken.
    pub name: String,
    /// Path of the raw stack.
    pub raw: PathBuf,
    /// Path of the written label image.
    pub labels: PathBuf,
    /// Path of the dataset's table.
    pub table: PathBuf,
}

/// Adds a raw stack and its labels to a dataset folder, which is created if necessary. The raw values are written
/// exactly, in their type (half floats as `float32`); `uint16` labels as ImageJ TIFF, others as OME-TIFF. Call it from
/// a background thread.
///
/// # Errors
/// [`CorrectionError::Dataset`] if raw and labels differ in shape, the name is invalid, or the table cannot be
/// extended; [`CorrectionError::NotLabels`] if the channel or time point does not exist; [`CorrectionError::Format`],
/// [`CorrectionError::Storage`] or [`CorrectionError::Io`] if a file cannot be read or written. After an error no files
/// are left.
pub fn export_pair(
    raw: &RawSource,
    labels: &LabelSnapshot,
    dataset_dir: &Path,
    name: &str,
) -> Result<ExportedPair, CorrectionError> {
    export_part(raw, labels, None, KnownVoxels::All, dataset_dir, name)
}

/// Like [`export_pair`], for labels that are known only in the voxels that `which` selects. All other voxels get the
/// ignore label [`UNKNOWN_LABEL`], which the table states in its column `ignore`, so that training ignores them. `base`
/// contains the labels before correction; without it, they count as empty.
///
/// # Errors
/// Same as [`export_pair`]; [`CorrectionError::Dataset`] if nothing was corrected, or a label is [`UNKNOWN_LABEL`] or
/// larger.
pub fn export_part(
    raw: &RawSource,
    labels: &LabelSnapshot,
    base: Option<&LabelSnapshot>,
    which: KnownVoxels,
    dataset_dir: &Path,
    name: &str,
) -> Result<ExportedPair, CorrectionError> {
    check_name(dataset_dir, name)?;
    let options = OpenOptions { series: raw.series, axes: raw.axes.clone(), ..OpenOptions::default() };
    let mut image = open(raw.path, &options)?;
    let given = raw.voxel_um.map_or_else(VoxelSize::default, |[z, y, x]| VoxelSize::new_um(z, y, x));
    image = image.with_voxel_size(given.or(image.meta().voxel_size_um));
    let stack = Stack::of(&image, raw.channel, raw.time)?;
    if stack.shape_zyx != labels.shape_zyx() {
        return Err(CorrectionError::Dataset {
            file: raw.path.to_owned(),
            problem: format!(
                "its shape Z, Y, X is {:?}, but the labels have {:?}",
                stack.shape_zyx,
                labels.shape_zyx()
            ),
            next_step: "choose the image that these labels were drawn on",
        });
    }
    let refuse =
        |problem: String, next_step| Err(CorrectionError::Dataset { file: raw.path.to_owned(), problem, next_step });
    if let Some(base) = base.filter(|b| b.shape_zyx() != labels.shape_zyx()) {
        let problem = format!(
            "the labels before correction have the shape {:?}, the corrected ones {:?}",
            base.shape_zyx(),
            labels.shape_zyx()
        );
        return refuse(problem, "add the pair with all its labels");
    }
    let is_part = which != KnownVoxels::All;
    let known = KnownLabels::new(labels, base, which)?;
    if is_part && !known.is_any()? {
        return refuse("no label was corrected".to_owned(), "correct some labels, or add the pair with all its labels");
    }
    if is_part && labels.max_label() >= UNKNOWN_LABEL {
        let problem = format!("the largest label is {}, but {UNKNOWN_LABEL} is the ignore label", labels.max_label());
        return refuse(problem, "add the pair with all its labels");
    }
    std::fs::create_dir_all(dataset_dir).map_err(CorrectionError::io(dataset_dir, "creating the folder"))?;
    let table = dataset_dir.join(TABLE);
    let before = Table::read(&table)?;
    let (name, mut files) = reserve(dataset_dir, name, &before)?;
    write_raw(&image, &stack, &files.raw)?;
    let mut labels = labels.clone();
    labels.voxel_size_um = given.or(labels.voxel_size_um).or(image.meta().voxel_size_um);
    if is_part {
        write_known(&labels, &known, &files.labels)?;
    } else {
        labels.save_with(&files.labels, &mut |_, _| ControlFlow::Continue(()))?;
    }
    // Another window may add a pair at the same time, and another program may have changed the table while the images were
    // written.
    let _lock = ResultsLock::for_update(&table)?;
    let now = Table::read(&table)?;
    now.add(&table, &file_name(&files.raw), &file_name(&files.labels), is_part)?;
    files.keep = true;
    Ok(ExportedPair { name, raw: files.raw.clone(), labels: files.labels.clone(), table })
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

fn check_name(folder: &Path, name: &str) -> Result<(), CorrectionError> {
    let odd = |c: char| c.is_control() || "/\\<>:\"|?*".contains(c);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.starts_with('.') || name.contains(odd) {
        return Err(CorrectionError::Dataset {
            file: folder.to_owned(),
            problem: format!("'{name}' is not a valid file name on every system"),
            next_step: "give a name of 1 to 120 letters that has no / \\ < > : \" | ? * and does not begin with a dot",
        });
    }
    Ok(())
}

/// The two files of a new pair. They are removed when dropped unless `keep` is set.
struct Reserved {
    raw: PathBuf,
    labels: PathBuf,
    keep: bool,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if !self.keep {
            // The error that ended the export is reported; these files are new and empty or unfinished.
            let _ = std::fs::remove_file(&self.raw);
            let _ = std::fs::remove_file(&self.labels);
        }
    }
}

/// Reserves the first free name by creating both files empty.
fn reserve(folder: &Path, name: &str, table: &Table) -> Result<(String, Reserved), CorrectionError> {
    for number in 1..=MAX_NUMBER {
        let name = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
        let raw = folder.join(format!("{name}_raw.tif"));
        let labels = folder.join(format!("{name}_labels.tif"));
        if table.names(&file_name(&raw)) || table.names(&file_name(&labels)) {
            continue;
        }
        match File::create_new(&raw) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(e) => return Err(CorrectionError::io(&raw, "creating the file")(e)),
        }
        match File::create_new(&labels) {
            Ok(_) => return Ok((name, Reserved { raw, labels, keep: false })),
            Err(e) => {
                // The file is new and empty; the error of the labels is reported or another name is tried.
                let _ = std::fs::remove_file(&raw);
                if e.kind() != io::ErrorKind::AlreadyExists {
                    return Err(CorrectionError::io(&labels, "creating the file")(e));
                }
            }
        }
    }
    Err(CorrectionError::Dataset {
        file: folder.to_owned(),
        problem: format!("all numbered variants of the name '{name}' are taken"),
        next_step: "give another name",
    })
}

fn write_raw(image: &Image, stack: &Stack, path: &Path) -> Result<(), CorrectionError> {
    let meta = image.meta();
    let (container, dtype) = match meta.dtype {
        DType::F16 => (Container::ImageJ, DType::F32),
        DType::I8 => (Container::OmeTiff, DType::I8),
        dtype @ (DType::U64 | DType::I64) => {
            return Err(CorrectionError::Dataset {
                file: meta.path.clone(),
                problem: format!("its sample type {dtype} is not supported by most TIFF readers"),
                next_step: "convert it to uint16 or float32 first",
            });
        }
        dtype => (Container::ImageJ, dtype),
    };
    let [nz, ny, nx] = stack.shape_zyx;
    let mut spec = WriteSpec::new(container, Axes::zyx(), vec![nz, ny, nx], dtype);
    spec.voxel_size_um = meta.voxel_size_um;
    spec.compression = Compression::None;
    spec.channels = vec![Channel { name: "raw".to_owned(), color_rgb: None }];
    let mut writer = StackWriter::create(path, &spec)?;
    for z in 0..nz {
        let samples = match stack.read(image, [z, 0, 0], [1, ny, nx])? {
            half @ Samples::F16(_) => Samples::F32(half.to_f32()),
            samples => samples,
        };
        writer.write(&plane(path, ny, nx, samples)?)?;
    }
    Ok(writer.finish()?)
}

/// Writes the known labels as `uint16`; the voxel size is taken from `labels`.
fn write_known(labels: &LabelSnapshot, known: &KnownLabels<'_>, path: &Path) -> Result<(), CorrectionError> {
    let [nz, ny, nx] = labels.shape_zyx();
    let mut spec = WriteSpec::new(Container::ImageJ, Axes::zyx(), vec![nz, ny, nx], DType::U16);
    spec.voxel_size_um = labels.voxel_size_um();
    spec.channels = vec![Channel { name: "labels".to_owned(), color_rgb: None }];
    spec.display_range = Some((0.0, f64::from(labels.max_label().max(1))));
    spec.compression = Compression::None;
    let mut writer = StackWriter::create(path, &spec)?;
    for z in 0..nz {
        // The caller has checked that the labels fit into 16 bits.
        let values = known.slice(z)?.into_iter().map(|v| v as u16).collect();
        writer.write(&plane(path, ny, nx, Samples::U16(values))?)?;
    }
    Ok(writer.finish()?)
}

/// The existing table of a dataset.
struct Table {
    text: Vec<u8>,
    /// Number of columns; `raw` and `seg` are the indices of the columns with the file names.
    columns: usize,
    raw: usize,
    seg: usize,
    /// Index of the column with the ignore label.
    ignore: Option<usize>,
    /// File names in the columns `raw` and `seg`, which new pairs must not use.
    used_names: Vec<String>,
}

impl Table {
    fn read(path: &Path) -> Result<Self, CorrectionError> {
        let refuse =
            |problem: String, next_step| Err(CorrectionError::Dataset { file: path.to_owned(), problem, next_step });
        let mut text = Vec::new();
        match open_regular(path) {
            Ok(file) => {
                let read = file.take(MAX_TABLE_BYTES + 1).read_to_end(&mut text);
                read.map_err(CorrectionError::io(path, "reading the table"))?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(CorrectionError::io(path, "opening the table")(e)),
        }
        crate::limits::check(
            "the size of the dataset's table in bytes",
            text.len() as u64,
            "MAX_TABLE_BYTES",
            MAX_TABLE_BYTES,
            "start another dataset",
        )?;
        if text.is_empty() {
            return Ok(Self {
                text: b"raw,seg\n".to_vec(),
                columns: 2,
                raw: 0,
                seg: 1,
                ignore: None,
                used_names: Vec::new(),
            });
        }
        let body = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(body);
        let header = match reader.headers() {
            Ok(header) => header.clone(),
            Err(e) => {
                return refuse(
                    format!("its first line cannot be read: {e}"),
                    "save it as comma-separated values in UTF-8",
                );
            }
        };
        let place = |name: &str| header.iter().position(|c| c.trim() == name);
        let (Some(raw), Some(seg)) = (place("raw"), place("seg")) else {
            let problem = format!("its columns are {:?}", header.iter().collect::<Vec<_>>());
            return refuse(
                problem,
                "expected the columns raw and seg: choose a dataset for segmentation, or another folder",
            );
        };
        let mut used_names = Vec::new();
        for record in reader.records() {
            match record {
                Ok(record) => used_names.extend([raw, seg].iter().filter_map(|c| record.get(*c)).map(str::to_owned)),
                Err(e) => {
                    return refuse(format!("a line cannot be read: {e}"), "save it as comma-separated values in UTF-8");
                }
            }
        }
        Ok(Self { columns: header.len(), raw, seg, ignore: place("ignore"), used_names, text })
    }

    fn names(&self, file: &str) -> bool {
        self.used_names.iter().any(|t| t == file)
    }

    /// Adds a column `ignore` to the first line if there is none yet.
    fn with_ignore(mut self) -> Self {
        if self.ignore.is_none() {
            let end = self.text.iter().position(|b| matches!(b, b'\n' | b'\r')).unwrap_or(self.text.len());
            self.text.splice(end..end, *b",ignore");
            self.ignore = Some(self.columns);
            self.columns += 1;
        }
        self
    }

    /// Writes the table with an additional row, which contains the ignore label if `is_part`.
    fn add(self, path: &Path, raw: &str, seg: &str, is_part: bool) -> Result<(), CorrectionError> {
        let table = if is_part { self.with_ignore() } else { self };
        table.add_line(path, raw, seg, is_part)
    }

    fn add_line(self, path: &Path, raw: &str, seg: &str, is_part: bool) -> Result<(), CorrectionError> {
        let unknown = UNKNOWN_LABEL.to_string();
        let mut line = vec![""; self.columns];
        for (column, value) in [(self.raw, raw), (self.seg, seg)] {
            if let Some(cell) = line.get_mut(column) {
                *cell = value;
            }
        }
        if let Some(cell) = self.ignore.filter(|_| is_part).and_then(|column| line.get_mut(column)) {
            *cell = &unknown;
        }
        let mut text = self.text;
        if text.last() != Some(&b'\n') {
            text.push(b'\n');
        }
        let mut writer = csv::Writer::from_writer(Vec::new());
        let line = writer
            .write_record(&line)
            .map_err(io::Error::from)
            .and_then(|()| writer.into_inner().map_err(|e| io::Error::other(e.error().to_string())));
        text.extend(line.map_err(CorrectionError::io(path, "writing the table"))?);
        Ok(atomic_write(path, &text)?)
    }
}
