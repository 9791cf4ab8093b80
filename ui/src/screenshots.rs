//! Screenshots, and the dialog that asks for them.

use crate::action::Actions;
use crate::data::composite::{DisplayedPlane, Intensity, LabelDisplay};
use crate::data::plane::{Orientation, PlaneAt};
use crate::data::source::{Cancel, PlaneSource};
use crate::display::DisplayAction;
use crate::document::{Document, Overlay};
use crate::documents::DocumentsAction;
use crate::effect::Effects;
use crate::opener::{Content, FileRequest};
use crate::panels::{named_primary_button, weak};
use crate::state::State;
use crate::theme;
use eframe::egui::{self, Color32, ColorImage, Rect, ViewportCommand};
use egui_phosphor::regular as icon;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timeout for a screenshot of the window, and for views that are not complete yet.
const SCREENSHOT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of pixels of a screenshot.
const MAX_PIXELS: usize = 1 << 28;

/// Why views other than XY cannot be saved.
const FLAT: &str = "The image has only one slice.";
/// Why the 3-D view cannot be saved.
const HIDDEN: &str = "Show the 3-D view first (View > Show 3-D view).";
/// Why a picture has no scale bar.
const UNKNOWN_SIZE: &str = "The voxel size is unknown.";
/// Why a picture of the window gets no scale bar.
const BARS_OF_WINDOW: &str = "The picture has the scale bars that the window shows.";

/// Part of the window that a screenshot shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScreenshotSubject {
    /// A slice at full resolution.
    Slice(Orientation),
    /// The 3-D view as displayed.
    Volume,
    /// The whole window.
    Window,
    /// The profiler panel.
    Profile,
}

impl ScreenshotSubject {
    /// Choices of the dialog.
    const OFFERED: [ScreenshotSubject; 5] = [
        ScreenshotSubject::Slice(Orientation::Xy),
        ScreenshotSubject::Slice(Orientation::Xz),
        ScreenshotSubject::Slice(Orientation::Zy),
        ScreenshotSubject::Volume,
        ScreenshotSubject::Window,
    ];

    fn name(self) -> String {
        match self {
            ScreenshotSubject::Slice(orientation) => format!("{} slice, full resolution", orientation.name()),
            ScreenshotSubject::Volume => "3-D view, as on screen".to_owned(),
            ScreenshotSubject::Window => "Whole window".to_owned(),
            ScreenshotSubject::Profile => "Profiler".to_owned(),
        }
    }

    /// Suffix of the suggested file name.
    fn suffix(self) -> &'static str {
        match self {
            ScreenshotSubject::Slice(Orientation::Xy) => "",
            ScreenshotSubject::Slice(Orientation::Xz) => "_xz",
            ScreenshotSubject::Slice(Orientation::Zy) => "_yz",
            ScreenshotSubject::Volume => "_3d",
            ScreenshotSubject::Window => "_window",
            ScreenshotSubject::Profile => "_profile",
        }
    }
}

/// Choices of the dialog, and the pending screenshot.
#[derive(Debug, Default)]
pub struct Screenshots {
    open: bool,
    subject: Option<ScreenshotSubject>,
    without_bar: bool,
    pending: Option<Pending>,
}

#[derive(Debug)]
struct Pending {
    subject: ScreenshotSubject,
    path: PathBuf,
    /// When the user asked for it.
    asked: Instant,
    /// When the image of the window was requested.
    since: Option<Instant>,
}

impl Screenshots {
    /// Opens the dialog.
    pub fn open(&mut self) {
        self.open = true;
    }

    /// Closes the dialog.
    pub fn close(&mut self) {
        self.open = false;
    }

    /// Whether the dialog is open.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Stores the choices of the dialog.
    pub fn choose(&mut self, subject: ScreenshotSubject, with_bar: bool) {
        (self.subject, self.without_bar) = (Some(subject), !with_bar);
    }

    /// Takes a screenshot of the window once its views are complete.
    pub fn take(&mut self, subject: ScreenshotSubject, path: PathBuf) {
        self.pending = Some(Pending { subject, path, asked: Instant::now(), since: None });
    }

    /// Whether the 3-D view hides its buttons for a screenshot.
    pub fn is_bare(&self) -> bool {
        self.pending.as_ref().is_some_and(|p| p.subject == ScreenshotSubject::Volume)
    }

