//! Everything the window can be told to do. One list feeds menus, shortcuts and the palette; views only send these.

use crate::correct::tools::{Deed, Tool};
use eframe::egui::{Key, KeyboardShortcut, Modifiers};
use egui_phosphor::regular as icon;

/// One thing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Ask for files and open them.
    Open,
    /// Open the bundled sample.
    OpenSample,
    /// Ask for a label image of the stack on screen.
    OpenLabels,
    /// Ask for a label image to compare with.
    OpenTruth,
    /// Close the stack on screen.
    Close,
    /// Predict the stack on screen.
    Predict,
    /// Predict every open stack.
    PredictAll,
    /// Teach a model.
    Train,
    /// Cancel the job that runs.
    Cancel,
    /// One slice up.
    NextSlice,
    /// One slice down.
    PreviousSlice,
    /// One time point on.
    NextTime,
    /// One time point back.
    PreviousTime,
    /// Play through the slices, or stop.
    Play,
    /// Fit every view.
    Fit,
    /// Contrast limits from the slice on screen.
    AutoContrast,
    /// Show or hide labels.
    ToggleLabels,
    /// Outlines, fill, both.
    NextLabelStyle,
    /// Show or hide the probability.
    ToggleMap,
    /// Show or hide the crosshair.
    ToggleCrosshair,
    /// Show or hide the scale bar.
    ToggleScaleBar,
    /// Compare halves by a line to drag.
    ToggleSwipe,
    /// Draw a line and see the values along it.
    ToggleRuler,
    /// Save the picture on screen.
    Screenshot,
    /// Save the table of objects.
    SaveTable,
    /// Measure the objects of the labels on screen again.
    Measure,
    /// Show or hide the list of stacks.
    ToggleLibrary,
    /// Show or hide the panel of tasks.
    ToggleTasks,
    /// Show or hide jobs and profiler.
    ToggleProfiler,
    /// Show or hide the 3-D view.
    Toggle3d,
    /// Views as they were at first.
    ResetLayout,
    /// The next of system, light, dark.
    NextTheme,
    /// Everything one can do, by name.
    Palette,
    /// Every shortcut on one sheet.
    Shortcuts,
    /// Version, licence.
    About,
    /// End.
    Quit,
    /// Take a tool in hand to correct labels with.
    Tool(Tool),
    /// Correct labels, save them, use them.
    Correct(Deed),
}

const fn plain(key: Key) -> Option<KeyboardShortcut> {
    Some(KeyboardShortcut::new(Modifiers::NONE, key))
}

const fn command(key: Key) -> Option<KeyboardShortcut> {
    Some(KeyboardShortcut::new(Modifiers::COMMAND, key))
}

const fn command_shift(key: Key) -> Option<KeyboardShortcut> {
    Some(KeyboardShortcut::new(Modifiers::COMMAND.plus(Modifiers::SHIFT), key))
}

impl Command {
    /// Every command, in the order of the sheet.
    pub const ALL: [Command; 58] = [
        Command::Open,
        Command::OpenSample,
        Command::OpenLabels,
        Command::OpenTruth,
        Command::Close,
        Command::Predict,
        Command::PredictAll,
        Command::Train,
        Command::Cancel,
        Command::NextSlice,
        Command::PreviousSlice,
        Command::NextTime,
        Command::PreviousTime,
        Command::Play,
        Command::Fit,
        Command::AutoContrast,
        Command::ToggleLabels,
        Command::NextLabelStyle,
        Command::ToggleMap,
        Command::ToggleCrosshair,
        Command::ToggleScaleBar,
        Command::ToggleSwipe,
        Command::ToggleRuler,
        Command::Screenshot,
        Command::SaveTable,
        Command::Measure,
        Command::ToggleLibrary,
        Command::ToggleTasks,
        Command::ToggleProfiler,
        Command::Toggle3d,
        Command::ResetLayout,
        Command::NextTheme,
        Command::Palette,
        Command::Shortcuts,
        Command::About,
        Command::Quit,
        Command::Tool(Tool::Look),
        Command::Tool(Tool::Paint),
        Command::Tool(Tool::Erase),
        Command::Tool(Tool::Fill),
        Command::Tool(Tool::Pick),
        Command::Tool(Tool::Merge),
        Command::Tool(Tool::Split),
        Command::Correct(Deed::Undo),
        Command::Correct(Deed::Redo),
        Command::Correct(Deed::Save),
        Command::Correct(Deed::Export),
        Command::Correct(Deed::NewLabel),
        Command::Correct(Deed::Delete),
        Command::Correct(Deed::Apply),
        Command::Correct(Deed::Drop),
        Command::Correct(Deed::Interpolate),
        Command::Correct(Deed::Grow),
        Command::Correct(Deed::Shrink),
        Command::Correct(Deed::FillHoles),
        Command::Correct(Deed::Larger),
        Command::Correct(Deed::Smaller),
        Command::Correct(Deed::Ball),
    ];

