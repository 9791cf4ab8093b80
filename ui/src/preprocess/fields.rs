//! Fields of the steps that move voxels: crop, deskew and affine warp.

use crate::number_text::short_number;
use crate::panels::weak;
use crate::theme;
use cytoscope_preprocess::PreprocessStep;
use eframe::egui::{self, RichText, Ui};
use std::ops::{Range, RangeInclusive};

/// Names of the axes, in the order of shapes.
const AXES: [&str; 3] = ["Z", "Y", "X"];

/// Largest angle between the sheet and the direction of the stage, in degrees.
const MAX_ANGLE_DEGREES: f64 = 89.0;

/// Distances in µm that the stage may have moved between slices.
const STAGE_STEPS_UM: RangeInclusive<f64> = 1e-3..=1e4;

/// Largest number of the matrix of a warp.
const MAX_ENTRY: f64 = 1e9;

/// The stack that a step is applied to.
pub(super) struct Before {
    /// Number of voxels along Z, Y, X.
    pub(super) shape_zyx: [usize; 3],
    /// Distance between slices in µm, if it is known.
    pub(super) slice_um: Option<f64>,
    /// Rows and columns that the XY view shows; otherwise, why there are none.
    pub(super) visible_yx: Result<[Range<usize>; 2], &'static str>,
}

/// Draws the fields of a step that moves voxels; other steps have none here.
pub(super) fn step_fields(ui: &mut Ui, step: &mut PreprocessStep, before: &Before) {
    match step {
        PreprocessStep::Crop { z, y, x } => {
            let mut ranges_zyx = [*z, *y, *x];
            crop_fields(ui, &mut ranges_zyx, before);
            [*z, *y, *x] = ranges_zyx;
        }
        PreprocessStep::Deskew { angle_degrees, step_um } => {
            deskew_fields(ui, angle_degrees, step_um, before.slice_um);
        }
        PreprocessStep::Affine { matrix } => affine_fields(ui, matrix),
        _ => {}
    }
}

/// Returns the first voxel of a crop along Z, Y, X and the one after the last, for a stack of this shape.
pub(super) fn bounds(ranges_zyx: [Option<[usize; 2]>; 3], shape_zyx: [usize; 3]) -> [[usize; 2]; 3] {
    std::array::from_fn(|axis| ranges_zyx[axis].unwrap_or([0, shape_zyx[axis]]))
}

/// Returns the ranges of a crop with these bounds, `None` along axes that it keeps. A crop has at least one range: one that keeps
/// the whole stack has that of its slices.
pub(super) fn ranges(bounds: [[usize; 2]; 3], shape_zyx: [usize; 3]) -> [Option<[usize; 2]>; 3] {
    let whole = shape_zyx.map(|count| [0, count]);
    let mut ranges: [Option<[usize; 2]>; 3] =
        std::array::from_fn(|axis| (bounds[axis] != whole[axis]).then_some(bounds[axis]));
    if ranges == [None; 3] {
        ranges[0] = Some(whole[0]);
    }
    ranges
}

/// Draws the first and the last voxel of a crop along each axis, numbered from 1, and the buttons that set them.
fn crop_fields(ui: &mut Ui, ranges_zyx: &mut [Option<[usize; 2]>; 3], before: &Before) {
    let old = bounds(*ranges_zyx, before.shape_zyx);
    let mut new = old;
    egui::Grid::new("crop").num_columns(3).show(ui, |ui| {
        for title in ["", "First voxel", "Last voxel"] {
            caption(ui, title).on_hover_text("Numbered from 1, as in the status bar");
        }
        ui.end_row();
        for ((axis, [start, end]), extent) in AXES.into_iter().zip(&mut new).zip(before.shape_zyx) {
            ui.label(axis);
            let mut first = start.saturating_add(1);
            voxel_number(ui, &mut first, 1..=*end, &format!("Crop {axis} first"));
            *start = first.saturating_sub(1);
            voxel_number(ui, end, first..=extent.max(first), &format!("Crop {axis} last"));
            ui.end_row();
        }
    });
    ui.horizontal(|ui| {
        let against_view = before.visible_yx.as_ref().err().copied();
        let from_view = ui.add_enabled(against_view.is_none(), egui::Button::new("From view"));
        let from_view = from_view.on_hover_text("Rows and columns that the XY view shows; the slices are kept");
        let from_view = from_view.on_disabled_hover_text(against_view.unwrap_or_default());
        if let (true, Ok([rows, columns])) = (from_view.clicked(), &before.visible_yx) {
            new = [new[0], [rows.start, rows.end], [columns.start, columns.end]];
        }
        if ui.button("Whole stack").on_hover_text("Keep all voxels").clicked() {
            new = bounds([None; 3], before.shape_zyx);
        }
    });
    if new != old {
        *ranges_zyx = ranges(new, before.shape_zyx);
    }
}

