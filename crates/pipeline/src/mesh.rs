//! Surfaces of objects as files: binary STL, or glTF (`.glb`).

mod files;

use crate::job_record::{PendingRecord, recorded};
use crate::label_check::LabelCheck;
use crate::measure::numbers;
use crate::predict::file_notes::{
    FilePart, OtherSeries, SliceAlone, first_series_note, label_series_note, one_of_several_note, orientation_note,
    reading_notes,
};
use crate::predict::resolve::{check_time, check_voxel_size, used_voxel_um, voxel_size_notes};
use crate::predict::zarr::labels_path;
use crate::results::{check_file, moved_aside_note};
use crate::stack::{Extents, Stack, channels_text, limit_readers};
use crate::{Context, JobError, Note, ProgressStage, ProgressUnit};
use cytoscope_formats::{OpenOptions, SeriesChoice};
use cytoscope_objects::mesh::{Mesh, SMOOTHING_ROUNDS, surface};
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{MEMORY_BUDGET, OBJECTS};
use cytoscope_storage::target::{check_extension, check_parent, extension};
use cytoscope_storage::write::write_checked;
use cytoscope_volume::{BoxZyx, VoxelSize};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

/// Bytes of a label for each voxel of the bounding box, beside the label as it is read.
const BYTES_PER_LABEL: u64 = 4;
/// Bytes for each voxel of the bounding box with a border of one voxel: which voxels are inside, and the number of the vertex
/// of each cell.
const BYTES_PER_GRID_VOXEL: u64 = 1 + 4;

/// Number of objects whose surfaces take so long that doubtful labels are noted before.
const MANY_OBJECTS: usize = 100;
/// Maximum number of triangles of a file: 5 GB as STL.
const MAX_TRIANGLES: usize = 100_000_000;

/// Writes the surfaces of objects as triangle meshes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeshJob {
    /// Label image, axes Z, Y, X, of any number of time points.
    pub labels: PathBuf,
    /// File to write: `.stl`, in which all objects are one solid, or `.glb`, with its own mesh for each object.
    pub out: PathBuf,
    /// Labels of the objects; all if empty.
    #[serde(default)]
    pub objects: Vec<u32>,
    /// Series of the label image, by number or name.
    #[serde(default, skip_serializing_if = "SeriesChoice::is_first")]
    pub series: SeriesChoice,
    /// Time point of the label image, from 0.
    #[serde(default)]
    pub time: usize,
    /// Voxel size Z, Y, X in µm, to use instead of the label image's own.
    #[serde(default)]
    pub voxel_um: Option<[f64; 3]>,
    /// Voxel size Z, Y, X to use if neither the label image nor `voxel_um` states a complete one: the one that the
    /// prediction assumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assumed_voxel_um: Option<[f64; 3]>,
    /// Whether to skip smoothing, so that the surface follows the faces of the voxels.
    #[serde(default)]
    pub unsmoothed: bool,
    /// Memory budget in bytes; `None` uses three quarters of the free memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_budget_bytes: Option<u64>,
    /// Whether to overwrite an existing file.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// Measurements of the surface of one object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeshedObject {
    /// Label of the object in the label image.
    pub label: u32,
    /// Number of triangles of the surface.
    pub triangles: usize,
    /// Volume that the surface encloses, in µm³.
    pub volume_um3: f64,
    /// Area of the surface in µm².
    pub area_um2: f64,
}

/// Written file and its objects, the result of a [`MeshJob`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeshReport {
    /// The mesh file that was written.
    pub out: PathBuf,
    /// Voxel size Z, Y, X in µm that was used; where it is unknown, the assumed one, or 1.
    pub voxel_um: [f64; 3],
    /// The objects in the file, in the order of their labels.
    pub objects: Vec<MeshedObject>,
    /// Notes to the user, such as that the voxel size is unknown.
    #[serde(flatten, with = "crate::note::texts_if_any")]
    pub notes: Vec<Note>,
}

impl MeshJob {
    /// Runs the job and writes its provenance record beside the file. Memory use is about that of the largest bounding box
    /// and of all triangles.
    ///
    /// # Errors
    /// [`JobError::Storage`] if the output has another extension, exists or cannot be written; [`JobError::Mismatch`]
    /// if the image holds no labels, lacks a requested object or the time point, or changes while it is read;
    /// [`JobError::Budget`] if the bounding box of an object does not fit the memory budget; [`JobError`] if it cannot
    /// be read; [`JobError::Canceled`]. No partly written file is left.
    pub fn run(&self, context: &Context) -> Result<MeshReport, JobError> {
        recorded(self, context, |record| self.write_mesh(context, record))
    }

