// Ray marching through volumes. Lengths are in voxels of the volume ("texels") unless a name says µm.

const BLOCK: f32 = 8.0;
const LUT_LAST: f32 = 1023.0;
const COLORS_ACROSS: u32 = 1024u;
// Upper bound of blocks and steps per ray: drivers reset shaders that run too long.
const MAX_STEPS: i32 = 4096;

struct Scene {
    // Ray of pixel corner (0, 0), and its change per pixel to the right and down.
    origin: vec4<f32>,
    origin_right: vec4<f32>,
    origin_down: vec4<f32>,
    direction: vec4<f32>,
    direction_right: vec4<f32>,
    direction_down: vec4<f32>,
    // Size of the stack; w: step length.
    size: vec4<f32>,
    // Size of a texel in µm; w: attenuation per µm.
    texel_um: vec4<f32>,
    // Direction to the light; w: diagonal of the stack in µm.
    light: vec4<f32>,
    // Mode (0 maximum, 1 attenuated, 2 labels), number of layers, index of the selected label, unused.
    what: vec4<u32>,
    // Per layer: lower limit and 1 / (upper - lower) in stored values, opacity, 1 if it covers the layers below.
    layers: array<vec4<f32>, 4>,
}

// The scene is a row of texels instead of uniforms: software drivers compile uniforms that control loops into the
// machine code and would recompile it, which takes half a second, whenever the camera moves.
@group(0) @binding(0) var scene_texels: texture_2d<f32>;
var<private> scene: Scene;

@group(0) @binding(1) var lut: texture_2d<f32>;
@group(0) @binding(2) var linear_sampler: sampler;
@group(0) @binding(3) var volume0: texture_3d<f32>;
@group(0) @binding(4) var volume1: texture_3d<f32>;
@group(0) @binding(5) var volume2: texture_3d<f32>;
@group(0) @binding(6) var volume3: texture_3d<f32>;
@group(0) @binding(7) var blocks0: texture_3d<f32>;
@group(0) @binding(8) var blocks1: texture_3d<f32>;
@group(0) @binding(9) var blocks2: texture_3d<f32>;
@group(0) @binding(10) var blocks3: texture_3d<f32>;
@group(0) @binding(11) var labels: texture_3d<u32>;
@group(0) @binding(12) var label_blocks: texture_3d<f32>;
@group(0) @binding(13) var label_colors: texture_2d<f32>;

struct Ray {
    origin: vec3<f32>,
    direction: vec3<f32>,
    inverse: vec3<f32>,
    near: f32,
    far: f32,
}

fn scene_texel(i: i32) -> vec4<f32> {
    return textureLoad(scene_texels, vec2<i32>(i, 0), 0);
}

fn load_scene() {
    scene.origin = scene_texel(0);
    scene.origin_right = scene_texel(1);
    scene.origin_down = scene_texel(2);
    scene.direction = scene_texel(3);
    scene.direction_right = scene_texel(4);
    scene.direction_down = scene_texel(5);
    scene.size = scene_texel(6);
    scene.texel_um = scene_texel(7);
    scene.light = scene_texel(8);
    scene.what = vec4<u32>(scene_texel(9));
    for (var i = 0; i < 4; i++) {
        scene.layers[i] = scene_texel(10 + i);
    }
}

