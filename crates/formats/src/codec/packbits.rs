//! PackBits: run-length encoded bytes.

use super::{Codec, too_short};
use crate::error::Fault;

/// Decodes until `out` is full.
pub(super) fn decode(encoded: &[u8], out: &mut [u8]) -> Result<(), Fault> {
    let expected = out.len();
    let mut input = encoded;
    let mut done = 0;
    while done < expected {
        let Some((&head, rest)) = input.split_first() else { return Err(too_short(Codec::PackBits, done, expected)) };
        input = rest;
        if head == 128 {
            continue;
        }
        if head < 128 {
            let count = (usize::from(head) + 1).min(expected - done);
            let from = input.get(..count).ok_or_else(|| too_short(Codec::PackBits, done + input.len(), expected))?;
            if let Some(to) = out.get_mut(done..done + count) {
                to.copy_from_slice(from);
            }
            input = input.get(usize::from(head) + 1..).unwrap_or_default();
            done += count;
        } else {
            let count = (257 - usize::from(head)).min(expected - done);
            let Some((&byte, rest)) = input.split_first() else {
                return Err(too_short(Codec::PackBits, done, expected));
            };
            input = rest;
            if let Some(to) = out.get_mut(done..done + count) {
                to.fill(byte);
            }
            done += count;
        }
    }
    Ok(())
}
