//! Views of the active document: three slice views and a 3-D view that share one crosshair.

mod compositor;
mod decor;
pub mod layout;
pub mod pen;
mod placement;
pub mod scale_bar;
pub mod slice;
pub mod volume;
