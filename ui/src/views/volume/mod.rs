//! The 3-D view: projected intensities or label surfaces, rotated with the mouse, with the shared crosshair.
//!
//! The volume is a downsampled copy of the stack ([`grid`]), read on a worker thread ([`reader`]), converted for the
//! GPU ([`content`]) and drawn by it ([`render`]) only when the picture has changed. If the GPU or
//! driver fails, the pane shows a message and the other views keep working.

pub mod camera;
pub mod content;
pub mod grid;
mod outline;
pub mod picture;
mod pipelines;
pub mod reader;
pub mod render;
#[cfg(test)]
mod tests;

use super::decor::{draw_caption, draw_scale_bar};
use super::slice::{ViewOptions, ViewResponse};
use crate::data::composite::{Intensity, LabelDisplay};
use crate::data::levels::levels_of;
use crate::data::loader::SourceId;
use crate::document::{Document, DocumentChange, Overlay, Role};
use crate::theme;
use camera::{Camera, Projection};
use content::{TexelRay, Volume};
use eframe::egui::{self, Align2, FontId, Key, PointerButton, Rect, Sense, Stroke, StrokeKind, Ui, Vec2, vec2};
use eframe::wgpu::TextureFormat;
use egui_phosphor::regular as icon;
use grid::TexelGrid;
use picture::{Mode, Picture, PictureParams, label_colors};
use reader::{VOLUME_CACHE_BYTES, VolumeKey, VolumeLoadState, VolumeReader, VolumeRequest};
use render::VolumeRenderer;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of channels shown at once.
const CHANNELS: usize = 3;

/// The picture is drawn at full resolution after this time without movement.
const STILL_SECS: f64 = 0.2;

/// Step length of rays in texels, at rest and while moving.
const STEP_TEXELS: [f32; 2] = [0.6, 1.2];

/// Minimum width in points of a pane with a caption; in narrower panes, the buttons would cover it.
const CAPTION_FROM: f32 = 180.0;

/// Rotation per arrow key press, as a fraction of a drag across the pane.
const KEY_TURN: f32 = 1.0 / 24.0;

/// A layer of the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Slot {
    Channel(usize),
    Map,
    Labels,
}

/// State of the 3-D view between frames.
#[derive(Default)]
pub struct VolumeView {
    reader: Option<VolumeReader>,
    renderer: VolumeRenderer,
    cameras: HashMap<SourceId, Camera>,
    perspective: bool,
    /// Mode chosen by the user; by default labels if there are any.
    chosen: Option<Mode>,
    /// The newest loaded volume of each slot, shown until the requested one is loaded.
    newest: HashMap<Slot, Arc<Volume>>,
    colors: Option<(Arc<Volume>, LabelDisplay, Arc<Vec<u8>>)>,
    failed: Option<String>,
    document: SourceId,
    last_seen: Option<(Camera, Vec2, Vec<Intensity>)>,
    moved_at: f64,
    moving: bool,
    /// Whether the picture of the last frame lacks volumes that were not loaded yet.
    is_incomplete: bool,
    id: Option<egui::Id>,
}

/// The loaded layers of a document.
struct Layers {
    intensities: Vec<(Arc<Volume>, Intensity)>,
    labels: Option<(Arc<Volume>, Arc<Vec<u8>>)>,
}

impl VolumeView {
    /// Id of the widget, once it has been drawn.
    pub fn id(&self) -> Option<egui::Id> {
        self.id
    }

    /// Whether the picture of the last frame has everything that was requested, at full resolution. A volume whose reading has
    /// ended since then is not in it yet.
    pub fn is_settled(&self) -> bool {
        !self.moving && !self.is_incomplete && !self.is_drawing()
    }

    /// The projection mode for a document.
    pub fn mode(&self, document: &Document) -> Mode {
        match (self.chosen, surface_labels(document)) {
            (Some(Mode::Labels) | None, Some(_)) => Mode::Labels,
            (Some(mode @ (Mode::Maximum | Mode::Attenuated)), _) => mode,
            (Some(Mode::Labels) | None, None) => Mode::Maximum,
        }
    }

    /// Resets the cameras of all documents.
    pub fn reset(&mut self) {
        self.cameras.clear();
    }

    /// Number of pictures drawn.
    pub fn drawn(&self) -> usize {
        self.renderer.drawn()
    }

    /// Whether a picture is being drawn over several frames.
    pub fn is_drawing(&self) -> bool {
        self.renderer.is_drawing()
    }

