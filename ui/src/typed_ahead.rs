//! Text that is typed before the field for it has the focus: while frames are slow, several keys are pressed between the
//! shortcut that opens a dialog and the frame from which on the dialog takes them.

use eframe::egui::text_edit::TextEditState;
use eframe::egui::{Context, Event, Id, KeyboardShortcut};

/// Takes what was typed in this frame after the first press of a shortcut; `None` if that was not pressed. It is meant for the
/// dialog that the shortcut opens.
pub(crate) fn take_after(ctx: &Context, shortcut: &KeyboardShortcut) -> Option<Vec<Event>> {
    let is_shortcut = |event: &Event| match event {
        Event::Key { key, modifiers, pressed: true, .. } => {
            *key == shortcut.logical_key && modifiers.matches_logically(shortcut.modifiers)
        }
        _ => false,
    };
    let is_typed = |event: &Event| matches!(event, Event::Text(_) | Event::Paste(_) | Event::Key { pressed: true, .. });
    ctx.input_mut(|input| {
        let at = input.events.iter().position(is_shortcut)?;
        let after = input.events.split_off(at + 1);
        let (typed, others): (Vec<Event>, Vec<Event>) = after.into_iter().partition(is_typed);
        input.events.extend(others);
        Some(typed)
    })
}

/// Returns earlier events to the input, before those of this frame.
pub(crate) fn put_back(ctx: &Context, earlier: Vec<Event>) {
    ctx.input_mut(|input| {
        let events = std::mem::replace(&mut input.events, earlier);
        input.events.extend(events);
    });
}

/// Takes the text that was typed or pasted in this frame, for a field that is not drawn with the focus yet. Its cursor will be
/// at the end.
pub(crate) fn take_text(ctx: &Context, field: Id) -> String {
    let mut taken = String::new();
    ctx.input_mut(|input| {
        input.events.retain(|event| match event {
            Event::Text(text) | Event::Paste(text) => {
                taken.extend(text.chars().filter(|c| !c.is_control()));
                false
            }
            _ => true,
        });
    });
    if !taken.is_empty() {
        TextEditState::default().store(ctx, field);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use eframe::egui::{Key, Modifiers, RawInput};

    fn key(key: Key, modifiers: Modifiers) -> Event {
        Event::Key { key, physical_key: None, pressed: true, repeat: false, modifiers }
    }

    fn text(text: &str) -> Event {
        Event::Text(text.to_owned())
    }

    #[test]
    fn what_is_typed_after_a_shortcut_is_kept_for_the_next_frame_in_its_order() {
        let ctx = Context::default();
        let shortcut = KeyboardShortcut::new(Modifiers::COMMAND, Key::P);
        let letter = key(Key::A, Modifiers::NONE);
        let events =
            vec![text("before"), key(Key::P, Modifiers::COMMAND), letter.clone(), text("a"), Event::PointerGone];
        let mut kept = None;
        let _ = ctx.run_ui(RawInput { events, ..RawInput::default() }, |ui| {
            kept = take_after(ui.ctx(), &shortcut);
            let left = ui.input(|input| input.events.clone());
            assert_eq!(left, [text("before"), key(Key::P, Modifiers::COMMAND), Event::PointerGone]);
        });
        assert_eq!(kept, Some(vec![letter, text("a")]));
        let _ = ctx.run_ui(RawInput { events: vec![text("b\r")], ..RawInput::default() }, |ui| {
            assert_eq!(take_after(ui.ctx(), &shortcut), None);
            put_back(ui.ctx(), kept.take().unwrap_or_default());
            assert_eq!(take_text(ui.ctx(), Id::new("field")), "ab");
            assert_eq!(take_text(ui.ctx(), Id::new("field")), "");
        });
    }
}
