//! Voxel size of a document, which its file states or the user has set, and the dialog that sets it.

use crate::action::Actions;
use crate::display::DisplayAction;
use crate::document::{Document, GivenMetadata, file_name};
use crate::documents::DocumentsAction;
use crate::panels::{filled_button, weak};
use crate::state::State;
use crate::theme;
use cytoscope_volume::VoxelSize;
use eframe::egui::{self, RichText};

/// Names of the axes, in the order of voxel sizes.
const AXES: [&str; 3] = ["Z", "Y", "X"];

/// The dialog that asks for the voxel size of a document.
pub(crate) struct VoxelSizeDialog {
    /// Id of the document.
    pub(crate) document: u64,
    /// The texts typed so far, along Z, Y, X; an empty one stands for the voxel size of the file.
    pub(crate) zyx: [String; 3],
}

/// Whether a length is finite and positive.
fn is_valid(um: f64) -> bool {
    um.is_finite() && um > 0.0
}

/// A length in µm without the rounding errors of file formats that store pixels per unit of length.
fn micrometers(um: f64) -> String {
    ((um * 1e6).round() / 1e6).to_string()
}

/// The voxel size Z, Y, X in µm, 1 where it is unknown, and whether it is complete: a single slice has none along Z.
pub(crate) fn resolved(size_um: VoxelSize, zyx: [usize; 3]) -> ([f64; 3], bool) {
    let is_known = |um: Option<f64>| um.is_some_and(is_valid);
    let is_complete = is_known(size_um.y) && is_known(size_um.x) && (is_known(size_um.z) || zyx[0] == 1);
    (size_um.zyx_um_or_one(), is_complete)
}

impl Document {
    /// The document with a voxel size in µm that replaces the one of its file; along axes where `given_um` is unknown,
    /// the file's is kept. If the result is incomplete, jobs do not use it.
    pub(crate) fn with_voxel_size(mut self, given_um: VoxelSize) -> Self {
        let size_um = given_um.or(self.file_voxel_size_um);
        let (voxel_um, is_complete) = resolved(size_um, self.extents.zyx);
        if given_um != VoxelSize::default() && is_complete {
            self.image = self.image.with_voxel_size(size_um);
            (self.voxel_um, self.voxel_known) = (voxel_um, true);
        }
        self.given_voxel_size_um = given_um;
        self
    }

    /// The voxel size Z, Y, X in µm that jobs use instead of the one in the file; `None` if the user has set none, or
    /// an incomplete one.
    pub fn given_voxel_um(&self) -> Option<[f64; 3]> {
        let is_given = self.given_voxel_size_um != VoxelSize::default() && self.voxel_known;
        is_given.then_some(self.voxel_um)
    }

    /// The voxel size in µm along the axes where the user has set one that jobs use.
    pub(crate) fn given_axes_um(&self) -> VoxelSize {
        self.given_voxel_um().map_or_else(VoxelSize::default, |_| self.given_voxel_size_um)
    }

    /// The axes and voxel size that the user has set, which replace those of the file.
    pub(crate) fn given(&self) -> GivenMetadata {
        GivenMetadata { axes: self.axes.clone(), voxel_size_um: self.given_voxel_size_um }
    }

    /// The action that opens the dialog for the voxel size.
    pub(crate) fn ask_voxel_size(&self) -> DisplayAction {
        let given = self.given_voxel_size_um;
        let zyx = [given.z, given.y, given.x].map(|um| um.map_or_else(String::new, |um| um.to_string()));
        DisplayAction::AskVoxelSize { document: self.id, zyx }
    }
}

