//! Notifications: short messages in the corner with expandable details. Errors stay until they are closed, or until the job
//! that failed is run again.

use crate::action::Actions;
use crate::display::DisplayAction;
use crate::number_text::counted;
use crate::theme;
use crate::work::JobSubject;
use eframe::egui::{self, Align2, Color32, Frame, Margin, Rect, RichText, Stroke, vec2};
use egui_phosphor::regular as icon;
use std::time::{Duration, Instant};

/// How long notifications other than errors are shown.
const SHOWN_FOR: Duration = Duration::from_secs(7);

/// Maximum time that counts between two frames: while the window stalls, nobody can read a notification.
const LONGEST_FRAME: Duration = Duration::from_millis(250);

/// Maximum number of notifications on screen; older errors are shown once newer ones are closed.
const MAX_SHOWN: usize = 5;

/// Errors show their details at first unless there are more errors than this, so that the views stay visible.
const MAX_OPEN: usize = 2;

/// Maximum number of errors that are kept until the user closes them; older ones are only in the log.
const MAX_ERRORS: usize = 100;

/// Width of the frame of a notification and the gaps beside it, in points.
const FRAME_WIDTH: f32 = 50.0;

/// Minimum width of the text of a notification, in points.
const LEAST_WIDTH: f32 = 160.0;

/// Height of a notification in its first frame, in points, before its content is measured. The default of areas is hundreds
/// of points, and a click on what is behind them would be lost.
const FIRST_HEIGHT: f32 = 20.0;

/// Severity of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// An action of the user has succeeded.
    Success,
    /// Something that the user should know.
    Info,
    /// Why a command is disabled.
    Disabled,
    /// Something failed; it stays until it is closed, or until the job that failed is run again.
    Error,
}

/// A message in the corner of the window.
#[derive(Debug, Clone)]
pub struct Notification {
    /// Determines the color, and whether the notification disappears by itself.
    pub level: Level,
    /// Title of a few words.
    pub title: String,
    /// Details; collapsible if long.
    pub details: String,
    /// How long it was on screen.
    age: Duration,
    number: u64,
    /// The job whose failure it reports.
    about: Option<JobSubject>,
}

/// The notifications on screen and the errors behind them, oldest first.
#[derive(Debug, Default)]
pub struct Notifications {
    shown: Vec<Notification>,
    count: u64,
    /// Time of the latest frame.
    frame_at: Option<Instant>,
}

impl Notifications {
    /// Adds a notification; `about` is the job whose failure it reports. One with the same text that is on screen already is
    /// replaced, so that repeating what fails does not fill the window, and so is one on another command that is disabled for the
    /// same reason.
    pub fn push(&mut self, level: Level, title: String, details: String, about: Option<JobSubject>) {
        match level {
            Level::Error => tracing::error!("{title}: {details}"),
            Level::Success | Level::Info | Level::Disabled => tracing::info!("{title}: {details}"),
        }
        self.count += 1;
        let is_same = |n: &Notification| (n.level, &n.title, &n.details, &n.about) == (level, &title, &details, &about);
        let is_repeated = |n: &Notification| [level, n.level] == [Level::Disabled; 2] && n.details == details;
        self.shown.retain(|n| !is_same(n) && !is_repeated(n));
        self.shown.push(Notification { level, title, details, age: Duration::ZERO, number: self.count, about });
        // Errors are not removed in favor of other messages.
        self.limit(|n| n.level == Level::Error, MAX_ERRORS);
        self.limit(|n| n.level != Level::Error, MAX_SHOWN);
    }

    /// Removes the oldest of the notifications of a kind if there are too many.
    fn limit(&mut self, is_kind: impl Fn(&Notification) -> bool, most: usize) {
        if self.shown.iter().filter(|n| is_kind(n)).count() > most
            && let Some(oldest) = self.shown.iter().position(is_kind)
        {
            self.shown.remove(oldest);
        }
    }

    /// Closes the notification with this number.
    pub fn close(&mut self, number: u64) {
        self.shown.retain(|n| n.number != number);
    }

    /// Removes notifications about earlier failures of a job that is run again.
    pub fn remove_failures_of(&mut self, job: &JobSubject) {
        self.shown.retain(|n| n.about.as_ref().is_none_or(|about| !about.is_same_work(job)));
    }

    /// Removes notifications that were shown long enough; errors stay. `now` is the time of the frame.
    pub fn expire(&mut self, now: Instant) {
        let since = self.frame_at.replace(now).map_or(Duration::ZERO, |before| now.saturating_duration_since(before));
        self.shown.iter_mut().for_each(|n| n.age += since.min(LONGEST_FRAME));
        self.shown.retain(|n| n.level == Level::Error || n.age < SHOWN_FOR);
    }

