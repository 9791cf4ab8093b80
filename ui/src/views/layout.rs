//! Layout of the views in the center of the window.

use super::pen::Marks;
use super::slice::{Hover, SliceView, ViewOptions, ViewResponse};
use super::volume::VolumeView;
use crate::data::loader::{PlaneLoader, SourceId};
use crate::data::plane::Orientation;
use crate::document::Document;
use eframe::egui::{self, Ui, WidgetText};
use eframe::wgpu::TextureFormat;
use egui_tiles::{Behavior, SimplificationOptions, Tile, TileId, Tiles, Tree, UiResponse};

/// Relative width and height of the XY view.
const XY_SHARES: [f32; 2] = [1.2, 1.15];

/// Relative width of the XY view without the 3-D view.
const XY_SHARE_OF_SLICES: f32 = 1.75;

/// Texture format assumed if the window does not report one, as in tests.
const PLAIN_FORMAT: TextureFormat = TextureFormat::Rgba8Unorm;

/// Content of a pane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pane {
    Slice(Orientation),
    Volume,
}

/// The views and their arrangement.
pub struct Layout {
    views: [SliceView; 3],
    volume: VolumeView,
    with_volume: Tree<Pane>,
    slices: Tree<Pane>,
    volume_shown: bool,
    /// Whether only the XY view was loaded in the last frame.
    only_xy: bool,
    volume_rect: egui::Rect,
    target: TextureFormat,
    hover: Option<Hover>,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            views: Default::default(),
            volume: VolumeView::default(),
            with_volume: with_volume(),
            slices: slices(),
            volume_shown: true,
            only_xy: false,
            volume_rect: egui::Rect::NOTHING,
            target: PLAIN_FORMAT,
            hover: None,
        }
    }
}

fn slice_panes(tiles: &mut Tiles<Pane>) -> [TileId; 3] {
    [Orientation::Xy, Orientation::Zy, Orientation::Xz].map(|o| tiles.insert_pane(Pane::Slice(o)))
}

fn share(tiles: &mut Tiles<Pane>, container: TileId, child: TileId, share: f32) {
    if let Some(Tile::Container(egui_tiles::Container::Linear(linear))) = tiles.get_mut(container) {
        linear.shares.set_share(child, share);
    }
}

/// XY beside YZ, below them XZ beside the 3-D view: slices that share an axis share an edge.
fn with_volume() -> Tree<Pane> {
    let mut tiles = Tiles::default();
    let [xy, zy, xz] = slice_panes(&mut tiles);
    let volume = tiles.insert_pane(Pane::Volume);
    let left = tiles.insert_vertical_tile(vec![xy, xz]);
    let right = tiles.insert_vertical_tile(vec![zy, volume]);
    let root = tiles.insert_horizontal_tile(vec![left, right]);
    share(&mut tiles, root, left, XY_SHARES[0]);
    share(&mut tiles, left, xy, XY_SHARES[1]);
    share(&mut tiles, right, zy, XY_SHARES[1]);
    Tree::new("views", root, tiles)
}

/// XY on the left, YZ above XZ on the right.
fn slices() -> Tree<Pane> {
    let mut tiles = Tiles::default();
    let [xy, zy, xz] = slice_panes(&mut tiles);
    let side = tiles.insert_vertical_tile(vec![zy, xz]);
    let root = tiles.insert_horizontal_tile(vec![xy, side]);
    share(&mut tiles, root, xy, XY_SHARE_OF_SLICES);
    Tree::new("slices", root, tiles)
}

fn index(orientation: Orientation) -> usize {
    Orientation::ALL.iter().position(|o| *o == orientation).unwrap_or(0)
}

struct Panes<'a> {
    views: &'a mut [SliceView; 3],
    volume: &'a mut VolumeView,
    volume_rect: &'a mut egui::Rect,
    target: TextureFormat,
    document: &'a Document,
    loader: &'a PlaneLoader,
    marks: &'a Marks,
    options: ViewOptions,
    view_response: ViewResponse,
}

