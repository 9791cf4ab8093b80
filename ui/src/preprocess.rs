//! Preprocessing of a document: its steps, their preview in the views, and their controls.

use crate::action::Actions;
use crate::data::loader::SourceId;
use crate::data::plane::{Plane, PlaneAt};
use crate::data::source::{Cancel, FileSource, PlaneSource, SourceError};
use crate::document::{Document, DocumentChange, fresh_id};
use crate::documents::DocumentsAction;
use crate::engine_notes::message_in_window;
use crate::jobs::JobsAction;
use crate::panels::{heading, icon_button, named_button, weak};
use cytoscope_formats::Image;
use cytoscope_pipeline::{CancelToken, Context, preprocessed};
use cytoscope_preprocess::{MAX_STEPS, PreprocessStep, parse_steps};
use eframe::egui::{self, RichText, Ui};
use egui_phosphor::regular as icon;
use std::sync::Arc;

/// Preprocessing settings of a document.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Preprocessing {
    /// Steps of predictions, in order. They do not move voxels, so that results lie on the stack.
    pub steps: Vec<PreprocessStep>,
    /// Whether views show the preprocessed stack instead of the stack.
    pub preview: bool,
}

/// The preprocessed stack, shown instead of a document's own.
pub struct PreprocessPreview {
    /// Source of its planes.
    pub source: Arc<dyn PlaneSource>,
    /// Id of `source` in the caches of planes and volumes.
    pub source_id: SourceId,
    cancel: CancelToken,
}

impl PreprocessPreview {
    /// The preview of steps on an image. No pixels are read.
    ///
    /// # Errors
    /// A message that names the step that does not fit the image.
    pub fn new(image: &Image, steps: &[PreprocessStep]) -> Result<Self, String> {
        let context = Context::default();
        let cancel = context.cancel.clone();
        let result = preprocessed(&context, image, steps).map_err(|error| message_in_window(&error.message()))?;
        let file = FileSource::new(result, false);
        let source = Arc::new(PreviewSource { file, cancel: cancel.clone() });
        Ok(Self { source, source_id: fresh_id(), cancel })
    }
}

impl Drop for PreprocessPreview {
    /// Ends reads whose result is no longer needed.
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Planes of a preprocessed image, until its preview is dropped.
struct PreviewSource {
    file: FileSource,
    cancel: CancelToken,
}

impl PlaneSource for PreviewSource {
    fn plane(&self, at: &PlaneAt, cancel: &Cancel) -> Result<Plane, SourceError> {
        let plane = self.file.plane(at, cancel);
        plane.map_err(|error| if self.cancel.is_canceled() { SourceError::Canceled } else { error })
    }
}

/// State that the controls keep between frames.
#[derive(Default)]
pub(crate) struct StepEditor {
    /// The text of the step that is being edited, with document and index.
    edited: Option<(u64, usize, String)>,
    /// Document and text of the first steps of its preprocessed copy.
    copy_text: Option<(u64, String)>,
}

impl StepEditor {
    fn text_for(&self, document: u64, index: usize) -> Option<&str> {
        let edited = self.edited.as_ref().filter(|(of, at, _)| *of == document && *at == index);
        edited.map(|(_, _, text)| text.as_str())
    }
}

/// A change of the order of the steps.
enum Reorder {
    Up(usize),
    Down(usize),
    Remove(usize),
}

/// Returns what a menu calls a step.
fn title(step: &PreprocessStep) -> &'static str {
    match step {
        PreprocessStep::Gaussian { .. } => "Gaussian smoothing",
        PreprocessStep::Median { .. } => "Median filter",
        PreprocessStep::Tophat { .. } => "Background: white top-hat",
        PreprocessStep::RollingBall { .. } => "Background: rolling ball",
        PreprocessStep::Clahe { .. } => "Local contrast (CLAHE)",
        PreprocessStep::Stretch { .. } => "Contrast stretch",
        PreprocessStep::NormalizeSlices { .. } => "Normalize slices",
        PreprocessStep::Invert => "Invert contrast",
        // The menu does not offer steps that move voxels.
        PreprocessStep::Deskew { .. } | PreprocessStep::Affine { .. } | PreprocessStep::Crop { .. } => step.name(),
    }
}