/// Returns the voxel size in µm that was typed for a stack with this number of slices, unknown along axes where nothing was
/// typed.
///
/// # Errors
/// The problem with the voxel size after it is completed by the one that the file states.
fn typed(zyx: &[String; 3], file_um: VoxelSize, slices: usize) -> Result<VoxelSize, String> {
    let texts = zyx.each_ref().map(|text| text.trim());
    if texts.iter().all(|text| text.is_empty()) {
        return Ok(VoxelSize::default());
    }
    // A single slice has no distance to the next one.
    let z_um = file_um.z.filter(|um| is_valid(*um)).or((slices == 1).then_some(1.0));
    let mut all = Vec::new();
    for ((text, stated_um), axis) in texts.into_iter().zip([z_um, file_um.y, file_um.x]).zip(AXES) {
        all.push(match stated_um.filter(|um| is_valid(*um)) {
            _ if !text.is_empty() => text.to_owned(),
            Some(um) => um.to_string(),
            None => return Err(format!("The file states no voxel size along {axis}: enter one.")),
        });
    }
    let [z, y, x] = VoxelSize::parse_zyx_um(&all.join(",")).map_err(|error| error.to_string())?;
    VoxelSize::new_um(z, y, x).check().map_err(|error| error.to_string())?;
    let of = |axis: usize, um: f64| texts.get(axis).is_some_and(|text| !text.is_empty()).then_some(um);
    Ok(VoxelSize { z: of(0, z), y: of(1, y), x: of(2, x) })
}

