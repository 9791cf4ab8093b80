//! A slice view: image, crosshair and scale bar; zoom, pan, scroll and pick.

use super::compositor::{Compositor, Picture};
use super::decor::{draw_caption, draw_crop, draw_crosshair, draw_message, draw_ring, draw_scale_bar};
use super::displayed::{displayed_planes, same_planes};
use super::live_limits::LiveLimits;
use super::pen::{self, Marks, Pen, PointerEvent};
use super::placement::{Moved, Placement, fit, plane_to_load, zoom_about};
use crate::data::composite::DisplayedPlane;
use crate::data::loader::PlaneLoader;
use crate::data::plane::{Orientation, PlaneAt};
use crate::document::{Document, DocumentChange, Role, SliceCamera};
use crate::theme;
use eframe::egui::{
    self, Align2, Color32, Key, Rect, Response, Sense, Stroke, StrokeKind, TextureHandle, TextureOptions, Ui, Vec2,
    pos2, vec2,
};
use std::ops::Range;

/// Slices prefetched on each side.
const PREFETCH_SLICES: usize = 4;

/// Change of the logarithm of the brush radius per point of scrolling.
const BRUSH_PER_POINT: f64 = 0.005;

/// Pixels are drawn sharp when magnified and interpolated when reduced.
const ZOOMED: TextureOptions = TextureOptions { magnification: egui::TextureFilter::Nearest, ..TextureOptions::LINEAR };

/// Position and values of the voxel under the pointer.
#[derive(Debug, Clone, PartialEq)]
pub struct Hover {
    /// Index of the voxel along Z, Y, X.
    pub zyx: [usize; 3],
    /// Values of the visible channels, in their order.
    pub values: Vec<f64>,
    /// Label, if labels are visible.
    pub label: Option<u32>,
    /// Ground truth label, if visible.
    pub truth: Option<u32>,
    /// Value of the map, if visible.
    pub map: Option<f64>,
}

/// Result of drawing a view: hover, clicks, pointer events and changes of the document.
#[derive(Debug, Default)]
pub struct ViewResponse {
    /// Position and values of the voxel under the pointer; `None` if it is outside.
    pub hover: Option<Hover>,
    /// Clicked label; 0 is background.
    pub picked: Option<u32>,
    /// Pointer events of the drawing tool.
    pub pointer_events: Vec<PointerEvent>,
    /// Factor for the brush radius.
    pub brush_factor: Option<f64>,
    /// Changes of the crosshair, the cameras and the contrast.
    pub changes: Vec<DocumentChange>,
}

/// Elements that all views of the window show besides the image.
#[derive(Debug, Clone, Copy)]
pub struct ViewOptions {
    /// Whether the crosshair is shown.
    pub crosshair: bool,
    /// Whether the scale bar is shown.
    pub scale_bar: bool,
    /// Position of the swipe line as a fraction of the width; overlays are hidden to the right of it.
    pub swipe: Option<f32>,
    /// Active drawing tool; while set, dragging draws instead of panning.
    pub pen: Option<Pen>,
    /// Diameter of the object-size ring around the crosshair, in units of the voxel size.
    pub ring: Option<f64>,
    /// The first voxel along Z, Y, X of a crop that is outlined, and the one after the last.
    pub crop: Option<[[usize; 2]; 3]>,
    /// Whether buttons and captions are hidden for a screenshot.
    pub bare: bool,
    /// Whether only the XY slice is loaded, so that its first image appears soon.
    pub only_xy: bool,
}

/// Target of pointer and keys in one frame: a slice view and its document.
#[derive(Clone, Copy)]
struct Target<'a> {
    response: &'a Response,
    /// Area of the view.
    rect: Rect,
    orientation: Orientation,
    document: &'a Document,
    options: ViewOptions,
}

