//! Views of the stack on screen: three cuts and a volume that share one cursor.

mod compositor;
pub mod layout;
pub mod pen;
pub mod scale_bar;
pub mod slice;
pub mod volume;