    /// Whether screenshots include a scale bar.
    pub fn with_bar(&self) -> bool {
        !self.without_bar
    }

    /// Requests the pending screenshot of the window, and saves it when it arrives. `volume` and `profiler` are the
    /// areas of the 3-D view and the profiler; `is_complete` says whether the views showed everything in the last frame.
    pub(crate) fn poll(&mut self, ctx: &egui::Context, volume: Rect, profiler: Rect, is_complete: bool) -> Effects {
        let mut effects = Effects::default();
        let Some(pending) = &mut self.pending else { return effects };
        let Some(since) = pending.since else {
            let shows_views = matches!(pending.subject, ScreenshotSubject::Volume | ScreenshotSubject::Window);
            if shows_views && !is_complete && pending.asked.elapsed() < SCREENSHOT_TIMEOUT {
                ctx.request_repaint_after(Duration::from_millis(50));
                return effects;
            }
            // The next frame is drawn for the screenshot.
            pending.since = Some(Instant::now());
            ctx.send_viewport_cmd(ViewportCommand::Screenshot(egui::UserData::default()));
            ctx.request_repaint();
            return effects;
        };
        let screenshot = ctx.input(|i| {
            i.events.iter().find_map(|e| match e {
                egui::Event::Screenshot { image, .. } => Some(Arc::clone(image)),
                _ => None,
            })
        });
        let Some(image) = screenshot else {
            if since.elapsed() > SCREENSHOT_TIMEOUT {
                self.pending = None;
                let details = "The graphics driver returned no picture of the window. Slices can still be saved.";
                effects.error("The picture was not saved", details);
            } else {
                ctx.request_repaint_after(Duration::from_millis(50));
            }
            return effects;
        };
        let rect = match pending.subject {
            ScreenshotSubject::Volume => volume,
            ScreenshotSubject::Profile => profiler,
            ScreenshotSubject::Window | ScreenshotSubject::Slice(_) => Rect::EVERYTHING,
        };
        let (path, scale) = (std::mem::take(&mut pending.path), ctx.pixels_per_point());
        self.pending = None;
        let content: Content = Box::new(move || {
            let part = crop(&image, rect, scale).ok_or("it is not on screen")?;
            crate::picture::encode(&part)
        });
        effects.act(DocumentsAction::Save { path, content });
        effects
    }
}

/// Display settings of a plane.
enum LayerDisplay {
    Intensity(Intensity),
    Labels(LabelDisplay),
}

/// A plane to read for a screenshot.
type Layer = (Arc<dyn PlaneSource>, PlaneAt, LayerDisplay);

/// The displayed layers of a document in a slice, whole and at full resolution.
fn layers(document: &Document, orientation: Orientation) -> Vec<Layer> {
    let index = document.cursor[orientation.axes()[0]];
    let at = |channel, time| PlaneAt { channel, time, ..PlaneAt::whole(orientation, index, document.extents.zyx) };
    let visible = document.channels.iter().enumerate().filter(|(_, c)| c.visible);
    // During a preview of the preprocessing, that is the preprocessed stack.
    let (source, _) = document.shown_source();
    let mut layers: Vec<Layer> = visible
        .map(|(i, c)| (Arc::clone(source), at(i, document.time), LayerDisplay::Intensity(c.display.clone())))
        .collect();
    if layers.is_empty() {
        let black = Intensity { opacity: 0.0, ..Overlay::map_display() };
        layers.push((Arc::clone(source), at(0, document.time), LayerDisplay::Intensity(black)));
    }
    for overlay in document.overlays.iter().filter(|o| o.visible && o.is_at(document.time)) {
        let display = match overlay.is_labels() {
            true => LayerDisplay::Labels(overlay.labels.clone()),
            false => LayerDisplay::Intensity(overlay.display.clone()),
        };
        let time = document.time.min(overlay.times.saturating_sub(1));
        layers.push((Arc::clone(&overlay.source), at(0, time), display));
    }
    layers
}

