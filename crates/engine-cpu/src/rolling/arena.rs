//! Places the buffers of a pass in one arena.

use super::flow;
use super::plane_storage::{Need, PlaneStorage};
use super::program::RollingProgram;
use crate::lower::arena::{self, Request};

/// Returns the first word of each buffer, and the words of the arena. Buffers of which no plane is kept from one slab to
/// the next share memory if they are used at different times within a slab. Borders are written only when a pass begins,
/// so buffers with borders share none.
pub(crate) fn place(program: &RollingProgram, needs: &[Need], storages: &[PlaneStorage]) -> (Vec<usize>, usize) {
    let end = program.nodes.len() + 1;
    let buffers = program.buffers.iter().zip(needs).zip(storages).zip(flow::lifetimes(&program.flow));
    let requests: Vec<Request> = buffers
        .map(|(((buffer, need), storage), (first, last))| {
            let is_shared = !need.is_kept && buffer.layout.halo == [0; 3];
            let (first, last) = if is_shared { (first, last) } else { (0, end) };
            Request { len: buffer.words(storage.capacity), first, last }
        })
        .collect();
    arena::place(&requests)
}