    fn write_mesh(&self, context: &Context, record: &mut PendingRecord<Self>) -> Result<MeshReport, JobError> {
        check_extension(&self.out, &["stl", "glb"])?;
        check_parent(&self.out)?;
        check_file(&self.out, &[&self.labels], self.overwrite)?;
        let opening = context.recorder.span(Stage::Read, "open");
        let image = match self.series.is_first() {
            // The image of a prediction is its maps.
            true => self.series.open_labels(&labels_path(&self.labels), &OpenOptions::default())?,
            false => self.series.open(&self.labels, &OpenOptions::default())?,
        };
        opening.finish();
        record.add_image_files(&image);
        limit_readers(&[&image], self.memory_budget_bytes);
        let extents = Extents::of(image.meta());
        if extents.channels > 1 {
            let (dtype, channels) = (image.meta().dtype, channels_text(extents.channels));
            let problem = format!("values of type {dtype} in {channels} are not labels");
            return Err(self.mismatch(problem, "give an image with one channel of integers"));
        }
        check_time(Some(self.time), extents.times, &self.labels)?;
        let size = self.voxel_um.map_or(image.meta().voxel_size_um, |[z, y, x]| VoxelSize::new_um(z, y, x));
        check_voxel_size(&self.labels, size, self.voxel_um)?;
        if let Some([z, y, x]) = self.assumed_voxel_um {
            check_voxel_size(&self.labels, VoxelSize::new_um(z, y, x), self.assumed_voxel_um)?;
        }
        let voxel_um = used_voxel_um(size, extents.zyx[0], self.assumed_voxel_um);
        let stack = Stack::new(&image, self.time);
        let mut check = LabelCheck::new(&self.labels);
        let windows = self.windows(context, &stack, &mut check)?;
        self.check_memory(&windows, image.meta().dtype.size_bytes() as u64)?;
        if windows.len() > MANY_OBJECTS {
            check.note().into_iter().for_each(|note| context.note(note));
        }
        let rounds = if self.unsmoothed { 0 } else { SMOOTHING_ROUNDS };
        let (mut meshes, mut objects, mut triangles) = (Vec::new(), Vec::new(), 0usize);
        let mut meter = context.meter(ProgressStage::Mesh, windows.len() as u64, ProgressUnit::Objects);
        for (label, window) in &windows {
            let part = stack.windowed(window);
            let labels = numbers(&self.labels, part.read(context, 0, 0..window[0].len())?)?;
            let span = context.recorder.span(Stage::Objects, "mesh").voxels(labels.len());
            let origin_zyx = [window[0].start, window[1].start, window[2].start];
            let mesh = surface(&labels, part.extents.zyx, *label, origin_zyx, voxel_um, rounds)?;
            span.finish();
            triangles += mesh.triangles.len();
            if triangles > MAX_TRIANGLES {
                return Err(self.mismatch(
                    format!("the surfaces have more than {MAX_TRIANGLES} triangles"),
                    message!("choose fewer objects ({OBJECTS})"),
                ));
            }
            objects.push(meshed(*label, &mesh));
            meshes.push((*label, mesh));
            meter.add(1)?;
        }
        let writing = context.recorder.span(Stage::Write, "mesh");
        let bytes = match extension(&self.out).as_deref() {
            Some("glb") => files::glb(&meshes),
            _ => files::stl(&meshes),
        };
        let bytes = bytes.map_err(|problem| self.mismatch(problem, message!("choose fewer objects ({OBJECTS})")))?;
        record.refuse_changed()?;
        let aside = write_checked(&self.out, &bytes, self.overwrite)?;
        aside.iter().for_each(|aside| context.note(moved_aside_note(aside)));
        writing.finish();
        let time_point_note = one_of_several_note(FilePart::TimePoint, self.time, extents.times, "is written");
        let series_note = first_series_note(&self.series, image.meta(), "is written", OtherSeries::One);
        let labels_note = label_series_note(&self.series, image.meta(), "is written");
        let all_notes = reading_notes(&image, SliceAlone::ByFolder).into_iter().chain(series_note).chain(labels_note);
        let size_notes = voxel_size_notes(size, extents.zyx[0], self.assumed_voxel_um);
        let orientation = orientation_note(&self.labels, &self.out.display().to_string());
        let all_notes = all_notes.chain(size_notes).chain(orientation).chain(time_point_note);
        let notes = all_notes.map(Note::from).chain(check.note()).collect();
        Ok(MeshReport { out: self.out.clone(), voxel_um, objects, notes })
    }