/// Reads the planes of all layers.
fn read(layers: Vec<Layer>) -> Result<Vec<DisplayedPlane>, String> {
    let read = |(source, at, display): Layer| {
        let [rows, columns] = at.size();
        if rows.saturating_mul(columns) > MAX_PIXELS {
            return Err(format!(
                "a slice of {columns} × {rows} pixels is too large for a picture; convert it to TIFF instead"
            ));
        }
        let plane = Arc::new(source.plane(&at, &Cancel::default()).map_err(|e| e.to_string())?);
        Ok(match display {
            LayerDisplay::Intensity(display) => DisplayedPlane::Intensity(plane, display),
            LayerDisplay::Labels(display) => DisplayedPlane::Labels(plane, display),
        })
    };
    layers.into_iter().map(read).collect()
}

/// Crops a window image to a rectangle in points; `None` if nothing is left.
fn crop(image: &ColorImage, rect: Rect, pixels_per_point: f32) -> Option<ColorImage> {
    let [width, height] = image.size;
    let at = |points: f32, limit: usize| ((points * pixels_per_point).round().max(0.0) as usize).min(limit);
    let (left, right) = (at(rect.left(), width), at(rect.right(), width));
    let (top, bottom) = (at(rect.top(), height), at(rect.bottom(), height));
    let rows = (top..bottom).map(|y| image.pixels.get(y * width + left..y * width + right));
    let pixels: Vec<Color32> = rows.collect::<Option<Vec<_>>>()?.concat();
    (!pixels.is_empty()).then(|| ColorImage::new([right - left, bottom - top], pixels))
}

/// Draws the screenshot dialog.
pub(crate) fn screenshot_dialog(ctx: &egui::Context, state: State<'_>, actions: &mut Actions) {
    let screenshots = state.display.screenshots();
    if !screenshots.is_open() {
        return;
    }
    let Some(document) = state.document() else {
        actions.send(DisplayAction::CloseScreenshotDialog);
        return;
    };
    let (flat, scaled) = (!document.is_3d(), document.voxel_known);
    let shown_3d = state.settings().show_3d;
    let can = |subject: ScreenshotSubject| match subject {
        ScreenshotSubject::Slice(orientation) => !flat || orientation == Orientation::Xy,
        ScreenshotSubject::Volume => !flat && shown_3d,
        _ => true,
    };
    let mut subject =
        screenshots.subject.filter(|subject| can(*subject)).unwrap_or(ScreenshotSubject::Slice(Orientation::Xy));
    let mut bar = screenshots.with_bar();
    let response = theme::dialog(ctx, "picture").show(ctx, |ui| {
        ui.set_width(300.0);
        ui.heading("Save picture");
        ui.add_space(6.0);
        for offered in ScreenshotSubject::OFFERED {
            let radio = ui.add_enabled_ui(can(offered), |ui| {
                theme::outlined(ui, |ui| ui.radio_value(&mut subject, offered, offered.name()))
            });
            radio.inner.on_disabled_hover_text(if flat { FLAT } else { HIDDEN });
        }
        ui.add_space(6.0);
        let takes_bar = subject != ScreenshotSubject::Window;
        let with_bar =
            ui.add_enabled_ui(scaled && takes_bar, |ui| theme::checkbox(ui, &mut bar, "With scale bar")).inner;
        with_bar.on_disabled_hover_text(if scaled { BARS_OF_WINDOW } else { UNKNOWN_SIZE });
        if !scaled {
            weak(ui, UNKNOWN_SIZE);
        }
        ui.add_space(10.0);
        let mut choice = None;
        // Enter presses this button while it has the focus.
        let mut is_canceling = false;
        ui.horizontal(|ui| {
            if named_primary_button(ui, true, icon::CHECK, "Save…").clicked() {
                choice = Some(true);
            }
            let cancel = ui.button("Cancel");
            is_canceling = cancel.has_focus();
            if cancel.clicked() {
                choice = Some(false);
            }
        });
        if !is_canceling && ui.input(|i| i.key_pressed(egui::Key::Enter)) {
            choice = Some(true);
        }
        choice
    });
    if (screenshots.subject, screenshots.with_bar()) != (Some(subject), bar) {
        actions.send(DisplayAction::ScreenshotChoices { subject, with_bar: bar });
    }
    if response.inner == Some(true) {
        choose_screenshot_file(subject, state, actions);
    }
    if response.inner.is_some() || response.should_close() {
        actions.send(DisplayAction::CloseScreenshotDialog);
    }
}

