//! A slice view: image, crosshair and scale bar; zoom, pan, scroll and pick.

use super::compositor::Compositor;
use super::pen::{self, Pen, PointerEvent};
use super::scale_bar;
use crate::data::composite::{DisplayedPlane, Intensity};
use crate::data::histogram::Histogram;
use crate::data::loader::{LoadState, Loader, Slot, SlotLayer};
use crate::data::plane::{Orientation, Plane, PlaneAt};
use crate::document::{Camera, Document, Overlay, Role};
use crate::theme;
use eframe::egui::{
    self, Align2, Color32, FontId, Key, Pos2, Rect, Sense, Stroke, StrokeKind, TextureHandle, TextureOptions, Ui, Vec2,
    pos2, vec2,
};
use std::sync::Arc;

/// Slices up to this many pixels are loaded whole; of larger ones only the visible region is loaded, reduced to screen
/// resolution.
const MAX_WHOLE_PIXELS: usize = 4 << 20;

/// Visible regions are aligned to multiples of this, so that small pans need no new image.
const ALIGN: usize = 256;

/// Slices prefetched on each side.
const PREFETCH_SLICES: usize = 4;

/// Maximum zoom in points per full-resolution pixel.
const MAX_POINTS_PER_PIXEL: f64 = 64.0;

/// Change of the logarithm of the brush radius per point of scrolling.
const BRUSH_PER_POINT: f64 = 0.005;

/// Pixels are drawn sharp when magnified and interpolated when reduced.
const ZOOMED: TextureOptions = TextureOptions { magnification: egui::TextureFilter::Nearest, ..TextureOptions::LINEAR };

/// Values under the pointer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hover {
    /// Voxel Z, Y, X.
    pub zyx: [usize; 3],
    /// Value of the first visible channel.
    pub value: Option<f64>,
    /// Label, if labels are visible.
    pub label: Option<u32>,
    /// Ground truth label, if visible.
    pub truth: Option<u32>,
    /// Value of the map, if visible.
    pub map: Option<f64>,
}

/// Result of drawing a view: hover, clicks and pointer events.
#[derive(Debug, Default)]
pub struct ViewResponse {
    /// Values under the pointer.
    pub hover: Option<Hover>,
    /// Clicked label; 0 is background.
    pub picked: Option<u32>,
    /// Pointer events of the drawing tool.
    pub pointer_events: Vec<PointerEvent>,
    /// Factor for the brush radius.
    pub brush_factor: Option<f64>,
}

/// Settings of all views.
#[derive(Debug, Clone, Copy)]
pub struct ViewOptions {
    /// Show the crosshair.
    pub crosshair: bool,
    /// Show the scale bar.
    pub scale_bar: bool,
    /// Fraction of the width right of which overlays are hidden.
    pub swipe: Option<f32>,
    /// Active drawing tool; while set, dragging draws instead of panning.
    pub pen: Option<Pen>,
    /// Diameter of the object-size ring around the crosshair, in units of the voxel size.
    pub ring: Option<f64>,
    /// Whether buttons and captions are hidden for a screenshot.
    pub bare: bool,
    /// Whether only the XY slice is loaded, so that its first image appears soon.
    pub only_xy: bool,
}

/// State of a slice view between frames.
#[derive(Default)]
pub struct SliceView {
    texture: Option<TextureHandle>,
    /// Region covered by the texture, and its size in pixels.
    covers: Option<(Rect, [usize; 2])>,
    shown: Vec<DisplayedPlane>,
    base_planes: Vec<DisplayedPlane>,
    /// Image without overlays and the region it covers.
    plain: Option<(TextureHandle, Rect)>,
    plain_compositor: Compositor,
    /// Region of the last requested image without overlays; `None` if a new one must be requested.
    plain_pending: Option<Rect>,
    compositor: Compositor,
    pending: Option<(Rect, [usize; 2])>,
    document: u64,
    id: Option<egui::Id>,
    drawing: bool,
    /// Whether a plane could not be read.
    failed: bool,
    /// The displayed plane whose neighbours are to be prefetched.
    prefetch_around: Option<PlaneAt>,
}

impl SliceView {
    /// Id of the widget, once it was drawn.
    pub fn id(&self) -> Option<egui::Id> {
        self.id
    }

    /// Whether it shows an image.
    pub fn has_picture(&self) -> bool {
        self.texture.is_some()
    }

    /// Whether the first image of a document is not displayed yet.
    pub fn awaits_first(&self, document: &Document) -> bool {
        self.document != document.id || (self.texture.is_none() && !self.failed)
    }

