//! Random networks: the engine is compared with the reference executor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "common/agreement.rs"]
mod agreement;
#[path = "common/isas.rs"]
mod isas;

use agreement::{Form, disagreement, disagreement_with, graph};
use cytoscope_builders::{RandomNetwork, random_bytes, random_network};
use cytoscope_engine_cpu::Optimizations;
use cytoscope_kernels::Isa;
use isas::isas;

/// Number of random networks.
const NETWORKS: u64 = 2_000;

fn network(seed: u64) -> RandomNetwork {
    random_network(&random_bytes(seed, 512)).unwrap_or_else(|e| panic!("seed {seed}: {e}"))
}

/// Returns the instruction set for a seed. Every instruction set is used with every kind of network.
fn isa(seed: u64) -> Isa {
    let all = isas();
    all[usize::try_from(seed).unwrap() / 3 % all.len()]
}

/// Returns all seeds, or those given by `CYTOSCOPE_SEEDS`, such as `17` or `2000..9000`.
fn seeds() -> std::ops::Range<u64> {
    let Ok(asked) = std::env::var("CYTOSCOPE_SEEDS") else { return 0..NETWORKS };
    let number =
        |text: &str| text.parse::<u64>().expect("CYTOSCOPE_SEEDS must be a number or a range such as 2000..9000");
    match asked.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(&asked)..number(&asked) + 1,
    }
}

#[test]
fn results_do_not_depend_on_the_optimizations() {
    let none = Optimizations::none();
    let sets = [
        none,
        Optimizations { rewrites: true, ..none },
        Optimizations { fusion: true, ..none },
        Optimizations { shared_buffers: true, ..none },
    ];
    let mut faults = Vec::new();
    for seed in 0..240 {
        let network = network(seed);
        let optimizations = sets[usize::try_from(seed).unwrap() % sets.len()];
        for form in [Form::Float, Form::Static, Form::Dynamic] {
            let Some(graph) = graph(&network, form) else { continue };
            if let Some(how) = disagreement_with(&graph, &network.input, form, isa(seed), optimizations) {
                faults.push(format!("seed {seed}, {optimizations:?}, {how}"));
            }
        }
    }
    let shown: Vec<&str> = faults.iter().take(4).map(String::as_str).collect();
    assert!(faults.is_empty(), "{} runs differ:\n{}", faults.len(), shown.join("\n"));
}

#[test]
fn the_engine_agrees_with_the_reference_executor() {
    let mut faults = Vec::new();
    let mut runs = [0usize; 3];
    for seed in seeds() {
        let network = network(seed);
        for (place, form) in [Form::Float, Form::Static, Form::Dynamic].into_iter().enumerate() {
            let Some(graph) = graph(&network, form) else { continue };
            runs[place] += 1;
            if let Some(how) = disagreement(&graph, &network.input, form, isa(seed)) {
                faults.push(format!("seed {seed}, {how}"));
            }
        }
    }
    let shown: Vec<&str> = faults.iter().take(8).map(String::as_str).collect();
    assert!(faults.is_empty(), "{} of {runs:?} runs differ:\n{}", faults.len(), shown.join("\n"));
    if seeds() == (0..NETWORKS) {
        assert!(
            runs[0] as u64 == NETWORKS && runs[1] > 800 && runs[2] > 800,
            "{runs:?}: too few networks have convolutions"
        );
    }
}
