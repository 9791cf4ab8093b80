//! How the views share the middle of the window.

use super::slice::{Happened, Hover, Options, SliceView};
use crate::data::loader::Loader;
use crate::data::plane::Orientation;
use crate::document::Document;
use eframe::egui::{self, Ui, WidgetText};
use egui_tiles::{Behavior, SimplificationOptions, Tile, TileId, Tiles, Tree, UiResponse};

/// Share of the width that the XY view has.
const XY_SHARE: f32 = 1.75;

/// The views and their places.
pub struct Layout {
    views: [SliceView; 3],
    tree: Tree<Orientation>,
    /// Share of each view left of the line that one drags to compare.
    swipe: Option<f32>,
    /// Under the pointer, in whichever view it is.
    pub hover: Option<Hover>,
}

impl Default for Layout {
    fn default() -> Self {
        Self { views: Default::default(), tree: tree(), swipe: None, hover: None }
    }
}

fn tree() -> Tree<Orientation> {
    let mut tiles = Tiles::default();
    let xy = tiles.insert_pane(Orientation::Xy);
    let side = [Orientation::Zy, Orientation::Xz].map(|o| tiles.insert_pane(o));
    let side = tiles.insert_vertical_tile(side.to_vec());
    let root = tiles.insert_horizontal_tile(vec![xy, side]);
    if let Some(Tile::Container(egui_tiles::Container::Linear(linear))) = tiles.get_mut(root) {
        linear.shares.set_share(xy, XY_SHARE);
    }
    Tree::new("views", root, tiles)
}

fn index(orientation: Orientation) -> usize {
    Orientation::ALL.iter().position(|o| *o == orientation).unwrap_or(0)
}

struct Panes<'a> {
    views: &'a mut [SliceView; 3],
    document: &'a mut Document,
    loader: &'a Loader,
    options: Options,
    happened: Happened,
}

impl Panes<'_> {
    fn show(&mut self, ui: &mut Ui, orientation: Orientation) {
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

impl Behavior<Orientation> for Panes<'_> {
    fn pane_ui(&mut self, ui: &mut Ui, _tile: TileId, orientation: &mut Orientation) -> UiResponse {
        self.show(ui, *orientation);
        UiResponse::None
    }

    fn tab_title_for_pane(&mut self, orientation: &Orientation) -> WidgetText {
        orientation.name().into()
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
        let flat = !document.is_3d();
        let mut panes = Panes { views: &mut self.views, document, loader, options, happened: Happened::default() };
        if flat {
            panes.show(ui, Orientation::Xy);
        } else {
            self.tree.ui(&mut panes, ui);
        }
        let happened = panes.happened;
        self.hover = happened.hover;
        happened
    }

    /// A view.
    pub fn view(&self, orientation: Orientation) -> &SliceView {
        &self.views[index(orientation)]
    }

    /// Whether a widget is one of the views.
    pub fn is_view(&self, id: egui::Id) -> bool {
        self.views.iter().any(|v| v.id() == Some(id))
    }

    /// Whether no picture is being made.
    pub fn is_settled(&self) -> bool {
        self.views.iter().all(SliceView::is_settled)
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
