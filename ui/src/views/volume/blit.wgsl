// Draws the finished picture into the window.

@group(0) @binding(0) var picture: texture_2d<f32>;
@group(0) @binding(1) var linear_sampler: sampler;

struct Corner {
    @builtin(position) position: vec4<f32>,
    @location(0) at: vec2<f32>,
}

@vertex
fn cover(@builtin(vertex_index) i: u32) -> Corner {
    let at = vec2<f32>(f32((i << 1u) & 2u), f32(i & 2u));
    return Corner(vec4<f32>(at.x * 2.0 - 1.0, 1.0 - at.y * 2.0, 0.0, 1.0), at);
}

@fragment
fn as_it_is(corner: Corner) -> @location(0) vec4<f32> {
    return textureSampleLevel(picture, linear_sampler, corner.at, 0.0);
}

// For sRGB window formats, which expect linear values.
@fragment
fn to_linear(corner: Corner) -> @location(0) vec4<f32> {
    let c = textureSampleLevel(picture, linear_sampler, corner.at, 0.0);
    let low = c.rgb / 12.92;
    let high = pow((c.rgb + 0.055) / 1.055, vec3<f32>(2.4));
    return vec4<f32>(select(high, low, c.rgb < vec3<f32>(0.04045)), c.a);
}
