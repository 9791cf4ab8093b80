//! Pictures of what is on screen, and the sheet that asks for one.

use crate::app::Workbench;
use crate::data::composite::{Intensity, LabelLook, Shown};
use crate::data::plane::{Orientation, PlaneAt};
use crate::data::source::{Cancel, PlaneSource};
use crate::document::{Document, Overlay};
use crate::opener::Ask;
use crate::panels::weak;
use eframe::egui::{self, Color32, ColorImage, Rect, RichText, ViewportCommand};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the window may take to give a picture of itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most pixels of a picture.
const MAX_PIXELS: usize = 1 << 28;

/// What a picture is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureOf {
    /// A cut, one pixel a pixel of the stack.
    Cut(Orientation),
    /// The 3-D view as it is on screen.
    Volume,
    /// The whole window.
    Window,
    /// The profiler.
    Profile,
}

impl PictureOf {
    /// Those that the sheet offers.
    const OFFERED: [PictureOf; 5] = [
        PictureOf::Cut(Orientation::Xy),
        PictureOf::Cut(Orientation::Xz),
        PictureOf::Cut(Orientation::Zy),
        PictureOf::Volume,
        PictureOf::Window,
    ];

    fn name(self) -> String {
        match self {
            PictureOf::Cut(orientation) => format!("{} slice, every pixel", orientation.name()),
            PictureOf::Volume => "3-D view, as on screen".to_owned(),
            PictureOf::Window => "Whole window".to_owned(),
            PictureOf::Profile => "Profiler".to_owned(),
        }
    }

    /// What is added to the name of its file.
    fn ending(self) -> &'static str {
        match self {
            PictureOf::Cut(Orientation::Xy) => "",
            PictureOf::Cut(Orientation::Xz) => "_xz",
            PictureOf::Cut(Orientation::Zy) => "_yz",
            PictureOf::Volume => "_3d",
            PictureOf::Window => "_window",
            PictureOf::Profile => "_profile",
        }
    }
}

/// What was chosen in the sheet, and the picture under way.
#[derive(Debug, Default)]
pub struct Shots {
    open: bool,
    of: Option<PictureOf>,
    without_bar: bool,
    pending: Option<Pending>,
}

#[derive(Debug)]
struct Pending {
    of: PictureOf,
    path: PathBuf,
    since: Option<Instant>,
}

impl Shots {
    /// Opens the sheet.
    pub fn open(&mut self) {
        self.open = true;
    }

    /// Whether the 3-D view is to be seen without its buttons, because its picture is taken.
    pub fn is_bare(&self) -> bool {
        self.pending.as_ref().is_some_and(|p| p.of == PictureOf::Volume)
    }

    /// Whether pictures get a scale bar.
    pub fn with_bar(&self) -> bool {
        !self.without_bar
    }
}

/// How a plane is shown.
enum Look {
    Intensity(Intensity),
    Labels(LabelLook),
}

/// A plane that a picture is made of, not read yet.
type Layer = (Arc<dyn PlaneSource>, PlaneAt, Look);

/// What is shown of a document in a cut, whole and with every pixel.
fn layers(document: &Document, orientation: Orientation) -> Vec<Layer> {
    let [rows, columns] = orientation.cut(document.extents.zyx);
    let index = document.cursor[orientation.axes()[0]];
    let at = |channel, time| PlaneAt { orientation, index, channel, time, rows: 0..rows, columns: 0..columns, step: 1 };
    let visible = document.channels.iter().enumerate().filter(|(_, c)| c.visible);
    let mut layers: Vec<Layer> = visible
        .map(|(i, c)| (Arc::clone(&document.source), at(i, document.time), Look::Intensity(c.look.clone())))
        .collect();
    if layers.is_empty() {
        let black = Intensity { opacity: 0.0, ..Overlay::map_look() };
        layers.push((Arc::clone(&document.source), at(0, document.time), Look::Intensity(black)));
    }
    for overlay in document.overlays.iter().filter(|o| o.visible) {
        let look = match overlay.is_labels() {
            true => Look::Labels(overlay.labels.clone()),
            false => Look::Intensity(overlay.look.clone()),
        };
        let time = document.time.min(overlay.times.saturating_sub(1));
        layers.push((Arc::clone(&overlay.source), at(0, time), look));
    }
    layers
}

/// Reads them.
fn read(layers: Vec<Layer>) -> Result<Vec<Shown>, String> {
    let read = |(source, at, look): Layer| {
        let [rows, columns] = at.size();
        if rows.saturating_mul(columns) > MAX_PIXELS {
            return Err(format!(
                "a slice of {columns} × {rows} pixels is too large for a picture; convert it to TIFF instead"
            ));
        }
        let plane = Arc::new(source.plane(&at, &Cancel::default()).map_err(|e| e.to_string())?);
        Ok(match look {
            Look::Intensity(look) => Shown::Intensity(plane, look),
            Look::Labels(look) => Shown::Labels(plane, look),
        })
    };
    layers.into_iter().map(read).collect()
}

/// The part of a picture of the window that a rectangle of it covers.
fn crop(image: &ColorImage, rect: Rect, pixels_per_point: f32) -> Option<ColorImage> {
    let [width, height] = image.size;
    let at = |points: f32, most: usize| ((points * pixels_per_point).round().max(0.0) as usize).min(most);
    let (left, right) = (at(rect.left(), width), at(rect.right(), width));
    let (top, bottom) = (at(rect.top(), height), at(rect.bottom(), height));
    let rows = (top..bottom).map(|y| image.pixels.get(y * width + left..y * width + right));
    let pixels: Vec<Color32> = rows.collect::<Option<Vec<_>>>()?.concat();
    (!pixels.is_empty()).then(|| ColorImage::new([right - left, bottom - top], pixels))
}

