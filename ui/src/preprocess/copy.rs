//! Controls of a preprocessed copy: its first steps, which may change the grid, the shape of the copy, and the button that opens
//! it.

use super::fields::{Before, bounds, step_fields};
use super::{Reorder, StepEditor, problem, reorder_buttons, step_menu, title, width_beside_buttons};
use crate::action::Actions;
use crate::document::{Document, DocumentChange, zyx_text};
use crate::documents::DocumentsAction;
use crate::engine_notes::message_in_window;
use crate::jobs::JobsAction;
use crate::number_text::short_number;
use crate::panels::{capitalized, named_button, weak};
use crate::theme;
use cytoscope_preprocess::{Chain, MAX_STEPS, PreprocessError, PreprocessStep, parse_steps};
use cytoscope_storage::message;
use cytoscope_storage::setting::VOXEL_SIZE;
use cytoscope_volume::VoxelSize;
use eframe::egui::{self, RichText, Ui, vec2};
use egui_phosphor::regular as icon;
use std::ops::Range;

/// The matrix of a warp that changes nothing.
const IDENTITY: [f64; 12] = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0];

/// Returns the steps that move voxels, as the menu adds them to the copy of a stack of this shape: a crop and a warp change
/// nothing at first.
fn moving_steps([depth, _, _]: [usize; 3]) -> Vec<PreprocessStep> {
    let mut steps = vec![PreprocessStep::Crop { z: Some([0, depth]), y: None, x: None }];
    steps.extend(PreprocessStep::usual().into_iter().filter(PreprocessStep::moves_voxels));
    steps.push(PreprocessStep::Affine { matrix: IDENTITY });
    steps
}

/// Returns the steps that a text states, none for an empty one.
fn typed_steps(text: &str) -> Result<Vec<PreprocessStep>, String> {
    match text.trim() {
        "" => Ok(Vec::new()),
        text => parse_steps(text).map_err(|error| error.to_string()),
    }
}