    /// Whether no image is being composited.
    pub fn is_settled(&self) -> bool {
        !self.compositor.is_busy() && !self.plain_compositor.is_busy()
    }

    /// Draws the view into the available area of `ui`.
    pub fn show(
        &mut self,
        ui: &mut Ui,
        orientation: Orientation,
        document: &mut Document,
        loader: &Loader,
        options: ViewOptions,
    ) -> ViewResponse {
        let mut view_response = ViewResponse::default();
        let size = ui.available_size().max(vec2(8.0, 8.0));
        let (rect, response) = ui.allocate_exact_size(size, Sense::click_and_drag());
        let which = Orientation::ALL.iter().position(|o| *o == orientation).unwrap_or(0);
        let [normal_axis, row_axis, column_axis] = orientation.axes();
        let slices = document.extents.zyx[normal_axis];
        let name = format!("{} view, slice {} of {slices}", orientation.name(), document.cursor[normal_axis] + 1);
        response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Image, true, &name));
        if self.document != document.id {
            *self = Self { document: document.id, ..Self::default() };
        }
        self.id = Some(response.id);

        let fitted = fit(document.slice_size_um(orientation), rect.size());
        let mut camera = document.cameras[which].unwrap_or(fitted);
        view_response.brush_factor =
            self.interact(ui, &response, rect, orientation, document, &mut camera, fitted, options);
        if response.double_clicked() && options.pen.is_none() {
            camera = fitted;
            document.cameras[which] = None;
        } else if camera != fitted {
            document.cameras[which] = Some(camera);
        }

        let pixel_um = [document.voxel_um[row_axis], document.voxel_um[column_axis]];
        let to_screen = |row: f64, column: f64| -> Pos2 {
            let down = (row * pixel_um[0] - camera.center_um[0]) * camera.points_per_um;
            let right = (column * pixel_um[1] - camera.center_um[1]) * camera.points_per_um;
            rect.center() + vec2(right as f32, down as f32)
        };
        let from_screen = |at: Pos2| -> [f64; 2] {
            let off = at - rect.center();
            [
                (f64::from(off.y) / camera.points_per_um + camera.center_um[0]) / pixel_um[0],
                (f64::from(off.x) / camera.points_per_um + camera.center_um[1]) / pixel_um[1],
            ]
        };

        if orientation == Orientation::Xy || !options.only_xy {
            self.refresh(ui, orientation, document, loader, [from_screen(rect.min), from_screen(rect.max)]);
        }
        let painter = ui.painter_at(rect);
        painter.rect_filled(rect, 0.0, theme::IMAGE_BACKGROUND);
        if let (Some(texture), Some((covers, _))) = (&self.texture, &self.covers) {
            let on_screen = |covers: &Rect| {
                Rect::from_min_max(
                    to_screen(f64::from(covers.min.y), f64::from(covers.min.x)),
                    to_screen(f64::from(covers.max.y), f64::from(covers.max.x)),
                )
            };
            let whole = Rect::from_min_max(pos2(0.0, 0.0), pos2(1.0, 1.0));
            painter.image(texture.id(), on_screen(covers), whole, Color32::WHITE);
            if let (Some(share), Some((plain, covers))) = (options.swipe, &self.plain) {
                let line = rect.left() + share * rect.width();
                let right = painter.with_clip_rect(Rect::from_min_max(pos2(line, rect.top()), rect.max));
                right.image(plain.id(), on_screen(covers), whole, Color32::WHITE);
                painter.line_segment(
                    [pos2(line, rect.top()), pos2(line, rect.bottom())],
                    Stroke::new(1.5, theme::ON_IMAGE),
                );
            }
        }
        if options.pen.is_some() {
            let index = document.cursor[normal_axis] as f64;
            view_response.pointer_events = pen::pointer_events(ui, &response, &mut self.drawing, orientation, |at| {
                let [row, column] = from_screen(at);
                let mut zyx = [index; 3];
                (zyx[row_axis], zyx[column_axis]) = (row - 0.5, column - 0.5);
                zyx
            });
            if !view_response.pointer_events.is_empty() {
                response.request_focus();
            }
        } else {
            self.drawing = false;
        }
        if options.crosshair {
            crosshair(&painter, rect, to_screen, document, orientation);
        }
        if options.scale_bar && document.voxel_known {
            draw_scale_bar(&painter, rect, camera.points_per_um);
        }
        if let Some(diameter) = options.ring.filter(|_| !options.bare) {
            draw_ring(&painter, rect, to_screen, document, orientation, diameter * camera.points_per_um);
        }
        pen::marks(&painter, document, orientation, &to_screen);
        if let Some(pen) = &options.pen {
            let pointer = response.hover_pos().filter(|at| rect.contains(*at));
            pen::cursor(&painter, pen, pointer, document, orientation, (camera.points_per_um, &to_screen));
            if pointer.is_some() {
                ui.ctx().set_cursor_icon(egui::CursorIcon::Crosshair);
            }
        }
        let caption = if slices > 1 {
            format!(
                "{}   {} {} / {slices}",
                orientation.name(),
                orientation.scroll_axis(),
                document.cursor[normal_axis] + 1
            )
        } else {
            orientation.name().to_owned()
        };
        draw_caption(&painter, rect.left_top() + vec2(8.0, 7.0), Align2::LEFT_TOP, &caption);
        if response.has_focus() {
            painter.rect_stroke(rect, 0.0, Stroke::new(1.5, theme::ACCENT), StrokeKind::Inside);
        }

        if let Some(at) = response.hover_pos() {
            let [row, column] = from_screen(at).map(f64::floor);
            let inside = row >= 0.0
                && column >= 0.0
                && (row as usize) < document.extents.zyx[row_axis]
                && (column as usize) < document.extents.zyx[column_axis];
            if inside {
                let mut zyx = document.cursor;
                zyx[row_axis] = row as usize;
                zyx[column_axis] = column as usize;
                let hover = self.hover(document, zyx, row as usize, column as usize);
                if response.clicked() && options.pen.is_none() {
                    document.cursor = zyx;
                    view_response.picked = hover.label;
                    response.request_focus();
                }
                view_response.hover = Some(hover);
            }
        }
        view_response
    }

    fn hover(&self, document: &Document, zyx: [usize; 3], row: usize, column: usize) -> Hover {
        let of = |role: Role| {
            let overlay = document.of_role(role)?;
            let plane = self.shown.iter().find(|s| match s {
                DisplayedPlane::Labels(_, display) => overlay.is_labels() && *display == overlay.labels,
                DisplayedPlane::Intensity(_, display) => !overlay.is_labels() && *display == overlay.display,
            })?;
            plane.plane().value(row, column)
        };
        let value = self.shown.first().and_then(|s| s.plane().value(row, column));
        let label = |role| of(role).map(|v| v as u32);
        Hover { zyx, value, label: label(Role::Labels), truth: label(Role::Truth), map: of(Role::Map) }
    }

    #[allow(clippy::too_many_arguments, reason = "one gesture after the other on the same things")]
    fn interact(
        &mut self,
        ui: &Ui,
        response: &egui::Response,
        rect: Rect,
        orientation: Orientation,
        document: &mut Document,
        camera: &mut Camera,
        fitted: Camera,
        options: ViewOptions,
    ) -> Option<f64> {
        let mut brush_factor = None;
        let [normal_axis, row_axis, column_axis] = orientation.axes();
        let moves = match options.pen {
            Some(_) => response.dragged_by(egui::PointerButton::Middle) || (response.dragged() && !self.drawing),
            None => response.dragged(),
        };
        if moves {
            let moved = response.drag_delta();
            camera.center_um[0] -= f64::from(moved.y) / camera.points_per_um;
            camera.center_um[1] -= f64::from(moved.x) / camera.points_per_um;
        }
        if response.hovered() {
            let (zoom, scroll) = ui.input(|i| (f64::from(i.zoom_delta()), i.smooth_scroll_delta()));
            if (zoom - 1.0).abs() > 1e-4 {
                let at = response.hover_pos().unwrap_or(rect.center()) - rect.center();
                zoom_about(camera, zoom, at, fitted, document);
            } else if scroll.y != 0.0 && options.pen.is_some() && ui.input(|i| i.modifiers.alt) {
                brush_factor = Some((f64::from(scroll.y) * BRUSH_PER_POINT).exp());
            } else if scroll.y != 0.0 {
                // A notch of a wheel is about 40 to 50 points; smooth scrolling accumulates.
                let id = response.id.with("scrolled");
                let before: f32 = ui.data(|d| d.get_temp(id)).unwrap_or(0.0);
                let total = before + scroll.y / 24.0;
                let steps = total.trunc();
                ui.data_mut(|d| d.insert_temp(id, total - steps));
                document.step(normal_axis, steps as i64);
            }
        }
        if response.has_focus() {
            ui.memory_mut(|m| {
                m.set_focus_lock_filter(
                    response.id,
                    egui::EventFilter { horizontal_arrows: true, vertical_arrows: true, ..Default::default() },
                );
            });
            ui.input(|i| {
                let mut go = |key: Key, axis: usize, by: i64| {
                    if i.key_pressed(key) {
                        document.step(axis, if i.modifiers.shift { by * 10 } else { by });
                    }
                };
                go(Key::ArrowUp, row_axis, -1);
                go(Key::ArrowDown, row_axis, 1);
                go(Key::ArrowLeft, column_axis, -1);
                go(Key::ArrowRight, column_axis, 1);
                for (key, factor) in [(Key::Plus, 1.25), (Key::Equals, 1.25), (Key::Minus, 0.8)] {
                    if i.key_pressed(key) && !i.modifiers.command {
                        zoom_about(camera, factor, Vec2::ZERO, fitted, document);
                    }
                }
            });
        }
        brush_factor
    }

    /// Updates the texture to the current slice and display settings.
    fn refresh(
        &mut self,
        ui: &Ui,
        orientation: Orientation,
        document: &mut Document,
        loader: &Loader,
        corners: [[f64; 2]; 2],
    ) {
        let points_per_pixel = f64::from(ui.ctx().pixels_per_point());
        let at = plane_to_load(orientation, document, corners, points_per_pixel, ui.max_rect().size());
        let document_id = document.id;
        let slot = |layer| Slot { document: document_id, orientation, layer };
        let source_id = document.id;
        let mut all: Vec<DisplayedPlane> = Vec::new();
        let (mut complete, mut failed) = (true, false);
        for c in (0..document.channels.len()).filter(|c| document.channels[*c].visible).collect::<Vec<_>>() {
            let at = PlaneAt { channel: c, ..at.clone() };
            match loader.get(slot(SlotLayer::Channel(c)), source_id, &document.source, &at) {
                LoadState::Ready(plane) => {
                    update_contrast(document, c, &plane, orientation);
                    if let Some(channel) = document.channels.get(c) {
                        all.push(DisplayedPlane::Intensity(plane, channel.display.clone()));
                    }
                }
                answer => (complete, failed) = (false, failed || matches!(answer, LoadState::Failed(_))),
            }
        }
        if all.is_empty() && complete {
            // No channel is visible: a black base image for the overlays.
            let at = PlaneAt { channel: 0, ..at.clone() };
            match loader.get(slot(SlotLayer::Base), source_id, &document.source, &at) {
                LoadState::Ready(plane) => {
                    let black = Intensity { opacity: 0.0, ..Overlay::map_display() };
                    all.push(DisplayedPlane::Intensity(plane, black));
                }
                answer => (complete, failed) = (false, failed || matches!(answer, LoadState::Failed(_))),
            }
        }
        let base_planes = all.clone();
        for (i, overlay) in document.overlays.iter().enumerate().filter(|(_, o)| o.visible) {
            let time = if overlay.times > 1 { document.time } else { 0 };
            let at = PlaneAt { channel: 0, time: time.min(overlay.times.saturating_sub(1)), ..at.clone() };
            match loader.get(slot(SlotLayer::Overlay(i)), overlay.source_id, &overlay.source, &at) {
                LoadState::Ready(plane) => all.push(match overlay.is_labels() {
                    true => DisplayedPlane::Labels(plane, overlay.labels.clone()),
                    false => DisplayedPlane::Intensity(plane, overlay.display.clone()),
                }),
                answer => (complete, failed) = (false, failed || matches!(answer, LoadState::Failed(_))),
            }
        }
        self.failed = failed;
        let ctx = ui.ctx().clone();
        let wake = move || ctx.request_repaint();
        if complete && !same_planes(&all, &self.shown) {
            let covers = (
                Rect::from_min_max(
                    pos2(at.columns.start as f32, at.rows.start as f32),
                    pos2(at.columns.end as f32, at.rows.end as f32),
                ),
                at.size(),
            );
            self.shown.clone_from(&all);
            self.base_planes = base_planes;
            self.plain_pending = None;
            self.pending = Some(covers);
            if let Some(image) = self.compositor.request(all, wake.clone()) {
                self.set_texture(ui, image);
            }
            self.prefetch_around = (orientation == Orientation::Xy).then_some(at);
        } else if let Some(image) = self.compositor.take(wake) {
            self.set_texture(ui, image);
        }
        // Prefetching starts only after the image is on screen, because it would delay it.
        if !self.compositor.is_busy()
            && let Some(at) = self.prefetch_around.take()
        {
            let near = |i: usize| PlaneAt { index: i, channel: first_visible(document), ..at.clone() };
            let ahead = (1..=PREFETCH_SLICES).rev().flat_map(|d| [at.index.checked_sub(d), Some(at.index + d)]);
            let planes = ahead.flatten().filter(|i| *i < document.extents.zyx[0]).map(near);
            loader.prefetch(source_id, &document.source, planes.collect::<Vec<_>>());
        }
    }

    fn set_texture(&mut self, ui: &Ui, image: egui::ColorImage) {
        let Some(covers) = self.pending else { return };
        match &mut self.texture {
            Some(texture) => texture.set(image, ZOOMED),
            None => self.texture = Some(ui.ctx().load_texture("slice", image, ZOOMED)),
        }
        self.covers = Some(covers);
    }

    /// Updates the image without overlays, which swiping uncovers.
    pub fn prepare_swipe(&mut self, ui: &Ui) {
        let ctx = ui.ctx().clone();
        let wake = move || ctx.request_repaint();
        let image = match (self.plain_pending, self.pending) {
            (None, Some((covers, _))) if !self.base_planes.is_empty() => {
                self.plain_pending = Some(covers);
                self.plain_compositor.request(self.base_planes.clone(), wake)
            }
            _ => self.plain_compositor.take(wake),
        };
        let (Some(image), Some(covers)) = (image, self.plain_pending) else { return };
        let texture = match self.plain.take() {
            Some((mut texture, _)) => {
                texture.set(image, ZOOMED);
                texture
            }
            None => ui.ctx().load_texture("slice without overlays", image, ZOOMED),
        };
        self.plain = Some((texture, covers));
    }

    /// The displayed planes, for screenshots and profiles.
    pub fn shown(&self) -> &[DisplayedPlane] {
        &self.shown
    }
}

