//! Views of the active document: three slice views and a 3-D view that share one crosshair.

mod compositor;
mod decor;
mod displayed;
pub mod layout;
mod live_limits;
pub mod pen;
mod placement;
pub mod scale_bar;
pub mod slice;
pub mod volume;

use eframe::egui;

/// Lets a focused widget receive the arrow keys, which would otherwise move the focus.
pub(crate) fn keep_arrow_keys(ui: &egui::Ui, widget: egui::Id) {
    let filter = egui::EventFilter { horizontal_arrows: true, vertical_arrows: true, ..Default::default() };
    ui.memory_mut(|memory| memory.set_focus_lock_filter(widget, filter));
}
