//! Views of the stack on screen: three cuts that share one cursor.

mod compositor;
pub mod layout;
pub mod pen;
pub mod scale_bar;
pub mod slice;
