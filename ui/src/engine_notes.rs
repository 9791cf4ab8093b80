//! Notes and failures of the engine in the words of the window. The engine words them for the command line, too: they name
//! its options, and count time points from 0.

use crate::panels::capitalized;
use cytoscope_pipeline::Note;
use cytoscope_storage::setting::Setting;
use std::ops::Range;

/// What the window has in place of an option or command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InWindow {
    /// A control, by its name.
    Control(&'static str),
    /// Words for what the option sets, for which there is no control.
    Words(&'static str),
    /// Nothing: the option is kept.
    Nothing,
}

impl InWindow {
    /// The words that replace the option.
    fn words(self) -> Option<&'static str> {
        match self {
            Self::Control(words) | Self::Words(words) => Some(words),
            Self::Nothing => None,
        }
    }
}

/// Returns what the window has in place of an option or command.
fn in_place_of(setting: Setting) -> InWindow {
    use InWindow::{Control, Nothing, Words};
    match setting {
        Setting::AccuracyBudget => Control("\"Max. relative error\""),
        Setting::Architecture => Control("\"Architecture\""),
        Setting::Axes => Control("\"Axes…\""),
        Setting::Batch => Control("\"Batch size\""),
        Setting::Blend => Control("\"Blending\""),
        Setting::GaussianBlend => Control("Gaussian \"Blending\""),
        // The open stacks calibrate.
        Setting::Calibrate => Control("\"Open…\""),
        Setting::Channel => Control("\"Channel\""),
        Setting::Channels => Control("\"Channels\""),
        Setting::Compression => Control("\"Compression\""),
        Setting::Device => Control("\"Device\""),
        Setting::OnCpu => Control("the CPU"),
        Setting::OnCpuInF32 => Control("the CPU with the precision f32"),
        Setting::Diameter => Control("\"Object diameter\""),
        Setting::IgnoreLabel => Control("\"Ignore voxels with the label\""),
        Setting::Labels => Control("\"With labels of open stacks\""),
        Setting::MemoryBudget => Control("\"Memory budget\""),
        Setting::OutputTensor => Control("\"Output\""),
        Setting::Overlap => Control("\"Overlap\""),
        Setting::Precision => Control("\"Precision\""),
        Setting::Pred => Control("\"Predictions…\""),
        Setting::PredChannel => Control("\"Prediction channel\""),
        Setting::Preprocess => Control("\"Preprocessing\""),
        Setting::Resume => Control("\"Continue training\""),
        Setting::ResumeOnCpu | Setting::ResumeOnCpuInF32 => Control("\"Device\" and \"Continue training\""),
        Setting::Restart => Control("\"Stop…\", then \"Start training\","),
        Setting::Series => Control("the list below the name of the stack"),
        Setting::AllSeries => Control("the button that predicts all series"),
        Setting::Threads => Control("\"Threads\""),
        Setting::Truth => Control("\"Ground truth…\""),
        Setting::TruthChannel => Control("\"Ground truth channel\""),
        Setting::VoxelSize => Control("\"Voxel size…\""),
        Setting::ListDevices => Control("the devices under Predict > Models…"),
        Setting::SaveTuning => Control("\"Tune settings\""),
        // The profiler's advice sets it.
        Setting::Tile => Words("tile size"),
        Setting::Config
        | Setting::Force
        | Setting::FromScratch
        | Setting::Input
        | Setting::Json
        | Setting::License
        | Setting::Like
        | Setting::Mode
        | Setting::Objects
        | Setting::Out
        | Setting::OutputPreprocessed
        | Setting::Set
        | Setting::Table
        | Setting::Time
        | Setting::Trace => Nothing,
    }
}

/// Returns a note or failure with the controls of the window in place of options, and time points counted from 1. Advice in
/// parentheses about an option that the window lacks is left out.
pub(crate) fn in_window(note: &str) -> String {
    options_in_window(time_points_from_one(note))
}

/// Returns a text as [`in_window`] does, with its numbers of time points.
pub(crate) fn options_in_window(text: String) -> String {
    with_controls(without_missing(text))
}

