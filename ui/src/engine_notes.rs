//! Notes and failures of the engine in the words of the window. The engine words them for the command line, too: they name
//! its options, and count time points from 0. A message keeps both beside its text.

use crate::panels::{capitalized, with_stop};
use cytoscope_pipeline::Note;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::Setting;
use cytoscope_storage::setting::data::DataSetting;
use std::borrow::Cow;
use std::ops::Range;

/// Title of the settings of the files on the Data page of the wizard.
pub(crate) const FILE_SETTINGS: &str = "Channels and metadata of the files";

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
        Setting::IgnoreLabel => Control("\"Ignore label\""),
        Setting::Input => Control("\"Inputs in files\""),
        Setting::Labels => Control("\"With labels of open stacks\""),
        Setting::License => Control("\"License\""),
        Setting::Like => Control("\"Stack of the regions…\""),
        Setting::MemoryBudget => Control("\"Memory budget\""),
        Setting::OutputTensor => Control("\"Output\""),
        Setting::Overlap => Control("\"Overlap\""),
        Setting::Precision => Control("\"Precision\""),
        Setting::Pred => Control("\"Prediction folder…\""),
        Setting::PredChannel => Control("\"Prediction channel\""),
        Setting::Preprocess => Control("\"Preprocessing\""),
        Setting::Crop => Control("\"Preprocessed copy\" with crop"),
        Setting::Resume => Control("\"Continue training\""),
        Setting::ResumeOnCpu | Setting::ResumeOnCpuInF32 => Control("\"Device\" and \"Continue training\""),
        Setting::Restart => Control("\"Stop…\", then \"Start training\","),
        Setting::Series => Control("the list below the name of the stack"),
        Setting::AllSeries => Control("the button that predicts all series"),
        Setting::Threads => Control("\"Threads\""),
        Setting::Truth => Control("\"Ground truth folder…\""),
        Setting::TruthChannel => Control("\"Ground truth channel\""),
        Setting::VoxelSize => Control("\"Voxel size…\""),
        Setting::ListDevices => Control("the devices under Predict > Models…"),
        Setting::SaveTuning => Control("\"Tune settings\""),
        Setting::Import => Control("\"Open model file…\" under Predict > Models…"),
        Setting::Provenance => Control("\"How was this made?\""),
        Setting::Quantize => Control("\"Quantize\" under Predict > Models…"),
        Setting::WithoutBlend => Control("set \"Blending\" to Auto"),
        Setting::SetAccumulate => Control("and \"Batches per step\" "),
        Setting::SetMemoryLimit => Control("\"Memory limit\" "),
        Setting::SetAnyMemoryLimit => Control("\"Memory limit\""),
        Setting::SetWorkers => Control("\"Data workers\" "),
        // The wizard takes single settings of a training run.
        Setting::Config | Setting::Set => Control("\"Setting\""),
        // The profiler's advice sets it.
        Setting::Tile => Words("tile size"),
        Setting::Force
        | Setting::FromScratch
        | Setting::Json
        | Setting::Mode
        | Setting::Objects
        | Setting::Out
        | Setting::OutputPreprocessed
        | Setting::Segment
        | Setting::Table
        | Setting::Time
        | Setting::Trace => Nothing,
    }
}

/// Returns what the window has in place of an option or command in messages of a search for training settings, which has
/// its own buttons to continue and to restart.
fn in_place_of_search(setting: Setting) -> InWindow {
    match setting {
        Setting::Resume => InWindow::Control("\"Continue search\""),
        Setting::Restart => InWindow::Control("\"Search for settings\""),
        Setting::ResumeOnCpu | Setting::ResumeOnCpuInF32 => InWindow::Control("\"Device\" and \"Continue search\""),
        other => in_place_of(other),
    }
}

/// Returns what the window has in place of an option or command in messages of a recorded job that is run again: the wizard does
/// not continue a training run that is not its own.
fn in_place_of_rerun(setting: Setting) -> InWindow {
    use InWindow::Words;
    match setting {
        Setting::Resume => Words("cytoscope train --resume on the command line"),
        Setting::Restart => Words("cytoscope train --restart on the command line"),
        Setting::ResumeOnCpu => Words("cytoscope train --resume --device cpu on the command line"),
        Setting::ResumeOnCpuInF32 => Words("cytoscope train --resume --device cpu --precision f32 on the command line"),
        other => in_place_of(other),
    }
}

