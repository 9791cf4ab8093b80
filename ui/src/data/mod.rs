//! Image data on screen: planes, read on worker threads, and their display.

pub mod cache;
pub mod composite;
pub mod histogram;
pub mod levels;
pub mod live;
pub mod loader;
pub mod plane;
pub mod source;
#[cfg(test)]
pub(crate) mod test_planes;