    /// The notifications on screen and the errors behind them, oldest first.
    pub fn shown(&self) -> &[Notification] {
        &self.shown
    }

    /// Draws the notifications in the lower right corner of `views`, where they cover no controls.
    pub(crate) fn show(&self, ctx: &egui::Context, views: Rect, actions: &mut Actions) {
        let ages = self.shown.iter().filter(|n| n.level != Level::Error).map(|n| n.age);
        if let Some(oldest) = ages.max() {
            // A longer time without frames would not count.
            ctx.request_repaint_after(SHOWN_FOR.saturating_sub(oldest).min(LONGEST_FRAME));
        }
        let mut corner = views.right_bottom() - vec2(12.0, 12.0);
        let width = (views.width() - FRAME_WIDTH).clamp(LEAST_WIDTH, 300.0);
        let opens_errors = self.shown.iter().filter(|n| n.level == Level::Error).count() <= MAX_OPEN;
        for notice in self.shown.iter().rev().take(MAX_SHOWN) {
            let id = egui::Id::new("notice").with(notice.number);
            let area = egui::Area::new(id)
                .default_size(vec2(width, FIRST_HEIGHT))
                .pivot(Align2::RIGHT_BOTTOM)
                .fixed_pos(corner)
                .order(egui::Order::Foreground)
                .show(ctx, |ui| {
                    let visuals = ui.visuals().clone();
                    let (color, sign) = match notice.level {
                        Level::Success => (theme::good(&visuals), icon::CHECK_CIRCLE),
                        Level::Info | Level::Disabled => (visuals.hyperlink_color, icon::INFO),
                        Level::Error => (theme::bad(&visuals), icon::WARNING_CIRCLE),
                    };
                    Frame::new()
                        .fill(visuals.window_fill)
                        .stroke(Stroke::new(1.0, color.gamma_multiply(0.7)))
                        .corner_radius(8)
                        .shadow(visuals.popup_shadow)
                        .inner_margin(Margin::symmetric(12, 9))
                        .show(ui, |ui| {
                            ui.set_width(width);
                            body(ui, notice, opens_errors, color, sign)
                        })
                        .inner
                });
            if area.inner {
                actions.send(DisplayAction::CloseNotification(notice.number));
            }
            corner.y -= area.response.rect.height() + 8.0;
        }
        self.show_further(ctx, corner, actions);
    }

    /// Draws how many notifications are not on screen, above those that are, and the button that closes all.
    fn show_further(&self, ctx: &egui::Context, corner: egui::Pos2, actions: &mut Actions) {
        let further = self.shown.len().saturating_sub(MAX_SHOWN);
        if further == 0 {
            return;
        }
        let area = egui::Area::new(egui::Id::new("further notices"))
            .default_size(vec2(LEAST_WIDTH, FIRST_HEIGHT))
            .pivot(Align2::RIGHT_BOTTOM)
            .fixed_pos(corner)
            .order(egui::Order::Foreground)
            .show(ctx, |ui| {
                let visuals = ui.visuals().clone();
                let frame =
                    Frame::new().fill(visuals.window_fill).corner_radius(8).inner_margin(Margin::symmetric(12, 6));
                let content = |ui: &mut egui::Ui| {
                    ui.label(format!("and {further} earlier"));
                    ui.button("Close all").on_hover_text("The messages stay in the log").clicked()
                };
                frame.show(ui, |ui| ui.horizontal(content).inner).inner
            });
        if area.inner {
            for notice in &self.shown {
                actions.send(DisplayAction::CloseNotification(notice.number));
            }
        }
    }
}

/// The first `most` lines, and how many others there are, such as "5 further notes" for the noun "further note".
pub(crate) fn first_lines(lines: &[String], most: usize, noun: &str) -> Vec<String> {
    let mut shown: Vec<String> = lines.iter().take(most).cloned().collect();
    if lines.len() > most {
        shown.push(counted((lines.len() - most) as u64, noun));
    }
    shown
}

