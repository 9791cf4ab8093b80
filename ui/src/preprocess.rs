//! Preprocessing of a document: its steps, their preview in the views, and their controls.

mod copy;
mod fields;

pub(crate) use copy::{copy_control, crop_of_copy};

use crate::action::Actions;
use crate::data::loader::SourceId;
use crate::data::plane::{Plane, PlaneAt};
use crate::data::source::{Cancel, FileSource, PlaneSource, SourceError};
use crate::document::{Document, DocumentChange, fresh_id};
use crate::documents::DocumentsAction;
use crate::engine_notes::message_in_window;
use crate::panels::{heading, icon_button};
use crate::theme;
use cytoscope_formats::Image;
use cytoscope_pipeline::{CancelToken, Context, preprocessed};
use cytoscope_preprocess::{MAX_STEPS, PreprocessStep};
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
    /// Document and typed text of the first steps of its preprocessed copy; `None` unless it is being edited.
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

impl Reorder {
    /// Changes the order of the steps in which it was requested.
    fn apply(self, steps: &mut Vec<PreprocessStep>) {
        match self {
            Self::Up(index) => steps.swap(index - 1, index),
            Self::Down(index) => steps.swap(index, index + 1),
            Self::Remove(index) => _ = steps.remove(index),
        }
    }
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
        PreprocessStep::Deskew { .. } => "Deskew",
        PreprocessStep::Affine { .. } => "Affine warp",
        PreprocessStep::Crop { .. } => "Crop",
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
        change.apply(&mut settings.steps);
    }
    ui.horizontal(|ui| {
        let can_add = settings.steps.len() < MAX_STEPS;
        let offered = PreprocessStep::usual().into_iter().filter(|step| !step.moves_voxels());
        settings.steps.extend(step_menu(ui, can_add, "Add step", offered));
        let has_steps = !settings.steps.is_empty();
        settings.preview &= has_steps;
        let preview =
            theme::outlined(ui, |ui| ui.add_enabled(has_steps, egui::Checkbox::new(&mut settings.preview, "Preview")));
        let preview = preview.on_hover_text("Show the preprocessed stack instead of the original");
        preview.on_disabled_hover_text("Add a step first.");
    });
    if let Some(reason) = &document.preview_error {
        problem(ui, reason);
    }
    if settings != document.preprocessing {
        let change = DocumentChange::Preprocessing(settings);
        actions.send(DocumentsAction::Change { document: document.id, change });
    }
}

/// Draws the menu that adds one of the `offered` steps; returns the chosen one.
fn step_menu(
    ui: &mut Ui,
    enabled: bool,
    name: &str,
    offered: impl Iterator<Item = PreprocessStep>,
) -> Option<PreprocessStep> {
    let mut chosen = None;
    ui.add_enabled_ui(enabled, |ui| {
        let menu = ui.menu_button(format!("{}  {name}", icon::PLUS), |ui| {
            for step in offered {
                if ui.button(title(&step)).on_hover_text(step.to_string()).clicked() {
                    chosen = Some(step);
                    ui.close();
                }
            }
        });
        menu.response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, name));
    });
    chosen
}

/// Returns the width in points that the buttons which move and remove a step leave in its row: a row that is wider than the
/// panel would widen the panel in every frame.
fn width_beside_buttons(ui: &Ui) -> f32 {
    /// Width of the icon of a button in points, with some space for the rounding of widths.
    const ICON: f32 = 18.0;
    let spacing = ui.spacing();
    let button = ICON + 2.0 * spacing.button_padding.x + spacing.item_spacing.x;
    (ui.available_width() - 3.0 * button).max(80.0)
}

/// Draws the buttons that move and remove one of `count` steps; returns what was clicked.
fn reorder_buttons(ui: &mut Ui, index: usize, count: usize) -> Option<Reorder> {
    let mut reorder = None;
    if icon_button(ui, icon::ARROW_UP, "Move up", index > 0, false).clicked() {
        reorder = Some(Reorder::Up(index));
    }
    if icon_button(ui, icon::ARROW_DOWN, "Move down", index + 1 < count, false).clicked() {
        reorder = Some(Reorder::Down(index));
    }
    if icon_button(ui, icon::TRASH, "Remove step", true, false).clicked() {
        reorder = Some(Reorder::Remove(index));
    }
    reorder
}

/// Draws one step: its text, and the buttons that move and remove it.
fn step_row(
    ui: &mut Ui,
    document: u64,
    index: usize,
    steps: &mut [PreprocessStep],
    editor: &mut StepEditor,
) -> Option<Reorder> {
    let count = steps.len();
    let step = steps.get_mut(index)?;
    let mut text = editor.text_for(document, index).map_or_else(|| step.to_string(), str::to_owned);
    let row = ui.horizontal(|ui| {
        let width = width_beside_buttons(ui);
        let response = theme::text_field(ui, true, egui::TextEdit::singleline(&mut text).desired_width(width));
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
        reorder_buttons(ui, index, count)
    });
    if let Some(Err(reason)) = editor.text_for(document, index).map(parsed) {
        problem(ui, &reason);
    }
    row.inner
}

fn problem(ui: &mut Ui, reason: &str) {
    let color = theme::bad(ui.visuals());
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
        let at = PlaneAt::whole(Orientation::Xy, 1, [2, 8, 8]);
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
    fn steps_that_move_voxels_are_refused() {
        assert!(parsed("crop:z=0-1").unwrap_err().contains("use Preprocessed copy instead"));
        assert!(parsed("blur").unwrap_err().contains("expected one of gaussian"));
        assert!(parsed("median:radius=1").is_ok());
    }
}
