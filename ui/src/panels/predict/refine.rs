//! The controls that segment a predicted map again.

use crate::action::Actions;
use crate::document::{Document, Role};
use crate::jobs::JobsAction;
use crate::number_text::counted;
use crate::panels::sliders::{labeled_slider, with_aligned_sliders};
use crate::panels::{heading, weak};
use crate::state::State;
use crate::theme;
use cytoscope_objects::{Height, SegmentOptions, Threshold};
use cytoscope_pipeline::{DiameterUnit, ModelTask};
use eframe::egui::Ui;

/// Why objects cannot be saved or reset.
const SAVING_OBJECTS: &str = "The objects are being saved.";

/// Sliders that segment the existing map again.
pub(super) fn refine(ui: &mut Ui, state: State<'_>, document: &Document, actions: &mut Actions) {
    let id = document.id;
    let has_map = document.overlay_with_role(Role::Map).is_some_and(|map| map.is_at(document.time));
    let Some(card) = state.model() else { return };
    if !has_map || card.task != Some(ModelTask::Segmentation) || state.jobs.prediction(id).is_some() {
        return;
    }
    let usual = document.segment.clone().or_else(|| card.segment.clone()).unwrap_or_default();
    let rows = document.results.as_ref().map(|r| r.objects_at(document.time));
    let refined = state.jobs.refined(id, document.time);
    let changed_before = refined.is_some();
    // Saved objects are changed further from the settings that they were saved with.
    let mut options = refined.or(state.jobs.saved_options(document)).unwrap_or(&usual).clone();
    heading(ui, "Objects");
    let count = match (state.jobs.preview_objects(id, document.time), rows) {
        (Some(n), _) => format!("{}, not saved yet", counted(n.into(), "object")),
        (None, Some(n)) if document.extents.times > 1 => format!("{} at this time point", counted(n as u64, "object")),
        (None, Some(n)) => counted(n as u64, "object"),
        (None, None) => String::new(),
    };
    ui.label(count);
    if rows == Some(0) && !changed_before && card.object_diameter_um.is_some() {
        weak(ui, "Check the channel, and whether the ring on the image is as wide as an object.");
    }
    let before = options.clone();
    let unit = state.jobs.length_unit(document, state.settings());
    let longest = match unit {
        DiameterUnit::Um => ["Smooth shapes (µm)", "Min. volume (µm³)"],
        DiameterUnit::Voxels => ["Smooth shapes (voxels)", "Min. volume (voxels)"],
    };
    with_aligned_sliders(ui, &longest, |ui| controls(ui, &mut options, &usual, unit));
    let changed = options != before;
    let mut keep = false;
    let mut reset = false;
    let can_save = changed_before || changed;
    if can_save || options != usual {
        let is_keeping = state.jobs.is_keeping(id);
        ui.add_enabled_ui(!is_keeping, |ui| {
            ui.horizontal(|ui| {
                if can_save {
                    let hint = "Write the labels and the table of these objects";
                    let save = ui.button("Save objects").on_hover_text(hint);
                    keep = save.on_disabled_hover_text(SAVING_OBJECTS).clicked();
                }
                let back = ui.button("Reset").on_hover_text("Restore the settings of the prediction");
                reset = back.on_disabled_hover_text(SAVING_OBJECTS).clicked();
            });
        });
    }
    if reset {
        actions.send(JobsAction::Refine { document: id, options: usual });
    } else if keep {
        actions.send(JobsAction::KeepObjects { document: id, options });
    } else if changed {
        actions.send(JobsAction::Refine { document: id, options });
    }
}

