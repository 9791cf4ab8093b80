//! Mesh files. Lengths are in µm; neither format states a unit, and glTF's default of meters is not followed, because
//! viewers could hardly show objects of 10⁻⁵ m.

use cytoscope_formats::label_color;
use cytoscope_objects::mesh::Mesh;
use serde_json::{Value, json};

/// First bytes of an STL file; they must not be `solid`, which starts a text file.
const STL_HEADER: &[u8] = b"Surfaces of objects by Cytoscope; lengths in micrometers";
/// Bytes of the header of an STL file.
const STL_HEADER_BYTES: usize = 80;
/// Bytes of a triangle in an STL file.
const STL_TRIANGLE_BYTES: usize = 50;

/// glTF's code for 32-bit floats.
const FLOAT: u32 = 5126;
/// glTF's code for unsigned 32-bit integers.
const UNSIGNED_INT: u32 = 5125;
/// glTF's code for a buffer of vertices.
const ARRAY_BUFFER: u32 = 34962;
/// glTF's code for a buffer of indices.
const ELEMENT_ARRAY_BUFFER: u32 = 34963;

/// Returns a binary STL file with all meshes.
///
/// # Errors
/// A message if there are more triangles than the format's 32-bit count allows.
pub(super) fn stl(meshes: &[(u32, Mesh)]) -> Result<Vec<u8>, String> {
    let total: usize = meshes.iter().map(|(_, mesh)| mesh.triangles.len()).sum();
    let count = u32::try_from(total).map_err(|_| format!("{total} triangles are too many for an STL file"))?;
    let mut bytes = Vec::with_capacity(STL_HEADER_BYTES + 4 + total * STL_TRIANGLE_BYTES);
    bytes.extend_from_slice(STL_HEADER);
    bytes.resize(STL_HEADER_BYTES, b' ');
    bytes.extend_from_slice(&count.to_le_bytes());
    for mesh in meshes.iter().map(|(_, mesh)| mesh) {
        for triangle in &mesh.triangles {
            let corners = triangle.map(|i| mesh.vertices_um.get(i as usize).copied().unwrap_or_default());
            for value in [mesh.unit_normal(triangle)].iter().chain(&corners).flatten() {
                bytes.extend_from_slice(&value.to_le_bytes());
            }
            // Unused attributes.
            bytes.extend_from_slice(&[0; 2]);
        }
    }
    Ok(bytes)
}

/// Returns a binary glTF 2.0 file with a node, a mesh and a color for each object.
///
/// # Errors
/// A message if the file would exceed 4 GiB.
pub(super) fn glb(meshes: &[(u32, Mesh)]) -> Result<Vec<u8>, String> {
    let mut data: Vec<u8> = Vec::new();
    let (mut views, mut accessors, mut gltf_meshes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut nodes, mut materials) = (Vec::new(), Vec::new());
    for (index, (label, mesh)) in meshes.iter().enumerate() {
        let vertices = data.len();
        mesh.vertices_um.iter().flatten().for_each(|value| data.extend_from_slice(&value.to_le_bytes()));
        let indices = data.len();
        mesh.triangles.iter().flatten().for_each(|i| data.extend_from_slice(&i.to_le_bytes()));
        let (min, max) = bounds(mesh);
        views.push(view(vertices, indices - vertices, ARRAY_BUFFER));
        views.push(view(indices, data.len() - indices, ELEMENT_ARRAY_BUFFER));
        accessors.push(json!({
            "bufferView": 2 * index, "componentType": FLOAT, "count": mesh.vertices_um.len(), "type": "VEC3",
            "min": min, "max": max,
        }));
        accessors.push(json!({
            "bufferView": 2 * index + 1, "componentType": UNSIGNED_INT, "count": mesh.triangles.len() * 3,
            "type": "SCALAR",
        }));
        let name = format!("object {label}");
        let primitive = json!({"attributes": {"POSITION": 2 * index}, "indices": 2 * index + 1, "material": index});
        gltf_meshes.push(json!({"name": name, "primitives": [primitive]}));
        nodes.push(json!({"name": name, "mesh": index}));
        let [r, g, b] = label_color(u64::from(*label)).map(|v| linear(f64::from(v) / 255.0));
        materials.push(json!({
            "name": name,
            "pbrMetallicRoughness": {"baseColorFactor": [r, g, b, 1.0], "metallicFactor": 0.0, "roughnessFactor": 0.8},
        }));
    }
    let document = json!({
        "asset": {"version": "2.0", "generator": "Cytoscope", "extras": {"unit": "micrometer"}},
        "scene": 0,
        "scenes": [{"nodes": (0..nodes.len()).collect::<Vec<_>>()}],
        "nodes": nodes,
        "meshes": gltf_meshes,
        "materials": materials,
        "accessors": accessors,
        "bufferViews": views,
        "buffers": [{"byteLength": data.len()}],
    });
    container(document.to_string().into_bytes(), data)
}