fn first_visible(document: &Document) -> usize {
    document.channels.iter().position(|c| c.visible).unwrap_or(0)
}

fn same_planes(a: &[DisplayedPlane], b: &[DisplayedPlane]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| match (a, b) {
            (DisplayedPlane::Intensity(p, l), DisplayedPlane::Intensity(q, m)) => Arc::ptr_eq(p, q) && l == m,
            (DisplayedPlane::Labels(p, l), DisplayedPlane::Labels(q, m)) => Arc::ptr_eq(p, q) && l == m,
            _ => false,
        })
}

/// Updates the histogram and, if still needed, the contrast limits from a loaded plane.
fn update_contrast(document: &mut Document, c: usize, plane: &Arc<Plane>, orientation: Orientation) {
    let Some(channel) = document.channels.get_mut(c) else { return };
    if orientation != Orientation::Xy || (!channel.wants_limits && channel.histogram.is_some()) {
        return;
    }
    channel.histogram = Histogram::of(plane);
    if channel.wants_limits
        && let Some(histogram) = &channel.histogram
    {
        (channel.display.low, channel.display.high) = histogram.limits();
        channel.wants_limits = false;
    }
}

/// The plane to load: the whole slice if it is small, otherwise the visible region at about screen resolution.
fn plane_to_load(
    orientation: Orientation,
    document: &Document,
    [from, to]: [[f64; 2]; 2],
    pixels_per_point: f64,
    size: Vec2,
) -> PlaneAt {
    let [rows, columns] = orientation.slice_shape(document.extents.zyx);
    let mut at = PlaneAt {
        orientation,
        index: document.cursor[orientation.axes()[0]],
        channel: 0,
        time: document.time,
        rows: 0..rows,
        columns: 0..columns,
        step: 1,
    };
    if rows.saturating_mul(columns) <= MAX_WHOLE_PIXELS {
        return at;
    }
    let seen = |a: f64, b: f64, n: usize| {
        let start = (a.max(0.0) as usize).min(n.saturating_sub(1));
        let end = (b.max(0.0).ceil() as usize).clamp(start + 1, n);
        start..end
    };
    let (r, c) = (seen(from[0], to[0], rows), seen(from[1], to[1], columns));
    let across = f64::from(size.x) * pixels_per_point;
    let down = f64::from(size.y) * pixels_per_point;
    let per_pixel = (c.len() as f64 / across.max(1.0)).min(r.len() as f64 / down.max(1.0)).max(1.0);
    at.step = (per_pixel as usize).next_power_of_two();
    if at.step as f64 > per_pixel * 1.5 {
        at.step = (at.step / 2).max(1);
    }
    let grid = ALIGN * at.step;
    at.rows = r.start / grid * grid..r.end.next_multiple_of(grid).min(rows);
    at.columns = c.start / grid * grid..c.end.next_multiple_of(grid).min(columns);
    at
}

