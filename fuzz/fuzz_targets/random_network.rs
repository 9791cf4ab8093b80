//! Generates a network from the bytes, in float and quantized, and compares the engine with the reference executor.
//!
//! `cargo fuzz run random_network -- -max_len=512 -timeout=20`
#![no_main]

#[path = "../../crates/engine-cpu/tests/common/agreement.rs"]
mod agreement;

use agreement::{Form, disagreement, graph};
use cytoscope_builders::random_network;
use cytoscope_kernels::{Isa, IsaName};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else { return };
    let all: Vec<Isa> = IsaName::ALL.into_iter().filter_map(Isa::available).collect();
    let isa = all[usize::from(first / 3) % all.len()];
    let network = random_network(bytes).expect("any bytes give a network");
    let form = [Form::Float, Form::Static, Form::Dynamic][usize::from(first % 3)];
    let Some(graph) = graph(&network, form) else { return };
    if let Some(how) = disagreement(&graph, &network.input, form, isa) {
        panic!("{how}");
    }
});