    /// Releases all resources while the view is hidden.
    pub fn release(&mut self) {
        if let Some(reader) = &self.reader {
            reader.request(&[]);
        }
        if !self.newest.is_empty() || self.renderer.drawn() > 0 {
            self.newest.clear();
            self.colors = None;
            self.renderer = VolumeRenderer::default();
        }
        (self.moving, self.is_incomplete) = (false, false);
        self.id = None;
    }

    /// Drops a source that has changed or was closed.
    pub fn forget(&mut self, source: SourceId) {
        if let Some(reader) = &self.reader {
            reader.forget(source);
        }
        self.cameras.remove(&source);
        if self.document == source {
            self.release();
        }
    }

    /// Draws the view into the available area of `ui`; `target` is the texture format of the window.
    pub fn show(
        &mut self,
        ui: &mut Ui,
        document: &Document,
        target: TextureFormat,
        options: ViewOptions,
    ) -> ViewResponse {
        let mut view_response = ViewResponse::default();
        let size = ui.available_size().max(vec2(8.0, 8.0));
        let (rect, response) = ui.allocate_exact_size(size, Sense::click_and_drag());
        let mode = self.mode(document);
        let name = format!("3-D view, {}", mode.name());
        response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Image, true, &name));
        self.id = Some(response.id);
        self.switch_to(document.id);
        let grid = TexelGrid::of(document.extents.zyx, &levels_of(document.image.meta()));
        let size_um = grid.size_um(document.voxel_um);
        let camera = self.moved_camera(ui, &response, rect, document.id, size_um);
        let projection = Projection::new(&camera, size_um, rect);
        // The layers say whether they are complete.
        self.is_incomplete = options.only_xy;
        let layers = match options.only_xy {
            true => Layers { intensities: Vec::new(), labels: None },
            false => self.layers(ui, document, grid, mode),
        };
        let looks = layers.intensities.iter().map(|(_, display)| display.clone()).collect();
        self.detect_movement(ui, (camera, rect.size(), looks));
        if response.clicked() {
            response.request_focus();
            let at = response.interact_pointer_pos().unwrap_or(rect.center());
            let ray = TexelRay::new(&projection.ray(at), grid.texel_um(document.voxel_um));
            let (picked, cursor) = ray.map_or((None, None), |ray| pick(grid, &layers, &ray));
            view_response.picked = picked;
            view_response.changes.extend(cursor.map(DocumentChange::Cursor));
        }

        let painter = ui.painter_at(rect);
        painter.rect_filled(rect, 0.0, theme::IMAGE_BACKGROUND);
        outline::draw_behind(&painter, &projection, size_um);
        if !layers.intensities.is_empty() || layers.labels.is_some() {
            let picture = Picture::new(PictureParams {
                projection: &projection,
                rect,
                size: self.pixels(ui, rect),
                grid,
                voxel_um: document.voxel_um,
                mode,
                step: STEP_TEXELS[usize::from(self.moving)],
                single_frame: self.moving,
                layers: layers.intensities,
                labels: layers.labels,
                selected: document.selected,
            });
            painter.add(self.renderer.callback(ui.ctx(), rect, picture, target));
        }
        outline::draw_front(&painter, &projection, size_um);
        if options.crosshair {
            outline::cursor(&painter, &projection, size_um, document);
        }
        if options.scale_bar && document.voxel_known && !self.perspective {
            draw_scale_bar(&painter, rect, projection.points_per_um);
        }
        if options.bare {
            return view_response;
        }
        if rect.width() >= CAPTION_FROM {
            draw_caption(&painter, rect.left_top() + vec2(8.0, 7.0), Align2::LEFT_TOP, "3-D");
        }
        self.draw_status(&painter, rect);
        if response.has_focus() {
            painter.rect_stroke(rect, 0.0, Stroke::new(1.5, theme::ACCENT), StrokeKind::Inside);
        }
        self.buttons(ui, rect, document);
        view_response
    }

    /// Moves the camera of a document by the gestures of this frame and returns it; a double click resets it.
    fn moved_camera(
        &mut self,
        ui: &Ui,
        response: &egui::Response,
        rect: Rect,
        document: SourceId,
        size_um: [f64; 3],
    ) -> Camera {
        let home = Camera { perspective: self.perspective, ..Camera::default() };
        let mut camera = *self.cameras.get(&document).unwrap_or(&home);
        camera.perspective = self.perspective;
        let projection = Projection::new(&camera, size_um, rect);
        interact(ui, response, rect, &projection, &mut camera);
        if response.double_clicked() {
            camera = home;
        }
        self.cameras.insert(document, camera);
        camera
    }

    fn switch_to(&mut self, document: SourceId) {
        if self.document != document {
            self.document = document;
            self.newest.clear();
            self.last_seen = None;
        }
    }

    /// Detects changes of the camera, the size or the display settings. While they change, pictures are drawn smaller; a
    /// picture of full size follows when they have been still for [`STILL_SECS`].
    fn detect_movement(&mut self, ui: &Ui, now_seen: (Camera, Vec2, Vec<Intensity>)) {
        let now = ui.input(|i| i.time);
        if self.last_seen.as_ref().is_some_and(|b| *b != now_seen) {
            self.moved_at = now;
            self.moving = true;
        }
        self.last_seen = Some(now_seen);
        if self.moving {
            let left = STILL_SECS - (now - self.moved_at);
            self.moving = left > 0.0;
            if self.moving {
                ui.ctx().request_repaint_after(std::time::Duration::from_secs_f64(left + 0.01));
            }
        }
    }

    /// Width and height of the picture in pixels: those of the pane, or half of them while moving.
    fn pixels(&self, ui: &Ui, rect: Rect) -> [u32; 2] {
        let scale = ui.ctx().pixels_per_point();
        let across = |from: f32, to: f32| (((to * scale).round() - (from * scale).round()).max(1.0)) as u32;
        let full = [across(rect.left(), rect.right()), across(rect.top(), rect.bottom())];
        if self.moving { full.map(|n| n.div_ceil(2)) } else { full }
    }

    /// Requests the visible volumes and returns the loaded ones.
    fn layers(&mut self, ui: &Ui, document: &Document, grid: TexelGrid, mode: Mode) -> Layers {
        let mut wanted: Vec<(Slot, VolumeRequest)> = Vec::new();
        let time_of = |o: &Overlay| if o.times > 1 { document.time.min(o.times - 1) } else { 0 };
        let overlay_request = |o: &Overlay| VolumeRequest {
            key: VolumeKey { source: o.source_id, channel: 0, time: time_of(o), grid },
            source: Arc::clone(&o.source),
        };
        if mode == Mode::Labels {
            wanted.extend(surface_labels(document).map(|o| (Slot::Labels, overlay_request(o))));
        } else {
            let (source, source_id) = document.shown_source();
            let visible = document.channels.iter().enumerate().filter(|(_, c)| c.visible).take(CHANNELS);
            for (channel, _) in visible {
                let key = VolumeKey { source: source_id, channel, time: document.time, grid };
                wanted.push((Slot::Channel(channel), VolumeRequest { key, source: Arc::clone(source) }));
            }
            let map = document.overlay_with_role(Role::Map).filter(|o| o.visible && o.is_at(document.time));
            wanted.extend(map.map(|o| (Slot::Map, overlay_request(o))));
        }
        let reader = self.reader.get_or_insert_with(|| {
            let ctx = ui.ctx().clone();
            VolumeReader::new(VOLUME_CACHE_BYTES, move || ctx.request_repaint())
        });
        reader.request(&wanted.iter().map(|(_, r)| r.clone()).collect::<Vec<_>>());
        self.failed = None;
        for (slot, request) in &wanted {
            match reader.get(&request.key) {
                VolumeLoadState::Ready(volume) => _ = self.newest.insert(*slot, volume),
                VolumeLoadState::Waiting => self.is_incomplete = true,
                VolumeLoadState::Failed(why) => {
                    self.newest.remove(slot);
                    self.failed = Some(why);
                }
            }
        }
        let mut layers = Layers { intensities: Vec::new(), labels: None };
        for (slot, _) in &wanted {
            let Some(volume) = self.newest.get(slot).map(Arc::clone) else { continue };
            match slot {
                Slot::Channel(c) => {
                    // Channels without contrast limits are skipped to avoid a flash.
                    let channel = document.channels.get(*c).filter(|c| !c.wants_limits);
                    layers.intensities.extend(channel.map(|c| (volume, c.display.clone())));
                }
                Slot::Map => {
                    let map = document.overlay_with_role(Role::Map);
                    layers.intensities.extend(map.map(|o| (volume, o.display.clone())));
                }
                Slot::Labels => {
                    layers.labels =
                        surface_labels(document).map(|o| (Arc::clone(&volume), self.colors(&volume, &o.labels)));
                }
            }
        }
        layers
    }

    fn colors(&mut self, volume: &Arc<Volume>, display: &LabelDisplay) -> Arc<Vec<u8>> {
        // The selection does not affect the colors.
        let display = LabelDisplay { selected: None, ..display.clone() };
        if let Some((of, with, colors)) = &self.colors
            && Arc::ptr_eq(of, volume)
            && *with == display
        {
            return Arc::clone(colors);
        }
        let colors = match &**volume {
            Volume::Labels(labels) => Arc::new(label_colors(labels, &display)),
            Volume::Intensities(_) => Arc::default(),
        };
        self.colors = Some((Arc::clone(volume), display, Arc::clone(&colors)));
        colors
    }

    /// Draws loading progress or errors.
    fn draw_status(&self, painter: &egui::Painter, rect: Rect) {
        if let Some(problem) = self.renderer.problem() {
            let text = format!("The 3-D view cannot be shown. {problem}");
            let width = (rect.width() - 40.0).max(60.0);
            let galley = painter.layout(text, FontId::proportional(13.0), theme::ON_IMAGE, width);
            painter.galley(rect.center() - galley.size() / 2.0, galley, theme::ON_IMAGE);
            return;
        }
        let at = rect.right_bottom() - vec2(8.0, 8.0);
        if let Some(share) = self.reader.as_ref().and_then(VolumeReader::progress) {
            draw_caption(painter, at, Align2::RIGHT_BOTTOM, &format!("reading {:.0} %", share * 100.0));
        } else if let Some(why) = &self.failed {
            draw_caption(painter, at, Align2::RIGHT_BOTTOM, &format!("cannot be read: {why}"));
        }
    }

    /// Draws the buttons for mode, perspective and reset.
    fn buttons(&mut self, ui: &mut Ui, rect: Rect, document: &Document) {
        let (mode, perspective) = (self.mode(document), self.perspective);
        let is_on = |button: CornerButton| match button {
            CornerButton::Mode(of) => of == mode,
            CornerButton::Perspective => perspective,
            CornerButton::Reset => false,
        };
        match corner_buttons(ui, rect, surface_labels(document).is_some(), is_on) {
            Some(CornerButton::Mode(of)) => self.chosen = Some(of),
            Some(CornerButton::Perspective) => self.perspective = !self.perspective,
            Some(CornerButton::Reset) => _ = self.cameras.remove(&document.id),
            None => {}
        }
    }
}

