//! Tools and edit actions for correcting labels: titles, icons and shortcuts.

use crate::data::plane::Orientation;
use cytoscope_corrections::KnownVoxels;
use cytoscope_corrections::{Brush, BrushShape, DrawOver};
use eframe::egui::{Key, KeyboardShortcut, Modifiers};
use egui_phosphor::regular as icon;

/// Factor by which a key press enlarges the brush.
pub const BRUSH_STEP: f64 = 1.25;

/// Tools: what the pointer does in the views.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Tool {
    /// Pan and select, as in other tasks.
    #[default]
    Navigate,
    /// Paint the current label.
    Paint,
    /// Paint background.
    Erase,
    /// Fill a region with the current label.
    Fill,
    /// Make the clicked label the current one.
    Pick,
    /// Select labels to merge.
    Merge,
    /// Set seeds or draw a line to split a label.
    Split,
}

impl Tool {
    /// All tools, in the order of the panel.
    pub const ALL: [Tool; 7] =
        [Tool::Navigate, Tool::Paint, Tool::Erase, Tool::Fill, Tool::Pick, Tool::Merge, Tool::Split];

    /// Title in menus and tooltips.
    pub fn title(self) -> &'static str {
        match self {
            Tool::Navigate => "Navigate",
            Tool::Paint => "Paint",
            Tool::Erase => "Erase",
            Tool::Fill => "Fill region",
            Tool::Pick => "Pick label",
            Tool::Merge => "Merge labels",
            Tool::Split => "Split label",
        }
    }

    /// Icon, as a glyph of the icon font.
    pub fn icon(self) -> &'static str {
        match self {
            Tool::Navigate => icon::HAND,
            Tool::Paint => icon::PENCIL_SIMPLE,
            Tool::Erase => icon::ERASER,
            Tool::Fill => icon::PAINT_BUCKET,
            Tool::Pick => icon::EYEDROPPER,
            Tool::Merge => icon::UNITE,
            Tool::Split => icon::KNIFE,
        }
    }

    /// Returns the key that selects the tool.
    pub fn key(self) -> Key {
        match self {
            Tool::Navigate => Key::V,
            Tool::Paint => Key::D,
            Tool::Erase => Key::E,
            Tool::Fill => Key::G,
            Tool::Pick => Key::I,
            Tool::Merge => Key::M,
            Tool::Split => Key::K,
        }
    }

    /// Short instruction for the panel.
    pub fn hint(self) -> &'static str {
        match self {
            Tool::Navigate => "Drag to pan, click to select a label.",
            Tool::Paint => "Drag in any view. Hold Space or the middle button to pan.",
            Tool::Erase => "Drag in any view to erase to background.",
            Tool::Fill => "Click a region to give it the current label.",
            Tool::Pick => "Click a label to make it the current one.",
            Tool::Merge => "Click the labels to merge, then press Enter. The first label keeps its number.",
            Tool::Split => "Draw a line across a label, or click one seed in each part and press Enter.",
        }
    }

    /// Whether the tool uses the brush.
    pub fn has_brush(self) -> bool {
        matches!(self, Tool::Paint | Tool::Erase)
    }
}

/// Edit actions, which apply immediately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EditAction {
    /// Undo the last edit.
    Undo,
    /// Redo the last undone step.
    Redo,
    /// Save the corrected labels.
    Save,
    /// Export the stack and its labels as a training pair.
    Export,
    /// Make a free label the current one.
    NewLabel,
    /// Turn the object with the current label into background.
    Delete,
    /// Merge the selected labels, or split by the seeds.
    Apply,
    /// Clear the selection, or cancel the current stroke.
    ClearSelection,
    /// Interpolate the current label between the slices that contain it.
    Interpolate,
    /// Grow the current label.
    Grow,
    /// Shrink the current label.
    Shrink,
    /// Fill the holes of the current label.
    FillHoles,
    /// Enlarge the brush.
    EnlargeBrush,
    /// Shrink the brush.
    ShrinkBrush,
    /// Switch between disk and ball brush.
    ToggleBall,
}