/// Returns the step of a text, unless it moves voxels.
fn parsed(text: &str) -> Result<PreprocessStep, String> {
    let step = text.parse::<PreprocessStep>().map_err(|error| error.to_string())?;
    if step.moves_voxels() {
        return Err(format!("{} changes the voxel grid: use Preprocessed copy instead", step.name()));
    }
    Ok(step)
}

/// Returns the steps of a preprocessed copy: the steps that `text` states, then the steps of the document.
fn preprocessed_copy_steps(text: &str, steps: &[PreprocessStep]) -> Result<Vec<PreprocessStep>, String> {
    let mut all = match text.trim() {
        "" => Vec::new(),
        text => parse_steps(text).map_err(|error| error.to_string())?,
    };
    all.extend_from_slice(steps);
    if all.len() > MAX_STEPS {
        return Err(format!("{} steps are too many: the maximum is {MAX_STEPS}", all.len()));
    }
    Ok(all)
}

/// Draws the controls that write and open a preprocessed copy of a stack; its steps may change the grid. `against_jobs` says why
/// the engine can run no job now.
pub(crate) fn copy_control(
    ui: &mut Ui,
    document: &Document,
    against_jobs: Option<&'static str>,
    editor: &mut StepEditor,
    actions: &mut Actions,
) {
    egui::CollapsingHeader::new("Preprocessed copy").id_salt("preprocessed copy").show(ui, |ui| {
        weak(ui, "Crop, deskew and affine change the grid. They are applied to a copy, before the steps above.");
        let stored_text = editor.copy_text.as_ref().filter(|(of, _)| *of == document.id);
        let mut text = stored_text.map(|(_, text)| text.clone()).unwrap_or_default();
        let edit = egui::TextEdit::singleline(&mut text).hint_text("crop:z=2-6").desired_width(f32::INFINITY);
        let response = ui.add(edit);
        response.widget_info(|| {
            let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "First steps of the copy");
            info.current_text_value = Some(text.clone());
            info
        });
        let is_changed = response.changed();
        response.on_hover_text("Steps are separated by commas. Lengths are in voxels, or in µm if they end in um");
        let steps = preprocessed_copy_steps(&text, &document.preprocessing.steps);
        if let Err(reason) = &steps {
            problem(ui, reason);
        }
        let against_steps = match &steps {
            Err(_) => Some("Correct the steps first."),
            Ok(steps) if steps.is_empty() => Some("Enter a step first."),
            Ok(_) => None,
        };
        let reason = against_jobs.or(against_steps);
        let open = named_button(ui, reason.is_none(), icon::COPY, "Open preprocessed copy…");
        if open.on_disabled_hover_text(reason.unwrap_or_default()).clicked()
            && let Ok(steps) = steps
        {
            actions.send(JobsAction::AskCopy { document: document.id, steps });
        }
        if is_changed {
            editor.copy_text = Some((document.id, text));
        }
    });
}

