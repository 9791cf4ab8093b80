//! The messages of panics.

use std::any::Any;

/// Returns the message of a panic that was caught.
///
/// ```
/// use cytoscope_storage::panic_text;
/// use std::panic::catch_unwind;
///
/// let panic = catch_unwind(|| -> u8 { panic!("{} is gone", "it") }).unwrap_err();
/// assert_eq!(panic_text(&*panic), "it is gone");
/// ```
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}