/// Returns a failure of a search for training settings as [`failure_in_window`] returns it, with the buttons of the search in
/// place of those of a training run.
pub(crate) fn search_failure_in_window(message: &str, next_step: Option<&str>) -> String {
    let next_step = next_step.map(with_search_buttons);
    failure_in_window(&with_search_buttons(message), next_step.as_deref())
}

/// The text with the buttons of a search in place of the options that continue or restart it.
fn with_search_buttons(text: &str) -> String {
    let mut shown = text.to_owned();
    for (option, setting) in Setting::named_in(text).into_iter().rev() {
        match setting {
            Setting::Resume => shown.replace_range(option, "\"Continue search\""),
            Setting::Restart => shown.replace_range(option, "\"Search for settings\""),
            _ => {}
        }
    }
    shown
}

/// Returns a failure as [`in_window`] returns it. What to do next, which is the end of its message, gets a line of its own.
pub(crate) fn failure_in_window(message: &str, next_step: Option<&str>) -> String {
    let problem = next_step.and_then(|step| message.strip_suffix(step)?.strip_suffix("; "));
    match (problem, next_step) {
        (Some(problem), Some(step)) => format!("{}\n{}", in_window(problem), capitalized(&in_window(step))),
        _ => in_window(message),
    }
}

/// Returns a note with its message as [`in_window`] returns it.
pub(crate) fn note_in_window(note: &Note) -> Note {
    Note { level: note.level, message: in_window(&note.message) }
}

/// Returns the texts of notes as [`note_in_window`] returns these.
pub(crate) fn all_in_window(notes: &[Note]) -> Vec<String> {
    notes.iter().map(|note| note_in_window(note).to_string()).collect()
}

/// The text without the parentheses that name an option for which the window has no control.
fn without_missing(mut text: String) -> String {
    while let Some(range) = parentheses_of_missing(&text) {
        text.replace_range(range, "");
    }
    text
}

/// Returns the place of the first parentheses that name an option for which the window has no control, with the space before
/// them.
fn parentheses_of_missing(text: &str) -> Option<Range<usize>> {
    let named = Setting::named_in(text).into_iter();
    let mut missing = named.filter(|(_, setting)| !matches!(in_place_of(*setting), InWindow::Control(_)));
    missing.find_map(|(option, _)| {
        let before = text.get(..option.start)?;
        let start = before.rfind(" (").filter(|start| before.rfind(')').is_none_or(|closed| closed < *start))?;
        let end = text.get(option.end..)?.find(')')? + option.end;
        Some(start..end + 1)
    })
}

/// The text with controls in place of the options that it names.
fn with_controls(mut text: String) -> String {
    for (option, setting) in Setting::named_in(&text).into_iter().rev() {
        if let Some(words) = in_place_of(setting).words() {
            text.replace_range(option, words);
        }
    }
    text
}