/// Draws the list of preprocessing steps, which are edited as text, and the switch of their preview.
pub(crate) fn preprocessing_control(ui: &mut Ui, document: &Document, editor: &mut StepEditor, actions: &mut Actions) {
    heading(ui, "Preprocessing");
    let mut settings = document.preprocessing.clone();
    let mut reorder = None;
    for index in 0..settings.steps.len() {
        reorder = step_row(ui, document.id, index, &mut settings.steps, editor).or(reorder);
    }
    if let Some(change) = reorder {
        editor.edited = None;
        match change {
            Reorder::Up(index) => settings.steps.swap(index - 1, index),
            Reorder::Down(index) => settings.steps.swap(index, index + 1),
            Reorder::Remove(index) => _ = settings.steps.remove(index),
        }
    }
    ui.horizontal(|ui| {
        let can_add = settings.steps.len() < MAX_STEPS;
        ui.add_enabled_ui(can_add, |ui| {
            let menu = ui.menu_button(format!("{}  Add step", icon::PLUS), |ui| {
                for step in PreprocessStep::usual().into_iter().filter(|step| !step.moves_voxels()) {
                    if ui.button(title(&step)).on_hover_text(step.to_string()).clicked() {
                        settings.steps.push(step);
                        ui.close();
                    }
                }
            });
            let name = "Add step";
            menu.response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, can_add, name));
        });
        let has_steps = !settings.steps.is_empty();
        settings.preview &= has_steps;
        let preview = crate::theme::outlined(ui, |ui| {
            ui.add_enabled(has_steps, egui::Checkbox::new(&mut settings.preview, "Preview"))
        });
        preview.on_hover_text("Show the preprocessed stack instead of the original");
    });
    if let Some(reason) = &document.preview_error {
        problem(ui, reason);
    }
    if settings != document.preprocessing {
        let change = DocumentChange::Preprocessing(settings);
        actions.send(DocumentsAction::Change { document: document.id, change });
    }
}

/// Draws one step: its text, and the buttons that move and remove it.
fn step_row(
    ui: &mut Ui,
    document: u64,
    index: usize,
    steps: &mut [PreprocessStep],
    editor: &mut StepEditor,
) -> Option<Reorder> {
    /// Width of the icon of a button in points, with some space for the rounding of widths.
    const ICON: f32 = 18.0;
    let count = steps.len();
    let step = steps.get_mut(index)?;
    let mut text = editor.text_for(document, index).map_or_else(|| step.to_string(), str::to_owned);
    let mut reorder = None;
    ui.horizontal(|ui| {
        // A row that is wider than the panel would widen the panel in every frame.
        let spacing = ui.spacing();
        let button = ICON + 2.0 * spacing.button_padding.x + spacing.item_spacing.x;
        let width = (ui.available_width() - 3.0 * button).max(80.0);
        let response = ui.add(egui::TextEdit::singleline(&mut text).desired_width(width));
        response.widget_info(|| {
            let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, format!("Step {}", index + 1));
            info.current_text_value = Some(text.clone());
            info
        });
        if response.changed() {
            if let Ok(changed) = parsed(&text) {
                *step = changed;
            }
            editor.edited = Some((document, index, text.clone()));
        }
        if response.lost_focus() && parsed(&text).is_ok() {
            editor.edited = None;
        }
        response.on_hover_text("Lengths are in voxels, or in µm if they end in um");
        if icon_button(ui, icon::ARROW_UP, "Move up", index > 0, false).clicked() {
            reorder = Some(Reorder::Up(index));
        }
        if icon_button(ui, icon::ARROW_DOWN, "Move down", index + 1 < count, false).clicked() {
            reorder = Some(Reorder::Down(index));
        }
        if icon_button(ui, icon::TRASH, "Remove step", true, false).clicked() {
            reorder = Some(Reorder::Remove(index));
        }
    });
    if let Some(Err(reason)) = editor.text_for(document, index).map(parsed) {
        problem(ui, &reason);
    }
    reorder
}

