//! Content of panels that is equally wide with and without a scroll bar.

use super::frame;
use eframe::egui::{self, Frame, Ui};

/// Frame of a panel whose whole content scrolls ([`scrolled`]): the scroll bar is in its right margin, so that the content keeps
/// the width that it has in other panels.
pub(super) fn scrolled_frame(ui: &Ui) -> Frame {
    let mut frame = frame(ui);
    let bar = ui.spacing().scroll.allocated_width().ceil() as i8;
    frame.inner_margin.right = frame.inner_margin.right.saturating_sub(bar).max(0);
    frame
}

/// Draws content that scrolls vertically. It is equally wide with and without a scroll bar, so that nothing in it moves or grows
/// when one appears.
pub(super) fn scrolled<R>(ui: &mut Ui, id: &str, add: impl FnOnce(&mut Ui) -> R) -> R {
    scrolled_in(ui, egui::ScrollArea::vertical().id_salt(id).auto_shrink([false; 2]), add)
}

/// Like [`scrolled`], with a scroll area of other properties.
pub(super) fn scrolled_in<R>(ui: &mut Ui, area: egui::ScrollArea, add: impl FnOnce(&mut Ui) -> R) -> R {
    let width = ui.available_width() - ui.spacing().scroll.allocated_width();
    let content = |ui: &mut Ui| {
        ui.set_max_width(width);
        add(ui)
    };
    area.show(ui, content).inner
}

/// Draws content that does not scroll in a panel with [`scrolled_frame`]. It is as wide as content that scrolls.
pub(super) fn fixed<R>(ui: &mut Ui, add: impl FnOnce(&mut Ui) -> R) -> R {
    let width = ui.available_width() - ui.spacing().scroll.allocated_width();
    // Otherwise the panel would become narrower in every frame.
    ui.set_min_width(ui.available_width());
    let content = |ui: &mut Ui| {
        ui.set_max_width(width);
        add(ui)
    };
    ui.scope(content).inner
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panels::main_button;
    use crate::theme;
    use egui_kittest::Harness;
    use egui_kittest::kittest::Queryable;

    #[test]
    fn a_scroll_bar_does_not_change_the_width_of_the_main_button() {
        let widths = [2, 200].map(|lines| {
            let mut window = Harness::builder().with_size([300.0, 400.0]).build_ui(move |ui| {
                ui.spacing_mut().scroll.floating_allocated_width = 8.0;
                scrolled(ui, "panel", |ui| {
                    main_button(ui, true, "+", "Predict");
                    (0..lines).for_each(|line| _ = ui.label(line.to_string()));
                });
            });
            window.run_steps(4);
            window.get_by_label("Predict this stack").rect().width().round() as i32
        });
        assert!(widths[0] == widths[1] && widths[0] > 250, "{widths:?}");
    }

    #[test]
    fn the_scroll_bar_of_a_panel_is_in_its_margin() {
        let lines = [2, 200].map(|lines| {
            let mut window = Harness::builder().with_size([300.0, 400.0]).build_ui(move |ui| {
                ui.spacing_mut().scroll.floating_allocated_width = 8.0;
                let frame = scrolled_frame(ui);
                egui::CentralPanel::default().frame(frame).show(ui, |ui| {
                    scrolled(ui, "panel", |ui| {
                        main_button(ui, true, "+", "Predict");
                        (0..lines).for_each(|line| _ = ui.label(line.to_string()));
                    });
                });
            });
            window.run_steps(4);
            let button = window.get_by_label("Predict this stack").rect();
            [button.left(), button.right()].map(|edge| edge.round() as i32)
        });
        let margin = i32::from(theme::PANEL_MARGIN);
        let width = lines[0][1] - lines[0][0];
        assert!(lines[0] == lines[1] && width >= 300 - 5 * margin, "{lines:?}");
    }

    #[test]
    fn content_that_does_not_scroll_is_as_wide_as_content_that_does_and_leaves_the_panel_as_wide_as_it_was() {
        let mut window = Harness::builder().with_size([600.0, 400.0]).build_ui(move |ui| {
            ui.spacing_mut().scroll.floating_allocated_width = 8.0;
            let frame = scrolled_frame(ui);
            egui::Panel::right("panel").frame(frame).default_size(300.0).show(ui, |ui| {
                fixed(ui, |ui| main_button(ui, true, "+", "Fixed"));
                scrolled(ui, "panel", |ui| main_button(ui, true, "+", "Scrolled"));
            });
            egui::Panel::left("other panel").frame(frame).default_size(160.0).show(ui, |ui| {
                fixed(ui, |ui| main_button(ui, true, "+", "Alone"));
            });
        });
        let edges = |window: &Harness<'_>, name: &str| {
            let rect = window.get_by_label(&format!("{name} this stack")).rect();
            [rect.left(), rect.right()].map(|edge| edge.round() as i32)
        };
        window.run_steps(4);
        let before = ["Fixed", "Scrolled", "Alone"].map(|name| edges(&window, name));
        window.run_steps(10);
        assert_eq!(["Fixed", "Scrolled", "Alone"].map(|name| edges(&window, name)), before);
        assert_eq!(before[0], before[1]);
        let [left, right] = before[0];
        assert_eq!(right - left, 300 - 2 * i32::from(theme::PANEL_MARGIN));
    }
}
