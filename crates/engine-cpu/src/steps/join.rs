//! Concatenations along the channels whose parts are not written in place.

use super::bytes::Translate;
use super::voxels::Copy;
use crate::context::{Context, StepError, bytes, bytes_mut, for_each_image};
use crate::step::{Elem, StepOp};
use cytoscope_kernels::join::{self, Part};

/// Returns the step that copies a part of a concatenation into its place, converted by its table, if any.
pub(crate) fn copy_part(input: usize, table: Option<Box<[u8; 256]>>, output: usize) -> Box<dyn StepOp> {
    match table {
        None => Box::new(Copy { input, output }),
        Some(table) => Box::new(Translate { input, table, output }),
    }
}

/// Copies the channels of all inputs, one after the other.
#[derive(Debug)]
pub(crate) struct Join {
    /// Slots in the order of their channels in the output.
    pub inputs: Vec<usize>,
    /// For each input, the conversion of its bytes, if its quantization parameters differ from those of the output.
    pub tables: Vec<Option<Box<[u8; 256]>>>,
    /// Slot that is written.
    pub output: usize,
}

impl StepOp for Join {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let to = context.slot(self.output)?;
        let from = self.inputs.iter().map(|input| context.slot(*input)).collect::<Result<Vec<_>, _>>()?;
        for_each_image(context.arena, &to, |image, target, split| {
            let words = from.iter().map(|part| split.image(part, image)).collect::<Result<Vec<_>, _>>()?;
            let parts = words.iter().copied().zip(&from);
            if let Elem::U8 { zero_point } = to.elem {
                let parts: Vec<Part<'_, u8>> =
                    parts.map(|(words, part)| (bytes(words, part.layout.len()), &part.layout)).collect();
                let convert = |part: usize, byte: u8| match self.tables.get(part) {
                    Some(Some(table)) => table[usize::from(byte)],
                    _ => byte,
                };
                join::join(&parts, zero_point, convert, bytes_mut(target, to.layout.len()), &to.layout)?;
            } else {
                let parts: Vec<Part<'_, f32>> = parts.map(|(words, part)| (words, &part.layout)).collect();
                join::join(&parts, 0.0, |_, value| value, target, &to.layout)?;
            }
            Ok(())
        })
    }
}
