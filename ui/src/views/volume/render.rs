//! The volume on the graphics card: uploaded once, drawn into a picture when anything about it changes, shown every frame.
//!
//! It fails softly: what the driver refuses is kept as a sentence ([`Stage::problem`]), and nothing is drawn.

use super::camera::Projection;
use super::content::{Intensities, Labels, Texels, Volume, blocks_zyx};
use super::grid::Grid;
use super::pipelines::{LAYERS, PICTURE_FORMAT, Pipelines};
use crate::data::composite::{Blending, Intensity, LabelLook};
use eframe::egui::{self, Rect, pos2};
use eframe::egui_wgpu::{self, CallbackResources, CallbackTrait, ScreenDescriptor};
use eframe::wgpu;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Steps of the tables that colours are looked up in, as in the shader.
const LUT_STEPS: usize = 1024;

/// Colours of labels in a row of their texture, as in the shader.
const COLORS_ACROSS: usize = 1024;

/// Most labels that have a colour of their own.
const MAX_COLORS: usize = COLORS_ACROSS * 2048;

/// Optical depth of the whole diagonal at full brightness, when what lies before dims what lies behind.
const ATTENUATION: f64 = 10.0;

/// Where the light comes from: right, down, away.
const LIGHT: [f64; 3] = [-0.5, -0.7, -0.65];

/// How volumes are projected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The brightest value along each line of sight.
    Maximum,
    /// The same, dimmed by what lies before it.
    Attenuated,
    /// Labels as lit surfaces.
    Labels,
}

impl Mode {
    /// Every one.
    pub const ALL: [Mode; 3] = [Mode::Maximum, Mode::Attenuated, Mode::Labels];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Maximum => "maximum intensity",
            Mode::Attenuated => "attenuated maximum intensity",
            Mode::Labels => "labels as surfaces",
        }
    }
}

/// The uniforms of the shader; the same fields in the same order.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
struct Scene {
    origin: [f32; 4],
    origin_right: [f32; 4],
    origin_down: [f32; 4],
    direction: [f32; 4],
    direction_right: [f32; 4],
    direction_down: [f32; 4],
    size: [f32; 4],
    texel_um: [f32; 4],
    light: [f32; 4],
    what: [u32; 4],
    layers: [[f32; 4]; LAYERS],
}

/// All that a picture depends on.
#[derive(Clone)]
pub struct Picture {
    scene: Scene,
    size: [u32; 2],
    lut: Vec<u8>,
    layers: Vec<Arc<Volume>>,
    labels: Option<(Arc<Volume>, Arc<Vec<u8>>)>,
}

impl PartialEq for Picture {
    fn eq(&self, other: &Self) -> bool {
        let same_labels = match (&self.labels, &other.labels) {
            (None, None) => true,
            (Some((v, c)), Some((w, d))) => Arc::ptr_eq(v, w) && Arc::ptr_eq(c, d),
            _ => false,
        };
        self.scene == other.scene
            && self.size == other.size
            && same_labels
            && self.layers.len() == other.layers.len()
            && self.layers.iter().zip(&other.layers).all(|(a, b)| Arc::ptr_eq(a, b))
            && self.lut == other.lut
    }
}

/// What is to be drawn.
pub struct Shot<'a> {
    /// From where.
    pub projection: &'a Projection,
    /// The pane.
    pub rect: Rect,
    /// Pixels of the picture: width, height.
    pub size: [u32; 2],
    /// Voxels of the stack; the same for all layers.
    pub grid: Grid,
    /// Voxel size Z, Y, X of the stack.
    pub voxel_um: [f64; 3],
    /// How.
    pub mode: Mode,
    /// Length of a step in voxels of the volume.
    pub step: f32,
    /// Intensities, lowest first.
    pub layers: Vec<(Arc<Volume>, Intensity)>,
    /// Labels and their colours ([`label_colors`]).
    pub labels: Option<(Arc<Volume>, Arc<Vec<u8>>)>,
    /// The label that stands out.
    pub selected: Option<u32>,
}