fn fit([height_um, width_um]: [f64; 2], size: Vec2) -> Camera {
    let margin = 12.0;
    let space = [f64::from((size.y - margin).max(4.0)), f64::from((size.x - margin).max(4.0))];
    let scale = (space[0] / height_um.max(1e-9)).min(space[1] / width_um.max(1e-9));
    Camera { center_um: [height_um / 2.0, width_um / 2.0], points_per_um: scale }
}

fn zoom_about(camera: &mut Camera, factor: f64, at: Vec2, fitted: Camera, document: &Document) {
    let finest = document.voxel_um.iter().copied().fold(f64::INFINITY, f64::min);
    let max = (MAX_POINTS_PER_PIXEL / finest).max(fitted.points_per_um);
    let scale = (camera.points_per_um * factor).clamp(fitted.points_per_um / 4.0, max);
    let off = [f64::from(at.y), f64::from(at.x)];
    for (center, off) in camera.center_um.iter_mut().zip(off) {
        *center += off / camera.points_per_um - off / scale;
    }
    camera.points_per_um = scale;
}

fn crosshair(
    painter: &egui::Painter,
    rect: Rect,
    to_screen: impl Fn(f64, f64) -> Pos2,
    document: &Document,
    orientation: Orientation,
) {
    let [_, row_axis, column_axis] = orientation.axes();
    let at = to_screen(document.cursor[row_axis] as f64 + 0.5, document.cursor[column_axis] as f64 + 0.5);
    let stroke = Stroke::new(1.0, theme::CROSSHAIR);
    let gap = 9.0;
    for (a, b) in [
        (pos2(rect.left(), at.y), pos2(at.x - gap, at.y)),
        (pos2(at.x + gap, at.y), pos2(rect.right(), at.y)),
        (pos2(at.x, rect.top()), pos2(at.x, at.y - gap)),
        (pos2(at.x, at.y + gap), pos2(at.x, rect.bottom())),
    ] {
        painter.line_segment([a, b], stroke);
    }
}