/// What a button in the corner of the pane does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CornerButton {
    /// Draws the volume in another way.
    Mode(Mode),
    /// Switches between parallel and perspective projection.
    Perspective,
    /// Resets the camera.
    Reset,
}

/// The buttons in the corner of the pane, from left to right, with their icons and names.
const CORNER_BUTTONS: [(CornerButton, &str, &str); 5] = [
    (CornerButton::Mode(Mode::Maximum), icon::SUN, "Maximum intensity"),
    (CornerButton::Mode(Mode::Attenuated), icon::CLOUD_FOG, "Attenuated maximum intensity"),
    (CornerButton::Mode(Mode::Labels), icon::SHAPES, "Labels as surfaces"),
    (CornerButton::Perspective, icon::PERSPECTIVE, "Perspective"),
    (CornerButton::Reset, icon::CORNERS_OUT, "Reset the 3-D view"),
];

/// Width in points in which all of them fit beside each other.
const CORNER_WIDTH: f32 = 136.0;

/// Draws the buttons at the upper right of a pane, those of which `is_on` is true as selected. Returns the button that was
/// clicked. In narrow panes, they have several rows in the same order.
fn corner_buttons(
    ui: &mut Ui,
    rect: Rect,
    has_labels: bool,
    is_on: impl Fn(CornerButton) -> bool,
) -> Option<CornerButton> {
    let corner = Rect::from_min_max(rect.min + vec2(40.0, 5.0), rect.right_top() + vec2(-6.0, 31.0));
    let is_row = corner.width() >= CORNER_WIDTH;
    let layout = match is_row {
        true => egui::Layout::right_to_left(egui::Align::Min),
        false => egui::Layout::left_to_right(egui::Align::Min).with_main_wrap(true),
    };
    let builder = egui::UiBuilder::new().max_rect(corner).layout(layout);
    let draw = |ui: &mut Ui| {
        // The pane is dark in every theme, so its buttons use the dark theme.
        let dark = ui.ctx().style_of(egui::Theme::Dark);
        ui.set_style(dark);
        ui.spacing_mut().item_spacing = vec2(2.0, 2.0);
        ui.spacing_mut().button_padding = vec2(3.0, 1.0);
        let mut buttons = CORNER_BUTTONS;
        if is_row {
            // The layout begins at the right.
            buttons.reverse();
        }
        let mut clicked = None;
        for (place, (button, sign, name)) in buttons.into_iter().enumerate() {
            if is_row && place == 2 {
                // Between the modes and the other buttons.
                ui.add_space(6.0);
            }
            let enabled = button != CornerButton::Mode(Mode::Labels) || has_labels;
            if corner_button(ui, sign, name, enabled, is_on(button)).clicked() {
                clicked = Some(button);
            }
        }
        clicked
    };
    ui.scope_builder(builder, draw).inner
}