/// Colours of the labels of a volume, as rows of a texture.
pub fn label_colors(labels: &Labels, look: &LabelLook) -> Vec<u8> {
    let rows = labels.ids.len().min(MAX_COLORS).div_ceil(COLORS_ACROSS).max(1);
    let mut out = vec![128u8; rows * COLORS_ACROSS * 4];
    for (texel, id) in out.chunks_exact_mut(4).zip(&labels.ids) {
        let [r, g, b] = look.color(*id);
        texel.copy_from_slice(&[r, g, b, 255]);
    }
    out
}

/// One row of the table of colours.
fn lut_row(look: &Intensity) -> impl Iterator<Item = u8> + use<'_> {
    (0..LUT_STEPS).flat_map(|i| {
        let share = (i as f32 / (LUT_STEPS - 1) as f32).powf(look.gamma.max(0.01));
        let [r, g, b] = look.map.color(share);
        [r as u8, g as u8, b as u8, 255]
    })
}

fn wide(v: [f64; 3], w: f64) -> [f32; 4] {
    [v[0] as f32, v[1] as f32, v[2] as f32, w as f32]
}

impl Picture {
    /// Of what is to be drawn.
    pub fn new(shot: Shot<'_>) -> Self {
        let texel_um = shot.grid.texel_um(shot.voxel_um);
        let size_um = shot.grid.size_um(shot.voxel_um);
        let diagonal_um = super::camera::length(size_um).max(1e-9);
        let [w, h] = shot.size.map(|n| n.max(1) as f32);
        let corner = shot.rect.min;
        let right = pos2(corner.x + shot.rect.width() / w, corner.y);
        let down = pos2(corner.x, corner.y + shot.rect.height() / h);
        let [at, right, down] = [corner, right, down].map(|p| shot.projection.ray(p));
        let texels = |v: [f64; 3]| -> [f64; 3] { std::array::from_fn(|i| v[i] / texel_um[i]) };
        let minus = |a: [f64; 3], b: [f64; 3]| -> [f64; 3] { std::array::from_fn(|i| a[i] - b[i]) };
        let light = shot.projection.from_view(super::camera::scale(LIGHT, 1.0 / super::camera::length(LIGHT)));
        let mut layers = [[0f32; 4]; LAYERS];
        let mut lut = Vec::new();
        for (layer, (volume, look)) in layers.iter_mut().zip(&shot.layers) {
            if let Volume::Intensities(v) = &**volume {
                *layer = limits(v, look);
            }
            lut.extend(lut_row(look));
        }
        lut.resize(LAYERS * LUT_STEPS * 4, 0);
        let selected = match shot.labels.as_ref().map(|(v, _)| &**v) {
            Some(Volume::Labels(labels)) => labels.index_of(shot.selected),
            _ => 0,
        };
        let mode = match shot.mode {
            Mode::Maximum => 0,
            Mode::Attenuated => 1,
            Mode::Labels => 2,
        };
        Self {
            scene: Scene {
                origin: wide(texels(at.origin), 0.0),
                origin_right: wide(texels(minus(right.origin, at.origin)), 0.0),
                origin_down: wide(texels(minus(down.origin, at.origin)), 0.0),
                direction: wide(texels(at.direction), 0.0),
                direction_right: wide(texels(minus(right.direction, at.direction)), 0.0),
                direction_down: wide(texels(minus(down.direction, at.direction)), 0.0),
                size: wide(shot.grid.size_texels(), f64::from(shot.step)),
                texel_um: wide(texel_um, ATTENUATION / diagonal_um),
                light: wide(light, diagonal_um),
                what: [mode, shot.layers.len().min(LAYERS) as u32, selected, 0],
                layers,
            },
            size: shot.size.map(|n| n.max(1)),
            lut,
            layers: shot.layers.into_iter().take(LAYERS).map(|(v, _)| v).collect(),
            labels: shot.labels,
        }
    }
}

/// A layer's line among the uniforms: contrast limits as stored values.
fn limits(v: &Intensities, look: &Intensity) -> [f32; 4] {
    let low = (look.low - v.offset) / v.range;
    let scale = if look.high > look.low { v.range / (look.high - look.low) } else { 0.0 };
    let covers = if look.blending == Blending::Opaque { 1.0 } else { 0.0 };
    [low, scale, look.opacity.clamp(0.0, 1.0), covers]
}