/// Segmentation controls with lengths in `unit`; re-enabled options take their values from `usual`.
fn controls(ui: &mut Ui, options: &mut SegmentOptions, usual: &SegmentOptions, unit: DiameterUnit) {
    let in_unit = |um: &'static str, voxels: &'static str| if unit == DiameterUnit::Um { um } else { voxels };
    let mut auto = options.threshold == Threshold::Otsu;
    if theme::checkbox(ui, &mut auto, "Automatic threshold").on_hover_text("Otsu's threshold of the map").changed() {
        options.threshold = if auto { Threshold::Otsu } else { Threshold::Fixed(0.5) };
    }
    if let Threshold::Fixed(value) = &mut options.threshold {
        let mut v = *value as f32;
        let slider = labeled_slider(ui, &mut v, 0.0..=1.0, "Threshold", false);
        if slider.on_hover_text("Voxels with higher values in the map belong to objects").changed() {
            *value = f64::from(v);
        }
    }
    let mut split = options.height.is_some();
    let hint = "Watershed from the seeds of the objects";
    if theme::checkbox(ui, &mut split, "Split touching objects").on_hover_text(hint).changed() {
        options.height = split.then(|| usual.height.unwrap_or(Height::Distance));
    }
    let slide = |ui: &mut Ui, value: &mut f64, max: f32, name: &str, logarithmic: bool, hint: &str| {
        let mut v = *value as f32;
        let max = max.max(v);
        if labeled_slider(ui, &mut v, 0.0..=max, name, logarithmic).on_hover_text(hint).changed() {
            *value = f64::from(v);
        }
    };
    if let Some(height) = &options.height {
        // Heights predicted by the network are unitless, 1 at the center of an object.
        let (max, name) = match height {
            Height::Map | Height::Seeds => (1.0, "Split less"),
            _ => (5.0, in_unit("Split less (µm)", "Split less (voxels)")),
        };
        let before = (options.seed_height, options.height_smooth_um);
        let hint = "Higher values merge neighboring seeds, so that fewer objects are split";
        slide(ui, &mut options.seed_height, max, name, false, hint);
        let name = in_unit("Smooth shapes (µm)", "Smooth shapes (voxels)");
        let hint = "Smoothing before the search for seeds: higher values ignore finer details of shapes";
        slide(ui, &mut options.height_smooth_um, 5.0, name, false, hint);
        if before != (options.seed_height, options.height_smooth_um) {
            // A value set by hand applies everywhere.
            options.tissue = None;
        }
        if usual.tissue.is_some() {
            let mut more = options.tissue.is_some();
            let hint = "Where objects touch on most sides, even small gaps split them, and outlines are tighter. Moving \
                        the two sliders above turns this off.";
            if theme::checkbox(ui, &mut more, "Split more in tissue").on_hover_text(hint).changed() {
                options.tissue = usual.tissue.filter(|_| more);
            }
        }
    }
    let name = in_unit("Smooth map (µm)", "Smooth map (voxels)");
    slide(ui, &mut options.smooth_um, 5.0, name, false, "Smoothing of the map before the threshold is applied");
    let name = in_unit("Min. volume (µm³)", "Min. volume (voxels)");
    let hint = in_unit(
        "Smaller objects are removed",
        "Smaller objects are removed. The unit is a cube whose sides are as long as a voxel along X.",
    );
    slide(ui, &mut options.min_volume_um3, 2000.0, name, true, hint);
    if let Some(isolated) = usual.isolated {
        let mut keeps = options.isolated.is_some();
        let hint = format!(
            "Objects that touch no other object are kept down to {:.0} % of the minimum volume if the model is certain of them",
            100.0 * isolated.volume_share
        );
        if theme::checkbox(ui, &mut keeps, "Keep small isolated objects").on_hover_text(hint).changed() {
            options.isolated = keeps.then_some(isolated);
        }
    }
    theme::checkbox(ui, &mut options.fill_holes, "Fill holes")
        .on_hover_text("Background inside an object becomes part of it");
    let hint = "Leave out objects that touch the border of the stack";
    theme::checkbox(ui, &mut options.drop_border, "Exclude border objects").on_hover_text(hint);
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_objects::IsolatedOptions;
    use eframe::egui;
    use egui_kittest::Harness;
    use egui_kittest::kittest::{NodeT, Queryable};

    #[test]
    fn keeping_small_isolated_objects_is_switched_off_and_on_with_the_values_of_the_prediction() {
        let isolated = Some(IsolatedOptions { volume_share: 0.3, min_mean: 0.8 });
        let usual = SegmentOptions { isolated, ..SegmentOptions::default() };
        let options = usual.clone();
        let mut window = Harness::builder().with_size([400.0, 600.0]).build_ui_state(
            move |ui, options: &mut SegmentOptions| controls(ui, options, &usual, DiameterUnit::Um),
            options,
        );
        for expected in [None, isolated] {
            window.get_by_label("Keep small isolated objects").click();
            window.run_steps(4);
            assert_eq!(window.state().isolated, expected);
        }
    }

    #[test]
    fn a_threshold_of_a_map_that_holds_no_probabilities_is_shown_and_not_changed() {
        let options = SegmentOptions { threshold: Threshold::Fixed(100.0), ..SegmentOptions::default() };
        let usual = SegmentOptions::default();
        let mut window = Harness::builder().with_size([400.0, 600.0]).build_ui_state(
            move |ui, options: &mut SegmentOptions| controls(ui, options, &usual, DiameterUnit::Um),
            options,
        );
        window.run_steps(3);
        let mut numbers = window.query_all_by_label("Threshold").filter_map(|n| n.accesskit_node().numeric_value());
        assert!(numbers.any(|number| (number - 100.0).abs() < 1e-3), "it is shown as 1");
        assert_eq!(window.state().threshold, Threshold::Fixed(100.0));
    }

    #[test]
    fn sliders_below_each_other_are_equally_wide_in_a_narrow_panel() {
        let names = ["Split less", "Smooth shapes (µm)", "Min. volume (µm³)"];
        let window = Harness::builder().with_size([280.0, 200.0]).build_ui(move |ui| {
            with_aligned_sliders(ui, &names, |ui| {
                for name in names {
                    labeled_slider(ui, &mut 0.5, 0.0..=1.0, name, false);
                }
            });
        });
        let is_slider = |node: &egui_kittest::Node<'_>| node.accesskit_node().role() == egui::accesskit::Role::Slider;
        let widths = names.map(|name| {
            let slider = window.query_all_by_label(name).find(is_slider);
            slider.map(|slider| slider.rect().width().round())
        });
        assert!(widths[0].is_some() && widths.iter().all(|width| *width == widths[0]), "{widths:?}");
    }

    #[test]
    fn lengths_of_segmentation_settings_have_the_unit_of_the_stack() {
        for (unit, names) in [
            (DiameterUnit::Um, ["Split less (µm)", "Smooth shapes (µm)", "Smooth map (µm)", "Min. volume (µm³)"]),
            (
                DiameterUnit::Voxels,
                ["Split less (voxels)", "Smooth shapes (voxels)", "Smooth map (voxels)", "Min. volume (voxels)"],
            ),
        ] {
            let usual = SegmentOptions { height: Some(Height::Distance), ..SegmentOptions::default() };
            let window = Harness::builder().with_size([400.0, 600.0]).build_ui(move |ui| {
                let mut options = usual.clone();
                controls(ui, &mut options, &usual, unit);
            });
            for name in names {
                assert!(window.query_all_by_label(name).next().is_some(), "{name}");
            }
        }
    }
}
