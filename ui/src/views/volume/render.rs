//! Rendering of volumes on the GPU: volumes are uploaded once, the picture is redrawn when something changes,
//! and shown every frame.
//!
//! After a driver error nothing is drawn, and [`VolumeRenderer::problem`] returns the message.

use super::content::{Texels, Volume, blocks_zyx};
use super::picture::{COLORS_ACROSS, LUT_STEPS, Picture, Scene};
use super::pipelines::{LAYERS, PICTURE_FORMAT, Pipelines};
use eframe::egui::{self, Rect};
use eframe::egui_wgpu::{self, CallbackResources, CallbackTrait, ScreenDescriptor};
use eframe::wgpu;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a scene texel: four floats.
const SCENE_TEXEL_BYTES: u32 = 16;

#[derive(Default)]
struct Inner {
    gpu: Option<Gpu>,
    problem: Option<String>,
    drawn: usize,
}

/// Graphics resources of one pane, released on drop.
#[derive(Clone, Default)]
pub struct VolumeRenderer(Arc<Mutex<Inner>>);

impl VolumeRenderer {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error message if nothing can be drawn.
    pub fn problem(&self) -> Option<String> {
        self.inner().problem.clone()
    }

    /// Number of pictures drawn so far.
    pub fn drawn(&self) -> usize {
        self.inner().drawn
    }

    /// Whether a picture is being drawn over several frames.
    pub fn is_drawing(&self) -> bool {
        self.inner().gpu.as_ref().is_some_and(|g| g.in_progress.is_some())
    }

    /// The paint callback for a picture; `target` is the texture format of the window.
    pub fn callback(
        &self,
        ctx: &egui::Context,
        rect: Rect,
        picture: Picture,
        target: wgpu::TextureFormat,
    ) -> egui::Shape {
        let callback = Callback { renderer: self.clone(), picture, target, ctx: ctx.clone() };
        egui::Shape::Callback(egui_wgpu::Callback::new_paint_callback(rect, callback))
    }
}