#[derive(Default)]
struct Inner {
    gpu: Option<Gpu>,
    problem: Option<String>,
    drawn: usize,
}

/// What the graphics card holds of one pane; dropped, it holds nothing.
#[derive(Clone, Default)]
pub struct Stage(Arc<Mutex<Inner>>);

impl Stage {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why nothing can be drawn, if so.
    pub fn problem(&self) -> Option<String> {
        self.inner().problem.clone()
    }

    /// Pictures drawn so far: no more than changes.
    pub fn drawn(&self) -> usize {
        self.inner().drawn
    }

    /// Something to paint into a window of this format.
    pub fn callback(
        &self,
        ctx: &egui::Context,
        rect: Rect,
        picture: Picture,
        target: wgpu::TextureFormat,
    ) -> egui::Shape {
        let callback = Callback { stage: self.clone(), picture, target, ctx: ctx.clone() };
        egui::Shape::Callback(egui_wgpu::Callback::new_paint_callback(rect, callback))
    }
}

struct Callback {
    stage: Stage,
    picture: Picture,
    target: wgpu::TextureFormat,
    ctx: egui::Context,
}

impl CallbackTrait for Callback {
    fn prepare(
        &self,
        device: &wgpu::Device,
        queue: &wgpu::Queue,
        _screen: &ScreenDescriptor,
        encoder: &mut wgpu::CommandEncoder,
        _resources: &mut CallbackResources,
    ) -> Vec<wgpu::CommandBuffer> {
        let mut inner = self.stage.inner();
        if inner.problem.is_some() {
            return Vec::new();
        }
        if inner.gpu.as_ref().is_some_and(|g| g.last.as_ref() == Some(&self.picture)) {
            return Vec::new();
        }
        let made = match inner.gpu.take() {
            Some(gpu) => Ok(gpu),
            None => watched(device, || Gpu::new(device, self.target)),
        };
        let drawn = made.and_then(|mut gpu| {
            gpu.check(device, &self.picture)?;
            watched(device, || gpu.draw(device, queue, encoder, &self.picture))?;
            Ok(gpu)
        });
        match drawn {
            Ok(gpu) => {
                inner.gpu = Some(gpu);
                inner.drawn += 1;
            }
            Err(problem) => {
                inner.problem = Some(problem);
                self.ctx.request_repaint();
            }
        }
        Vec::new()
    }

    fn paint(
        &self,
        _info: egui::PaintCallbackInfo,
        pass: &mut wgpu::RenderPass<'static>,
        _resources: &CallbackResources,
    ) {
        let inner = self.stage.inner();
        if let Some(gpu) = &inner.gpu
            && let Some((_, bound)) = &gpu.picture
        {
            pass.set_pipeline(&gpu.pipelines.blit);
            pass.set_bind_group(0, bound, &[]);
            pass.draw(0..3, 0..1);
        }
    }
}

/// Does something with the device, and says in a sentence what the driver refused.
fn watched<T>(device: &wgpu::Device, act: impl FnOnce() -> T) -> Result<T, String> {
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let done = act();
    let refused = [at_once(validation.pop()), at_once(memory.pop())].into_iter().flatten().flatten().next();
    match refused {
        None => Ok(done),
        Some(wgpu::Error::OutOfMemory { .. }) => Err("The graphics card has too little memory free.".to_owned()),
        Some(error) => {
            let text = error.to_string();
            let last = text.lines().map(str::trim).rfind(|l| !l.is_empty()).unwrap_or("no reason given").to_owned();
            Err(format!("The graphics driver refuses: {last}"))
        }
    }
}

/// The result of a future that is ready at once, as those of error scopes are outside of browsers.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

/// A layer on the card.
struct Layer {
    volume: Arc<Volume>,
    texels: wgpu::TextureView,
    blocks: wgpu::TextureView,
}

struct Gpu {
    pipelines: Pipelines,
    uniforms: wgpu::Buffer,
    lut: wgpu::Texture,
    /// Stand for what there is none of.
    no_intensity: wgpu::TextureView,
    no_label: wgpu::TextureView,
    no_color: wgpu::TextureView,
    layers: Vec<Layer>,
    labels: Option<Layer>,
    colors: Option<(Arc<Vec<u8>>, wgpu::TextureView)>,
    bound: Option<wgpu::BindGroup>,
    picture: Option<(wgpu::Texture, wgpu::BindGroup)>,
    last: Option<Picture>,
}

