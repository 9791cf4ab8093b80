//! Notifications: short messages in the corner with expandable details. Errors stay until they are closed.

use crate::action::Actions;
use crate::display::DisplayAction;
use crate::theme;
use eframe::egui::{self, Align2, Color32, Frame, Margin, Rect, RichText, Stroke, vec2};
use egui_phosphor::regular as icon;
use std::time::{Duration, Instant};

/// How long notifications other than errors are shown.
const SHOWN_FOR: Duration = Duration::from_secs(7);

/// Maximum number of notifications on screen; older ones are removed.
const MAX_SHOWN: usize = 5;

/// Severity of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// What the user asked for is done.
    Success,
    /// Something that the user should know.
    Info,
    /// Something failed; it stays until it is closed.
    Error,
}

/// A message in the corner of the window.
#[derive(Debug, Clone)]
pub struct Notification {
    /// Sets its color, and whether it disappears by itself.
    pub level: Level,
    /// Title of a few words.
    pub title: String,
    /// Details, expandable if long.
    pub details: String,
    /// Time of creation.
    at: Instant,
    number: u64,
}

/// The notifications on screen, oldest first.
#[derive(Debug, Default)]
pub struct Notifications {
    shown: Vec<Notification>,
    count: u64,
}

impl Notifications {
    /// Adds a notification.
    pub fn push(&mut self, level: Level, title: String, details: String) {
        match level {
            Level::Error => tracing::error!("{title}: {details}"),
            Level::Success | Level::Info => tracing::info!("{title}: {details}"),
        }
        self.count += 1;
        self.shown.push(Notification { level, title, details, at: Instant::now(), number: self.count });
        if self.shown.len() > MAX_SHOWN {
            let removed = self.shown.iter().position(|n| n.level != Level::Error).unwrap_or(0);
            self.shown.remove(removed);
        }
    }

    /// Closes the notification with this number.
    pub fn close(&mut self, number: u64) {
        self.shown.retain(|n| n.number != number);
    }

    /// Removes notifications that were shown long enough; errors stay.
    pub fn expire(&mut self) {
        self.shown.retain(|n| n.level == Level::Error || n.at.elapsed() < SHOWN_FOR);
    }

    /// The notifications on screen, oldest first.
    pub fn shown(&self) -> &[Notification] {
        &self.shown
    }

    /// Draws the notifications in the lower right corner of `views`, where they cover no controls.
    pub(crate) fn show(&self, ctx: &egui::Context, views: Rect, actions: &mut Actions) {
        if let Some(next) = self
            .shown
            .iter()
            .filter(|n| n.level != Level::Error)
            .map(|n| SHOWN_FOR.saturating_sub(n.at.elapsed()))
            .min()
        {
            ctx.request_repaint_after(next);
        }
        let mut corner = views.right_bottom() - vec2(12.0, 12.0);
        for notice in self.shown.iter().rev() {
            let id = egui::Id::new("notice").with(notice.number);
            let area = egui::Area::new(id)
                .pivot(Align2::RIGHT_BOTTOM)
                .fixed_pos(corner)
                .order(egui::Order::Foreground)
                .show(ctx, |ui| {
                    let visuals = ui.visuals().clone();
                    let (color, sign) = match notice.level {
                        Level::Success => (theme::good(&visuals), icon::CHECK_CIRCLE),
                        Level::Info => (visuals.hyperlink_color, icon::INFO),
                        Level::Error => (theme::bad(&visuals), icon::WARNING_CIRCLE),
                    };
                    Frame::new()
                        .fill(visuals.window_fill)
                        .stroke(Stroke::new(1.0, color.gamma_multiply(0.7)))
                        .corner_radius(8)
                        .shadow(visuals.popup_shadow)
                        .inner_margin(Margin::symmetric(12, 9))
                        .show(ui, |ui| {
                            ui.set_width(300.0);
                            body(ui, notice, color, sign)
                        })
                        .inner
                });
            if area.inner {
                actions.send(DisplayAction::CloseNotification(notice.number));
            }
            corner.y -= area.response.rect.height() + 8.0;
        }
    }
}

/// Draws the content of a notification; returns whether it was closed.
fn body(ui: &mut egui::Ui, notice: &Notification, color: Color32, sign: &str) -> bool {
    let mut close = false;
    ui.horizontal(|ui| {
        ui.label(RichText::new(sign).color(color).size(17.0));
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            let button = ui.add(egui::Button::new(icon::X).frame(false));
            button.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, "Close notification"));
            close = button.clicked();
            ui.with_layout(egui::Layout::left_to_right(egui::Align::Center), |ui| {
                ui.add(egui::Label::new(RichText::new(&notice.title).strong()).wrap());
            });
        });
    });
    if !notice.details.is_empty() {
        if notice.details.len() <= 90 {
            ui.add(egui::Label::new(&notice.details).wrap());
        } else {
            egui::CollapsingHeader::new("Details")
                .id_salt(notice.number)
                .default_open(notice.level == Level::Error)
                .show(ui, |ui| {
                    ui.add(egui::Label::new(&notice.details).wrap().selectable(true));
                });
        }
    }
    close
}