impl Panes<'_> {
    fn show_slice(&mut self, ui: &mut Ui, orientation: Orientation) {
        let view = &mut self.views[index(orientation)];
        if self.options.swipe.is_some() {
            view.prepare_swipe(ui);
        }
        let view_response = view.show(ui, orientation, self.document, self.loader, self.marks, self.options);
        self.view_response.hover = self.view_response.hover.take().or(view_response.hover);
        self.view_response.picked = self.view_response.picked.or(view_response.picked);
        self.view_response.pointer_events.extend(view_response.pointer_events);
        self.view_response.brush_factor = self.view_response.brush_factor.or(view_response.brush_factor);
        self.view_response.changes.extend(view_response.changes);
    }
}

impl Behavior<Pane> for Panes<'_> {
    fn pane_ui(&mut self, ui: &mut Ui, _tile: TileId, pane: &mut Pane) -> UiResponse {
        match pane {
            Pane::Slice(orientation) => self.show_slice(ui, *orientation),
            Pane::Volume => {
                *self.volume_rect = ui.available_rect_before_wrap();
                let view_response = self.volume.show(ui, self.document, self.target, self.options);
                self.view_response.picked = self.view_response.picked.or(view_response.picked);
                self.view_response.changes.extend(view_response.changes);
            }
        }
        UiResponse::None
    }

    fn tab_title_for_pane(&mut self, pane: &Pane) -> WidgetText {
        match pane {
            Pane::Slice(orientation) => orientation.name().into(),
            Pane::Volume => "3-D".into(),
        }
    }

    fn simplification_options(&self) -> SimplificationOptions {
        SimplificationOptions { all_panes_must_have_tabs: false, ..SimplificationOptions::default() }
    }

    fn gap_width(&self, _style: &egui::Style) -> f32 {
        3.0
    }
}

impl Layout {
    /// Draws the views of a document, with `marks` on it, into the available area of `ui`.
    pub fn show(
        &mut self,
        ui: &mut Ui,
        document: &Document,
        loader: &PlaneLoader,
        marks: &Marks,
        mut options: ViewOptions,
    ) -> ViewResponse {
        options.only_xy = self.view(Orientation::Xy).awaits_first(document);
        self.only_xy = options.only_xy;
        let flat = !document.is_3d();
        if flat || !self.volume_shown {
            self.volume.release();
        }
        let mut panes = Panes {
            views: &mut self.views,
            volume: &mut self.volume,
            volume_rect: &mut self.volume_rect,
            target: self.target,
            document,
            loader,
            marks,
            options,
            view_response: ViewResponse::default(),
        };
        if flat {
            panes.show_slice(ui, Orientation::Xy);
        } else if self.volume_shown {
            self.with_volume.ui(&mut panes, ui);
        } else {
            self.slices.ui(&mut panes, ui);
        }
        let view_response = panes.view_response;
        self.hover = view_response.hover.clone();
        if options.only_xy && !self.view(Orientation::Xy).awaits_first(document) {
            ui.ctx().request_repaint();
        }
        view_response
    }

    /// Values under the pointer in the last frame, in any view.
    pub fn hover(&self) -> Option<&Hover> {
        self.hover.as_ref()
    }

    /// The slice view of an orientation.
    pub fn view(&self, orientation: Orientation) -> &SliceView {
        &self.views[index(orientation)]
    }

    /// The 3-D view.
    pub fn volume(&self) -> &VolumeView {
        &self.volume
    }

    /// Area of the 3-D view on screen.
    pub fn volume_rect(&self) -> egui::Rect {
        self.volume_rect
    }

    /// Sets whether the 3-D view is shown and the texture format of the window, if known.
    pub fn prepare_volume(&mut self, shown: bool, target: Option<TextureFormat>) {
        self.volume_shown = shown;
        self.target = target.unwrap_or(PLAIN_FORMAT);
    }

    /// Resets the cameras of the 3-D view.
    pub fn reset_volume(&mut self) {
        self.volume.reset();
    }

    /// Drops sources that were closed.
    pub fn forget(&mut self, sources: impl IntoIterator<Item = SourceId>) {
        sources.into_iter().for_each(|s| self.volume.forget(s));
    }

    /// Whether a widget is one of the views.
    pub fn is_view(&self, id: egui::Id) -> bool {
        self.views.iter().any(|v| v.id() == Some(id)) || self.volume.id() == Some(id)
    }

    /// Whether all pictures are complete.
    pub fn is_settled(&self) -> bool {
        !self.only_xy && self.views.iter().all(SliceView::is_settled) && self.volume.is_settled()
    }
}