/// Draws the dialog, if it is open.
pub(crate) fn voxel_size_dialog(ctx: &egui::Context, state: State<'_>, actions: &mut Actions) {
    let Some(dialog) = state.display.voxel_size_dialog() else { return };
    let Some(document) = state.documents.get(dialog.document) else {
        // The stack was closed.
        return actions.send(DisplayAction::CloseVoxelSize);
    };
    let (file_um, slices) = (document.file_voxel_size_um, document.extents.zyx[0]);
    let mut zyx = dialog.zyx.clone();
    let (mut apply, mut forget) = (false, false);
    let response = theme::dialog(ctx, "voxel size").show(ctx, |ui| {
        ui.set_width(380.0);
        ui.heading("Voxel size of the file");
        weak(ui, file_name(&document.path));
        ui.add_space(8.0);
        ui.label("Distance between voxel centers. An empty field keeps the value of the file.");
        let mut is_entered = false;
        ui.horizontal(|ui| {
            for ((axis, text), stated_um) in AXES.into_iter().zip(&mut zyx).zip([file_um.z, file_um.y, file_um.x]) {
                ui.label(axis);
                let hint = stated_um.map_or_else(|| "unknown".to_owned(), micrometers);
                let edit = egui::TextEdit::singleline(text).desired_width(72.0).hint_text(hint);
                let edit = theme::text_field(ui, true, edit);
                let name = format!("Voxel size {axis}");
                edit.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, &name));
                is_entered |= edit.lost_focus() && ui.input(|i| i.key_pressed(egui::Key::Enter));
                if ui.memory(|m| m.focused()).is_none() {
                    edit.request_focus();
                }
            }
            ui.label("µm");
        });
        let size = typed(&zyx, file_um, slices);
        if let Err(reason) = &size {
            let text = RichText::new(reason).color(theme::bad(ui.visuals()));
            ui.add(egui::Label::new(text).wrap());
        }
        weak(ui, "Remembered for files of this folder that are opened later.");
        ui.add_space(8.0);
        ui.horizontal(|ui| {
            let button = ui.add_enabled(size.is_ok(), filled_button(RichText::new("Apply"), size.is_ok()));
            let button = button.on_disabled_hover_text("Correct the voxel size first.");
            apply = button.clicked() || (is_entered && size.is_ok());
            forget = ui.button("Use the file's voxel size").clicked();
            ui.button("Cancel").clicked()
        })
        .inner
    });
    let size = match (forget, apply) {
        (true, _) => Some(VoxelSize::default()),
        // The size is applied only if it is valid.
        (false, true) => typed(&zyx, file_um, slices).ok(),
        (false, false) => None,
    };
    if let Some(voxel_size_um) = size {
        actions.send(DisplayAction::RememberVoxelSize { file: document.path.clone(), voxel_size_um });
        let given = GivenMetadata { voxel_size_um, ..document.given() };
        let (path, series, replaces) = (document.path.clone(), document.series, Some(document.id));
        actions.send(DocumentsAction::Reopen { path, given, series, replaces });
    }
    if apply || forget || response.inner || response.should_close() {
        actions.send(DisplayAction::CloseVoxelSize);
    } else if zyx != dialog.zyx {
        actions.send(DisplayAction::TypeVoxelSize(zyx));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::Array;
    use std::path::{Path, PathBuf};

    fn texts(z: &str, y: &str, x: &str) -> [String; 3] {
        [z, y, x].map(str::to_owned)
    }

    #[test]
    fn lengths_are_shown_without_rounding_errors() {
        assert_eq!([0.649_999_999_7, 0.1, 12.0].map(micrometers), ["0.65", "0.1", "12"]);
    }

    #[test]
    fn empty_fields_keep_the_voxel_size_of_the_file() {
        let file = VoxelSize { z: None, y: Some(0.5), x: Some(0.25) };
        assert_eq!(typed(&texts("", " ", ""), file, 9), Ok(VoxelSize::default()));
        assert_eq!(typed(&texts("2", "", ""), file, 9), Ok(VoxelSize { z: Some(2.0), ..VoxelSize::default() }));
        assert_eq!(typed(&texts(" 2 ", "1", "1.5"), file, 9), Ok(VoxelSize::new_um(2.0, 1.0, 1.5)));
        let missing = typed(&texts("", "1", "1"), file, 9).unwrap_err();
        assert!(missing.contains("no voxel size along Z"), "{missing}");
        // A single slice needs none along Z.
        let flat = typed(&texts("", "1", ""), file, 1);
        assert_eq!(flat, Ok(VoxelSize { y: Some(1.0), ..VoxelSize::default() }));
    }

    #[test]
    fn sizes_that_no_microscope_has_are_refused_with_a_sentence() {
        for (z, expected) in [("two", "three positive sizes"), ("0", "three positive sizes"), ("1,2", "three positive")]
        {
            let reason = typed(&texts(z, "0.5", "0.5"), VoxelSize::default(), 9).unwrap_err();
            assert!(reason.contains(expected), "{z}: {reason}");
        }
        let in_meters = typed(&texts("1", "0.5", "0.00000025"), VoxelSize::default(), 9).unwrap_err();
        assert!(in_meters.contains("along X") && in_meters.contains("meters"), "{in_meters}");
        // Completed by the voxel size of the file.
        let file = VoxelSize { z: None, y: Some(0.002), x: Some(0.002) };
        let ratio = typed(&texts("900", "", ""), file, 9).unwrap_err();
        assert!(ratio.contains("ratio"), "{ratio}");
    }

    fn stack(path: &Path, voxel_size_um: VoxelSize) -> PathBuf {
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], vec![1u16; 24]).unwrap();
        write_array(path, &array, &WriteSpec { voxel_size_um, ..WriteSpec::of(&array, Container::OmeTiff) }).unwrap();
        path.to_owned()
    }

    #[test]
    fn a_given_voxel_size_takes_the_place_of_that_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = stack(&folder.path().join("a.ome.tif"), VoxelSize { z: None, y: Some(0.5), x: Some(0.25) });
        let open = |given: VoxelSize| Document::open(&path, None, 0).unwrap().with_voxel_size(given);
        let plain = open(VoxelSize::default());
        assert_eq!((plain.voxel_known, plain.given_voxel_um()), (false, None));
        let sliced = open(VoxelSize { z: Some(2.0), ..VoxelSize::default() });
        assert_eq!((sliced.voxel_known, sliced.given_voxel_um()), (true, Some([2.0, 0.5, 0.25])));
        assert_eq!(sliced.image.meta().voxel_size_um, VoxelSize::new_um(2.0, 0.5, 0.25));
        assert!(sliced.summary().contains("2 × 0.5 × 0.25 µm"), "{}", sliced.summary());
        let all = VoxelSize::new_um(3.0, 1.0, 1.0);
        assert_eq!(open(all).given_voxel_um(), Some([3.0, 1.0, 1.0]));
        // An incomplete size is not used.
        let half = open(VoxelSize { x: Some(1.0), ..VoxelSize::default() });
        assert_eq!((half.voxel_um, half.given_voxel_um()), (plain.voxel_um, None));
    }
}
