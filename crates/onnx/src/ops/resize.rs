//! `Resize`, and `Upsample`, which becomes `Resize`: their rows of the table, import and export.

use crate::export::{Setting, Settings, flag};
use crate::import::{Importer, Pending};
use crate::proto::AttributeValue;
use crate::table::{CONV, SupportedOperator};
use cytoscope_graph::{AspectPolicy, CoordinateMode, NearestMode, Op, ResizeAttrs, ResizeMode, Result, Tensor};

pub(super) const ROWS: [SupportedOperator; 2] = [
    SupportedOperator { name: "Resize", group: CONV, note: "nearest, linear, cubic; every coordinate mode; antialias" },
    SupportedOperator { name: "Upsample", group: CONV, note: "from opset 7; becomes Resize" },
];

pub(super) fn convert(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Option<Op>> {
    match node.op_type {
        "Resize" | "Upsample" => Ok(Some(Op::Resize(import(im, node)?))),
        _ => Ok(None),
    }
}

pub(super) fn settings(op: &Op, opset: i64) -> Option<Settings> {
    if let Op::Resize(attrs) = op { Some(export(attrs, opset)) } else { None }
}

pub(super) fn oldest_opset(op: &Op) -> Option<i64> {
    let Op::Resize(attrs) = op else { return None };
    if attrs.coordinates == CoordinateMode::HalfPixelSymmetric {
        Some(19)
    } else if attrs.antialias || attrs.axes.is_some() || attrs.policy != AspectPolicy::Stretch {
        Some(18)
    } else {
        None
    }
}

fn import(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<ResizeAttrs> {
    let mode = match node.attributes.text("mode", "nearest")?.as_str() {
        "nearest" => ResizeMode::Nearest,
        "linear" | "bilinear" | "trilinear" => ResizeMode::Linear,
        "cubic" => ResizeMode::Cubic,
        other => return Err(node.unsupported(format!("mode \"{other}\""))),
    };
    if node.op_type == "Upsample" || node.opset < 11 {
        return import_by_scales(im, node, mode);
    }
    let coordinates = match node.attributes.text("coordinate_transformation_mode", "half_pixel")?.as_str() {
        "half_pixel" => CoordinateMode::HalfPixel,
        "half_pixel_symmetric" => CoordinateMode::HalfPixelSymmetric,
        "pytorch_half_pixel" => CoordinateMode::PytorchHalfPixel,
        "align_corners" => CoordinateMode::AlignCorners,
        "asymmetric" => CoordinateMode::Asymmetric,
        "tf_half_pixel_for_nn" => CoordinateMode::TfHalfPixelForNn,
        "tf_crop_and_resize" => CoordinateMode::TfCropAndResize,
        other => return Err(node.unsupported(format!("coordinate transformation \"{other}\""))),
    };
    let nearest = match node.attributes.text("nearest_mode", "round_prefer_floor")?.as_str() {
        "round_prefer_floor" => NearestMode::RoundPreferFloor,
        "round_prefer_ceil" => NearestMode::RoundPreferCeil,
        "floor" => NearestMode::Floor,
        "ceil" => NearestMode::Ceil,
        other => return Err(node.unsupported(format!("nearest mode \"{other}\""))),
    };
    let policy = match node.attributes.text("keep_aspect_ratio_policy", "stretch")?.as_str() {
        "stretch" => AspectPolicy::Stretch,
        "not_larger" => AspectPolicy::NotLarger,
        "not_smaller" => AspectPolicy::NotSmaller,
        other => return Err(node.unsupported(format!("aspect policy \"{other}\""))),
    };
    if coordinates != CoordinateMode::TfCropAndResize && node.inputs.len() > 1 {
        node.set_input(1, None);
    }
    // Older exporters omit the scales by passing an empty list.
    let empty = |id| im.info(id).and_then(|i| i.fixed_shape()).is_some_and(|s| s.contains(&0));
    if node.input(2).is_some() && empty(node.input(2)) {
        node.set_input(2, None);
    }
    Ok(ResizeAttrs {
        mode,
        coordinates,
        nearest,
        cubic_coeff_a: node.attributes.float("cubic_coeff_a", -0.75)?,
        exclude_outside: node.attributes.flag("exclude_outside", false)?,
        extrapolation_value: node.attributes.float("extrapolation_value", 0.0)?,
        antialias: node.attributes.flag("antialias", false)?,
        axes: node.attributes.ints("axes")?,
        policy,
    })
}

/// Imports `Upsample`, and `Resize` before opset 11. Both have only scales: positions are divided by the scale and, for the nearest
/// voxel, rounded down, or up where the length shrinks.
fn import_by_scales(im: &mut Importer<'_>, node: &mut Pending<'_>, mode: ResizeMode) -> Result<ResizeAttrs> {
    let scales = if node.op_type == "Upsample" && node.opset < 9 {
        let Some(AttributeValue::Floats(scales)) = node.attributes.get("scales") else {
            return Err(node.unsupported("no list of scales"));
        };
        Some(im.add_constant(&format!("{}_scales", node.name), Tensor::vector(scales.clone()))?)
    } else {
        node.input(1)
    };
    node.inputs.truncate(1);
    node.set_input(2, scales);
    let value = im.info(scales).and_then(|info| info.value.as_ref());
    // Scales that are not constant cannot be checked here; they are taken as enlarging, as in decoders.
    let factors = value.map(|scales| scales.to_f64_vec()).unwrap_or_default();
    let shrinks = mode == ResizeMode::Nearest && factors.iter().any(|factor| *factor < 1.0);
    if shrinks && factors.iter().any(|factor| *factor > 1.0) {
        return Err(node.unsupported("nearest-neighbor scales both above and below 1 before opset 11"));
    }
    let nearest = if shrinks { NearestMode::Ceil } else { NearestMode::Floor };
    Ok(ResizeAttrs { mode, nearest, ..ResizeAttrs::nearest() })
}

fn export(a: &ResizeAttrs, opset: i64) -> Settings {
    let text = |t: &str| Setting::Text(t.to_owned());
    let mut settings = vec![
        (
            "mode",
            text(match a.mode {
                ResizeMode::Nearest => "nearest",
                ResizeMode::Linear => "linear",
                ResizeMode::Cubic => "cubic",
            }),
        ),
        (
            "coordinate_transformation_mode",
            text(match a.coordinates {
                CoordinateMode::HalfPixel => "half_pixel",
                CoordinateMode::HalfPixelSymmetric => "half_pixel_symmetric",
                CoordinateMode::PytorchHalfPixel => "pytorch_half_pixel",
                CoordinateMode::AlignCorners => "align_corners",
                CoordinateMode::Asymmetric => "asymmetric",
                CoordinateMode::TfHalfPixelForNn => "tf_half_pixel_for_nn",
                CoordinateMode::TfCropAndResize => "tf_crop_and_resize",
            }),
        ),
        (
            "nearest_mode",
            text(match a.nearest {
                NearestMode::RoundPreferFloor => "round_prefer_floor",
                NearestMode::RoundPreferCeil => "round_prefer_ceil",
                NearestMode::Floor => "floor",
                NearestMode::Ceil => "ceil",
            }),
        ),
        ("cubic_coeff_a", Setting::Float(a.cubic_coeff_a)),
        ("exclude_outside", flag(a.exclude_outside)),
        ("extrapolation_value", Setting::Float(a.extrapolation_value)),
    ];
    if opset >= 18 {
        let policy = match a.policy {
            AspectPolicy::Stretch => "stretch",
            AspectPolicy::NotLarger => "not_larger",
            AspectPolicy::NotSmaller => "not_smaller",
        };
        settings.push(("keep_aspect_ratio_policy", text(policy)));
        settings.push(("antialias", flag(a.antialias)));
        settings.extend(a.axes.as_ref().map(|axes| ("axes", Setting::Ints(axes.clone()))));
    }
    settings
}