/// Returns what the window has in place of an option or command in notes on scores, whose page has a field for the series.
fn in_place_of_scoring(setting: Setting) -> InWindow {
    match setting {
        Setting::Series => InWindow::Control("\"Series\""),
        other => in_place_of(other),
    }
}

/// Returns what the window has in place of an option or command in notes on conversions, whose page converts all series.
fn in_place_of_converting(setting: Setting) -> InWindow {
    match setting {
        Setting::AllSeries => InWindow::Control("\"All series\""),
        other => in_place_of(other),
    }
}

/// Returns the words of the Data page of the wizard for a setting of the training data.
fn on_data_page(setting: DataSetting) -> Cow<'static, str> {
    Cow::Borrowed(match setting {
        DataSetting::Axes => "\"Axes\"",
        DataSetting::Foreground => "\"Foreground only\"",
        DataSetting::IgnoreLabel => "\"Ignore label\"",
        DataSetting::ImageChannel => "\"Image channel\"",
        DataSetting::ImageChannels => "\"Input channels\"",
        DataSetting::InSettings => return Cow::Owned(format!("under \"{FILE_SETTINGS}\"")),
        DataSetting::LabelsChannel => "\"Label image\"",
        DataSetting::SameFile => "\"Image and target in one file\"",
        DataSetting::Series => "\"Series\"",
        DataSetting::SpacingOrder => "\"nnU-Net spacing\"",
        DataSetting::SplitColumn => "\"Split column\"",
        DataSetting::TargetChannel => "\"Target channel\"",
        DataSetting::Targets => "\"Stains\"",
        DataSetting::Time => "\"Time point\"",
        DataSetting::VoxelUm => "\"Voxel size\"",
    })
}

/// Returns a message with the controls of the window in place of the options that it names, and time points counted from 1.
/// Advice in parentheses about an option that the window lacks is left out.
pub(crate) fn message_in_window(message: &Message) -> String {
    with_controls(message, in_place_of, |_| None)
}

/// Returns a message about training data as [`message_in_window`] returns it, with the names of the Data page in place of the
/// settings of the data.
pub(crate) fn data_message_in_window(message: &Message) -> String {
    with_controls(message, in_place_of, |setting| Some(on_data_page(setting)))
}

/// Returns a failure of a search for training settings as [`failure_in_window`] returns it, with the buttons of the search in
/// place of those of a training run.
pub(crate) fn search_failure_in_window(message: &Message, next_step: Option<&str>) -> String {
    failure_with_controls(message, next_step, in_place_of_search)
}

/// Returns a failure of a recorded job that is run again as [`failure_in_window`] returns it, with commands in place of the
/// buttons of the training wizard.
pub(crate) fn rerun_failure_in_window(message: &Message, next_step: Option<&str>) -> String {
    failure_with_controls(message, next_step, in_place_of_rerun)
}

/// Returns a failure as [`message_in_window`] returns it, as a sentence. What to do next, which is the end of its message, gets
/// its own line.
pub(crate) fn failure_in_window(message: &Message, next_step: Option<&str>) -> String {
    failure_with_controls(message, next_step, in_place_of)
}

fn failure_with_controls(message: &Message, next_step: Option<&str>, in_place: fn(Setting) -> InWindow) -> String {
    let shown = |message: &Message| with_controls(message, in_place, |_| None);
    let parts = next_step.and_then(|step| {
        let problem = message.strip_suffix(step)?;
        let problem = problem.strip_suffix("; ")?;
        let (problem, _) = message.split_at(problem.len())?;
        let (_, step) = message.split_at(message.len() - step.len())?;
        Some((problem, step))
    });
    match parts {
        Some((problem, step)) => format!("{}\n{}", with_stop(&shown(&problem)), with_stop(&capitalized(&shown(&step)))),
        None => with_stop(&shown(message)),
    }
}

/// Returns a note with its message as [`message_in_window`] returns it.
pub(crate) fn note_in_window(note: &Note) -> Note {
    Note { level: note.level, message: message_in_window(&note.message).into() }
}