/// Draws small text that is not wrapped: the columns of a grid are as narrow as their fields.
fn caption(ui: &mut Ui, text: &str) -> egui::Response {
    ui.add(egui::Label::new(RichText::new(text).weak().size(12.0)).extend())
}

/// Draws the number of a voxel, counted from 1. A number outside of `range` that was typed in the text of the step is kept until
/// it is changed here.
fn voxel_number(ui: &mut Ui, number: &mut usize, range: RangeInclusive<usize>, name: &str) {
    /// Points that the pointer is dragged from the first to the last voxel.
    const DRAG: f64 = 500.0;
    let speed = (*range.end() as f64 / DRAG).max(0.1);
    let response = ui.add(egui::DragValue::new(number).range(range).clamp_existing_to_range(false).speed(speed));
    let shown = *number as f64;
    response.widget_info(|| egui::WidgetInfo {
        value: Some(shown),
        ..egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, name)
    });
}

/// Draws the angle and the stage step of a deskewing; `slice_um` is the distance between slices that the stack states.
fn deskew_fields(ui: &mut Ui, angle_degrees: &mut f64, step_um: &mut Option<f64>, slice_um: Option<f64>) {
    egui::Grid::new("deskew").num_columns(2).show(ui, |ui| {
        let hint =
            "Between the light sheet and the direction of the stage; negative if the stage moved toward smaller Y";
        ui.label("Angle").on_hover_text(hint);
        exact_number(ui, angle_degrees, -MAX_ANGLE_DEGREES..=MAX_ANGLE_DEGREES, 0.1, "°", "Deskew angle");
        ui.end_row();
        let mut is_set = step_um.is_some();
        let hint = "Distance that the stage moved between slices; if off, the voxel size along Z";
        if theme::checkbox(ui, &mut is_set, "Stage step").on_hover_text(hint).changed() {
            *step_um = is_set.then_some(slice_um.unwrap_or(1.0));
        }
        match (step_um.as_mut(), slice_um) {
            (Some(um), _) => exact_number(ui, um, STAGE_STEPS_UM, 0.01, " µm", "Stage step number"),
            (None, Some(um)) => _ = caption(ui, &format!("{} µm along Z", short_number(um))),
            (None, None) => _ = caption(ui, "unknown"),
        }
        ui.end_row();
    });
}

/// Draws the matrix of a warp, which has a row for each axis of the input.
fn affine_fields(ui: &mut Ui, matrix: &mut [f64; 12]) {
    weak(ui, "Position in the stack (rows) of a position Z, Y, X in the copy, in voxels");
    // Long numbers would widen the panel.
    egui::ScrollArea::horizontal().id_salt("affine").show(ui, |ui| {
        egui::Grid::new("affine").num_columns(5).show(ui, |ui| {
            for title in ["", "· Z", "· Y", "· X", "+ offset"] {
                ui.label(title);
            }
            ui.end_row();
            for (axis, row) in AXES.into_iter().zip(matrix.chunks_exact_mut(4)) {
                ui.label(format!("{axis} ="));
                for (entry, (of, speed)) in
                    row.iter_mut().zip([("from Z", 0.005), ("from Y", 0.005), ("from X", 0.005), ("offset", 0.25)])
                {
                    let name = format!("Affine {axis} {of}");
                    exact_number(ui, entry, -MAX_ENTRY..=MAX_ENTRY, speed, "", &name);
                }
                ui.end_row();
            }
        });
    });
}