@vertex
fn cover(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {
    let at = vec2<f32>(f32((i << 1u) & 2u), f32(i & 2u));
    return vec4<f32>(at * 2.0 - 1.0, 0.0, 1.0);
}

fn ray_of(pixel: vec2<f32>) -> Ray {
    var ray: Ray;
    ray.origin = scene.origin.xyz + scene.origin_right.xyz * pixel.x + scene.origin_down.xyz * pixel.y;
    let direction = scene.direction.xyz + scene.direction_right.xyz * pixel.x + scene.direction_down.xyz * pixel.y;
    var d = normalize(direction);
    // Components are kept away from zero because they are divided by.
    d = select(d, vec3<f32>(1e-6), abs(d) < vec3<f32>(1e-6));
    ray.direction = d;
    ray.inverse = 1.0 / d;
    let a = -ray.origin * ray.inverse;
    let b = (scene.size.xyz - ray.origin) * ray.inverse;
    let low = min(a, b);
    let high = max(a, b);
    ray.near = max(max(max(low.x, low.y), low.z), 0.0) + 1e-3;
    ray.far = min(min(high.x, high.y), high.z) - 1e-3;
    return ray;
}

// Ray parameter at which the ray leaves the block containing `at`.
fn leaves_block(ray: Ray, at: vec3<f32>) -> f32 {
    let corner = (floor(at / BLOCK) + step(vec3<f32>(0.0), ray.direction)) * BLOCK;
    let t = (corner - ray.origin) * ray.inverse;
    return min(min(t.x, t.y), t.z) + 2e-3;
}

fn share_of(stored: f32, layer: vec4<f32>) -> f32 {
    return clamp((stored - layer.x) * layer.y, 0.0, 1.0);
}

fn block_of(blocks: texture_3d<f32>, at: vec3<f32>) -> f32 {
    let last = vec3<i32>(textureDimensions(blocks)) - 1;
    return textureLoad(blocks, clamp(vec3<i32>(at / BLOCK), vec3<i32>(0), last), 0).r;
}

// The maximum value along the ray, normalized to the contrast limits.
fn maximum(volume: texture_3d<f32>, blocks: texture_3d<f32>, ray: Ray, layer: vec4<f32>) -> f32 {
    let to_unit = 1.0 / vec3<f32>(textureDimensions(volume));
    let ahead = scene.size.w;
    var best = 0.0;
    var t = ray.near;
    for (var i = 0; i < MAX_STEPS && t < ray.far; i++) {
        let at = ray.origin + ray.direction * t;
        let leaves = min(max(leaves_block(ray, at), t + 1e-3), ray.far);
        if share_of(block_of(blocks, at), layer) <= best {
            t = leaves;
            continue;
        }
        for (var j = 0; j < 64 && t < leaves; j++) {
            let value = textureSampleLevel(volume, linear_sampler, (ray.origin + ray.direction * t) * to_unit, 0.0).r;
            best = max(best, share_of(value, layer));
            t += ahead;
        }
        if best >= 1.0 {
            break;
        }
    }
    return best;
}

// The maximum value along the ray, with each value attenuated by those in front.
fn attenuated(volume: texture_3d<f32>, blocks: texture_3d<f32>, ray: Ray, layer: vec4<f32>) -> f32 {
    let to_unit = 1.0 / vec3<f32>(textureDimensions(volume));
    let ahead = scene.size.w;
    let fading = scene.texel_um.w * length(ray.direction * scene.texel_um.xyz) * ahead;
    var best = 0.0;
    var passes = 1.0;
    var t = ray.near;
    for (var i = 0; i < MAX_STEPS && t < ray.far; i++) {
        let at = ray.origin + ray.direction * t;
        let leaves = min(max(leaves_block(ray, at), t + 1e-3), ray.far);
        if share_of(block_of(blocks, at), layer) <= 0.0 {
            t = leaves;
            continue;
        }
        for (var j = 0; j < 64 && t < leaves; j++) {
            let value = textureSampleLevel(volume, linear_sampler, (ray.origin + ray.direction * t) * to_unit, 0.0).r;
            let share = share_of(value, layer);
            best = max(best, share * passes);
            passes *= exp(-share * fading);
            t += ahead;
        }
        if passes <= best {
            break;
        }
    }
    return best;
}

fn intensity(volume: texture_3d<f32>, blocks: texture_3d<f32>, ray: Ray, i: u32, below: vec3<f32>) -> vec3<f32> {
    let layer = scene.layers[i];
    var share: f32;
    if scene.what.x == 1u {
        share = attenuated(volume, blocks, ray, layer);
    } else {
        share = maximum(volume, blocks, ray, layer);
    }
    let color = textureLoad(lut, vec2<i32>(i32(share * LUT_LAST), i32(i)), 0).rgb;
    if layer.w > 0.5 {
        return mix(below, color, layer.z);
    }
    return below + color * layer.z;
}

fn label_at(at: vec3<i32>) -> u32 {
    let size = vec3<i32>(textureDimensions(labels));
    if any(at < vec3<i32>(0)) || any(at >= size) {
        return 0u;
    }
    return textureLoad(labels, at, 0).r;
}

// Trilinearly interpolated fraction, 0 to 1, of a label around a point.
fn mask(at: vec3<f32>, label: u32) -> f32 {
    let corner = floor(at - 0.5);
    let f = at - 0.5 - corner;
    let c = vec3<i32>(corner);
    var sum = 0.0;
    for (var i = 0u; i < 8u; i++) {
        let off = vec3<u32>(i & 1u, (i >> 1u) & 1u, i >> 2u);
        let w = mix(1.0 - f, f, vec3<f32>(off));
        sum += select(0.0, w.x * w.y * w.z, label_at(c + vec3<i32>(off)) == label);
    }
    return sum;
}

fn surface(ray: Ray) -> vec4<f32> {
    let ahead = scene.size.w;
    var t = ray.near;
    var label = 0u;
    for (var i = 0; i < MAX_STEPS && t < ray.far; i++) {
        let at = ray.origin + ray.direction * t;
        if block_of(label_blocks, at) <= 0.0 {
            t = max(leaves_block(ray, at), t + 1e-3);
            continue;
        }
        let here = label_at(vec3<i32>(at));
        if here != 0u && mask(at, here) >= 0.5 {
            label = here;
            break;
        }
        t += ahead;
    }
    if label == 0u {
        return vec4<f32>(0.0);
    }
    var outside = max(t - ahead, ray.near);
    for (var i = 0; i < 5; i++) {
        let middle = (outside + t) * 0.5;
        if mask(ray.origin + ray.direction * middle, label) >= 0.5 {
            t = middle;
        } else {
            outside = middle;
        }
    }
    let at = ray.origin + ray.direction * t;
    // Wide enough to smooth single voxels.
    let e = 1.5;
    let x = vec3<f32>(e, 0.0, 0.0);
    let slope = vec3<f32>(
        mask(at + x.xyy, label) - mask(at - x.xyy, label),
        mask(at + x.yxy, label) - mask(at - x.yxy, label),
        mask(at + x.yyx, label) - mask(at - x.yyx, label),
    );
    let sight = normalize(ray.direction * scene.texel_um.xyz);
    var normal = -slope / scene.texel_um.xyz;
    normal = select(-sight, normalize(normal), dot(slope, slope) > 1e-8);
    let facing = clamp(-dot(normal, sight), 0.0, 1.0);
    let lit = max(dot(normal, scene.light.xyz), 0.0);
    let shine = pow(max(dot(normal, normalize(scene.light.xyz - sight)), 0.0), 30.0);
    let at_color = vec2<i32>(i32(label % COLORS_ACROSS), i32(label / COLORS_ACROSS));
    var color = textureLoad(label_colors, at_color, 0).rgb;
    let selected = label == scene.what.z;
    if selected {
        color = mix(color, vec3<f32>(1.0), 0.2 + 0.8 * pow(1.0 - facing, 1.5));
    }
    let depth_um = dot((at - scene.size.xyz * 0.5) * scene.texel_um.xyz, sight);
    let fog = select(1.0 - 0.3 * clamp(depth_um / scene.light.w + 0.5, 0.0, 1.0), 1.0, selected);
    return vec4<f32>(min(color * (0.38 + 0.5 * lit + 0.3 * facing) * fog + shine * 0.12, vec3<f32>(1.0)), 1.0);
}

// Premultiplied color and alpha.
@fragment
fn march(@builtin(position) position: vec4<f32>) -> @location(0) vec4<f32> {
    load_scene();
    let ray = ray_of(position.xy);
    if ray.far <= ray.near {
        return vec4<f32>(0.0);
    }
    if scene.what.x == 2u {
        return surface(ray);
    }
    var color = vec3<f32>(0.0);
    if scene.what.y > 0u {
        color = intensity(volume0, blocks0, ray, 0u, color);
    }
    if scene.what.y > 1u {
        color = intensity(volume1, blocks1, ray, 1u, color);
    }
    if scene.what.y > 2u {
        color = intensity(volume2, blocks2, ray, 2u, color);
    }
    if scene.what.y > 3u {
        color = intensity(volume3, blocks3, ray, 3u, color);
    }
    color = min(color, vec3<f32>(1.0));
    return vec4<f32>(color, max(max(color.r, color.g), color.b));
}