/// Returns a note of a recorded job that is run again as [`note_in_window`] returns it, with commands in place of the buttons of
/// the training wizard.
pub(crate) fn rerun_note_in_window(note: &Note) -> Note {
    Note { level: note.level, message: with_controls(&note.message, in_place_of_rerun, |_| None).into() }
}

/// Returns a note on scores as [`note_in_window`] returns it, with the controls of the page for scoring.
pub(crate) fn scoring_note_in_window(note: &Note) -> Note {
    Note { level: note.level, message: with_controls(&note.message, in_place_of_scoring, |_| None).into() }
}

/// Returns a note on a conversion as [`note_in_window`] returns it, with the controls of the page for converting.
pub(crate) fn converting_note_in_window(note: &Note) -> Note {
    Note { level: note.level, message: with_controls(&note.message, in_place_of_converting, |_| None).into() }
}

/// Returns the texts of notes as [`note_in_window`] returns these.
pub(crate) fn all_in_window(notes: &[Note]) -> Vec<String> {
    notes.iter().map(|note| note_in_window(note).to_string()).collect()
}

/// Returns a message in which `in_place` replaces the options that it names, `of_data` the settings of training data
/// for which it has words, and time points are counted from 1. Parentheses that name an option for which the window has
/// no control are left out.
fn with_controls(
    message: &Message,
    in_place: fn(Setting) -> InWindow,
    of_data: fn(DataSetting) -> Option<Cow<'static, str>>,
) -> String {
    let missing = message.settings().filter(|(_, setting)| !matches!(in_place(*setting), InWindow::Control(_)));
    let left_out = missing.filter_map(|(name, _)| Some((parentheses_around(message, &name)?, Cow::Borrowed(""))));
    let named =
        message.settings().filter_map(|(name, setting)| Some((name, Cow::Borrowed(in_place(setting).words()?))));
    let of_data = message.data_settings().filter_map(|(name, setting)| Some((name, of_data(setting)?)));
    let times =
        message.time_points().map(|(number, time)| (number, Cow::<str>::Owned(time.saturating_add(1).to_string())));
    let mut replaced: Vec<(Range<usize>, Cow<'static, str>)> =
        left_out.chain(named).chain(of_data).chain(times).collect();
    replaced.sort_by_key(|(range, _)| range.start);
    let (mut shown, mut end) = (String::with_capacity(message.len()), 0);
    for (range, words) in replaced {
        // A name in parentheses that were left out has no text before it.
        let Some(before) = message.get(end..range.start) else { continue };
        shown.push_str(before);
        shown.push_str(&words);
        end = range.end;
    }
    if let Some(rest) = message.get(end..) {
        shown.push_str(rest);
    }
    shown
}

/// Returns the place of the parentheses around a `name` in a text, with the space before them; `None` if there are none.
fn parentheses_around(text: &str, name: &Range<usize>) -> Option<Range<usize>> {
    let before = text.get(..name.start)?;
    let start = before.rfind(" (").filter(|start| before.rfind(')').is_none_or(|closed| closed < *start))?;
    let end = text.get(name.end..)?.find(')')? + name.end;
    Some(start..end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_engine::EngineError;
    use cytoscope_model_package::PackageError;
    use cytoscope_storage::message;
    use cytoscope_storage::message::TimePoint;
    use cytoscope_storage::setting::data::{self, IN_SETTINGS};
    use cytoscope_storage::setting::{ALL_SERIES, AXES, OUT, PRECISION, RESTART, RESUME, RESUME_ON_CPU, SERIES, TIME};

    fn in_window(text: &str) -> String {
        message_in_window(&Message::parse(text))
    }

    #[test]
    fn the_next_step_of_a_failure_has_a_line_of_its_own() {
        let time = TimePoint(2);
        let message =
            message!("a.tif: time point {time} does not exist; it has 2; leave out the choice, or use {AXES}");
        assert_eq!(
            failure_in_window(&message, Some("leave out the choice, or use --axes")),
            "a.tif: time point 3 does not exist; it has 2.\nLeave out the choice, or use \"Axes…\"."
        );
        let message = Message::from("no file was given; give its name");
        assert_eq!(failure_in_window(&message, Some("give its name")), "no file was given.\nGive its name.");
        let message = Message::from("the GPU failed; restart it");
        for other in [None, Some("something else")] {
            assert_eq!(failure_in_window(&message, other), "the GPU failed; restart it.");
        }
    }

    #[test]
    fn notes_on_scores_name_the_series_field_of_their_page() {
        let note = Note::info(message!("there are 3 series (choose another with {SERIES} or {AXES})"));
        let shown = scoring_note_in_window(&note).message;
        assert_eq!(shown.as_str(), "there are 3 series (choose another with \"Series\" or \"Axes…\")");
    }

    #[test]
    fn notes_on_conversions_name_the_controls_of_their_page() {
        let note = Note::info(message!("there are 3 series (choose another with {SERIES}, or all with {ALL_SERIES})"));
        let shown = converting_note_in_window(&note).message;
        let expected = "there are 3 series (choose another with the list below the name of the stack, or all with \"All \
                        series\")";
        assert_eq!(shown.as_str(), expected);
        assert_eq!(in_window("leave out --like"), "leave out \"Stack of the regions…\"");
    }

    #[test]
    fn a_training_run_from_a_record_is_continued_on_the_command_line() {
        let message = message!("m.training: it is unfinished; use {RESUME} to continue it, or {RESTART} to discard it");
        assert_eq!(
            rerun_failure_in_window(&message, Some("use --resume to continue it, or --restart to discard it")),
            "m.training: it is unfinished.\nUse cytoscope train --resume on the command line to continue it, or cytoscope \
             train --restart on the command line to discard it."
        );
        let note = Note::info(message!("it is kept: continue on another device with {RESUME_ON_CPU}"));
        let shown = rerun_note_in_window(&note).message;
        let command = "cytoscope train --resume --device cpu on the command line";
        assert_eq!(shown.as_str(), format!("it is kept: continue on another device with {command}"));
    }

    #[test]
    fn a_failed_search_names_its_own_buttons() {
        let message = message!("m.search.csv: row 2 cannot be read; use {RESTART} instead of {RESUME}");
        assert_eq!(
            search_failure_in_window(&message, None),
            "m.search.csv: row 2 cannot be read; use \"Search for settings\" instead of \"Continue search\"."
        );
        assert_eq!(
            search_failure_in_window(&message, Some("use --restart instead of --resume")),
            "m.search.csv: row 2 cannot be read.\nUse \"Search for settings\" instead of \"Continue search\"."
        );
        let shown_message = message_in_window(&message);
        assert!(shown_message.ends_with(" instead of \"Continue training\""), "{shown_message}");
        // The window chooses the place of a search.
        let message = message!(
            "m.training: it matches no trial; use {RESTART} instead of {RESUME} to discard it (another {OUT} keeps it)"
        );
        assert_eq!(
            search_failure_in_window(&message, None),
            "m.training: it matches no trial; use \"Search for settings\" instead of \"Continue search\" to discard it."
        );
        let message = message!("it is lost; continue on another device with {RESUME_ON_CPU}");
        assert_eq!(
            search_failure_in_window(&message, None),
            "it is lost; continue on another device with \"Device\" and \"Continue search\"."
        );
        let other = message!("set {PRECISION} to f32, at time point {}", TimePoint(0));
        assert_eq!(search_failure_in_window(&other, None), format!("{}.", message_in_window(&other)));
    }

    #[test]
    fn only_the_settings_and_time_points_of_a_message_are_replaced() {
        let (path, time) = ("time point 3 (--axes b.tif) --tile", TimePoint(9));
        let message = message!("{path}: time point {time} of 12 is dark (see {TIME}); use {AXES}");
        assert_eq!(
            message_in_window(&message),
            "time point 3 (--axes b.tif) --tile: time point 10 of 12 is dark; use \"Axes…\""
        );
        let message = message!("the first is dark (choose {TIME} {time}); use {AXES}, at time point {time}");
        assert_eq!(message_in_window(&message), "the first is dark; use \"Axes…\", at time point 10");
    }

    #[test]
    fn messages_about_data_name_the_settings_of_the_page() {
        let place = "under \"Channels and metadata of the files\"";
        let message =
            message!("set {} {IN_SETTINGS} to one of 0 to 9, or {} to \"ZYX\"", data::IMAGE_CHANNEL, data::AXES);
        let shown = format!("set \"Image channel\" {place} to one of 0 to 9, or \"Axes\" to \"ZYX\"");
        assert_eq!(data_message_in_window(&message), shown);
        let message = message!("choose a foreground target ({})", data::FOREGROUND);
        assert_eq!(message.as_str(), "choose a foreground target (target.kind = \"semantic\")");
        assert_eq!(data_message_in_window(&message), "choose a foreground target (\"Foreground only\")");
        let message = message!("set {} {IN_SETTINGS}", data::AXES);
        // Elsewhere, the settings are those of a file.
        assert_eq!(message_in_window(&message), message.as_str());
        let [file, channels, target] = [data::SAME_FILE, data::IMAGE_CHANNELS, data::TARGET_CHANNEL];
        assert_eq!(
            data_message_in_window(&message!("set {file}, {channels} and {target} {IN_SETTINGS}")),
            format!("set \"Image and target in one file\", \"Input channels\" and \"Target channel\" {place}")
        );
        // A name of a file that reads like a setting, and an option of the command line.
        assert_eq!(
            data_message_in_window(&message!("data.axes in the settings: give the axes ({AXES}), or use {TIME}")),
            "data.axes in the settings: give the axes (\"Axes…\"), or use --time"
        );
        let (first, last) = (TimePoint(0), TimePoint(1));
        let message = message!("set {} {IN_SETTINGS} to one of {first} to {last}", data::TIME);
        assert_eq!(data_message_in_window(&message), format!("set \"Time point\" {place} to one of 1 to 2"));
    }

    #[test]
    fn notes_name_controls() {
        assert_eq!(
            in_window("the voxel size along Z is unknown: 1 µm is assumed (set it with --voxel-size)"),
            "the voxel size along Z is unknown: 1 µm is assumed (set it with \"Voxel size…\")"
        );
        assert_eq!(
            in_window("there are 3 time points: only time point 0 is measured (choose another with --time)"),
            "there are 3 time points: only time point 0 is measured"
        );
        assert_eq!(
            in_window(
                "12.0 µm at time point 0, 9.0 µm at time point 9; 9.0 µm is used (use --time, or set --diameter)"
            ),
            "12.0 µm at time point 0, 9.0 µm at time point 9; 9.0 µm is used"
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
        assert_eq!(in_window("set normalize in --config"), "set normalize in \"Setting\"");
        // Only a copy takes a crop.
        assert_eq!(
            in_window("add the step invert in --preprocess, or crop the stack (--preprocess crop:y=2-8:x=0-9)"),
            "add the step invert in \"Preprocessing\", or crop the stack (\"Preprocessed copy\" with crop:y=2-8:x=0-9)"
        );
        assert_eq!(
            in_window("there are 3 series (choose another with --series, or all with --series all)"),
            "there are 3 series (choose another with the list below the name of the stack, or all with the button that \
             predicts all series)"
        );
        assert_eq!(
            in_window("see `cytoscope devices`, or run cytoscope tune --save again"),
            "see the devices under Predict > Models…, or run \"Tune settings\" again"
        );
        assert_eq!(
            in_window("quantize with cytoscope quantize, or train with quantization (--mode qat)"),
            "quantize with \"Quantize\" under Predict > Models…, or train with quantization"
        );
        assert_eq!(
            in_window("convert a probability map to labels (cytoscope segment); see cytoscope provenance"),
            "convert a probability map to labels; see \"How was this made?\""
        );
        let error = PackageError::NotAPackage { path: "a.txt".into() };
        let shown = message_in_window(&Message::of(&error));
        assert!(shown.contains("; \"Open model file…\" under Predict > Models… converts PyTorch"), "{shown}");
        let error = EngineError::NotQuantized { engine: "cpu" };
        let shown = message_in_window(&Message::of(&error));
        assert!(shown.ends_with("with \"Quantize\" under Predict > Models…, or choose f32"), "{shown}");
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