/// Returns the text of steps, as the command line takes it.
fn steps_text(steps: &[PreprocessStep]) -> String {
    steps.iter().map(PreprocessStep::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the steps of a copy: `first`, then the preprocessing steps of the document.
fn all_steps(document: &Document, first: &[PreprocessStep]) -> Vec<PreprocessStep> {
    first.iter().chain(&document.preprocessing.steps).cloned().collect()
}

/// Returns what steps make of a document's stack.
///
/// # Errors
/// What does not fit, in the words of the window.
fn chain_for(document: &Document, steps: &[PreprocessStep]) -> Result<Chain, String> {
    let voxel_um = document.image.meta().voxel_size_um;
    Chain::new(steps, document.extents.zyx, voxel_um).map_err(|error| match error {
        PreprocessError::UnknownVoxelSize { .. } => message_in_window(&message!("{error} with {VOXEL_SIZE}")),
        other => other.to_string(),
    })
}

/// Returns the shape and, if it is known, the voxel size of a copy as text.
fn outcome(chain: &Chain) -> String {
    let shape = zyx_text(chain.shape_zyx());
    match chain.voxel_size() {
        VoxelSize { z: Some(z), y: Some(y), x: Some(x) } => {
            let [z, y, x] = [z, y, x].map(short_number);
            format!("The copy has {shape} voxels (Z × Y × X) of {z} × {y} × {x} µm.")
        }
        _ => format!("The copy has {shape} voxels (Z × Y × X)."),
    }
}

/// Returns the first voxel along Z, Y, X that the copy of a document keeps, and the one after the last; `None` if it keeps all, or
/// if another step moves voxels first.
pub(crate) fn crop_of_copy(document: &Document) -> Option<[[usize; 2]; 3]> {
    let first = document.copy_steps.iter().find(|step| step.moves_voxels())?;
    let PreprocessStep::Crop { z, y, x } = first else { return None };
    let shape_zyx = document.extents.zyx;
    let kept = bounds([*z, *y, *x], shape_zyx);
    (kept != bounds([None; 3], shape_zyx)).then_some(kept)
}

/// Draws the controls that write and open a preprocessed copy of a stack; its steps may change the grid. `visible_yx` are the rows
/// and columns that the XY view shows, `against_jobs` says why the engine can run no job now.
pub(crate) fn copy_control(
    ui: &mut Ui,
    document: &Document,
    visible_yx: Option<[Range<usize>; 2]>,
    against_jobs: Option<&'static str>,
    editor: &mut StepEditor,
    actions: &mut Actions,
) {
    egui::CollapsingHeader::new("Preprocessed copy").id_salt("preprocessed copy").show(ui, |ui| {
        weak(ui, "Crop, deskew and affine change the grid. They are applied to a copy, before the steps above.");
        let mut first = document.copy_steps.clone();
        step_list(ui, document, &mut first, visible_yx);
        if first != document.copy_steps {
            editor.copy_text = None;
        }
        let typed = steps_field(ui, document.id, &mut first, editor);
        let steps = all_steps(document, &first);
        let chain = typed.and_then(|()| chain_for(document, &steps));
        let against_steps = match &chain {
            Err(reason) => {
                problem(ui, &capitalized(reason));
                Some("Correct the steps first.")
            }
            Ok(_) if steps.is_empty() => Some("Add a step first."),
            Ok(chain) => {
                weak(ui, outcome(chain));
                None
            }
        };
        let reason = against_jobs.or(against_steps);
        let open = named_button(ui, reason.is_none(), icon::COPY, "Open preprocessed copy…");
        if open.on_disabled_hover_text(reason.unwrap_or_default()).clicked() {
            actions.send(JobsAction::AskCopy { document: document.id, steps });
        }
        if first != document.copy_steps {
            let change = DocumentChange::CopySteps(first);
            actions.send(DocumentsAction::Change { document: document.id, change });
        }
    });
}

/// Draws the fields of each step, the buttons that move and remove it, and the menu that adds one.
fn step_list(ui: &mut Ui, document: &Document, steps: &mut Vec<PreprocessStep>, visible_yx: Option<[Range<usize>; 2]>) {
    let count = steps.len();
    let mut reorder = None;
    for index in 0..count {
        let before = stack_before(document, steps.get(..index).unwrap_or_default(), visible_yx.clone());
        let Some(step) = steps.get_mut(index) else { continue };
        let clicked = ui.push_id(("copy step", index), |ui| {
            let clicked = step_header(ui, step, index, count);
            step_fields(ui, step, &before);
            clicked
        });
        reorder = clicked.inner.or(reorder);
    }
    if let Some(change) = reorder {
        change.apply(steps);
    }
    let offered = moving_steps(document.extents.zyx).into_iter();
    steps.extend(step_menu(ui, count < MAX_STEPS, "Add copy step", offered));
}

/// Draws the name of a step, or its text if it has no fields, and the buttons that move and remove it; returns what was clicked.
fn step_header(ui: &mut Ui, step: &PreprocessStep, index: usize, count: usize) -> Option<Reorder> {
    let row = ui.horizontal(|ui| {
        let text = match step.moves_voxels() {
            true => RichText::new(title(step)).strong(),
            false => RichText::new(step.to_string()),
        };
        let size = vec2(width_beside_buttons(ui), ui.spacing().interact_size.y);
        ui.allocate_ui_with_layout(size, egui::Layout::left_to_right(egui::Align::Center), |ui| {
            ui.set_min_width(size.x);
            ui.add(egui::Label::new(text).truncate());
        });
        reorder_buttons(ui, index, count)
    });
    row.inner
}

/// Returns the stack that a step after `earlier` ones is applied to. If these do not fit, that is the document's, and the problem
/// is named below the steps.
fn stack_before(document: &Document, earlier: &[PreprocessStep], visible_yx: Option<[Range<usize>; 2]>) -> Before {
    let chain = chain_for(document, earlier).ok();
    let size_um = chain.as_ref().map_or(document.image.meta().voxel_size_um, Chain::voxel_size);
    Before {
        shape_zyx: chain.as_ref().map_or(document.extents.zyx, Chain::shape_zyx),
        slice_um: size_um.z.filter(|um| um.is_finite() && *um > 0.0),
        visible_yx: match earlier.iter().any(PreprocessStep::moves_voxels) {
            true => Err("A step before this one changes the grid."),
            false => visible_yx.ok_or("The XY view shows no part of the stack."),
        },
    }
}

/// Draws the steps of a copy as text, and reads `steps` from it when it is changed.
///
/// # Errors
/// The problem with the text.
fn steps_field(
    ui: &mut Ui,
    document: u64,
    steps: &mut Vec<PreprocessStep>,
    editor: &mut StepEditor,
) -> Result<(), String> {
    let stored = editor.copy_text.as_ref().filter(|(of, _)| *of == document);
    let mut text = stored.map_or_else(|| steps_text(steps), |(_, text)| text.clone());
    let edit = egui::TextEdit::singleline(&mut text).hint_text("crop:z=2-6").desired_width(f32::INFINITY);
    // Rows that are added above the field while it is typed in would change another id.
    let response = theme::text_field(ui, true, edit.id_salt("copy steps"));
    response.widget_info(|| {
        let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "First steps of the copy");
        info.current_text_value = Some(text.clone());
        info
    });
    let (is_changed, is_left) = (response.changed(), response.lost_focus());
    response.on_hover_text(
        "The steps as the command line takes them, separated by commas. Ranges count from 0, without their last number. Lengths \
         are in voxels, or in µm if they end in um.",
    );
    let typed = typed_steps(&text);
    if is_changed {
        if let Ok(typed) = &typed {
            steps.clone_from(typed);
        }
        editor.copy_text = Some((document, text));
    } else if is_left && typed.is_ok() {
        editor.copy_text = None;
    }
    typed.map(drop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::{Array, Axes};

    /// A stack of 10 × 20 × 30 voxels; the folder must outlive it.
    fn stack(folder: &tempfile::TempDir, voxel_size_um: VoxelSize) -> Document {
        let path = folder.path().join("a.ome.tif");
        let array = Array::new(Axes::zyx(), vec![10, 20, 30], vec![7u16; 6000]).unwrap();
        let spec = WriteSpec { voxel_size_um, ..WriteSpec::of(&array, Container::OmeTiff) };
        write_array(&path, &array, &spec).unwrap();
        Document::open(&path, None, 0).unwrap()
    }

    fn steps(text: &str) -> Vec<PreprocessStep> {
        typed_steps(text).unwrap()
    }

    #[test]
    fn a_copy_has_its_own_steps_first_and_the_shape_is_that_of_the_command_line() {
        let folder = tempfile::tempdir().unwrap();
        let mut document = stack(&folder, VoxelSize::new_um(2.0, 1.0, 1.0));
        document.preprocessing.steps = steps("median:radius=1");
        assert!(steps(" ").is_empty());
        let all = |text: &str| steps_text(&all_steps(&document, &steps(text)));
        assert_eq!(all(""), "median:radius=1");
        assert_eq!(all("crop:z=0-4,deskew:angle=30"), "crop:z=0-4,deskew:angle=30,median:radius=1");
        let result =
            |text: &str| chain_for(&document, &all_steps(&document, &steps(text))).map(|chain| outcome(&chain));
        assert_eq!(
            result("crop:z=0-4:x=5-30").unwrap(),
            "The copy has 4 × 20 × 25 voxels (Z × Y × X) of 2 × 1 × 1 µm."
        );
        // 9 slices, each shifted by 2 cos 60° = 1 voxel; their distance is 2 sin 60° = 1.732 µm.
        let deskewed = result("deskew:angle=60").unwrap();
        assert_eq!(deskewed, "The copy has 10 × 29 × 30 voxels (Z × Y × X) of 1.732 × 1 × 1 µm.");
        assert!(result("crop:z=0-11").unwrap_err().ends_with("give a range inside 0-10"));
        assert!(result(&["crop:z=0-1"; MAX_STEPS].join(",")).is_err());
        assert!(typed_steps("blur").unwrap_err().contains("expected one of gaussian"));
    }

    #[test]
    fn a_step_that_needs_the_voxel_size_names_the_control_that_sets_it() {
        let folder = tempfile::tempdir().unwrap();
        let document = stack(&folder, VoxelSize::default());
        let refused = chain_for(&document, &steps("deskew:angle=30")).unwrap_err();
        assert!(refused.ends_with("set the voxel size with \"Voxel size…\""), "{refused}");
    }

    #[test]
    fn the_steps_of_the_menu_fit_the_stack_and_move_voxels() {
        let folder = tempfile::tempdir().unwrap();
        let document = stack(&folder, VoxelSize::new_um(2.0, 1.0, 1.0));
        let offered = moving_steps(document.extents.zyx);
        assert_eq!(offered.iter().map(PreprocessStep::name).collect::<Vec<_>>(), ["crop", "deskew", "affine"]);
        for step in offered {
            assert!(step.moves_voxels() && chain_for(&document, std::slice::from_ref(&step)).is_ok(), "{step}");
            assert_eq!(step.to_string().parse::<PreprocessStep>(), Ok(step.clone()));
        }
    }

    #[test]
    fn the_fields_of_a_step_have_the_limits_of_the_stack_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let document = stack(&folder, VoxelSize::new_um(2.0, 1.0, 1.0));
        let before = |earlier: &str| stack_before(&document, &steps(earlier), Some([5..15, 0..30]));
        let at_first = before("");
        assert_eq!((at_first.shape_zyx, at_first.slice_um), ([10, 20, 30], Some(2.0)));
        assert_eq!(at_first.visible_yx, Ok([5..15, 0..30]));
        // Smoothing keeps the grid, a crop does not.
        assert_eq!(before("gaussian:sigma=1").visible_yx, Ok([5..15, 0..30]));
        let cropped = before("crop:y=5-15");
        assert_eq!((cropped.shape_zyx, cropped.visible_yx.is_err()), ([10, 10, 30], true));
        // Steps that do not fit.
        assert_eq!(before("crop:y=5-99").shape_zyx, [10, 20, 30]);
    }

    #[test]
    fn the_outlined_crop_lies_on_the_stack() {
        let folder = tempfile::tempdir().unwrap();
        let mut document = stack(&folder, VoxelSize::default());
        let mut outlined = |text: &str| {
            document.apply(DocumentChange::CopySteps(steps(text)));
            crop_of_copy(&document)
        };
        assert_eq!(outlined("crop:y=5-15"), Some([[0, 10], [5, 15], [0, 30]]));
        assert_eq!(outlined("gaussian:sigma=1,crop:z=1-2,crop:z=0-1"), Some([[1, 2], [0, 20], [0, 30]]));
        for none in ["", "crop:z=0-10", "deskew:angle=30,crop:z=1-2", "median:radius=1"] {
            assert_eq!(outlined(none), None, "{none}");
        }
    }
}
