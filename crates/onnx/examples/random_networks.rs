//! Writes random networks as ONNX files, in float and quantized: seeds for the fuzz target `onnx_run`.
//!
//! `cargo run --release -p cytoscope-onnx --example random_networks -- fuzz/corpus/onnx_run 200`

use cytoscope_builders::{quantized, random_bytes, random_network};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(count)) = (arguments.next(), arguments.next()) else {
        return Err("usage: random_networks FOLDER COUNT".into());
    };
    let folder = std::path::PathBuf::from(folder);
    std::fs::create_dir_all(&folder)?;
    for seed in 0..count.parse::<u64>()? {
        // Few bytes give small networks.
        let network = random_network(&random_bytes(seed, 96))?;
        cytoscope_onnx::save(&network.graph, &folder.join(format!("{seed}.onnx")))?;
        if let Some(graph) = quantized(&network, seed % 2 == 0)? {
            cytoscope_onnx::save(&graph, &folder.join(format!("{seed}-bytes.onnx")))?;
        }
    }
    Ok(())
}
