//! Failures of corrections, as the window shows them.

use crate::engine_notes::message_in_window;
use crate::panels::{capitalized, with_stop};
use cytoscope_corrections::CorrectionError;
use cytoscope_storage::message::Message;

/// Returns what is wrong and, on its own line, what to do next, in the words of the window.
pub(super) fn failure_text(error: &CorrectionError) -> String {
    let text = message_in_window(&Message::of(error));
    match text.rsplit_once("; ") {
        Some((problem, step)) => format!("{}\n{}", with_stop(problem), with_stop(&capitalized(step))),
        None => with_stop(&text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_has_its_own_line() {
        let error = CorrectionError::OutOfBounds { what: "the seed", at: vec![9, 0, 0], shape_zyx: [3, 4, 5] };
        let shown = "the seed [9, 0, 0] is outside the volume of Z, Y, X = [3, 4, 5].\nChoose a position inside.";
        assert_eq!(failure_text(&error), shown);
    }
}