/// Draws a number with all its digits and its unit: a rounded text would change the number when the field loses the focus. One
/// outside of `range` is kept until it is changed here.
fn exact_number(ui: &mut Ui, value: &mut f64, range: RangeInclusive<f64>, speed: f64, unit: &str, name: &str) {
    let field = egui::DragValue::new(value).range(range).clamp_existing_to_range(false).speed(speed);
    let response = ui.add(field.suffix(unit).custom_formatter(|value, _| value.to_string()));
    let shown = *value;
    response.widget_info(|| egui::WidgetInfo {
        value: Some(shown),
        ..egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, name)
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use egui_kittest::Harness;
    use egui_kittest::kittest::Queryable;

    /// The fields of a step for a stack of 10 × 20 × 30 voxels, of which the XY view shows some.
    fn shown(step: &str) -> Harness<'static, PreprocessStep> {
        let step: PreprocessStep = step.parse().unwrap();
        Harness::builder().with_size([300.0, 300.0]).build_ui_state(
            |ui, step: &mut PreprocessStep| {
                let visible_yx = Ok([5..15, 0..30]);
                step_fields(ui, step, &Before { shape_zyx: [10, 20, 30], slice_um: Some(2.0), visible_yx });
            },
            step,
        )
    }

    /// Enters a number in the field with this name.
    fn enter(window: &mut Harness<'static, PreprocessStep>, field: &str, number: &str) {
        window.get_by_label(field).focus();
        window.run_steps(2);
        window.key_press_modifiers(egui::Modifiers::COMMAND, egui::Key::A);
        window.run_steps(2);
        window.get_by_label(field).type_text(number);
        window.run_steps(3);
        // The field loses the focus.
        window.key_press(egui::Key::Enter);
        window.run_steps(2);
    }

    /// Clicks the button or checkbox with this name.
    fn click(window: &mut Harness<'static, PreprocessStep>, name: &str) {
        window.get_by_label(name).click();
        window.run_steps(4);
    }

    #[test]
    fn a_crop_has_a_range_where_it_keeps_less_than_the_stack() {
        let shape = [10, 20, 30];
        let crop = [Some([2, 8]), None, Some([0, 29])];
        assert_eq!(bounds(crop, shape), [[2, 8], [0, 20], [0, 29]]);
        assert_eq!(ranges(bounds(crop, shape), shape), crop);
        assert_eq!(ranges([[0, 10], [0, 20], [0, 30]], shape), [Some([0, 10]), None, None]);
    }

    #[test]
    fn entered_numbers_and_buttons_make_the_crop_of_the_command_line() {
        let mut window = shown("crop:z=0-10");
        enter(&mut window, "Crop Z first", "3");
        enter(&mut window, "Crop Z last", "8");
        enter(&mut window, "Crop X last", "29");
        assert_eq!(window.state().to_string(), "crop:z=2-8:x=0-29");
        click(&mut window, "From view");
        assert_eq!(window.state().to_string(), "crop:z=2-8:y=5-15");
        // The last voxel is not before the first, and inside the stack.
        enter(&mut window, "Crop Z last", "1");
        assert_eq!(window.state().to_string(), "crop:z=2-3:y=5-15");
        enter(&mut window, "Crop Z last", "99");
        assert_eq!(window.state().to_string(), "crop:z=2-10:y=5-15");
        click(&mut window, "Whole stack");
        assert_eq!(window.state().to_string(), "crop:z=0-10");
    }

    #[test]
    fn a_typed_range_beyond_the_stack_is_kept_until_it_is_changed() {
        let mut window = shown("crop:z=4-99");
        window.run_steps(3);
        assert_eq!(window.state().to_string(), "crop:z=4-99");
    }

    #[test]
    fn angle_and_stage_step_make_the_deskewing_of_the_command_line() {
        let mut window = shown("deskew:angle=30");
        assert!(window.query_all_by_label_contains("2 µm").next().is_some());
        enter(&mut window, "Deskew angle", "-31.5");
        assert_eq!(window.state().to_string(), "deskew:angle=-31.5");
        click(&mut window, "Stage step");
        assert_eq!(window.state().to_string(), "deskew:angle=-31.5:step=2um");
        enter(&mut window, "Stage step number", "0.4");
        assert_eq!(window.state().to_string(), "deskew:angle=-31.5:step=0.4um");
    }

    #[test]
    fn entries_of_a_matrix_keep_their_digits_when_their_fields_are_left() {
        let step = "affine:matrix=1/0/0/0/0/0.8660254037844386/-0.5/12.5/0/0.5/0.8660254037844386/0";
        let mut window = shown(step);
        for field in ["Affine Y from Y", "Affine Y from X", "Affine X offset"] {
            window.get_by_label(field).focus();
            window.run_steps(3);
        }
        assert_eq!(window.state().to_string(), step);
        enter(&mut window, "Affine X offset", "-3.25");
        let expected = "affine:matrix=1/0/0/0/0/0.8660254037844386/-0.5/12.5/0/0.5/0.8660254037844386/-3.25";
        assert_eq!(window.state().to_string(), expected);
    }
}