/// Draws a ring around the crosshair; `diameter` is in points.
fn draw_ring(
    painter: &egui::Painter,
    rect: Rect,
    to_screen: impl Fn(f64, f64) -> Pos2,
    document: &Document,
    orientation: Orientation,
    diameter: f64,
) {
    let [_, row_axis, column_axis] = orientation.axes();
    let at = to_screen(document.cursor[row_axis] as f64 + 0.5, document.cursor[column_axis] as f64 + 0.5);
    if !rect.contains(at) || diameter < 2.0 {
        return;
    }
    let radius = (0.5 * diameter) as f32;
    painter.circle_stroke(at, radius, Stroke::new(3.0, theme::IMAGE_SHADE));
    painter.circle_stroke(at, radius, Stroke::new(1.5, theme::ACCENT));
}

pub(super) fn draw_scale_bar(painter: &egui::Painter, rect: Rect, points_per_um: f64) {
    let Some(um) = scale_bar::length_um(points_per_um, f64::from(rect.width() * 0.25).clamp(30.0, 160.0)) else {
        return;
    };
    let length = (um * points_per_um) as f32;
    let left = rect.left_bottom() + vec2(12.0, -14.0);
    let bar = Rect::from_min_size(left - vec2(0.0, 3.0), vec2(length, 3.0));
    painter.rect_filled(bar.expand(1.0), 1.0, theme::IMAGE_SHADE);
    painter.rect_filled(bar, 0.0, theme::ON_IMAGE);
    draw_caption(painter, bar.left_top() - vec2(0.0, 4.0), Align2::LEFT_BOTTOM, &scale_bar::text(um));
}

pub(super) fn draw_caption(painter: &egui::Painter, at: Pos2, anchor: Align2, text: &str) {
    let font = FontId::proportional(12.0);
    let galley = painter.layout_no_wrap(text.to_owned(), font, theme::ON_IMAGE);
    let rect = anchor.anchor_size(at, galley.size());
    painter.rect_filled(rect.expand2(vec2(4.0, 2.0)), 3.0, theme::IMAGE_SHADE);
    painter.galley(rect.min, galley, theme::ON_IMAGE);
}
