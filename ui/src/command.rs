//! Commands that the menus, the shortcuts and the palette share; `Workbench::execute` turns them into actions.

use crate::correct::tools::{EditAction, Tool};
use eframe::egui::{self, Key, KeyboardShortcut, Modifiers};
use egui_phosphor::regular as icon;

/// Defines [`Command`] and [`GENERAL`] from one list of commands, in the order of the shortcuts dialog.
macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A command of the window.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Command {
            $($(#[$doc])* $name,)*
            /// Select a tool for correcting labels.
            Tool(Tool),
            /// Run an edit action of the correction panel.
            Correct(EditAction),
        }

        /// The commands other than tools and edit actions, which have their own lists.
        const GENERAL: &[Command] = &[$(Command::$name),*];
    };
}

commands! {
    /// Choose files and open them.
    Open,
    /// Open the bundled sample.
    OpenSample,
    /// Choose a label image for the active document.
    OpenLabels,
    /// Choose a label image as ground truth.
    OpenTruth,
    /// Leave the page, or else close the active document.
    Close,
    /// Predict the active document.
    Predict,
    /// Predict all open documents.
    PredictAll,
    /// Open the training wizard.
    Train,
    /// Show the installed models.
    Models,
    /// Show the page for converting files.
    Convert,
    /// Show the page for scoring predictions.
    Evaluate,
    /// Cancel the running job.
    Cancel,
    /// Cancel the running prediction and those that wait.
    CancelPredictions,
    /// Show the next slice of the active view.
    NextSlice,
    /// Show the previous slice of the active view.
    PreviousSlice,
    /// Show the next time point.
    NextTime,
    /// Show the previous time point.
    PreviousTime,
    /// Start or stop playback of the slices.
    Play,
    /// Fit the stack into all views.
    Fit,
    /// Set the contrast limits from the current slice.
    AutoContrast,
    /// Show or hide labels.
    ToggleLabels,
    /// Cycle through outline, fill and both.
    NextLabelStyle,
    /// Show or hide the predicted map.
    ToggleMap,
    /// Show or hide the crosshair.
    ToggleCrosshair,
    /// Show or hide the scale bar.
    ToggleScaleBar,
    /// Compare with and without overlays left and right of a draggable line.
    ToggleSwipe,
    /// Draw a line and plot the values along it.
    ToggleLineProfile,
    /// Save a screenshot.
    Screenshot,
    /// Save the table of measured objects as CSV or Parquet.
    SaveTable,
    /// Save the object table in the form that AnnData reads.
    SaveAnnData,
    /// Save the surface of the selected object, or of all objects.
    SaveMesh,
    /// Measure the objects of the current labels.
    Measure,
    /// Show or hide the list of stacks.
    ToggleLibrary,
    /// Show or hide the task panel.
    ToggleTasks,
    /// Show or hide the profiler.
    ToggleProfiler,
    /// Choose a stored run and show it in the profiler.
    OpenRun,
    /// Show or hide the 3-D view.
    Toggle3d,
    /// Restore the default layout and settings.
    ResetLayout,
    /// Cycle through the system, light and dark theme.
    NextTheme,
    /// Open the command palette.
    Palette,
    /// Show the keyboard shortcuts.
    Shortcuts,
    /// Show the folder of the log files in the file manager.
    ShowLogFolder,
    /// Show the version and the license.
    About,
    /// Quit the application.
    Quit,
}

