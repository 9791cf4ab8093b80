//! Arrow keys in the menu bar.

use eframe::egui::{Context, FocusDirection, Id, Key, Modifiers, Popup, Vec2};

/// A menu as it was drawn.
pub(super) struct DrawnMenu {
    /// Id of its title in the menu bar.
    pub(super) title: Id,
    /// Id of its list of items.
    pub(super) popup: Id,
    /// Ids of its enabled items, in order; `None` while it is closed.
    pub(super) items: Option<Vec<Id>>,
}

/// Where egui keeps whether arrow keys have opened the open menu while the pointer rests.
fn opened_by_keys() -> Id {
    Id::new("menu opened by arrow keys")
}

/// Returns whether arrow keys have opened the open menu, and the pointer has not moved since: it may rest on another title.
pub(super) fn is_opened_by_keys(ctx: &Context) -> bool {
    let rests = Popup::is_any_open(ctx) && ctx.input(|input| input.pointer.delta() == Vec2::ZERO);
    let is_opened = rests && ctx.data(|data| data.get_temp(opened_by_keys())).unwrap_or(false);
    ctx.data_mut(|data| data.insert_temp(opened_by_keys(), is_opened));
    is_opened
}

/// Moves the focus through the items of the open menu with Up and Down, and opens the menu beside it with Left and Right.
pub(super) fn move_with_arrows(ctx: &Context, menus: &[DrawnMenu]) {
    let open = menus.iter().enumerate().find_map(|(number, menu)| Some((number, menu.items.as_ref()?)));
    let Some((number, items)) = open else { return };
    // A question may open while a menu is open, such as one about results that exist.
    if ctx.memory(|memory| memory.top_modal_layer().is_some()) {
        return;
    }
    let (up, down, left, right) = ctx.input_mut(|input| {
        let mut take = |key| input.consume_key(Modifiers::NONE, key);
        (take(Key::ArrowUp), take(Key::ArrowDown), take(Key::ArrowLeft), take(Key::ArrowRight))
    });
    if !(up || down || left || right) {
        return;
    }
    let mut focus = None;
    if up != down {
        let focused = ctx.memory(|memory| memory.focused());
        let from = items.iter().position(|item| Some(*item) == focused);
        focus = neighbor(from, items.len(), down).and_then(|to| items.get(to).copied());
    } else if left != right
        && let Some(menu) = neighbor(Some(number), menus.len(), right).and_then(|to| menus.get(to))
    {
        Popup::open_id(ctx, menu.popup);
        ctx.data_mut(|data| data.insert_temp(opened_by_keys(), true));
        focus = Some(menu.title);
    }
    ctx.memory_mut(|memory| {
        if let Some(id) = focus {
            memory.request_focus(id);
        }
        // Otherwise, the focus would also move to the nearest widget in this direction, which may be behind the menu.
        memory.move_focus(FocusDirection::None);
    });
}

/// The position after or before another one of `count`, where the first follows the last; without another one, the first or
/// last.
fn neighbor(from: Option<usize>, count: usize, forward: bool) -> Option<usize> {
    let last = count.checked_sub(1)?;
    Some(match (from, forward) {
        (None, true) => 0,
        (None, false) => last,
        (Some(from), true) if from >= last => 0,
        (Some(from), true) => from + 1,
        (Some(from), false) => from.checked_sub(1).unwrap_or(last),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_item_follows_the_last() {
        let forward = [None, Some(0), Some(1), Some(2)].map(|from| neighbor(from, 3, true));
        assert_eq!(forward, [Some(0), Some(1), Some(2), Some(0)]);
        let back = [None, Some(0), Some(1), Some(2)].map(|from| neighbor(from, 3, false));
        assert_eq!(back, [Some(2), Some(2), Some(0), Some(1)]);
        assert_eq!(neighbor(None, 0, true), None);
    }
}