/// The text with the numbers of time points increased by one.
pub(crate) fn time_points_from_one(text: &str) -> String {
    const BEFORE: &str = "time point ";
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((head, tail)) = rest.split_once(BEFORE) {
        let (number, after) = tail.split_at(tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len()));
        shown.push_str(head);
        shown.push_str(BEFORE);
        match number.parse::<usize>() {
            Ok(number) => shown.push_str(&number.saturating_add(1).to_string()),
            Err(_) => shown.push_str(number),
        }
        rest = after;
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_of_a_failure_has_a_line_of_its_own() {
        let message = "a.tif: time point 2 does not exist; it has 2; leave out the choice, or use --axes";
        assert_eq!(
            failure_in_window(message, Some("leave out the choice, or use --axes")),
            "a.tif: time point 3 does not exist; it has 2\nLeave out the choice, or use \"Axes…\""
        );
        for other in [None, Some("something else")] {
            assert_eq!(failure_in_window("the GPU failed; restart it", other), "the GPU failed; restart it");
        }
    }

    #[test]
    fn a_failed_search_names_its_own_buttons() {
        let message = "m.search.csv: row 2 cannot be read; use --restart instead of --resume";
        assert_eq!(
            search_failure_in_window(message, None),
            "m.search.csv: row 2 cannot be read; use \"Search for settings\" instead of \"Continue search\""
        );
        assert_eq!(
            search_failure_in_window(message, Some("use --restart instead of --resume")),
            "m.search.csv: row 2 cannot be read\nUse \"Search for settings\" instead of \"Continue search\""
        );
        let of_training = in_window(message);
        assert!(of_training.ends_with(" instead of \"Continue training\""), "{of_training}");
        // The window chooses the place of a search.
        let message =
            "m.training: it matches no trial; use --restart instead of --resume to discard it (another --out keeps it)";
        assert_eq!(
            search_failure_in_window(message, None),
            "m.training: it matches no trial; use \"Search for settings\" instead of \"Continue search\" to discard it"
        );
        let other = "set --precision to f32, at time point 0";
        assert_eq!(search_failure_in_window(other, None), in_window(other));
    }

    #[test]
    fn notes_name_controls_and_count_time_points_from_one() {
        assert_eq!(
            in_window("the voxel size along Z is unknown: 1 µm is assumed (set it with --voxel-size)"),
            "the voxel size along Z is unknown: 1 µm is assumed (set it with \"Voxel size…\")"
        );
        assert_eq!(
            in_window("there are 3 time points: only time point 0 is measured (choose another with --time)"),
            "there are 3 time points: only time point 1 is measured"
        );
        assert_eq!(
            in_window(
                "12.0 µm at time point 0, 9.0 µm at time point 9; 9.0 µm is used (use --time, or set --diameter)"
            ),
            "12.0 µm at time point 1, 9.0 µm at time point 10; 9.0 µm is used"
        );
        assert_eq!(
            in_window(
                "read from their channels (choose others with --channels); dna is used (choose another with --channel)"
            ),
            "read from their channels (choose others with \"Channels\"); dna is used (choose another with \"Channel\")"
        );
        assert_eq!(in_window("not read (--time reads it), 1 left"), "not read, 1 left");
        // An option outside of parentheses is kept; a later one in parentheses is not.
        assert_eq!(in_window("use --time (slow); 3 are left (--time removes them)"), "use --time (slow); 3 are left");
        assert_eq!(
            in_window("give a larger --memory-budget (or a smaller --tile), or close other programs"),
            "give a larger \"Memory budget\", or close other programs"
        );
        assert_eq!(in_window("--tile [8, 8, 8] is too small"), "tile size [8, 8, 8] is too small");
        assert_eq!(
            in_window("choose another device, such as --device cpu --precision f32"),
            "choose another device, such as the CPU with the precision f32"
        );
        assert_eq!(
            in_window("set --precision to f32, or choose a GPU with --device"),
            "set \"Precision\" to f32, or choose a GPU with \"Device\""
        );
        assert_eq!(
            in_window("continue on another device with --resume --device cpu"),
            "continue on another device with \"Device\" and \"Continue training\""
        );
        assert_eq!(
            in_window("there is no calibration data: give stacks with --calibrate"),
            "there is no calibration data: give stacks with \"Open…\""
        );
        assert_eq!(in_window("choose fewer objects (--objects)"), "choose fewer objects");
        assert_eq!(
            in_window("there are 3 series (choose another with --series, or all with --series all)"),
            "there are 3 series (choose another with the list below the name of the stack, or all with the button that \
             predicts all series)"
        );
        assert_eq!(
            in_window("see `cytoscope devices`, or run cytoscope tune --save again"),
            "see the devices under Predict > Models…, or run \"Tune settings\" again"
        );
        // Options of other programs and names of files.
        for other in [
            "a time point — no number (a--b); kept",
            "of one file (a.tif): use --time (slow)",
            "in Cellpose (--save_tif), with tf2onnx (python -m tf2onnx.convert --saved-model FOLDER --output FILE)",
        ] {
            assert_eq!(in_window(other), other);
        }
    }
}