impl EditAction {
    /// All edit actions, in the order of menus and palette.
    pub const ALL: [EditAction; 15] = [
        EditAction::Undo,
        EditAction::Redo,
        EditAction::Save,
        EditAction::Export,
        EditAction::NewLabel,
        EditAction::Delete,
        EditAction::Apply,
        EditAction::ClearSelection,
        EditAction::Interpolate,
        EditAction::Grow,
        EditAction::Shrink,
        EditAction::FillHoles,
        EditAction::EnlargeBrush,
        EditAction::ShrinkBrush,
        EditAction::ToggleBall,
    ];

    /// Title in menus and tooltips.
    pub fn title(self) -> &'static str {
        match self {
            EditAction::Undo => "Undo",
            EditAction::Redo => "Redo",
            EditAction::Save => "Save corrected labels",
            EditAction::Export => "Use as training data",
            EditAction::NewLabel => "New label",
            EditAction::Delete => "Delete label",
            EditAction::Apply => "Apply merge or split",
            EditAction::ClearSelection => "Clear selection",
            EditAction::Interpolate => "Interpolate between slices",
            EditAction::Grow => "Grow label",
            EditAction::Shrink => "Shrink label",
            EditAction::FillHoles => "Fill holes in label",
            EditAction::EnlargeBrush => "Larger brush",
            EditAction::ShrinkBrush => "Smaller brush",
            EditAction::ToggleBall => "Paint in 3-D",
        }
    }

    /// Whether the action may change labels.
    pub fn changes_labels(self) -> bool {
        match self {
            EditAction::Undo
            | EditAction::Redo
            | EditAction::Delete
            | EditAction::Apply
            | EditAction::Interpolate
            | EditAction::Grow
            | EditAction::Shrink
            | EditAction::FillHoles => true,
            EditAction::Save
            | EditAction::Export
            | EditAction::NewLabel
            | EditAction::ClearSelection
            | EditAction::EnlargeBrush
            | EditAction::ShrinkBrush
            | EditAction::ToggleBall => false,
        }
    }

    /// Icon, as a glyph of the icon font.
    pub fn icon(self) -> &'static str {
        match self {
            EditAction::Undo => icon::ARROW_U_UP_LEFT,
            EditAction::Redo => icon::ARROW_U_UP_RIGHT,
            EditAction::Save => icon::FLOPPY_DISK,
            EditAction::Export => icon::GRADUATION_CAP,
            EditAction::NewLabel => icon::PLUS,
            EditAction::Delete => icon::TRASH,
            EditAction::Apply => icon::CHECK,
            EditAction::ClearSelection => icon::X_CIRCLE,
            EditAction::Interpolate => icon::STACK,
            EditAction::Grow => icon::ARROWS_OUT,
            EditAction::Shrink => icon::ARROWS_IN,
            EditAction::FillHoles => icon::CIRCLE_DASHED,
            EditAction::EnlargeBrush => icon::PLUS_CIRCLE,
            EditAction::ShrinkBrush => icon::MINUS_CIRCLE,
            EditAction::ToggleBall => icon::CUBE,
        }
    }

    /// Returns the keyboard shortcut of the action; `None` if it has none.
    pub fn shortcut(self) -> Option<KeyboardShortcut> {
        let command = Modifiers::COMMAND;
        let (modifiers, key) = match self {
            EditAction::Undo => (command, Key::Z),
            EditAction::Redo => (command.plus(Modifiers::SHIFT), Key::Z),
            EditAction::Save => (command, Key::S),
            EditAction::Export => return None,
            EditAction::NewLabel => (Modifiers::NONE, Key::N),
            EditAction::Delete => (Modifiers::NONE, Key::Delete),
            EditAction::Apply => (Modifiers::NONE, Key::Enter),
            EditAction::ClearSelection => (Modifiers::NONE, Key::Escape),
            EditAction::Interpolate => (Modifiers::NONE, Key::T),
            EditAction::Grow => (Modifiers::NONE, Key::U),
            EditAction::Shrink => (Modifiers::NONE, Key::J),
            EditAction::FillHoles => (Modifiers::NONE, Key::H),
            EditAction::EnlargeBrush => (Modifiers::NONE, Key::Period),
            EditAction::ShrinkBrush => (Modifiers::NONE, Key::Comma),
            EditAction::ToggleBall => (Modifiers::NONE, Key::Num3),
        };
        Some(KeyboardShortcut::new(modifiers, key))
    }

    /// Alternative shortcut for the same action.
    pub fn other_shortcut(self) -> Option<KeyboardShortcut> {
        (self == EditAction::Redo).then_some(KeyboardShortcut::new(Modifiers::COMMAND, Key::Y))
    }
}