fn corner_button(ui: &mut Ui, sign: &str, name: &str, enabled: bool, on: bool) -> egui::Response {
    let button = egui::Button::new(egui::RichText::new(sign).size(14.0)).selected(on).min_size(vec2(23.0, 22.0));
    let response = ui.add_enabled(enabled, button);
    response.widget_info(|| egui::WidgetInfo::selected(egui::WidgetType::Button, enabled, on, name));
    response.on_hover_text(name).on_disabled_hover_text(format!("{name}: no labels are shown"))
}

/// The labels to show as surfaces: predicted ones, or else the ground truth.
fn surface_labels(document: &Document) -> Option<&Overlay> {
    let is_shown = |overlay: &&Overlay| overlay.visible && overlay.is_at(document.time);
    [Role::Labels, Role::Truth].into_iter().find_map(|role| document.overlay_with_role(role).filter(is_shown))
}

/// Handles rotation, panning and zoom.
fn interact(ui: &Ui, response: &egui::Response, rect: Rect, projection: &Projection, camera: &mut Camera) {
    let across = rect.width().min(rect.height()).max(1.0);
    let shift = ui.input(|i| i.modifiers.shift);
    let moved = response.drag_delta();
    if moved != Vec2::ZERO {
        let pans = response.dragged_by(PointerButton::Middle) || response.dragged_by(PointerButton::Secondary) || shift;
        if pans {
            projection.pan(camera, moved);
        } else {
            camera.rotate(moved / across);
        }
    }
    if let Some(at) = response.hover_pos() {
        let (pinched, scrolled) = ui.input(|i| (f64::from(i.zoom_delta()), f64::from(i.smooth_scroll_delta().y)));
        let factor = pinched * (scrolled / 200.0).exp();
        if (factor - 1.0).abs() > 1e-4 {
            projection.zoom(camera, factor, at);
        }
    }
    if response.has_focus() {
        super::keep_arrow_keys(ui, response.id);
        ui.input(|i| {
            for (key, turn) in [
                (Key::ArrowLeft, vec2(-KEY_TURN, 0.0)),
                (Key::ArrowRight, vec2(KEY_TURN, 0.0)),
                (Key::ArrowUp, vec2(0.0, -KEY_TURN)),
                (Key::ArrowDown, vec2(0.0, KEY_TURN)),
            ] {
                if i.key_pressed(key) {
                    camera.rotate(if i.modifiers.shift { turn * 4.0 } else { turn });
                }
            }
            for (key, factor) in [(Key::Plus, 1.25), (Key::Equals, 1.25), (Key::Minus, 0.8)] {
                if i.key_pressed(key) && !i.modifiers.command {
                    projection.zoom(camera, factor, rect.center());
                }
            }
        });
    }
}

/// The clicked label, if labels are shown (0 is background), and the voxel Z, Y, X to move the crosshair to: the first
/// label along the ray, or the brightest voxel of the first channel.
fn pick(grid: TexelGrid, layers: &Layers, ray: &TexelRay) -> (Option<u32>, Option<[usize; 3]>) {
    if let Some((volume, _)) = &layers.labels
        && let Volume::Labels(labels) = &**volume
    {
        let Some((label, at)) = labels.first_label(ray) else { return (Some(0), None) };
        return (Some(label), Some(grid.full_voxel(at)));
    }
    if let Some((volume, _)) = layers.intensities.first()
        && let Volume::Intensities(intensities) = &**volume
    {
        return (None, intensities.brightest(ray).map(|at| grid.full_voxel(at)));
    }
    (None, None)
}
