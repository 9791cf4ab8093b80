//! What labels are corrected with: tools that act where one clicks, and deeds done at once. Names, icons, keys.

use crate::data::plane::Orientation;
use cytoscope_annotate::Extent;
use cytoscope_annotate::{Brush, BrushShape, Over};
use eframe::egui::{Key, KeyboardShortcut, Modifiers};
use egui_phosphor::regular as icon;

/// How much larger a brush becomes with a key.
pub const BRUSH_STEP: f64 = 1.25;

/// What the pointer does in the views.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Tool {
    /// Look around, as in other tasks.
    #[default]
    Look,
    /// Paint the current label.
    Paint,
    /// Paint background.
    Erase,
    /// Give a region the current label.
    Fill,
    /// Make the label clicked the current one.
    Pick,
    /// Collect labels that become one.
    Merge,
    /// Collect seeds, or draw a line, that split a label.
    Split,
}

impl Tool {
    /// Every one, in the order of the panel.
    pub const ALL: [Tool; 7] = [Tool::Look, Tool::Paint, Tool::Erase, Tool::Fill, Tool::Pick, Tool::Merge, Tool::Split];

    /// What it is called.
    pub fn title(self) -> &'static str {
        match self {
            Tool::Look => "Look around",
            Tool::Paint => "Paint",
            Tool::Erase => "Erase",
            Tool::Fill => "Fill region",
            Tool::Pick => "Pick label",
            Tool::Merge => "Merge labels",
            Tool::Split => "Split label",
        }
    }

    /// Its icon.
    pub fn icon(self) -> &'static str {
        match self {
            Tool::Look => icon::HAND,
            Tool::Paint => icon::PENCIL_SIMPLE,
            Tool::Erase => icon::ERASER,
            Tool::Fill => icon::PAINT_BUCKET,
            Tool::Pick => icon::EYEDROPPER,
            Tool::Merge => icon::UNITE,
            Tool::Split => icon::KNIFE,
        }
    }

    /// Its key.
    pub fn key(self) -> Key {
        match self {
            Tool::Look => Key::V,
            Tool::Paint => Key::D,
            Tool::Erase => Key::E,
            Tool::Fill => Key::G,
            Tool::Pick => Key::I,
            Tool::Merge => Key::M,
            Tool::Split => Key::K,
        }
    }

    /// What to do with it, in a sentence.
    pub fn hint(self) -> &'static str {
        match self {
            Tool::Look => "Drag to move, click to choose a label.",
            Tool::Paint => "Drag in any view. Space or the middle button moves the picture.",
            Tool::Erase => "Drag in any view to make background.",
            Tool::Fill => "Click a region: it becomes the current label.",
            Tool::Pick => "Click a label to make it the current one.",
            Tool::Merge => "Click labels; the first one's number stays. Then apply.",
            Tool::Split => "Draw a line across a label, or click a seed in each part and apply.",
        }
    }

    /// Whether it draws with a brush.
    pub fn has_brush(self) -> bool {
        matches!(self, Tool::Paint | Tool::Erase)
    }
}

/// What is done at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Deed {
    /// Take the newest step back.
    Undo,
    /// Make it again.
    Redo,
    /// Write the corrected labels.
    Save,
    /// Add the stack and its labels to a dataset.
    Export,
    /// A label not in use becomes the current one.
    NewLabel,
    /// The current label becomes background.
    Delete,
    /// Merge or split what was collected.
    Apply,
    /// Forget what was collected, take an open stroke back.
    Drop,
    /// Fill slices between those that hold the current label.
    Interpolate,
    /// Grow the current label.
    Grow,
    /// Shrink the current label.
    Shrink,
    /// Fill the holes of the current label.
    FillHoles,
    /// A larger brush.
    Larger,
    /// A smaller brush.
    Smaller,
    /// Disc or ball.
    Ball,
}

impl Deed {
    /// Every one.
    pub const ALL: [Deed; 15] = [
        Deed::Undo,
        Deed::Redo,
        Deed::Save,
        Deed::Export,
        Deed::NewLabel,
        Deed::Delete,
        Deed::Apply,
        Deed::Drop,
        Deed::Interpolate,
        Deed::Grow,
        Deed::Shrink,
        Deed::FillHoles,
        Deed::Larger,
        Deed::Smaller,
        Deed::Ball,
    ];