/// Asks for the file of a screenshot.
pub(crate) fn choose_screenshot_file(subject: ScreenshotSubject, state: State<'_>, actions: &mut Actions) {
    let document = state.document();
    let folder = document.and_then(|d| d.path.parent().map(Into::into));
    let stem = document.map_or_else(|| "cytoscope".to_owned(), Document::stem);
    let name = format!("{stem}{}.png", subject.suffix());
    let request = FileRequest::Screenshot(subject, document.map(|d| d.id));
    actions.send(DocumentsAction::Ask { request, folder, name });
}

/// Saves a screenshot of a document; images of the window are taken in the next frames.
pub(crate) fn take_screenshot(
    subject: ScreenshotSubject,
    document: Option<u64>,
    path: PathBuf,
    state: State<'_>,
) -> Effects {
    let mut effects = Effects::default();
    let ScreenshotSubject::Slice(orientation) = subject else {
        effects.act(DisplayAction::TakeScreenshot { subject, path });
        return effects;
    };
    let Some(document) = document.and_then(|id| state.documents.get(id)) else {
        effects.error("The picture was not saved", "Its stack was closed: open it again, then save again.");
        return effects;
    };
    let layers = layers(document, orientation);
    let [_, _, column] = orientation.axes();
    let bar = (state.display.screenshots().with_bar() && document.voxel_known).then_some(document.voxel_um[column]);
    let content: Content = Box::new(move || crate::picture::png(&read(layers)?, bar));
    effects.act(DocumentsAction::Save { path, content });
    effects
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::document::DocumentChange;
    use crate::preprocess::Preprocessing;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_preprocess::PreprocessStep;
    use cytoscope_volume::Array;
    use eframe::egui::pos2;

    #[test]
    fn a_picture_shows_the_preprocessed_stack_while_the_views_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stack.tif");
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 8, 8], vec![1u16; 128]).unwrap();
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let mut document = Document::open(&path, None, 0).unwrap();
        let steps = PreprocessStep::usual().into_iter().take(1).collect();
        document.apply(DocumentChange::Preprocessing(Preprocessing { steps, preview: true }));
        let preview = Arc::clone(&document.preview.as_ref().unwrap().source);
        let layers = layers(&document, Orientation::Xy);
        assert!(Arc::ptr_eq(&layers[0].0, &preview));
    }

    #[test]
    fn a_picture_of_the_views_is_taken_once_they_are_complete() {
        let ctx = egui::Context::default();
        let is_requested = |screenshots: &mut Screenshots, is_complete: bool| {
            let output = ctx.run_ui(egui::RawInput::default(), |ui| {
                let _ = screenshots.poll(ui.ctx(), Rect::EVERYTHING, Rect::EVERYTHING, is_complete);
            });
            let is_screenshot = |command: &ViewportCommand| matches!(command, ViewportCommand::Screenshot(_));
            output.viewport_output.values().flat_map(|viewport| &viewport.commands).any(is_screenshot)
        };
        let mut screenshots = Screenshots::default();
        screenshots.take(ScreenshotSubject::Volume, PathBuf::from("view.png"));
        assert!(!is_requested(&mut screenshots, false), "the volume is being read");
        assert!(is_requested(&mut screenshots, true));
        screenshots.take(ScreenshotSubject::Profile, PathBuf::from("profile.png"));
        assert!(is_requested(&mut screenshots, false), "it does not show the views");
    }

    #[test]
    fn images_are_cropped_in_points() {
        let pixels: Vec<Color32> = (0..24).map(Color32::from_gray).collect();
        let image = ColorImage::new([6, 4], pixels);
        let part = crop(&image, Rect::from_min_max(pos2(1.0, 0.5), pos2(2.0, 1.5)), 2.0);
        let gray: Option<Vec<u8>> = part.as_ref().map(|p| p.pixels.iter().map(|c| c.r()).collect());
        assert_eq!((part.map(|p| p.size), gray), (Some([2, 2]), Some(vec![8, 9, 14, 15])));
        assert_eq!(crop(&image, Rect::EVERYTHING, 2.0).map(|p| p.size), Some([6, 4]));
        assert_eq!(crop(&image, Rect::from_min_max(pos2(9.0, 9.0), pos2(12.0, 12.0)), 1.0), None);
    }
}