fn make_texture(
    device: &wgpu::Device,
    dimension: wgpu::TextureDimension,
    [width, height, depth]: [u32; 3],
    format: wgpu::TextureFormat,
    usage: wgpu::TextureUsages,
) -> wgpu::Texture {
    device.create_texture(&wgpu::TextureDescriptor {
        label: Some("volume"),
        size: wgpu::Extent3d { width, height, depth_or_array_layers: depth },
        mip_level_count: 1,
        sample_count: 1,
        dimension,
        format,
        usage,
        view_formats: &[],
    })
}

fn write(queue: &wgpu::Queue, texture: &wgpu::Texture, bytes: &[u8], bytes_per_texel: u32) {
    let size = texture.size();
    queue.write_texture(
        texture.as_image_copy(),
        bytes,
        wgpu::TexelCopyBufferLayout {
            offset: 0,
            bytes_per_row: Some(size.width * bytes_per_texel),
            rows_per_image: Some(size.height),
        },
        size,
    );
}

fn view(texture: &wgpu::Texture) -> wgpu::TextureView {
    texture.create_view(&wgpu::TextureViewDescriptor::default())
}

const UPLOADED: wgpu::TextureUsages = wgpu::TextureUsages::TEXTURE_BINDING.union(wgpu::TextureUsages::COPY_DST);

fn upload(
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    zyx: [usize; 3],
    format: wgpu::TextureFormat,
    bytes: &[u8],
) -> wgpu::TextureView {
    let [depth, height, width] = zyx.map(|n| n as u32);
    let texture = make_texture(device, wgpu::TextureDimension::D3, [width, height, depth], format, UPLOADED);
    write(queue, &texture, bytes, format.block_copy_size(None).unwrap_or(1));
    view(&texture)
}

fn upload_texels(device: &wgpu::Device, queue: &wgpu::Queue, zyx: [usize; 3], texels: &Texels) -> wgpu::TextureView {
    match texels {
        Texels::U8(v) => upload(device, queue, zyx, wgpu::TextureFormat::R8Unorm, v),
        Texels::F16(v) => upload(device, queue, zyx, wgpu::TextureFormat::R16Float, bytemuck::cast_slice(v)),
    }
}

impl Layer {
    fn new(device: &wgpu::Device, queue: &wgpu::Queue, volume: &Arc<Volume>) -> Self {
        let (texels, blocks) = match &**volume {
            Volume::Intensities(v) => (
                upload_texels(device, queue, v.grid.size_zyx, &v.texels),
                upload_texels(device, queue, blocks_zyx(v.grid.size_zyx), &v.blocks),
            ),
            Volume::Labels(v) => {
                let size = v.grid.size_zyx;
                let texels = if v.ids.len() <= usize::from(u16::MAX) {
                    let small: Vec<u16> = v.indices.iter().map(|i| *i as u16).collect();
                    upload(device, queue, size, wgpu::TextureFormat::R16Uint, bytemuck::cast_slice(&small))
                } else {
                    upload(device, queue, size, wgpu::TextureFormat::R32Uint, bytemuck::cast_slice(&v.indices))
                };
                let blocks = upload(device, queue, blocks_zyx(size), wgpu::TextureFormat::R8Unorm, &v.blocks);
                (texels, blocks)
            }
        };
        Self { volume: Arc::clone(volume), texels, blocks }
    }
}