/// Number of all commands.
const COUNT: usize = GENERAL.len() + Tool::ALL.len() + EditAction::ALL.len();

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
    /// All commands, in the order of the shortcuts dialog: the general ones, the tools, the edit actions.
    pub const ALL: [Command; COUNT] = {
        let (tools, actions) = (GENERAL.len(), GENERAL.len() + Tool::ALL.len());
        let mut all = [Command::Open; COUNT];
        let mut i = 0;
        while i < COUNT {
            all[i] = if i < tools {
                GENERAL[i]
            } else if i < actions {
                Command::Tool(Tool::ALL[i - tools])
            } else {
                Command::Correct(EditAction::ALL[i - actions])
            };
            i += 1;
        }
        all
    };

    /// Title in menus and the palette.
    pub fn title(self) -> &'static str {
        match self {
            Command::Open => "Open…",
            Command::OpenSample => "Open the sample",
            Command::OpenLabels => "Add labels…",
            Command::OpenTruth => "Compare with ground truth…",
            Command::Close => "Close stack",
            Command::Predict => "Predict",
            Command::PredictAll => "Predict all open stacks",
            Command::Train => "Train a model…",
            Command::Models => "Models…",
            Command::Convert => "Convert files…",
            Command::Evaluate => "Evaluate predictions…",
            Command::Cancel => "Cancel job",
            Command::CancelPredictions => "Cancel all predictions",
            Command::NextSlice => "Next slice",
            Command::PreviousSlice => "Previous slice",
            Command::NextTime => "Next time point",
            Command::PreviousTime => "Previous time point",
            Command::Play => "Play slices",
            Command::Fit => "Fit views",
            Command::AutoContrast => "Automatic contrast",
            Command::ToggleLabels => "Show labels",
            Command::NextLabelStyle => "Next label style",
            Command::ToggleMap => "Show map",
            Command::ToggleCrosshair => "Show crosshair",
            Command::ToggleScaleBar => "Show scale bar",
            Command::ToggleSwipe => "Swipe to compare",
            Command::ToggleLineProfile => "Line profile",
            Command::Screenshot => "Save picture…",
            Command::SaveTable => "Save table…",
            Command::SaveAnnData => "Save table for AnnData…",
            Command::SaveMesh => "Save meshes…",
            Command::Measure => "Measure objects",
            Command::ToggleLibrary => "Show stacks",
            Command::ToggleTasks => "Show tools panel",
            Command::ToggleProfiler => "Show profiler",
            Command::OpenRun => "Open run…",
            Command::Toggle3d => "Show 3-D view",
            Command::ResetLayout => "Reset layout and settings…",
            Command::NextTheme => "Switch theme",
            Command::Palette => "Command palette…",
            Command::Shortcuts => "Keyboard shortcuts",
            Command::ShowLogFolder => "Show log folder",
            Command::About => "About Cytoscope",
            Command::Quit => "Quit",
            Command::Tool(tool) => tool.title(),
            Command::Correct(action) => action.title(),
        }
    }

    /// Icon, as a glyph of the icon font.
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
            Command::Models => icon::PACKAGE,
            Command::Convert => icon::SWAP,
            Command::Evaluate => icon::SCALES,
            Command::Cancel | Command::CancelPredictions => icon::STOP_CIRCLE,
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
            Command::ToggleLineProfile => icon::CHART_LINE,
            Command::Screenshot => icon::CAMERA,
            Command::SaveTable => icon::TABLE,
            Command::SaveAnnData => icon::TABLE,
            Command::SaveMesh => icon::POLYGON,
            Command::Measure => icon::RULER,
            Command::ToggleLibrary => icon::SIDEBAR_SIMPLE,
            Command::ToggleTasks => icon::SLIDERS_HORIZONTAL,
            Command::ToggleProfiler => icon::CHART_BAR,
            Command::OpenRun => icon::FOLDER_OPEN,
            Command::Toggle3d => icon::CUBE,
            Command::ResetLayout => icon::ARROW_COUNTER_CLOCKWISE,
            Command::NextTheme => icon::SUN_DIM,
            Command::Palette => icon::COMMAND,
            Command::Shortcuts => icon::KEYBOARD,
            Command::ShowLogFolder => icon::FOLDER_OPEN,
            Command::About => icon::INFO,
            Command::Quit => icon::SIGN_OUT,
            Command::Tool(tool) => tool.icon(),
            Command::Correct(action) => action.icon(),
        }
    }

    /// Returns the keyboard shortcut of the command; `None` if it has none.
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
            Command::ToggleLineProfile => plain(Key::R),
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
            Command::Correct(action) => action.shortcut(),
            Command::Measure
            | Command::CancelPredictions
            | Command::SaveAnnData
            | Command::SaveMesh
            | Command::Models
            | Command::Convert
            | Command::Evaluate
            | Command::OpenRun
            | Command::ResetLayout
            | Command::NextTheme
            | Command::ShowLogFolder
            | Command::About => None,
        }
    }

    /// Whether the command only changes what the views and the panels beside them show. Pages hide them.
    pub(crate) fn changes_views(self) -> bool {
        matches!(
            self,
            Command::NextSlice
                | Command::PreviousSlice
                | Command::NextTime
                | Command::PreviousTime
                | Command::Play
                | Command::Fit
                | Command::AutoContrast
                | Command::ToggleLabels
                | Command::NextLabelStyle
                | Command::ToggleMap
                | Command::ToggleCrosshair
                | Command::ToggleScaleBar
                | Command::ToggleSwipe
                | Command::ToggleLineProfile
                | Command::ToggleLibrary
                | Command::ToggleTasks
                | Command::Toggle3d
        )
    }

    /// Whether the command opens a dialog with a field that takes what is typed next: the palette, or the window's own file
    /// dialog.
    pub(crate) fn opens_field(self) -> bool {
        matches!(self, Command::Palette | Command::Open | Command::OpenLabels | Command::OpenTruth | Command::SaveTable)
    }

    /// Alternative shortcut for the same command.
    pub fn other_shortcut(self) -> Option<KeyboardShortcut> {
        match self {
            Command::Correct(action) => action.other_shortcut(),
            _ => None,
        }
    }
}

/// A shortcut as text, with the characters that keyboards show, such as `Ctrl+.`.
pub(crate) fn keys_text(ctx: &egui::Context, shortcut: &KeyboardShortcut) -> String {
    let (text, key) = (ctx.format_shortcut(shortcut), shortcut.logical_key);
    match text.strip_suffix(key.name()) {
        Some(modifiers) => format!("{modifiers}{}", key.symbol_or_name()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_have_the_characters_of_keyboards() {
        let ctx = egui::Context::default();
        ctx.set_os(egui::os::OperatingSystem::Nix);
        let texts = [Command::NextTime, Command::Shortcuts, Command::NextSlice, Command::Fit]
            .map(|command| command.shortcut().map(|shortcut| keys_text(&ctx, &shortcut)));
        assert_eq!(texts.each_ref().map(Option::as_deref), ["]", "?", "PageUp", "F"].map(Some));
    }

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
