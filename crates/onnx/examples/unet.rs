//! Writes a U-Net with static normalization and random weights, for benchmarks:
//! `cargo run --release -p cytoscope-onnx --example unet -- OUT.onnx [16,32,64]`.

use cytoscope_builders::{UNet3d, Weights, unet3d};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("missing argument: the output file")?;
    let filters = arguments.next().unwrap_or_else(|| "16,32,64".to_owned());
    let filters: Vec<usize> = filters.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let config = UNet3d { strides: vec![[2; 3]; filters.len().saturating_sub(1)], filters, ..UNet3d::default() };
    cytoscope_onnx::save(&unet3d(&config, &Weights::Random { seed: 1 })?, path.as_ref())?;
    Ok(())
}