impl Gpu {
    fn new(device: &wgpu::Device, target: wgpu::TextureFormat) -> Self {
        let single = |dimension, format| view(&make_texture(device, dimension, [1; 3], format, UPLOADED));
        Self {
            pipelines: Pipelines::new(device, target),
            uniforms: device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("volume"),
                size: std::mem::size_of::<Scene>() as u64,
                usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            }),
            lut: make_texture(
                device,
                wgpu::TextureDimension::D2,
                [LUT_STEPS as u32, LAYERS as u32, 1],
                wgpu::TextureFormat::Rgba8Unorm,
                UPLOADED,
            ),
            no_intensity: single(wgpu::TextureDimension::D3, wgpu::TextureFormat::R8Unorm),
            no_label: single(wgpu::TextureDimension::D3, wgpu::TextureFormat::R16Uint),
            no_color: single(wgpu::TextureDimension::D2, wgpu::TextureFormat::Rgba8Unorm),
            layers: Vec::new(),
            labels: None,
            colors: None,
            bound: None,
            picture: None,
            last: None,
        }
    }

    /// Whether the device takes textures of these sizes.
    fn check(&self, device: &wgpu::Device, picture: &Picture) -> Result<(), String> {
        let limits = device.limits();
        let sides = picture.layers.iter().chain(picture.labels.iter().map(|(v, _)| v)).flat_map(|v| match &**v {
            Volume::Intensities(v) => v.grid.size_zyx,
            Volume::Labels(v) => v.grid.size_zyx,
        });
        let side = sides.max().unwrap_or(1);
        if side > limits.max_texture_dimension_3d as usize {
            return Err(format!(
                "The graphics card takes volumes of up to {} voxels a side, this one has {side}.",
                limits.max_texture_dimension_3d
            ));
        }
        Ok(())
    }

    fn draw(
        &mut self,
        device: &wgpu::Device,
        queue: &wgpu::Queue,
        encoder: &mut wgpu::CommandEncoder,
        picture: &Picture,
    ) {
        let most = device.limits().max_texture_dimension_2d;
        self.bring(device, queue, picture);
        let size = picture.size.map(|n| n.min(most));
        let fits = self.picture.as_ref().is_some_and(|(t, _)| [t.width(), t.height()] == size);
        if !fits {
            let usage = wgpu::TextureUsages::TEXTURE_BINDING | wgpu::TextureUsages::RENDER_ATTACHMENT;
            let [width, height] = size;
            let texture = make_texture(device, wgpu::TextureDimension::D2, [width, height, 1], PICTURE_FORMAT, usage);
            let bound = device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some("picture"),
                layout: &self.pipelines.blit_layout,
                entries: &[
                    wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::TextureView(&view(&texture)) },
                    wgpu::BindGroupEntry {
                        binding: 1,
                        resource: wgpu::BindingResource::Sampler(&self.pipelines.sampler),
                    },
                ],
            });
            self.picture = Some((texture, bound));
        }
        queue.write_buffer(&self.uniforms, 0, bytemuck::bytes_of(&picture.scene));
        if self.last.as_ref().is_none_or(|l| l.lut != picture.lut) {
            write(queue, &self.lut, &picture.lut, 4);
        }
        if let (Some((texture, _)), Some(bound)) = (&self.picture, &self.bound) {
            let into = view(texture);
            let mut pass = encoder.begin_render_pass(&wgpu::RenderPassDescriptor {
                label: Some("volume"),
                color_attachments: &[Some(wgpu::RenderPassColorAttachment {
                    view: &into,
                    resolve_target: None,
                    depth_slice: None,
                    ops: wgpu::Operations {
                        load: wgpu::LoadOp::Clear(wgpu::Color::TRANSPARENT),
                        store: wgpu::StoreOp::Store,
                    },
                })],
                ..Default::default()
            });
            pass.set_pipeline(&self.pipelines.march);
            pass.set_bind_group(0, bound, &[]);
            pass.draw(0..3, 0..1);
        }
        self.last = Some(picture.clone());
    }

    /// Uploads what is not there yet, and lets go of what is no longer drawn.
    fn bring(&mut self, device: &wgpu::Device, queue: &wgpu::Queue, picture: &Picture) {
        let mut old = std::mem::take(&mut self.layers);
        let kept: Vec<Option<Layer>> = picture
            .layers
            .iter()
            .map(|v| old.iter().position(|l| Arc::ptr_eq(&l.volume, v)).map(|i| old.swap_remove(i)))
            .collect();
        let mut changed = !old.is_empty() || self.bound.is_none();
        drop(old);
        for (volume, layer) in picture.layers.iter().zip(kept) {
            let same_place = layer.is_some();
            changed |= !same_place;
            self.layers.push(layer.unwrap_or_else(|| Layer::new(device, queue, volume)));
        }
        // The order may have changed, too.
        let before = self.last.iter().flat_map(|l| &l.layers);
        changed |= !before.map(Arc::as_ptr).eq(picture.layers.iter().map(Arc::as_ptr));
        let wanted = picture.labels.as_ref();
        if !self.labels.as_ref().map(|l| Arc::as_ptr(&l.volume)).eq(&wanted.map(|(v, _)| Arc::as_ptr(v))) {
            self.labels = None;
            self.labels = wanted.map(|(v, _)| Layer::new(device, queue, v));
            changed = true;
        }
        if !self.colors.as_ref().map(|(c, _)| Arc::as_ptr(c)).eq(&wanted.map(|(_, c)| Arc::as_ptr(c))) {
            self.colors = wanted.map(|(_, colors)| {
                let rows = colors.len() / (COLORS_ACROSS * 4);
                let size = [COLORS_ACROSS as u32, rows.max(1) as u32, 1];
                let format = wgpu::TextureFormat::Rgba8Unorm;
                let texture = make_texture(device, wgpu::TextureDimension::D2, size, format, UPLOADED);
                write(queue, &texture, colors, 4);
                (Arc::clone(colors), view(&texture))
            });
            changed = true;
        }
        if changed {
            self.bound = Some(self.bind(device));
        }
    }

    fn bind(&self, device: &wgpu::Device) -> wgpu::BindGroup {
        let lut = view(&self.lut);
        let texture = |binding: usize, view| wgpu::BindGroupEntry {
            binding: binding as u32,
            resource: wgpu::BindingResource::TextureView(view),
        };
        let mut entries = vec![
            wgpu::BindGroupEntry { binding: 0, resource: self.uniforms.as_entire_binding() },
            texture(1, &lut),
            wgpu::BindGroupEntry { binding: 2, resource: wgpu::BindingResource::Sampler(&self.pipelines.sampler) },
        ];
        for i in 0..LAYERS {
            let layer = self.layers.get(i);
            entries.push(texture(3 + i, layer.map_or(&self.no_intensity, |l| &l.texels)));
            entries.push(texture(3 + LAYERS + i, layer.map_or(&self.no_intensity, |l| &l.blocks)));
        }
        entries.push(texture(11, self.labels.as_ref().map_or(&self.no_label, |l| &l.texels)));
        entries.push(texture(12, self.labels.as_ref().map_or(&self.no_intensity, |l| &l.blocks)));
        entries.push(texture(13, self.colors.as_ref().map_or(&self.no_color, |(_, v)| v)));
        device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("volumes"),
            layout: &self.pipelines.march_layout,
            entries: &entries,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shaders_agree_with_the_constants_here() {
        let march = include_str!("shader.wgsl");
        assert!(march.contains(&format!("const LUT_LAST: f32 = {}.0;", LUT_STEPS - 1)));
        assert!(march.contains(&format!("const COLORS_ACROSS: u32 = {COLORS_ACROSS}u;")));
        assert!(march.contains(&format!("const BLOCK: f32 = {}.0;", super::super::content::BLOCK)));
        assert!(march.contains(&format!("layers: array<vec4<f32>, {LAYERS}>")));
    }

    #[test]
    fn contrast_limits_are_those_of_the_values_before_they_were_stored() {
        let grid = Grid::of([1, 1, 1], false);
        let texels = Texels::F16(vec![0]);
        let v = Intensities { grid, blocks: texels.clone(), texels, offset: 100.0, range: 400.0 };
        let look = Intensity {
            map: crate::data::composite::ColorMap::Gray,
            low: 200.0,
            high: 300.0,
            gamma: 1.0,
            opacity: 1.0,
            blending: Blending::Additive,
        };
        let [low, scale, ..] = limits(&v, &look);
        let share = |value: f32| ((value - 100.0) / 400.0 - low) * scale;
        assert_eq!((share(200.0), share(300.0)), (0.0, 1.0));
        let none = Intensity { low: 5.0, high: 5.0, ..look };
        assert_eq!(limits(&v, &none)[1], 0.0);
    }
}