/// Which voxels a stroke may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StrokeMask {
    /// The brush paints all voxels.
    #[default]
    All,
    /// The brush paints background only and leaves other objects as they are.
    Background,
    /// Only voxels of the label in which the stroke starts.
    Inside,
}

impl StrokeMask {
    /// All variants with their titles.
    pub const NAMED: [(StrokeMask, &'static str); 3] = [
        (StrokeMask::All, "Everything"),
        (StrokeMask::Background, "Background only"),
        (StrokeMask::Inside, "Inside the start label"),
    ];

    /// The restriction for a stroke that starts on label `first`.
    pub fn over(self, first: u32) -> DrawOver {
        match self {
            StrokeMask::All => DrawOver::Any,
            StrokeMask::Background => DrawOver::Background,
            StrokeMask::Inside => DrawOver::Inside(first),
        }
    }
}

/// The selected correction tool, and the settings of all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// Tool that the pointer uses.
    pub tool: Tool,
    /// The previous tool, restored after picking a label.
    pub before: Tool,
    /// Brush radius in µm.
    pub radius_um: f64,
    /// Minimum and maximum of the radius slider in µm.
    pub radii_um: [f64; 2],
    /// Whether brush and fill work in 3-D (ball) or in one slice (disk).
    pub ball: bool,
    /// Which voxels strokes may change.
    pub mask: StrokeMask,
    /// Distance in µm by which labels grow or shrink.
    pub margin_um: f64,
    /// The view that was drawn in last; interpolation runs along its axis.
    pub view: Orientation,
    /// Which voxels of an exported training pair are known; the others get the ignore label.
    pub known_voxels: KnownVoxels,
}

impl Default for Tools {
    fn default() -> Self {
        Self {
            tool: Tool::Paint,
            before: Tool::Paint,
            radius_um: 0.0,
            radii_um: [0.1, 10.0],
            ball: false,
            mask: StrokeMask::All,
            margin_um: 0.0,
            view: Orientation::Xy,
            known_voxels: KnownVoxels::All,
        }
    }
}

impl Tools {
    /// Selects a tool and remembers the previous one, to which [`Tool::Pick`] returns.
    pub fn select(&mut self, tool: Tool) {
        if self.tool != Tool::Pick {
            self.before = self.tool;
        }
        self.tool = tool;
    }

    /// Adapts the radius range to a stack; the current radius is kept if it lies within the range.
    pub fn fit(&mut self, voxel_um: [f64; 3], zyx: [usize; 3]) {
        let pixel = voxel_um[1].max(voxel_um[2]);
        let min_um = pixel / 2.0;
        let max_um = (zyx[1].max(zyx[2]) as f64 * pixel / 4.0).max(min_um * 4.0);
        self.radii_um = [min_um, max_um];
        if !(min_um..=max_um).contains(&self.radius_um) {
            self.radius_um = (pixel * 4.0).clamp(min_um, max_um);
        }
        if self.margin_um <= 0.0 || self.margin_um > max_um {
            self.margin_um = pixel;
        }
    }

    /// Multiplies the brush radius by a factor, within its limits.
    pub fn scale(&mut self, factor: f64) {
        self.radius_um = (self.radius_um * factor).clamp(self.radii_um[0], self.radii_um[1]);
    }

    /// The brush for a stroke that starts on label `first` in a view.
    pub fn brush(&self, view: Orientation, label: u32, first: u32) -> Brush {
        let value = if self.tool == Tool::Erase { 0 } else { label };
        // Erasing only background would have no effect.
        let mask = if value == 0 && self.mask == StrokeMask::Background { StrokeMask::All } else { self.mask };
        Brush {
            shape: if self.ball { BrushShape::Ball } else { BrushShape::Disk(super::source::axis(view)) },
            radius_um: self.radius_um,
            value,
            over: mask.over(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_the_key_that_applies_a_selection() {
        let key = EditAction::Apply.shortcut().map(|shortcut| shortcut.logical_key.name());
        for tool in [Tool::Merge, Tool::Split] {
            assert!(key.is_some_and(|key| tool.hint().contains(key)), "{}", tool.hint());
        }
    }
}