    /// What it is called.
    pub fn title(self) -> &'static str {
        match self {
            Command::Open => "Open…",
            Command::OpenSample => "Open the sample",
            Command::OpenLabels => "Add labels…",
            Command::OpenTruth => "Compare with truth…",
            Command::Close => "Close stack",
            Command::Predict => "Predict",
            Command::PredictAll => "Predict all open stacks",
            Command::Train => "Teach a model…",
            Command::Cancel => "Cancel job",
            Command::NextSlice => "Next slice",
            Command::PreviousSlice => "Previous slice",
            Command::NextTime => "Next time point",
            Command::PreviousTime => "Previous time point",
            Command::Play => "Play through slices",
            Command::Fit => "Fit views",
            Command::AutoContrast => "Automatic contrast",
            Command::ToggleLabels => "Show labels",
            Command::NextLabelStyle => "Next label style",
            Command::ToggleMap => "Show probability",
            Command::ToggleCrosshair => "Show crosshair",
            Command::ToggleScaleBar => "Show scale bar",
            Command::ToggleSwipe => "Swipe to compare",
            Command::ToggleRuler => "Line profile",
            Command::Screenshot => "Save picture…",
            Command::SaveTable => "Save table…",
            Command::Measure => "Measure objects again",
            Command::ToggleLibrary => "Show stacks",
            Command::ToggleTasks => "Show tasks",
            Command::ToggleProfiler => "Show profiler",
            Command::Toggle3d => "Show 3-D view",
            Command::ResetLayout => "Reset layout and settings",
            Command::NextTheme => "Switch theme",
            Command::Palette => "Command palette…",
            Command::Shortcuts => "Keyboard shortcuts",
            Command::About => "About Cytoscope",
            Command::Quit => "Quit",
            Command::Tool(tool) => tool.title(),
            Command::Correct(deed) => deed.title(),
        }
    }

    /// Its icon.
    pub fn icon(self) -> &'static str {
        match self {
            Command::Open => icon::FOLDER_OPEN,
            Command::OpenSample => icon::FLASK,
            Command::OpenLabels => icon::STACK_PLUS,
            Command::OpenTruth => icon::CHECKS,
            Command::Close => icon::X,
            Command::Predict => icon::SPARKLE,
            Command::PredictAll => icon::QUEUE,
            Command::Train => icon::GRADUATION_CAP,
            Command::Cancel => icon::STOP_CIRCLE,
            Command::NextSlice => icon::CARET_UP,
            Command::PreviousSlice => icon::CARET_DOWN,
            Command::NextTime => icon::CARET_RIGHT,
            Command::PreviousTime => icon::CARET_LEFT,
            Command::Play => icon::PLAY,
            Command::Fit => icon::CORNERS_OUT,
            Command::AutoContrast => icon::CIRCLE_HALF,
            Command::ToggleLabels => icon::SHAPES,
            Command::NextLabelStyle => icon::PAINT_BRUSH,
            Command::ToggleMap => icon::GRADIENT,
            Command::ToggleCrosshair => icon::CROSSHAIR,
            Command::ToggleScaleBar => icon::RULER,
            Command::ToggleSwipe => icon::SPLIT_HORIZONTAL,
            Command::ToggleRuler => icon::CHART_LINE,
            Command::Screenshot => icon::CAMERA,
            Command::SaveTable => icon::TABLE,
            Command::Measure => icon::RULER,
            Command::ToggleLibrary => icon::SIDEBAR_SIMPLE,
            Command::ToggleTasks => icon::SLIDERS_HORIZONTAL,
            Command::ToggleProfiler => icon::CHART_BAR,
            Command::Toggle3d => icon::CUBE,
            Command::ResetLayout => icon::ARROW_COUNTER_CLOCKWISE,
            Command::NextTheme => icon::SUN_DIM,
            Command::Palette => icon::COMMAND,
            Command::Shortcuts => icon::KEYBOARD,
            Command::About => icon::INFO,
            Command::Quit => icon::SIGN_OUT,
            Command::Tool(tool) => tool.icon(),
            Command::Correct(deed) => deed.icon(),
        }
    }

    /// Its keys.
    pub fn shortcut(self) -> Option<KeyboardShortcut> {
        match self {
            Command::Open => command(Key::O),
            Command::OpenSample => command_shift(Key::O),
            Command::OpenLabels => command(Key::L),
            Command::OpenTruth => command(Key::T),
            Command::Close => command(Key::W),
            Command::Predict => command(Key::Enter),
            Command::PredictAll => command_shift(Key::Enter),
            Command::Train => command_shift(Key::T),
            Command::Cancel => command(Key::Period),
            Command::NextSlice => plain(Key::PageUp),
            Command::PreviousSlice => plain(Key::PageDown),
            Command::NextTime => plain(Key::CloseBracket),
            Command::PreviousTime => plain(Key::OpenBracket),
            Command::Play => plain(Key::Space),
            Command::Fit => plain(Key::F),
            Command::AutoContrast => plain(Key::A),
            Command::ToggleLabels => plain(Key::L),
            Command::NextLabelStyle => plain(Key::O),
            Command::ToggleMap => plain(Key::P),
            Command::ToggleCrosshair => plain(Key::X),
            Command::ToggleScaleBar => plain(Key::B),
            Command::ToggleSwipe => plain(Key::S),
            Command::ToggleRuler => plain(Key::R),
            Command::Screenshot => command_shift(Key::S),
            Command::SaveTable => command(Key::E),
            Command::ToggleLibrary => command(Key::Num1),
            Command::ToggleTasks => command(Key::Num2),
            Command::ToggleProfiler => command(Key::Num3),
            Command::Toggle3d => command(Key::Num4),
            Command::Palette => command(Key::P),
            Command::Shortcuts => plain(Key::Questionmark),
            Command::Quit => command(Key::Q),
            Command::Tool(tool) => plain(tool.key()),
            Command::Correct(deed) => deed.shortcut(),
            Command::Measure | Command::ResetLayout | Command::NextTheme | Command::About => None,
        }
    }

    /// Other keys that do the same.
    pub fn other_shortcut(self) -> Option<KeyboardShortcut> {
        match self {
            Command::Correct(deed) => deed.other_shortcut(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_commands_share_a_name_or_keys() {
        let titles: HashSet<&str> = Command::ALL.iter().map(|c| c.title()).collect();
        assert_eq!(titles.len(), Command::ALL.len());
        let keyed = Command::ALL.iter().flat_map(|c| c.shortcut().into_iter().chain(c.other_shortcut())).count();
        let keys: HashSet<_> =
            Command::ALL.iter().flat_map(|c| c.shortcut().into_iter().chain(c.other_shortcut())).collect();
        assert_eq!(keys.len(), keyed);
    }
}
