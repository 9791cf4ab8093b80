//! Notes and failures of the engine in the words of the window. The engine words them for the command line, too: they name
//! its options, and count time points from 0.

use cytoscope_pipeline::Note;

/// Options of the command line that notes and failures name, with what the window has in their place. An option whose name
/// continues that of another one precedes it.
const IN_WINDOW: [(&str, &str); 27] = [
    ("--voxel-size", "\"Voxel size…\""),
    ("--axes", "\"Axes…\""),
    ("--diameter", "\"Object diameter\""),
    ("--channels", "\"Channels\""),
    ("--channel", "\"Channel\""),
    ("--pred-channel", "\"Prediction channel\""),
    ("--truth-channel", "\"Ground truth channel\""),
    ("--series all", "the button that predicts all series"),
    ("--series", "the list below the name of the stack"),
    ("--output-tensor", "\"Output\""),
    ("--memory-budget", "\"Memory budget\""),
    ("--blend gaussian", "Gaussian \"Blending\""),
    ("--overlap", "\"Overlap\""),
    ("--ignore-label", "\"Ignore voxels with the label\""),
    (" or a smaller --tile", ""),
    ("--tile", "the tile"),
    ("--preprocess", "\"Preprocessing\""),
    ("--compression", "\"Compression\""),
    ("--architecture", "\"Architecture\""),
    ("with --calibrate DIR", "by opening them"),
    ("with --calibrate", "by opening them"),
    (" with --objects", ""),
    ("run `cytoscope devices`", "see the devices under Predict > Models…"),
    ("run cytoscope tune --save again", "use \"Tune settings\" again"),
    ("--device cpu --precision f32", "the CPU with the precision f32"),
    ("--device cpu", "the CPU"),
    ("--device", "\"Device\""),
];

/// Returns a note or failure with the controls of the window in place of options, and time points counted from 1. Advice in
/// parentheses about an option that the window lacks is left out.
pub(crate) fn in_window(note: &str) -> String {
    let named = IN_WINDOW.iter().fold(note.to_owned(), |text, (option, control)| text.replace(option, control));
    counted_from_one(&without_options(named))
}

/// Returns a note with its message as [`in_window`] returns it.
pub(crate) fn note_in_window(note: &Note) -> Note {
    Note { level: note.level, message: in_window(&note.message) }
}

/// Returns the texts of notes as [`note_in_window`] returns these.
pub(crate) fn all_in_window(notes: &[Note]) -> Vec<String> {
    notes.iter().map(|note| note_in_window(note).to_string()).collect()
}

/// The text without the parentheses that name an option.
fn without_options(mut text: String) -> String {
    let mut from = 0;
    while let Some(option) = next_option(&text, from) {
        // The parenthesis may begin with the option.
        let (before, after) = text.split_at(option + 1);
        let start = before.rfind(" (").filter(|start| before.rfind(')').is_none_or(|closed| closed < *start));
        let end = after.find(')').map(|end| before.len() + end);
        from = match (start, end) {
            (Some(start), Some(end)) => {
                text.replace_range(start..=end, "");
                start
            }
            _ => option + 1,
        };
    }
    text
}

/// Returns the position before the next option from a position on.
fn next_option(text: &str, from: usize) -> Option<usize> {
    let rest = text.get(from..)?;
    let at = [" --", "(--"].into_iter().filter_map(|beginning| rest.find(beginning)).min()?;
    Some(from + at)
}

/// The text with the numbers of time points increased by one.
fn counted_from_one(text: &str) -> String {
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
        assert_eq!(in_window("not read (--keep reads it), 1 left"), "not read, 1 left");
        // An option outside of parentheses is kept; a later one in parentheses is not.
        assert_eq!(in_window("use --keep (slow); 3 are left (--drop removes them)"), "use --keep (slow); 3 are left");
        assert_eq!(
            in_window("give a larger --memory-budget or a smaller --tile, or close other programs"),
            "give a larger \"Memory budget\", or close other programs"
        );
        assert_eq!(
            in_window("choose another device, such as --device cpu --precision f32"),
            "choose another device, such as the CPU with the precision f32"
        );
        assert_eq!(
            in_window("set the precision to f32 (--precision f32), or choose a GPU with --device"),
            "set the precision to f32, or choose a GPU with \"Device\""
        );
        assert_eq!(
            in_window("there is no calibration data: give stacks with --calibrate"),
            "there is no calibration data: give stacks by opening them"
        );
        assert_eq!(in_window("choose fewer objects with --objects"), "choose fewer objects");
        for other in ["a time point — no number (a--b); kept", "of one file (a.tif): use --keep (slow)"] {
            assert_eq!(in_window(other), other);
        }
    }
}