impl Workbench {
    /// The sheet that asks what the picture is to be of.
    pub(crate) fn picture_sheet(&mut self, ctx: &egui::Context) {
        if !self.shots.open {
            return;
        }
        let Some(document) = self.document() else {
            self.shots.open = false;
            return;
        };
        let (flat, scaled) = (!document.is_3d(), document.voxel_known);
        let shown_3d = self.settings.show_3d;
        let can = |of: PictureOf| match of {
            PictureOf::Cut(orientation) => !flat || orientation == Orientation::Xy,
            PictureOf::Volume => !flat && shown_3d,
            _ => true,
        };
        let mut of = self.shots.of.filter(|of| can(*of)).unwrap_or(PictureOf::Cut(Orientation::Xy));
        let mut bar = !self.shots.without_bar;
        let response = egui::Modal::new(egui::Id::new("picture")).show(ctx, |ui| {
            ui.set_width(300.0);
            ui.heading("Save picture");
            ui.add_space(6.0);
            for offered in PictureOf::OFFERED {
                ui.add_enabled_ui(can(offered), |ui| ui.radio_value(&mut of, offered, offered.name()));
            }
            ui.add_space(6.0);
            let takes_bar = of != PictureOf::Window;
            ui.add_enabled_ui(scaled && takes_bar, |ui| ui.checkbox(&mut bar, "With scale bar"));
            if !scaled {
                weak(ui, "The file does not state its voxel size.");
            }
            ui.add_space(10.0);
            let mut choice = None;
            ui.horizontal(|ui| {
                if ui.add(egui::Button::new(RichText::new("Save…").strong())).clicked() {
                    choice = Some(true);
                }
                if ui.button("Cancel").clicked() {
                    choice = Some(false);
                }
            });
            if ui.input(|i| i.key_pressed(egui::Key::Enter)) {
                choice = Some(true);
            }
            choice
        });
        (self.shots.of, self.shots.without_bar) = (Some(of), !bar);
        if response.inner == Some(true) {
            self.ask_picture(of);
        }
        self.shots.open = response.inner.is_none() && !response.should_close();
    }

    /// Asks where a picture goes.
    pub(crate) fn ask_picture(&mut self, of: PictureOf) {
        let document = self.document();
        let folder = document.and_then(|d| d.path.parent().map(Into::into));
        let stem = document.map_or("cytoscope", |d| d.name.split('.').next().unwrap_or_default()).to_owned();
        self.opener.ask(Ask::Picture(of), folder, format!("{stem}{}.png", of.ending()));
    }

    /// Saves a picture, once the window has given it.
    pub fn take_picture(&mut self, of: PictureOf, path: PathBuf) {
        let PictureOf::Cut(orientation) = of else {
            self.shots.pending = Some(Pending { of, path, since: None });
            (self.wake)();
            return;
        };
        let Some(document) = self.document() else { return };
        let layers = layers(document, orientation);
        let [_, _, column] = orientation.axes();
        let bar = (self.shots.with_bar() && document.voxel_known).then_some(document.voxel_um[column]);
        self.save_file(path, move || crate::picture::png(&read(layers)?, bar));
    }

    /// Asks the window for its picture, and takes it when it comes.
    pub(crate) fn poll_pictures(&mut self, ctx: &egui::Context) {
        let Some(pending) = &mut self.shots.pending else { return };
        let Some(since) = pending.since else {
            // The next frame is drawn as the picture is to be.
            pending.since = Some(Instant::now());
            ctx.send_viewport_cmd(ViewportCommand::Screenshot(egui::UserData::default()));
            ctx.request_repaint();
            return;
        };
        let came = ctx.input(|i| {
            i.events.iter().find_map(|e| match e {
                egui::Event::Screenshot { image, .. } => Some(Arc::clone(image)),
                _ => None,
            })
        });
        let Some(image) = came else {
            if since.elapsed() > PATIENCE {
                self.shots.pending = None;
                let details = "The graphics driver gave no picture of the window. A slice can be saved all the same.";
                self.notices.error("The picture could not be taken", details);
            } else {
                ctx.request_repaint_after(Duration::from_millis(50));
            }
            return;
        };
        let rect = match pending.of {
            PictureOf::Volume => self.layout.volume_rect(),
            PictureOf::Profile => self.panels.profiler.rect,
            PictureOf::Window | PictureOf::Cut(_) => Rect::EVERYTHING,
        };
        let (path, scale) = (std::mem::take(&mut pending.path), ctx.pixels_per_point());
        self.shots.pending = None;
        self.save_file(path, move || {
            let part = crop(&image, rect, scale).ok_or("it is not on screen")?;
            crate::picture::encode(&part)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eframe::egui::pos2;

    #[test]
    fn a_part_of_a_picture_is_cut_out_by_points() {
        let pixels: Vec<Color32> = (0..24).map(Color32::from_gray).collect();
        let image = ColorImage::new([6, 4], pixels);
        let part = crop(&image, Rect::from_min_max(pos2(1.0, 0.5), pos2(2.0, 1.5)), 2.0);
        let gray: Option<Vec<u8>> = part.as_ref().map(|p| p.pixels.iter().map(|c| c.r()).collect());
        assert_eq!((part.map(|p| p.size), gray), (Some([2, 2]), Some(vec![8, 9, 14, 15])));
        assert_eq!(crop(&image, Rect::EVERYTHING, 2.0).map(|p| p.size), Some([6, 4]));
        assert_eq!(crop(&image, Rect::from_min_max(pos2(9.0, 9.0), pos2(12.0, 12.0)), 1.0), None);
    }
}
