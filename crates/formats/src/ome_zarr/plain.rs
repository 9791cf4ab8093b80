//! Zarr arrays without the metadata of OME-Zarr, as `zarr.save` and Dask write them: images of one level.

use super::{array::extents, folder::Folder, multiscales::Multiscale};
use crate::{error::Fault, npy};
use cytoscope_volume::{Axes, Axis, VoxelSize};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Whether a folder is an array by itself, and not a level of an OME-Zarr image.
pub(super) fn is_plain(folder: &Folder) -> Result<bool, Fault> {
    Ok(node(folder)?.is_some() && !is_level(folder))
}

/// The metadata of the array that a folder is; `None` if it is something else.
fn node(folder: &Folder) -> Result<Option<Map<String, Value>>, Fault> {
    match folder.json("zarr.json")? {
        Some(node) => Ok(Some(node).filter(|node| node.get("node_type").and_then(Value::as_str) == Some("array"))),
        None => folder.json(".zarray"),
    }
}

/// Whether the folder around an array is an OME-Zarr image, whose metadata are needed.
fn is_level(folder: &Folder) -> bool {
    let Some(root) = folder.on_disk().and_then(|root| std::fs::canonicalize(root).ok()) else { return false };
    let parent = root.parent().map(|parent| Folder::new(parent, Arc::default()).group(""));
    // A parent that cannot be read says nothing about the array.
    matches!(parent, Some(Ok(Some(group))) if group.ome("multiscales").is_some())
}

/// Reads the description of the array that a folder is; `axes` replace its own. If it does not name them, they are chosen by
/// their number as those of an `.npy` file.
pub(super) fn read(folder: &Folder, axes: Option<&Axes>) -> Result<Multiscale, Fault> {
    let node = node(folder)?.unwrap_or_default();
    let shape = extents(&node, "shape")?;
    let names = axis_names(folder, &node)?;
    let named = names.as_deref().and_then(named_axes).filter(|named| named.len() == shape.len());
    let mut not_applied = Vec::new();
    let axes = match (named, axes) {
        (Some(named), None) => named,
        (_, axes) => {
            let chosen = npy::array_axes(&shape, axes)?;
            if axes.is_none() {
                let letters: String = chosen.iter().map(|axis| axis.letter()).collect();
                let why = match names {
                    None => "does not name its axes".to_owned(),
                    Some(names) => unusable_names(&names, shape.len()),
                };
                not_applied.push(format!("the Zarr array {why}: they are read as {letters}"));
            }
            chosen
        }
    };
    if !is_image(&axes) {
        let letters: String = axes.iter().map(|axis| axis.letter()).collect();
        let next_step = "the axes Y and X are needed, with any of T, C, Z";
        return Err(Fault::unsupported(format!("its axes are {letters}"), next_step));
    }
    Ok(Multiscale {
        axes,
        levels: vec![String::new()],
        voxel_size_um: VoxelSize::default(),
        origin_um: [0.0; 3],
        time_interval_secs: None,
        is_labels: false,
        channels: Vec::new(),
        display_range: None,
        not_applied,
    })
}

/// Whether these are axes of an image.
fn is_image(axes: &[Axis]) -> bool {
    axes.contains(&Axis::Y) && axes.contains(&Axis::X) && !axes.contains(&Axis::S)
}

/// The names of its axes that the array states, in Zarr 3 or by xarray's attribute; `None` if there are none.
fn axis_names(folder: &Folder, node: &Map<String, Value>) -> Result<Option<Vec<Value>>, Fault> {
    let group = folder.group("")?.unwrap_or_default();
    let names = node.get("dimension_names").or_else(|| group.attributes.get("_ARRAY_DIMENSIONS"));
    let are_stated = |names: &&Vec<Value>| names.iter().any(|name| !name.is_null());
    Ok(names.and_then(Value::as_array).filter(are_stated).cloned())
}

/// Says that the axes of an array do not have names of axes, as the predicate of a sentence.
fn unusable_names(names: &[Value], rank: usize) -> String {
    const SHOWN_CHARS: usize = 80;
    let shown: String = Value::from(names.to_vec()).to_string().chars().take(SHOWN_CHARS).collect();
    format!("names its axes {shown}, which is not one of t, c, z, y, x for each of its {rank} axes")
}

/// The axes with these names; `None` if they are not those of an image, each once.
fn named_axes(names: &[Value]) -> Option<Vec<Axis>> {
    let axis = |name: &Value| {
        let mut letters = name.as_str()?.chars();
        letters.next().and_then(Axis::from_letter).filter(|_| letters.next().is_none())
    };
    let axes: Vec<Axis> = names.iter().map(axis).collect::<Option<_>>()?;
    let is_unique = axes.iter().enumerate().all(|(i, axis)| !axes.iter().skip(i + 1).any(|other| other == axis));
    Some(axes).filter(|axes| is_image(axes) && is_unique)
}