    /// What it is called.
    pub fn title(self) -> &'static str {
        match self {
            Deed::Undo => "Undo",
            Deed::Redo => "Redo",
            Deed::Save => "Save corrected labels",
            Deed::Export => "Use as training data",
            Deed::NewLabel => "New label",
            Deed::Delete => "Delete label",
            Deed::Apply => "Apply merge or split",
            Deed::Drop => "Drop selection",
            Deed::Interpolate => "Interpolate between slices",
            Deed::Grow => "Grow label",
            Deed::Shrink => "Shrink label",
            Deed::FillHoles => "Fill holes of label",
            Deed::Larger => "Larger brush",
            Deed::Smaller => "Smaller brush",
            Deed::Ball => "Paint in 3-D",
        }
    }

    /// Its icon.
    pub fn icon(self) -> &'static str {
        match self {
            Deed::Undo => icon::ARROW_U_UP_LEFT,
            Deed::Redo => icon::ARROW_U_UP_RIGHT,
            Deed::Save => icon::FLOPPY_DISK,
            Deed::Export => icon::GRADUATION_CAP,
            Deed::NewLabel => icon::PLUS,
            Deed::Delete => icon::TRASH,
            Deed::Apply => icon::CHECK,
            Deed::Drop => icon::X_CIRCLE,
            Deed::Interpolate => icon::STACK,
            Deed::Grow => icon::ARROWS_OUT,
            Deed::Shrink => icon::ARROWS_IN,
            Deed::FillHoles => icon::CIRCLE_DASHED,
            Deed::Larger => icon::PLUS_CIRCLE,
            Deed::Smaller => icon::MINUS_CIRCLE,
            Deed::Ball => icon::CUBE,
        }
    }

    /// Its keys.
    pub fn shortcut(self) -> Option<KeyboardShortcut> {
        let command = Modifiers::COMMAND;
        let (modifiers, key) = match self {
            Deed::Undo => (command, Key::Z),
            Deed::Redo => (command.plus(Modifiers::SHIFT), Key::Z),
            Deed::Save => (command, Key::S),
            Deed::Export => return None,
            Deed::NewLabel => (Modifiers::NONE, Key::N),
            Deed::Delete => (Modifiers::NONE, Key::Delete),
            Deed::Apply => (Modifiers::NONE, Key::Enter),
            Deed::Drop => (Modifiers::NONE, Key::Escape),
            Deed::Interpolate => (Modifiers::NONE, Key::T),
            Deed::Grow => (Modifiers::NONE, Key::U),
            Deed::Shrink => (Modifiers::NONE, Key::J),
            Deed::FillHoles => (Modifiers::NONE, Key::H),
            Deed::Larger => (Modifiers::NONE, Key::Period),
            Deed::Smaller => (Modifiers::NONE, Key::Comma),
            Deed::Ball => (Modifiers::NONE, Key::Num3),
        };
        Some(KeyboardShortcut::new(modifiers, key))
    }

    /// Other keys that do the same.
    pub fn other_shortcut(self) -> Option<KeyboardShortcut> {
        (self == Deed::Redo).then_some(KeyboardShortcut::new(Modifiers::COMMAND, Key::Y))
    }
}

/// What a stroke may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Covers {
    /// Everything.
    #[default]
    All,
    /// Background only.
    Background,
    /// The label in which the stroke begins.
    Inside,
}

impl Covers {
    /// Every one, with its name.
    pub const NAMED: [(Covers, &'static str); 3] = [
        (Covers::All, "Everything"),
        (Covers::Background, "Only background"),
        (Covers::Inside, "Inside the label it begins in"),
    ];

    /// For a stroke that begins on `first`.
    pub fn over(self, first: u32) -> Over {
        match self {
            Covers::All => Over::Any,
            Covers::Background => Over::Background,
            Covers::Inside => Over::Inside(first),
        }
    }
}

/// How tools are set.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// The one in hand.
    pub tool: Tool,
    /// The one before it, to come back to after picking.
    pub before: Tool,
    /// Radius of the brush.
    pub radius_um: f64,
    /// Least and greatest radius that the slider offers.
    pub radii_um: [f64; 2],
    /// Ball across slices, or disc in one; regions are filled alike.
    pub ball: bool,
    /// What strokes may change.
    pub covers: Covers,
    /// How far labels grow or shrink.
    pub margin_um: f64,
    /// The view last drawn in: slices between are filled across it.
    pub view: Orientation,
    /// Which voxels of a training pair are known.
    pub extent: Extent,
}

impl Default for Tools {
    fn default() -> Self {
        Self {
            tool: Tool::Paint,
            before: Tool::Paint,
            radius_um: 0.0,
            radii_um: [0.1, 10.0],
            ball: false,
            covers: Covers::All,
            margin_um: 0.0,
            view: Orientation::Xy,
            extent: Extent::Everything,
        }
    }
}

impl Tools {
    /// Takes a tool in hand.
    pub fn take(&mut self, tool: Tool) {
        if self.tool != Tool::Pick {
            self.before = self.tool;
        }
        self.tool = tool;
    }

    /// Offers radii that make sense on a stack; keeps the one chosen if it is among them.
    pub fn fit(&mut self, voxel_um: [f64; 3], zyx: [usize; 3]) {
        let pixel = voxel_um[1].max(voxel_um[2]);
        let least = pixel / 2.0;
        let most = (zyx[1].max(zyx[2]) as f64 * pixel / 4.0).max(least * 4.0);
        self.radii_um = [least, most];
        if !(least..=most).contains(&self.radius_um) {
            self.radius_um = (pixel * 4.0).clamp(least, most);
        }
        if self.margin_um <= 0.0 || self.margin_um > most {
            self.margin_um = pixel;
        }
    }

    /// Makes the brush larger or smaller.
    pub fn scale(&mut self, factor: f64) {
        self.radius_um = (self.radius_um * factor).clamp(self.radii_um[0], self.radii_um[1]);
    }

    /// The brush of a stroke that begins on label `first` in a view.
    pub fn brush(&self, view: Orientation, label: u32, first: u32) -> Brush {
        let value = if self.tool == Tool::Erase { 0 } else { label };
        // Only background to be erased would change nothing.
        let covers = if value == 0 && self.covers == Covers::Background { Covers::All } else { self.covers };
        Brush {
            shape: if self.ball { BrushShape::Ball } else { BrushShape::Disc(super::source::axis(view)) },
            radius_um: self.radius_um,
            value,
            over: covers.over(first),
        }
    }
}