fn view(offset: usize, length: usize, target: u32) -> Value {
    json!({"buffer": 0, "byteOffset": offset, "byteLength": length, "target": target})
}

/// Returns the smallest and largest coordinates of the vertices; zeros for an empty mesh.
fn bounds(mesh: &Mesh) -> ([f32; 3], [f32; 3]) {
    let Some(first) = mesh.vertices_um.first() else { return ([0.0; 3], [0.0; 3]) };
    mesh.vertices_um.iter().fold((*first, *first), |(low, high), v| {
        (std::array::from_fn(|a| low[a].min(v[a])), std::array::from_fn(|a| high[a].max(v[a])))
    })
}

/// Converts a value of an sRGB color, 0 to 1, to linear light, as glTF requires.
fn linear(value: f64) -> f64 {
    if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
}

/// Joins the two chunks of a `.glb` file; each is padded to four bytes.
fn container(mut document: Vec<u8>, mut data: Vec<u8>) -> Result<Vec<u8>, String> {
    document.resize(document.len().next_multiple_of(4), b' ');
    data.resize(data.len().next_multiple_of(4), 0);
    let total = 12 + 8 + document.len() + 8 + data.len();
    let too_large = |_| format!("{total} bytes are too many for a .glb file");
    let total_bytes = u32::try_from(total).map_err(too_large)?;
    let mut bytes = Vec::with_capacity(total);
    bytes.extend_from_slice(b"glTF");
    bytes.extend_from_slice(&2u32.to_le_bytes());
    bytes.extend_from_slice(&total_bytes.to_le_bytes());
    for (chunk, kind) in [(document, b"JSON"), (data, b"BIN\0")] {
        let length = u32::try_from(chunk.len()).map_err(too_large)?;
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(kind);
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_objects::mesh::surface;

    fn number(bytes: &[u8], at: usize) -> usize {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
    }

    fn meshes() -> Vec<(u32, Mesh)> {
        let labels = [5, 5, 0, 9];
        let mesh = |label| (label, surface(&labels, [1, 1, 4], label, [0; 3], [2.0, 1.0, 1.0], 0).unwrap());
        vec![mesh(5), mesh(9)]
    }

    #[test]
    fn stl_files_have_a_record_for_each_triangle() {
        let meshes = meshes();
        let triangles: usize = meshes.iter().map(|(_, m)| m.triangles.len()).sum();
        let bytes = stl(&meshes).unwrap();
        assert!(!bytes.starts_with(b"solid"));
        assert_eq!((number(&bytes, 80), bytes.len()), (triangles, 84 + 50 * triangles));
        let floats: Vec<f32> =
            bytes[84..84 + 48].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let length: f32 = floats[..3].iter().map(|v| v * v).sum();
        assert!((length - 1.0).abs() < 1e-5, "the normal has length 1");
        let first = meshes[0].1.triangles[0].map(|i| meshes[0].1.vertices_um[i as usize]);
        assert_eq!(floats[3..], first.concat());
    }

    #[test]
    fn glb_files_have_a_mesh_for_each_object() {
        let meshes = meshes();
        let bytes = glb(&meshes).unwrap();
        assert_eq!((&bytes[..4], number(&bytes, 4), number(&bytes, 8)), (&b"glTF"[..], 2, bytes.len()));
        let length = number(&bytes, 12);
        assert_eq!(&bytes[16..20], b"JSON");
        let document: Value = serde_json::from_slice(&bytes[20..20 + length]).unwrap();
        assert_eq!(document["nodes"][1]["name"], "object 9");
        let data = &bytes[28 + length..];
        assert_eq!((&bytes[24 + length..28 + length], number(&bytes, 20 + length)), (&b"BIN\0"[..], data.len()));
        assert_eq!(document["buffers"][0]["byteLength"], data.len());
        // The second object's vertices and triangles, read back.
        let view = |i: usize| {
            let view = &document["bufferViews"][i];
            let [from, n] = ["byteOffset", "byteLength"].map(|key| view[key].as_u64().unwrap() as usize);
            &data[from..from + n]
        };
        let vertices: Vec<f32> = view(2).chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(vertices, meshes[1].1.vertices_um.concat());
        assert_eq!(document["accessors"][3]["count"], meshes[1].1.triangles.len() * 3);
        assert_eq!(view(3).len(), meshes[1].1.triangles.len() * 12);
        let highest = vertices.chunks(3).map(|v| v[0]).fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(document["accessors"][2]["max"][0].as_f64().unwrap() as f32, highest);
    }
}