/// State of a slice view between frames.
#[derive(Default)]
pub struct SliceView {
    texture: Option<TextureHandle>,
    /// Region covered by the texture.
    covers: Option<Rect>,
    shown: Vec<DisplayedPlane>,
    /// Roles of the overlays among `shown`, in its order; `None` for channels.
    roles: Vec<Option<Role>>,
    /// Number of planes of visible channels among `shown`, which come first.
    channels: usize,
    base_planes: Vec<DisplayedPlane>,
    /// Image without overlays and the region it covers.
    plain: Option<(TextureHandle, Rect)>,
    plain_compositor: Compositor,
    /// Whether the image without overlays was requested for the displayed planes.
    is_plain_requested: bool,
    compositor: Compositor,
    /// Region of the displayed planes, of which an image was requested.
    requested: Option<Rect>,
    document: u64,
    id: Option<egui::Id>,
    drawing: bool,
    /// Why a plane of the slice could not be read; the picture lacks it.
    failed: Option<String>,
    live_limits: LiveLimits,
    /// The displayed plane whose neighbors are to be prefetched.
    prefetch_around: Option<PlaneAt>,
    /// Rows and columns in sight in the last frame.
    visible: Option<[Range<usize>; 2]>,
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
        self.document != document.id || (self.texture.is_none() && self.failed.is_none())
    }

    /// Rows and columns of the slices of a document that were in sight in the last frame, at least in part; `None` if the view did
    /// not show the document, or none of it was in sight.
    pub fn visible(&self, document: &Document) -> Option<[Range<usize>; 2]> {
        self.visible.clone().filter(|_| self.document == document.id)
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
        document: &Document,
        loader: &PlaneLoader,
        marks: &Marks,
        options: ViewOptions,
    ) -> ViewResponse {
        let mut view_response = ViewResponse::default();
        let size = ui.available_size().max(vec2(8.0, 8.0));
        let (rect, response) = ui.allocate_exact_size(size, Sense::click_and_drag());
        let [normal_axis, row_axis, column_axis] = orientation.axes();
        let slices = document.extents.zyx[normal_axis];
        let shown = if document.preview.is_some() { ", preprocessed" } else { "" };
        let place =
            format!("{} view, slice {} of {slices}{shown}", orientation.name(), document.cursor[normal_axis] + 1);
        let shape = orientation.slice_shape(document.extents.zyx);
        let name = match &self.failed {
            Some(_) => format!("{place}, cannot be read"),
            None if self.is_not_finite(shape) => format!("{place}, no finite values"),
            None => place,
        };
        response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Image, true, &name));
        if self.document != document.id {
            *self = Self { document: document.id, ..Self::default() };
        }
        self.id = Some(response.id);

        let target = Target { response: &response, rect, orientation, document, options };
        let moved = self.moved(ui, target, &mut view_response);
        let pixel_um = [document.voxel_um[row_axis], document.voxel_um[column_axis]];
        let place = Placement { rect, camera: moved.camera, pixel_um };
        self.visible = place.visible(shape);
        if orientation == Orientation::Xy || !options.only_xy {
            let pixels_per_point = f64::from(ui.ctx().pixels_per_point());
            let at = plane_to_load(orientation, document, moved.cursor, place, pixels_per_point);
            self.refresh(ui, document, loader, &at, &mut view_response.changes);
        }
        let painter = ui.painter_at(rect);
        self.draw_image(&painter, place, options.swipe);
        if let Some(why) = &self.failed {
            let next = "Check the file and its disk, then show another slice and return to this one.";
            draw_message(&painter, rect, format!("This slice cannot be read: {}. {next}", why.trim_end_matches('.')));
        } else if self.is_not_finite(shape) {
            let text = "All values of this slice are NaN or infinite. Show another slice.";
            draw_message(&painter, rect, text.to_owned());
        }
        if options.pen.is_some() {
            let index = moved.cursor[normal_axis] as f64;
            view_response.pointer_events = pen::pointer_events(ui, &response, &mut self.drawing, orientation, |at| {
                let [row, column] = place.slice_at(at);
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
        draw_annotations(ui, target, place, moved.cursor, marks);
        let caption = caption(orientation, moved.cursor[normal_axis], slices, document.preview.is_some());
        draw_caption(&painter, rect.left_top() + vec2(8.0, 7.0), Align2::LEFT_TOP, &caption);
        if response.has_focus() {
            painter.rect_stroke(rect, 0.0, Stroke::new(1.5, theme::ACCENT), StrokeKind::Inside);
        }
        self.point_at(target, moved.cursor, place, &mut view_response);
        view_response
    }

    /// Applies gestures to crosshair and camera; `view_response` gets the changes of the document.
    fn moved(&self, ui: &Ui, target: Target<'_>, view_response: &mut ViewResponse) -> Moved {
        let Target { response, rect, orientation, document, options } = target;
        let which = Orientation::ALL.iter().position(|o| *o == orientation).unwrap_or(0);
        let stored = document.cameras[which];
        let fitted = fit(document.slice_size_um(orientation), rect.size());
        let mut moved = Moved { cursor: document.cursor, camera: stored.unwrap_or(fitted) };
        view_response.brush_factor = self.interact(ui, target, &mut moved, fitted);
        let camera = if response.double_clicked() && options.pen.is_none() {
            moved.camera = fitted;
            None
        } else if moved.camera != fitted {
            Some(moved.camera)
        } else {
            stored
        };
        if camera != stored {
            view_response.changes.push(DocumentChange::Camera(which, camera));
        }
        if moved.cursor != document.cursor {
            view_response.changes.push(DocumentChange::Cursor(moved.cursor));
        }
        moved
    }

    /// Draws the image, on the right of the swipe line without overlays.
    fn draw_image(&self, painter: &egui::Painter, place: Placement, swipe: Option<f32>) {
        let rect = place.rect;
        painter.rect_filled(rect, 0.0, theme::IMAGE_BACKGROUND);
        let (Some(texture), Some(covers)) = (&self.texture, &self.covers) else { return };
        let on_screen = |covers: &Rect| {
            Rect::from_min_max(
                place.screen_position(f64::from(covers.min.y), f64::from(covers.min.x)),
                place.screen_position(f64::from(covers.max.y), f64::from(covers.max.x)),
            )
        };
        let whole = Rect::from_min_max(pos2(0.0, 0.0), pos2(1.0, 1.0));
        painter.image(texture.id(), on_screen(covers), whole, Color32::WHITE);
        if let (Some(share), Some((plain, covers))) = (swipe, &self.plain) {
            let line = rect.left() + share * rect.width();
            let right = painter.with_clip_rect(Rect::from_min_max(pos2(line, rect.top()), rect.max));
            right.image(plain.id(), on_screen(covers), whole, Color32::WHITE);
            painter
                .line_segment([pos2(line, rect.top()), pos2(line, rect.bottom())], Stroke::new(1.5, theme::ON_IMAGE));
        }
    }

    /// Reads the values under the pointer; a click moves the crosshair there.
    fn point_at(&self, target: Target<'_>, cursor: [usize; 3], place: Placement, view_response: &mut ViewResponse) {
        let Target { response, orientation, document, options, .. } = target;
        let Some(at) = response.hover_pos() else { return };
        let [_, row_axis, column_axis] = orientation.axes();
        let [row, column] = place.slice_at(at).map(f64::floor);
        let inside = row >= 0.0
            && column >= 0.0
            && (row as usize) < document.extents.zyx[row_axis]
            && (column as usize) < document.extents.zyx[column_axis];
        if !inside {
            return;
        }
        let mut zyx = cursor;
        zyx[row_axis] = row as usize;
        zyx[column_axis] = column as usize;
        let hover = self.hover(zyx, row as usize, column as usize);
        if response.clicked() && options.pen.is_none() {
            view_response.changes.push(DocumentChange::Cursor(zyx));
            view_response.picked = hover.label;
            response.request_focus();
        }
        view_response.hover = Some(hover);
    }

    fn hover(&self, zyx: [usize; 3], row: usize, column: usize) -> Hover {
        let value = |at: usize| self.shown.get(at)?.plane().value(row, column);
        let of = |role: Role| value(self.roles.iter().position(|shown| *shown == Some(role))?);
        let label = |role: Role| of(role).map(|v| v as u32);
        let values = (0..self.channels).filter_map(value).collect();
        Hover { zyx, values, label: label(Role::Labels), truth: label(Role::Truth), map: of(Role::Map) }
    }

    /// Moves crosshair and camera by the wheel, drags and keys. Returns the factor for the brush radius, if the wheel
    /// changes it. `fitted` is the camera that fits the slice into the view.
    fn interact(&self, ui: &Ui, target: Target<'_>, moved: &mut Moved, fitted: SliceCamera) -> Option<f64> {
        let Target { response, rect, orientation, document, options } = target;
        let mut brush_factor = None;
        let [normal_axis, row_axis, column_axis] = orientation.axes();
        let moves = match options.pen {
            Some(_) => response.dragged_by(egui::PointerButton::Middle) || (response.dragged() && !self.drawing),
            None => response.dragged(),
        };
        if moves {
            let by = response.drag_delta();
            moved.camera.center_um[0] -= f64::from(by.y) / moved.camera.points_per_um;
            moved.camera.center_um[1] -= f64::from(by.x) / moved.camera.points_per_um;
        }
        if response.hovered() {
            let (zoom, scroll) = ui.input(|i| (f64::from(i.zoom_delta()), i.smooth_scroll_delta()));
            if (zoom - 1.0).abs() > 1e-4 {
                let at = response.hover_pos().unwrap_or(rect.center()) - rect.center();
                zoom_about(&mut moved.camera, zoom, at, fitted, document);
            } else if scroll.y != 0.0 && options.pen.is_some() && ui.input(|i| i.modifiers.alt) {
                brush_factor = Some((f64::from(scroll.y) * BRUSH_PER_POINT).exp());
            } else if scroll.y != 0.0 {
                // A notch of a wheel is about 40 to 50 points; smooth scrolling accumulates.
                let id = response.id.with("scrolled");
                let before: f32 = ui.data(|d| d.get_temp(id)).unwrap_or(0.0);
                let total = before + scroll.y / 24.0;
                let steps = total.trunc();
                ui.data_mut(|d| d.insert_temp(id, total - steps));
                moved.step(document, normal_axis, steps as i64);
            }
        }
        if response.has_focus() {
            super::keep_arrow_keys(ui, response.id);
            ui.input(|i| {
                let mut go = |key: Key, axis: usize, by: i64| {
                    if i.key_pressed(key) {
                        moved.step(document, axis, if i.modifiers.shift { by * 10 } else { by });
                    }
                };
                go(Key::ArrowUp, row_axis, -1);
                go(Key::ArrowDown, row_axis, 1);
                go(Key::ArrowLeft, column_axis, -1);
                go(Key::ArrowRight, column_axis, 1);
                for (key, factor) in [(Key::Plus, 1.25), (Key::Equals, 1.25), (Key::Minus, 0.8)] {
                    if i.key_pressed(key) && !i.modifiers.command {
                        zoom_about(&mut moved.camera, factor, Vec2::ZERO, fitted, document);
                    }
                }
            });
        }
        brush_factor
    }

    /// Updates the texture to a slice and the display settings; `changes` gets new contrast limits.
    fn refresh(
        &mut self,
        ui: &Ui,
        document: &Document,
        loader: &PlaneLoader,
        at: &PlaneAt,
        changes: &mut Vec<DocumentChange>,
    ) {
        let planes = displayed_planes(ui.ctx(), document, loader, at, &mut self.live_limits, changes);
        if planes.complete {
            self.failed = planes.failed;
        }
        if planes.complete && planes.all.is_empty() {
            // The picture of another slice must not stay.
            self.clear();
            return;
        }
        let ctx = ui.ctx().clone();
        let wake = move || ctx.request_repaint();
        if planes.complete && !same_planes(&planes.all, &self.shown) {
            // Whole pixels: the last ones may reach beyond the slice.
            let ([rows, columns], [height, width]) = (at.pixel_size(), at.size());
            let from = pos2(at.columns.start as f32, at.rows.start as f32);
            let covers = Rect::from_min_size(from, vec2((width * columns) as f32, (height * rows) as f32));
            self.shown.clone_from(&planes.all);
            self.roles = planes.roles;
            self.channels = planes.channels;
            self.base_planes = planes.base;
            self.is_plain_requested = false;
            self.requested = Some(covers);
            if let Some(picture) = self.compositor.request(planes.all, covers, wake.clone()) {
                self.set_texture(ui, picture);
            }
            self.prefetch_around = (at.orientation == Orientation::Xy).then(|| at.clone());
        } else if let Some(picture) = self.compositor.take(wake) {
            self.set_texture(ui, picture);
        }
        // Prefetching starts only after the image is on screen, because it would delay it.
        if !self.compositor.is_busy()
            && let Some(at) = self.prefetch_around.take()
        {
            let near = |i: usize| PlaneAt { index: i, channel: first_visible(document), ..at.clone() };
            let ahead = (1..=PREFETCH_SLICES).rev().flat_map(|d| [at.index.checked_sub(d), Some(at.index + d)]);
            let (source, source_id) = document.shown_source();
            let planes = ahead.flatten().filter(|i| *i < document.extents.zyx[0]).map(near);
            loader.prefetch(source_id, source, planes.collect::<Vec<_>>());
        }
    }

    /// Removes the picture.
    fn clear(&mut self) {
        (self.texture, self.covers, self.requested) = (None, None, None);
        (self.plain, self.is_plain_requested) = (None, false);
        self.shown.clear();
        self.roles.clear();
        self.channels = 0;
        self.base_planes.clear();
    }

    fn set_texture(&mut self, ui: &Ui, Picture { image, covers }: Picture) {
        if self.requested.is_none() {
            // The picture was removed while it was composited.
            return;
        }
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
        let picture = match self.requested {
            Some(covers) if !self.is_plain_requested && !self.base_planes.is_empty() => {
                self.is_plain_requested = true;
                self.plain_compositor.request(self.base_planes.clone(), covers, wake)
            }
            _ => self.plain_compositor.take(wake),
        };
        let Some(Picture { image, covers }) = picture.filter(|_| self.is_plain_requested) else { return };
        let texture = match self.plain.take() {
            Some((mut texture, _)) => {
                texture.set(image, ZOOMED);
                texture
            }
            None => ui.ctx().load_texture("slice without overlays", image, ZOOMED),
        };
        self.plain = Some((texture, covers));
    }

    /// Whether a slice of `shape` (rows, columns) is black because its visible channels have no finite values. Unknown, and thus
    /// false, if only a part of it is shown.
    fn is_not_finite(&self, [rows, columns]: [usize; 2]) -> bool {
        let channels = self.shown_channels();
        let is_whole = |at: &PlaneAt| at.rows.len() >= rows && at.columns.len() >= columns;
        let mut planes = channels.iter().map(DisplayedPlane::plane);
        !channels.is_empty() && planes.all(|plane| is_whole(&plane.at) && !plane.values.has_finite())
    }

    /// The displayed planes of the visible channels, for profiles.
    pub fn shown_channels(&self) -> &[DisplayedPlane] {
        self.shown.get(..self.channels).unwrap_or_default()
    }
}

/// Name of a view, with the number of its slice if there are several, and a note if it shows the preprocessed stack.
fn caption(orientation: Orientation, index: usize, slices: usize, is_preprocessed: bool) -> String {
    let note = if is_preprocessed { "   preprocessed" } else { "" };
    match slices {
        0 | 1 => format!("{}{note}", orientation.name()),
        _ => format!("{}   {} {} / {slices}{note}", orientation.name(), orientation.scroll_axis(), index + 1),
    }
}

fn first_visible(document: &Document) -> usize {
    document.channels.iter().position(|c| c.visible).unwrap_or(0)
}

/// Draws crosshair, scale bar, object-size ring, marks and the cursor of the drawing tool over the image.
fn draw_annotations(ui: &Ui, target: Target<'_>, place: Placement, cursor: [usize; 3], marks: &Marks) {
    let Target { response, rect, orientation, document, options } = target;
    let painter = ui.painter_at(rect);
    let to_screen = |row: f64, column: f64| place.screen_position(row, column);
    if options.crosshair {
        draw_crosshair(&painter, rect, to_screen, cursor, orientation);
    }
    if options.scale_bar && document.voxel_known {
        draw_scale_bar(&painter, rect, place.camera.points_per_um);
    }
    if let Some(diameter) = options.ring.filter(|_| !options.bare) {
        let points = diameter * place.camera.points_per_um;
        draw_ring(&painter, rect, to_screen, cursor, orientation, points);
    }
    if let Some(crop) = options.crop {
        draw_crop(&painter, to_screen, crop, cursor, orientation);
    }
    pen::marks(&painter, marks, cursor, orientation, &to_screen);
    if let Some(pen) = &options.pen {
        let pointer = response.hover_pos().filter(|at| rect.contains(*at));
        pen::cursor(&painter, pen, pointer, document, orientation, (place.camera.points_per_um, &to_screen));
        if pointer.is_some() {
            ui.ctx().set_cursor_icon(egui::CursorIcon::Crosshair);
        }
    }
}

#[cfg(test)]
#[path = "slice_tests.rs"]
mod tests;