    /// Refuses objects whose bounding box does not fit the memory budget, before anything is allocated for them. A voxel of
    /// the image has `sample_bytes`.
    fn check_memory(&self, windows: &BTreeMap<u32, BoxZyx>, sample_bytes: u64) -> Result<(), JobError> {
        let bytes = |window: &BoxZyx| {
            let voxels =
                |border: u64| window.iter().fold(1u64, |n, range| n.saturating_mul(range.len() as u64 + border));
            let read = voxels(0).saturating_mul(sample_bytes + BYTES_PER_LABEL);
            read.saturating_add(voxels(2).saturating_mul(BYTES_PER_GRID_VOXEL))
        };
        let largest = windows.iter().max_by_key(|(_, window)| bytes(window));
        let Some((label, window)) = largest else { return Ok(()) };
        let needed_bytes = bytes(window);
        let budget_bytes = self.memory_budget_bytes.unwrap_or_else(cytoscope_profile::default_budget_bytes);
        if needed_bytes <= budget_bytes {
            return Ok(());
        }
        let [z, y, x] = [&window[0], &window[1], &window[2]].map(Range::len);
        let next_step = message!(
            "the bounding box of object {label} in {} has {z} × {y} × {x} voxels: choose other objects ({OBJECTS}), raise \
             {MEMORY_BUDGET}, or convert the labels to fewer voxels",
            self.labels.display()
        );
        Err(JobError::Budget { needed_bytes, budget_bytes, next_step })
    }

    fn mismatch(&self, problem: String, next_step: impl Into<Message>) -> JobError {
        JobError::Mismatch { path: self.labels.clone(), problem: problem.into(), next_step: next_step.into() }
    }

    /// Returns the bounding boxes of the wanted objects. All labels are added to `check`.
    fn windows(
        &self,
        context: &Context,
        stack: &Stack,
        check: &mut LabelCheck,
    ) -> Result<BTreeMap<u32, BoxZyx>, JobError> {
        let [depth, ny, nx] = stack.extents.zyx;
        let mut found: BTreeMap<u32, BoxZyx> = BTreeMap::new();
        let mut meter = context.meter(ProgressStage::Find, depth as u64, ProgressUnit::Slices);
        let step = stack.slab_slices();
        for first in (0..depth).step_by(step) {
            let slab = first..(first + step).min(depth);
            let slices = slab.len();
            let samples = stack.read(context, 0, slab)?;
            let _span = context.recorder.span(Stage::Objects, "find objects");
            let labels = numbers(&self.labels, samples)?;
            check.add(&labels, nx);
            for (row, values) in labels.chunks(nx.max(1)).enumerate() {
                let (z, y) = (first + row / ny.max(1), row % ny.max(1));
                let mut end = 0;
                for run in values.chunk_by(|a, b| a == b) {
                    let start = end;
                    end += run.len();
                    let Some(label) = run.first().filter(|label| **label != 0) else { continue };
                    let covered = [z..z + 1, y..y + 1, start..end];
                    let window = found.entry(*label).or_insert_with(|| covered.clone());
                    for (range, covered_range) in window.iter_mut().zip(covered) {
                        *range = range.start.min(covered_range.start)..range.end.max(covered_range.end);
                    }
                }
            }
            meter.add(slices as u64)?;
        }
        if let Some(missing) = self.objects.iter().find(|label| !found.contains_key(label)) {
            let problem = match found.len() {
                0 => "it has no objects".to_owned(),
                n => format!("it has no object {missing}; there are {n} objects"),
            };
            return Err(self.mismatch(problem, "give labels that the table of measurements lists"));
        }
        if found.is_empty() {
            return Err(self.mismatch("it has no objects".to_owned(), "give a label image with objects"));
        }
        if !self.objects.is_empty() {
            found.retain(|label, _| self.objects.contains(label));
        }
        Ok(found)
    }
}

fn meshed(label: u32, mesh: &Mesh) -> MeshedObject {
    MeshedObject { label, triangles: mesh.triangles.len(), volume_um3: mesh.volume_um3(), area_um2: mesh.area_um2() }
}
