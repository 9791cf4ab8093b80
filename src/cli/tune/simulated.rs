//! The stack that is predicted if none is given: a simulated one on the model's own grid.

use crate::cli::failure::Failure;
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_pipeline::{CancelToken, JobError, Model, ModelTask, Note};
use cytoscope_simulate::{Kind, Settings, SimulateError, simulate};
use cytoscope_volume::{Array, Axes, Axis, Samples, VoxelSize};
use std::path::{Path, PathBuf};

/// Name of the stack's file in the working folder.
pub(super) const SIMULATED: &str = "simulated.tif";
/// Shape Z, Y, X of the stack in voxels.
const SHAPE_ZYX: [usize; 3] = [48, 192, 192];
/// Tags of packages for whole cells, which are simulated with stained membranes.
const CELL_TAGS: [&str; 4] = ["cells", "cell", "membrane", "cell-membrane"];
/// Tags of packages for nuclei.
const NUCLEI_TAGS: [&str; 3] = ["nuclei", "nucleus", "dapi"];

/// Writes a stack like those that the model predicts, with voxels and objects of the model's size, and returns its path. An
/// unknown voxel size stays unknown. Each channel of several has other objects. If the package does not say what the model
/// segments, a note says what is simulated.
///
/// # Errors
/// [`Failure`] if the file cannot be written, or after cancellation.
pub(super) fn simulated_stack(
    model: &Model,
    folder: &Path,
    cancel: &CancelToken,
    note: impl FnOnce(Note),
) -> Result<PathBuf, Failure> {
    let [depth, height, width] = SHAPE_ZYX;
    let channels = model.input_channels.max(1);
    let kind = simulated_kind(model).unwrap_or_else(|| {
        note(Note::info(format!(
            "the tags of the model {} name neither nuclei nor cells: nuclei are simulated; give a stack with --data",
            model.name
        )));
        Kind::Nuclei
    });
    let mut channel_values: Vec<Vec<u16>> = Vec::with_capacity(channels);
    for channel in 0..channels {
        let settings = settings(model, kind, channel as u64);
        let simulation = simulate(&settings, |_| !cancel.is_canceled()).map_err(|error| match error {
            SimulateError::Canceled => Failure::from(JobError::Canceled),
            error => Failure::other(format!("no stack can be simulated for the model: {error}"))
                .and_next("give one with --data"),
        })?;
        match simulation.raw.into_samples() {
            Samples::U16(values) => channel_values.push(values),
            other => return Err(Failure::other(format!("the simulated stack is {}, not uint16", other.dtype()))),
        }
    }
    let plane = height * width;
    let mut values = Vec::with_capacity(depth * channels * plane);
    for z in 0..depth {
        for channel in &channel_values {
            values.extend_from_slice(channel.get(z * plane..(z + 1) * plane).unwrap_or_default());
        }
    }
    let (axes, shape) = if channels == 1 {
        (vec![Axis::Z, Axis::Y, Axis::X], vec![depth, height, width])
    } else {
        (vec![Axis::Z, Axis::C, Axis::Y, Axis::X], vec![depth, channels, height, width])
    };
    let array = Array::new(Axes::new(axes)?, shape, values)?;
    let mut spec = WriteSpec::of(&array, Container::ImageJ);
    if let Some([z, y, x]) = model.voxel_um {
        spec.voxel_size_um = VoxelSize::new_um(z, y, x);
    }
    let path = folder.join(SIMULATED);
    write_array(&path, &array, &spec)?;
    Ok(path)
}

/// Returns what is simulated for a model: bright-field for label-free models, else what the tags of its package name; `None`
/// if they name neither cells nor nuclei.
fn simulated_kind(model: &Model) -> Option<Kind> {
    let has = |tags: &[&str]| model.tags.iter().any(|tag| tags.iter().any(|known| tag.eq_ignore_ascii_case(known)));
    match model.task {
        ModelTask::LabelFree => Some(Kind::LabelFree),
        ModelTask::Segmentation if has(&CELL_TAGS) => Some(Kind::Cells),
        ModelTask::Segmentation if has(&NUCLEI_TAGS) => Some(Kind::Nuclei),
        ModelTask::Segmentation => None,
    }
}

/// Returns the settings of a channel, with sizes as near to the model's as can be simulated.
fn settings(model: &Model, kind: Kind, seed: u64) -> Settings {
    let mut settings = Settings::new(kind, SHAPE_ZYX, seed);
    if let Some(voxel_um) = model.voxel_um {
        let [z, y, x] = voxel_um.map(|um| um.clamp(0.02, 50.0));
        settings.voxel_size_um = VoxelSize::new_um(z, y, x);
    }
    let coarsest = settings.voxel_size_um.zyx_um_or_one().into_iter().fold(0.0, f64::max);
    let objects = &mut settings.objects;
    objects.diameter_um = model.object_diameter_um.unwrap_or(objects.diameter_um).clamp(2.0 * coarsest, 1000.0);
    objects.membrane_um = objects.membrane_um.min(0.25 * objects.diameter_um);
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> Model {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name);
        Model::load(path.to_str().unwrap()).unwrap()
    }

    #[test]
    fn the_stack_has_the_kind_and_the_sizes_of_the_model() {
        let nuclei = settings(&model("nuclei"), Kind::Nuclei, 0);
        assert_eq!((nuclei.kind, nuclei.objects.diameter_um), (Kind::Nuclei, 12.0));
        assert_eq!(nuclei.voxel_size_um.zyx_um(), Some([1.2, 0.6, 0.6]));
        for (name, kind) in [
            ("nuclei", Kind::Nuclei),
            ("nuclei-dog", Kind::Nuclei),
            ("cells", Kind::Cells),
            ("labelfree-nuclei", Kind::LabelFree),
        ] {
            assert_eq!(simulated_kind(&model(name)), Some(kind), "{name}");
        }
        let mut untagged = model("cells");
        untagged.tags = vec!["3d".to_owned()];
        assert_eq!(simulated_kind(&untagged), None);
        untagged.tags.push("Membrane".to_owned());
        assert_eq!(simulated_kind(&untagged), Some(Kind::Cells));
    }

    #[test]
    fn sizes_that_cannot_be_simulated_are_replaced_by_near_ones() {
        let mut odd = model("nuclei-dog");
        (odd.voxel_um, odd.object_diameter_um, odd.input_channels) = (Some([200.0, 1.0, 1.0]), Some(0.5), 2);
        let settings = settings(&odd, Kind::Nuclei, 0);
        assert_eq!((settings.voxel_size_um.zyx_um(), settings.objects.diameter_um), (Some([50.0, 1.0, 1.0]), 100.0));
        let folder = tempfile::tempdir().unwrap();
        let path = simulated_stack(&odd, folder.path(), &CancelToken::default(), drop).unwrap();
        assert!(path.is_file());
    }
}