/// Draws the content of a notification and returns whether it was closed. With `opens_errors`, the details of an error are
/// expanded at first.
fn body(ui: &mut egui::Ui, notice: &Notification, opens_errors: bool, color: Color32, sign: &str) -> bool {
    let mut close = false;
    ui.horizontal(|ui| {
        ui.label(RichText::new(sign).color(color).size(17.0));
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            let button = ui.add(egui::Button::new(icon::X).frame(false));
            button.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, "Close notification"));
            close = button.on_hover_text("Close").clicked();
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
                .default_open(opens_errors && notice.level == Level::Error)
                .show(ui, |ui| {
                    ui.add(egui::Label::new(&notice.details).wrap().selectable(true));
                });
        }
    }
    close
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_is_removed_in_favor_of_newer_messages() {
        let mut notifications = Notifications::default();
        for n in 0..MAX_SHOWN + 3 {
            notifications.push(Level::Error, format!("error {n}"), String::new(), None);
        }
        for n in 0..MAX_SHOWN + 3 {
            notifications.push(Level::Success, format!("done {n}"), String::new(), None);
        }
        let titles: Vec<&str> = notifications.shown().iter().map(|n| n.title.as_str()).collect();
        let expected = ["error 0", "error 1", "error 2", "error 3", "error 4", "error 5", "error 6", "error 7"];
        assert_eq!(titles[..8], expected);
        assert_eq!(titles[8..], ["done 3", "done 4", "done 5", "done 6", "done 7"]);
    }

    #[test]
    fn the_same_message_is_shown_once() {
        let mut notifications = Notifications::default();
        for details in ["label 9 does not exist", "the disk is full", "label 9 does not exist"] {
            notifications.push(Level::Error, "The edit failed".to_owned(), details.to_owned(), None);
        }
        let details: Vec<&str> = notifications.shown().iter().map(|n| n.details.as_str()).collect();
        assert_eq!(details, ["the disk is full", "label 9 does not exist"]);
    }

    #[test]
    fn commands_that_are_disabled_for_the_same_reason_share_a_notification() {
        let mut notifications = Notifications::default();
        let pushed = [
            (Level::Disabled, "Paint is not available", "Start correcting labels first."),
            (Level::Info, "a.tif was made again: different", "The model differs."),
            (Level::Disabled, "Erase is not available", "Start correcting labels first."),
            (Level::Info, "b.tif was made again: different", "The model differs."),
        ];
        for (level, title, details) in pushed {
            notifications.push(level, title.to_owned(), details.to_owned(), None);
        }
        let titles: Vec<&str> = notifications.shown().iter().map(|n| n.title.as_str()).collect();
        let different = ["a.tif was made again: different", "b.tif was made again: different"];
        assert_eq!(titles, [different[0], "Erase is not available", different[1]]);
    }

    #[test]
    fn the_time_of_a_notification_does_not_run_out_while_the_window_stalls() {
        let mut notifications = Notifications::default();
        notifications.push(Level::Success, "Saved".to_owned(), String::new(), None);
        notifications.push(Level::Error, "The disk is full".to_owned(), String::new(), None);
        let titles = |of: &Notifications| of.shown().iter().map(|n| n.title.clone()).collect::<Vec<_>>();
        let start = Instant::now();
        let resumed = start + Duration::from_secs(60);
        notifications.expire(start);
        notifications.expire(resumed);
        // The stall counts as 0.25 s, and each frame as 0.1 s.
        for frame in 1..=67 {
            notifications.expire(resumed + Duration::from_millis(100 * frame));
        }
        assert_eq!(titles(&notifications), ["Saved", "The disk is full"]);
        notifications.expire(resumed + Duration::from_millis(6800));
        assert_eq!(titles(&notifications), ["The disk is full"]);
    }

    #[test]
    fn a_new_notification_takes_no_click_beside_it() {
        let ctx = egui::Context::default();
        let screen = Rect::from_min_size(egui::Pos2::ZERO, vec2(1360.0, 860.0));
        let button = Rect::from_center_size(egui::pos2(1000.0, 600.0), vec2(120.0, 30.0));
        let mut notifications = Notifications::default();
        let frame = |notifications: &Notifications, event: egui::Event| {
            let input = egui::RawInput { screen_rect: Some(screen), events: vec![event], ..Default::default() };
            let mut is_clicked = false;
            let _ = ctx.run_ui(input, |ui| {
                is_clicked = ui.put(button, egui::Button::new("Behind")).clicked();
                notifications.show(ui.ctx(), screen, &mut Actions::default());
            });
            is_clicked
        };
        let pointer = |pressed| egui::Event::PointerButton {
            pos: button.center(),
            button: egui::PointerButton::Primary,
            pressed,
            modifiers: egui::Modifiers::NONE,
        };
        for _ in 0..3 {
            frame(&notifications, egui::Event::PointerMoved(button.center()));
        }
        notifications.push(Level::Success, "Predicted".to_owned(), "7 objects".to_owned(), None);
        frame(&notifications, egui::Event::PointerMoved(button.center()));
        frame(&notifications, pointer(true));
        assert!(frame(&notifications, pointer(false)), "the notification took the click");
    }
}
