//! The JSON of OME-Zarr 0.5: `zarr.json` of groups, images, label images and arrays.

use super::pyramid::Downsampling;
use super::write::ZarrImageSpec;
use crate::channels::generic_name;
use crate::meta::positive;
use crate::preview::label_color;
use cytoscope_volume::{Axis, DType};
use serde_json::{Map, Value, json};

/// Version of OME-Zarr that is written.
const VERSION: &str = "0.5";
/// Largest number of labels whose colors are listed; readers choose colors for others.
const MAX_COLORS: u64 = 1024;

/// The `zarr.json` of a group.
fn group(ome: Value) -> Value {
    json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}})
}

/// The `zarr.json` of the group `labels`, which lists the label images.
pub(crate) fn labels_group(names: &[&str]) -> Value {
    group(json!({"version": VERSION, "labels": names}))
}

/// Facts about an image after all its samples have been written.
pub(crate) struct Written<'a> {
    /// Description by the caller: voxel size, time interval, channels and kind of image.
    pub spec: &'a ZarrImageSpec,
    /// Axes of the arrays, slowest first.
    pub axes: &'a [Axis],
    /// Number of resolution levels, level 0 included.
    pub levels: usize,
    /// Smallest and largest value of each channel.
    pub ranges: &'a [(f64, f64)],
}

/// The `zarr.json` of an image or label image.
pub(crate) fn image_group(image: &Written<'_>) -> Value {
    let spec = image.spec;
    let method = spec.downsampling();
    let datasets: Vec<Value> = (0..image.levels).map(|level| dataset(image, level, method)).collect();
    let axes: Vec<Value> = image.axes.iter().map(|axis| describe_axis(spec, *axis)).collect();
    let multiscale = json!({"name": spec.name, "axes": axes, "datasets": datasets, "type": method.name()});
    let mut ome = Map::new();
    ome.insert("version".into(), json!(VERSION));
    ome.insert("multiscales".into(), json!([multiscale]));
    if spec.labels {
        let max = image.ranges.iter().fold(0f64, |max, range| max.max(range.1)) as u64;
        let color = |label: u64| {
            let [r, g, b] = label_color(label);
            json!({"label-value": label, "rgba": [r, g, b, 255]})
        };
        let colors: Vec<Value> = (1..=max.min(MAX_COLORS)).map(color).collect();
        let mut label = Map::new();
        if !colors.is_empty() {
            label.insert("colors".into(), json!(colors));
        }
        if !spec.is_root {
            label.insert("source".into(), json!({"image": "../../"}));
        }
        ome.insert("image-label".into(), Value::Object(label));
    } else {
        ome.insert("omero".into(), omero(image));
    }
    group(Value::Object(ome))
}

fn voxel_size_along(spec: &ZarrImageSpec, axis: Axis) -> Option<f64> {
    let size = match axis {
        Axis::T => spec.time_interval_secs,
        Axis::Z => spec.voxel_size_um.z,
        Axis::Y => spec.voxel_size_um.y,
        Axis::X => spec.voxel_size_um.x,
        Axis::C | Axis::S => None,
    };
    size.and_then(positive)
}

/// The position of the first sample of the image; 0 along axes that are written without a unit.
fn origin_along(spec: &ZarrImageSpec, axis: Axis) -> f64 {
    let [z, y, x] = spec.origin_um;
    let position = match axis {
        Axis::Z => z,
        Axis::Y => y,
        Axis::X => x,
        Axis::T | Axis::C | Axis::S => 0.0,
    };
    if voxel_size_along(spec, axis).is_some() && position.is_finite() { position } else { 0.0 }
}

fn describe_axis(spec: &ZarrImageSpec, axis: Axis) -> Value {
    let name = axis.letter().to_ascii_lowercase().to_string();
    let (kind, unit) = match axis {
        Axis::T => ("time", "second"),
        Axis::C | Axis::S => return json!({"name": name, "type": "channel"}),
        Axis::Z | Axis::Y | Axis::X => ("space", "micrometer"),
    };
    match voxel_size_along(spec, axis) {
        Some(_) => json!({"name": name, "type": kind, "unit": unit}),
        None => json!({"name": name, "type": kind}),
    }
}

/// A level: its path, scale, and the position of its first sample, which differs from that of the image if samples are means.
fn dataset(image: &Written<'_>, level: usize, method: Downsampling) -> Value {
    let factor = |axis: &Axis| if matches!(axis, Axis::Y | Axis::X) { (1u64 << level) as f64 } else { 1.0 };
    let unit = |axis: &Axis| voxel_size_along(image.spec, *axis).unwrap_or(1.0);
    let scale: Vec<f64> = image.axes.iter().map(|axis| unit(axis) * factor(axis)).collect();
    let mut transformations = vec![json!({"type": "scale", "scale": scale})];
    let are_means = level > 0 && method == Downsampling::Mean;
    let shift = |axis: &Axis| if are_means { unit(axis) * (factor(axis) - 1.0) / 2.0 } else { 0.0 };
    let position: Vec<f64> = image.axes.iter().map(|axis| origin_along(image.spec, *axis) + shift(axis)).collect();
    if are_means || position.iter().any(|along| *along != 0.0) {
        transformations.push(json!({"type": "translation", "translation": position}));
    }
    json!({"path": level.to_string(), "coordinateTransformations": transformations})
}

/// Names, colors and display ranges of the channels.
fn omero(image: &Written<'_>) -> Value {
    let spec = image.spec;
    let channels: Vec<Value> = image
        .ranges
        .iter()
        .enumerate()
        .map(|(i, (low, high))| {
            let channel = spec.channels.get(i);
            let [r, g, b] = channel.and_then(|c| c.color_rgb).unwrap_or([255; 3]);
            let (start, end) = spec.display_range.unwrap_or((*low, *high));
            // Viewers show an empty label as a layer without a name.
            let name = channel.map(|c| c.name.as_str()).filter(|name| !name.trim().is_empty());
            let label = name.map_or_else(|| generic_name(i), str::to_owned);
            json!({
                "label": label,
                "color": format!("{r:02X}{g:02X}{b:02X}"),
                "active": true,
                "window": {"min": low, "max": high, "start": start, "end": end},
            })
        })
        .collect();
    let model = if channels.len() > 1 { "color" } else { "greyscale" };
    json!({"channels": channels, "rdefs": {"model": model}})
}

/// The `zarr.json` of an array of a level.
pub(crate) fn array(axes: &[Axis], shape: &[usize], shard: &[usize], chunk: &[usize], dtype: DType) -> Value {
    let names: Vec<String> = axes.iter().map(|axis| axis.letter().to_ascii_lowercase().to_string()).collect();
    let little = json!({"name": "bytes", "configuration": {"endian": "little"}});
    let zstd = json!({"name": "zstd", "configuration": {"level": crate::codec::ZSTD_LEVEL, "checksum": false}});
    json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype.name(),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": if dtype.is_float() { json!(0.0) } else { json!(0) },
        "codecs": [{
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": chunk,
                "codecs": [little, zstd],
                "index_codecs": [little, {"name": "crc32c"}],
                "index_location": "end",
            },
        }],
        "attributes": {},
        "dimension_names": names,
    })
}
