//! How the views share the middle of the window.

use super::slice::{Happened, Hover, Options, SliceView};
use super::volume::VolumeView;
use crate::data::loader::{Loader, SourceId};
use crate::data::plane::Orientation;
use crate::document::Document;
use eframe::egui::{self, Ui, WidgetText};
use eframe::wgpu::TextureFormat;
use egui_tiles::{Behavior, SimplificationOptions, Tile, TileId, Tiles, Tree, UiResponse};

/// Shares of width and height of the XY view, against the views beside and below it.
const XY_SHARES: [f32; 2] = [1.2, 1.15];

/// Share of the width that the XY view has where the volume is not shown.
const XY_SHARE_OF_SLICES: f32 = 1.75;

/// A window without a graphics card's word on it, as in tests, is of this format.
const PLAIN_FORMAT: TextureFormat = TextureFormat::Rgba8Unorm;

/// What a place shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pane {
    Slice(Orientation),
    Volume,
}

/// The views and their places.
pub struct Layout {
    views: [SliceView; 3],
    volume: VolumeView,
    with_volume: Tree<Pane>,
    slices: Tree<Pane>,
    volume_shown: bool,
    /// Whether the other views were left out in the last frame.
    only_xy: bool,
    volume_rect: egui::Rect,
    target: TextureFormat,
    /// Share of each view left of the line that one drags to compare.
    swipe: Option<f32>,
    /// Under the pointer, in whichever view it is.
    pub hover: Option<Hover>,
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
            swipe: None,
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

/// XY beside YZ, below them XZ beside the volume: cuts that share an axis share an edge.
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

/// XY, beside it YZ over XZ.
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
    document: &'a mut Document,
    loader: &'a Loader,
    options: Options,
    happened: Happened,
}

impl Panes<'_> {
    fn show_slice(&mut self, ui: &mut Ui, orientation: Orientation) {
        let view = &mut self.views[index(orientation)];
        if self.options.swipe.is_some() {
            view.prepare_swipe(ui);
        }
        let happened = view.show(ui, orientation, self.document, self.loader, self.options);
        self.happened.hover = self.happened.hover.take().or(happened.hover);
        self.happened.picked = self.happened.picked.or(happened.picked);
        self.happened.touches.extend(happened.touches);
        self.happened.brush_factor = self.happened.brush_factor.or(happened.brush_factor);
    }
}

impl Behavior<Pane> for Panes<'_> {
    fn pane_ui(&mut self, ui: &mut Ui, _tile: TileId, pane: &mut Pane) -> UiResponse {
        match pane {
            Pane::Slice(orientation) => self.show_slice(ui, *orientation),
            Pane::Volume => {
                *self.volume_rect = ui.available_rect_before_wrap();
                let happened = self.volume.show(ui, self.document, self.target, self.options);
                self.happened.picked = self.happened.picked.or(happened.picked);
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
    /// Draws the views of a document into all there is of `ui`.
    pub fn show(&mut self, ui: &mut Ui, document: &mut Document, loader: &Loader, mut options: Options) -> Happened {
        options.swipe = self.swipe;
        options.only_xy = self.view(Orientation::Xy).awaits_first(document);
        self.only_xy = options.only_xy;
        let flat = !document.is_3d();
        if flat || !self.volume_shown {
            self.volume.rest();
        }
        let mut panes = Panes {
            views: &mut self.views,
            volume: &mut self.volume,
            volume_rect: &mut self.volume_rect,
            target: self.target,
            document,
            loader,
            options,
            happened: Happened::default(),
        };
        if flat {
            panes.show_slice(ui, Orientation::Xy);
        } else if self.volume_shown {
            self.with_volume.ui(&mut panes, ui);
        } else {
            self.slices.ui(&mut panes, ui);
        }
        let happened = panes.happened;
        self.hover = happened.hover;
        if options.only_xy && !self.view(Orientation::Xy).awaits_first(document) {
            ui.ctx().request_repaint();
        }
        happened
    }

    /// A view.
    pub fn view(&self, orientation: Orientation) -> &SliceView {
        &self.views[index(orientation)]
    }

    /// The volume.
    pub fn volume(&self) -> &VolumeView {
        &self.volume
    }

    /// Where the volume is on screen.
    pub fn volume_rect(&self) -> egui::Rect {
        self.volume_rect
    }

    /// Whether the volume is shown, and the format of the window, where it is known.
    pub fn prepare_volume(&mut self, shown: bool, target: Option<TextureFormat>) {
        self.volume_shown = shown;
        self.target = target.unwrap_or(PLAIN_FORMAT);
    }

    /// The volume is seen as at first.
    pub fn reset_volume(&mut self) {
        self.volume.reset();
    }

    /// Forgets sources that have gone.
    pub fn forget(&mut self, sources: impl IntoIterator<Item = SourceId>) {
        sources.into_iter().for_each(|s| self.volume.forget(s));
    }

    /// Whether a widget is one of the views.
    pub fn is_view(&self, id: egui::Id) -> bool {
        self.views.iter().any(|v| v.id() == Some(id)) || self.volume.id() == Some(id)
    }

    /// Whether no picture is being made.
    pub fn is_settled(&self) -> bool {
        !self.only_xy && self.views.iter().all(SliceView::is_settled) && self.volume.is_settled()
    }

    /// Shows or hides the line to drag.
    pub fn toggle_swipe(&mut self) {
        self.swipe = if self.swipe.is_some() { None } else { Some(0.5) };
    }

    /// Where the line is.
    pub fn swipe_mut(&mut self) -> Option<&mut f32> {
        self.swipe.as_mut()
    }
}