fn problem(ui: &mut Ui, reason: &str) {
    let color = crate::theme::bad(ui.visuals());
    ui.add(egui::Label::new(RichText::new(reason).size(12.0).color(color)).wrap());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::data::plane::{Orientation, Values};
    use cytoscope_volume::{Array, Axes, VoxelSize};
    use std::path::Path;

    #[test]
    fn a_preview_shows_the_preprocessed_slice() {
        let values: Vec<f32> = (0..2 * 8 * 8).map(|i| i as f32).collect();
        let array = Array::new(Axes::zyx(), vec![2, 8, 8], values).unwrap();
        let image =
            cytoscope_formats::image_in_memory(Path::new("x"), array, VoxelSize::new_um(1.0, 1.0, 1.0)).unwrap();
        let preview = PreprocessPreview::new(&image, &["stretch:low=0:high=100".parse().unwrap()]).unwrap();
        let at = PlaneAt {
            orientation: Orientation::Xy,
            index: 1,
            channel: 0,
            time: 0,
            rows: 0..8,
            columns: 0..8,
            steps: [1; 3],
        };
        let plane = preview.source.plane(&at, &Cancel::default()).unwrap();
        let expected: Vec<f32> = (64..128).map(|i| (f64::from(i) / 127.0) as f32).collect();
        assert_eq!(plane.values, Values::F32(expected));
    }

    #[test]
    fn a_step_that_needs_the_voxel_size_names_the_control_that_sets_it() {
        let array = Array::new(Axes::zyx(), vec![2, 8, 8], vec![0.0f32; 128]).unwrap();
        let image = cytoscope_formats::image_in_memory(Path::new("x"), array, VoxelSize::default()).unwrap();
        let refused = PreprocessPreview::new(&image, &["tophat:radius=2um".parse().unwrap()]).err().unwrap();
        assert!(refused.ends_with("or set the voxel size with \"Voxel size…\""), "{refused}");
    }

    #[test]
    fn a_document_shows_its_preview_and_then_its_own_contrast_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        let array = Array::new(Axes::zyx(), vec![2, 8, 8], vec![7u16; 128]).unwrap();
        let spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::Npy);
        cytoscope_formats::write_array(&path, &array, &spec).unwrap();
        let mut document = Document::open(&path, Some(Axes::zyx()), 0).unwrap();
        document.channels[0].wants_limits = false;
        (document.channels[0].display.low, document.channels[0].display.high) = (3.0, 9.0);
        let mut set = |steps: &[&str], preview: bool| {
            let steps = steps.iter().map(|step| step.parse::<PreprocessStep>().unwrap()).collect();
            document.apply(DocumentChange::Preprocessing(Preprocessing { steps, preview }));
            let channel = &document.channels[0];
            let limits = (channel.display.low, channel.display.high, channel.wants_limits);
            (document.shown_source().1 == document.id, limits, document.preview_error.clone())
        };
        assert_eq!(set(&["median:radius=1"], false), (true, (3.0, 9.0, false), None));
        assert_eq!(set(&["median:radius=1"], true), (false, (3.0, 9.0, true), None));
        // The file states no voxel size.
        let (own, limits, error) = set(&["gaussian:sigma=1um"], true);
        assert_eq!((own, limits), (true, (3.0, 9.0, false)));
        assert!(error.is_some_and(|error| error.contains("voxel size along Z is unknown")));
        assert_eq!(set(&[], true), (true, (3.0, 9.0, false), None));
    }

    #[test]
    fn a_copy_has_the_typed_steps_first() {
        let own = ["median:radius=1".parse::<PreprocessStep>().unwrap()];
        let names = |text: &str| -> Result<Vec<&'static str>, String> {
            preprocessed_copy_steps(text, &own).map(|steps| steps.iter().map(PreprocessStep::name).collect())
        };
        assert_eq!(names(" ").unwrap(), ["median"]);
        assert_eq!(names("crop:z=0-1,deskew:angle=30").unwrap(), ["crop", "deskew", "median"]);
        assert!(names("blur").unwrap_err().contains("expected one of gaussian"));
        assert!(names(&["crop:z=0-1"; MAX_STEPS].join(",")).is_err());
    }

    #[test]
    fn steps_that_move_voxels_are_refused() {
        assert!(parsed("crop:z=0-1").unwrap_err().contains("use Preprocessed copy instead"));
        assert!(parsed("blur").unwrap_err().contains("expected one of gaussian"));
        assert!(parsed("median:radius=1").is_ok());
    }
}