struct Callback {
    renderer: VolumeRenderer,
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
        let mut inner = self.renderer.inner();
        if inner.problem.is_some() {
            return Vec::new();
        }
        if inner.gpu.as_ref().is_some_and(|g| g.in_progress.is_none() && g.last.as_ref() == Some(&self.picture)) {
            return Vec::new();
        }
        let made = match inner.gpu.take() {
            Some(gpu) => Ok(gpu),
            None => with_error_scopes(device, || Gpu::new(device, self.target)),
        };
        let drawn = made.and_then(|mut gpu| {
            gpu.check(device, &self.picture)?;
            with_error_scopes(device, || gpu.draw(device, queue, encoder, &self.picture))?;
            Ok(gpu)
        });
        match drawn {
            Ok(gpu) => {
                match gpu.in_progress {
                    Some(_) => self.ctx.request_repaint(),
                    None => inner.drawn += 1,
                }
                inner.gpu = Some(gpu);
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
        let inner = self.renderer.inner();
        if let Some(gpu) = &inner.gpu
            && let Some(Canvas { bind_group, .. }) = &gpu.shown
        {
            pass.set_pipeline(&gpu.pipelines.blit);
            pass.set_bind_group(0, bind_group, &[]);
            pass.draw(0..3, 0..1);
        }
    }
}

/// Runs `act` within error scopes of the device; driver errors become a message.
fn with_error_scopes<T>(device: &wgpu::Device, act: impl FnOnce() -> T) -> Result<T, String> {
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let done = act();
    let refused = [poll_ready(validation.pop()), poll_ready(memory.pop())].into_iter().flatten().flatten().next();
    match refused {
        None => Ok(done),
        Some(wgpu::Error::OutOfMemory { .. }) => {
            Err("The GPU is out of memory. Close other stacks or programs.".to_owned())
        }
        Some(error) => {
            let text = error.to_string();
            let last = text.lines().map(str::trim).rfind(|l| !l.is_empty()).unwrap_or("no reason given").to_owned();
            Err(format!("The graphics driver reported an error: {last}"))
        }
    }
}

/// Polls a future once. Futures of error scopes are ready immediately outside browsers.
fn poll_ready<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

/// A volume uploaded to the GPU.
struct Layer {
    volume: Arc<Volume>,
    texels: wgpu::TextureView,
    blocks: wgpu::TextureView,
}

struct Gpu {
    pipelines: Pipelines,
    scene: wgpu::Texture,
    lut: wgpu::Texture,
    /// Placeholder textures for missing layers.
    no_intensity: wgpu::TextureView,
    no_label: wgpu::TextureView,
    no_color: wgpu::TextureView,
    layers: Vec<Layer>,
    labels: Option<Layer>,
    colors: Option<(Arc<Vec<u8>>, wgpu::TextureView)>,
    bind_group: Option<wgpu::BindGroup>,
    /// The displayed picture.
    shown: Option<Canvas>,
    /// The previous canvas, for reuse.
    spare: Option<Canvas>,
    /// The canvas in progress and the number of rows drawn.
    in_progress: Option<(Canvas, u32)>,
    /// The picture that was drawn last or is in progress.
    last: Option<Picture>,
}

/// A render target with its bind group for drawing into the window.
struct Canvas {
    texture: wgpu::Texture,
    bind_group: wgpu::BindGroup,
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
            scene: make_texture(
                device,
                wgpu::TextureDimension::D2,
                [std::mem::size_of::<Scene>() as u32 / SCENE_TEXEL_BYTES, 1, 1],
                wgpu::TextureFormat::Rgba32Float,
                UPLOADED,
            ),
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
            bind_group: None,
            shown: None,
            spare: None,
            in_progress: None,
            last: None,
        }
    }

    /// Checks whether the device supports the texture sizes.
    fn check(&self, device: &wgpu::Device, picture: &Picture) -> Result<(), String> {
        let limits = device.limits();
        let sides = picture.layers.iter().chain(picture.labels.iter().map(|(v, _)| v)).flat_map(|v| match &**v {
            Volume::Intensities(v) => v.grid.size_zyx,
            Volume::Labels(v) => v.grid.size_zyx,
        });
        let side = sides.max().unwrap_or(1);
        if side > limits.max_texture_dimension_3d as usize {
            return Err(format!(
                "This volume has {side} voxels along one side; the GPU supports up to {}. The slice views show it.",
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
        let begun = self.last.as_ref() == Some(picture);
        let (canvas, done) = match self.in_progress.take() {
            Some(in_progress) if begun => in_progress,
            dropped => {
                self.begin(device, queue, picture);
                let spare = dropped.map(|(c, _)| c).or(self.spare.take());
                (self.canvas(device, picture, spare), 0)
            }
        };
        let height = canvas.texture.height();
        let rows = picture.rows_per_frame().min(height - done.min(height));
        if let Some(bind_group) = &self.bind_group {
            let into = view(&canvas.texture);
            let load = if done == 0 { wgpu::LoadOp::Clear(wgpu::Color::TRANSPARENT) } else { wgpu::LoadOp::Load };
            let mut pass = encoder.begin_render_pass(&wgpu::RenderPassDescriptor {
                label: Some("volume"),
                color_attachments: &[Some(wgpu::RenderPassColorAttachment {
                    view: &into,
                    resolve_target: None,
                    depth_slice: None,
                    ops: wgpu::Operations { load, store: wgpu::StoreOp::Store },
                })],
                ..Default::default()
            });
            pass.set_pipeline(&self.pipelines.march);
            pass.set_bind_group(0, bind_group, &[]);
            pass.set_scissor_rect(0, done, canvas.texture.width(), rows);
            pass.draw(0..3, 0..1);
        }
        if done + rows >= height {
            self.spare = self.shown.replace(canvas);
        } else {
            self.in_progress = Some((canvas, done + rows));
        }
    }

    /// Uploads the data and parameters of a picture.
    fn begin(&mut self, device: &wgpu::Device, queue: &wgpu::Queue, picture: &Picture) {
        self.upload_layers(device, queue, picture);
        write(queue, &self.scene, bytemuck::bytes_of(&picture.scene), SCENE_TEXEL_BYTES);
        if self.last.as_ref().is_none_or(|l| l.lut != picture.lut) {
            write(queue, &self.lut, &picture.lut, 4);
        }
        self.last = Some(picture.clone());
    }

    /// A canvas of the picture's size: the spare one if it fits, otherwise a new one.
    fn canvas(&self, device: &wgpu::Device, picture: &Picture, spare: Option<Canvas>) -> Canvas {
        let max = device.limits().max_texture_dimension_2d;
        let [width, height] = picture.size.map(|n| n.min(max));
        if let Some(spare) = spare.filter(|c| [c.texture.width(), c.texture.height()] == [width, height]) {
            return spare;
        }
        let usage = wgpu::TextureUsages::TEXTURE_BINDING | wgpu::TextureUsages::RENDER_ATTACHMENT;
        let texture = make_texture(device, wgpu::TextureDimension::D2, [width, height, 1], PICTURE_FORMAT, usage);
        let bind_group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("picture"),
            layout: &self.pipelines.blit_layout,
            entries: &[
                wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::TextureView(&view(&texture)) },
                wgpu::BindGroupEntry { binding: 1, resource: wgpu::BindingResource::Sampler(&self.pipelines.sampler) },
            ],
        });
        Canvas { texture, bind_group }
    }

    /// Uploads missing volumes and releases unused ones.
    fn upload_layers(&mut self, device: &wgpu::Device, queue: &wgpu::Queue, picture: &Picture) {
        let mut old = std::mem::take(&mut self.layers);
        let kept: Vec<Option<Layer>> = picture
            .layers
            .iter()
            .map(|v| old.iter().position(|l| Arc::ptr_eq(&l.volume, v)).map(|i| old.swap_remove(i)))
            .collect();
        let mut changed = !old.is_empty() || self.bind_group.is_none();
        drop(old);
        for (volume, layer) in picture.layers.iter().zip(kept) {
            let same_place = layer.is_some();
            changed |= !same_place;
            self.layers.push(layer.unwrap_or_else(|| Layer::new(device, queue, volume)));
        }
        // The order of the layers may have changed.
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
            self.bind_group = Some(self.bind(device));
        }
    }

    fn bind(&self, device: &wgpu::Device) -> wgpu::BindGroup {
        let (scene, lut) = (view(&self.scene), view(&self.lut));
        let texture = |binding: usize, view| wgpu::BindGroupEntry {
            binding: binding as u32,
            resource: wgpu::BindingResource::TextureView(view),
        };
        let mut entries = vec![
            texture(0, &scene),
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
