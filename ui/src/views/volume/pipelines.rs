//! The two render pipelines: ray marching into a picture, and drawing the picture into the window.

use eframe::wgpu;

/// Format of the picture, which every driver can render to.
pub const PICTURE_FORMAT: wgpu::TextureFormat = wgpu::TextureFormat::Rgba8Unorm;

/// Maximum number of intensity layers.
pub const LAYERS: usize = 4;

/// Render pipelines and their bind group layouts.
pub struct Pipelines {
    /// Marches rays through a volume, into the picture.
    pub march: wgpu::RenderPipeline,
    /// Bind group layout of ray marching.
    pub march_layout: wgpu::BindGroupLayout,
    /// Draws the picture into the window.
    pub blit: wgpu::RenderPipeline,
    /// Bind group layout of drawing into the window.
    pub blit_layout: wgpu::BindGroupLayout,
    /// Interpolates linearly between texels.
    pub sampler: wgpu::Sampler,
}

fn texture(
    binding: u32,
    view_dimension: wgpu::TextureViewDimension,
    sample_type: wgpu::TextureSampleType,
) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::FRAGMENT,
        ty: wgpu::BindingType::Texture { sample_type, view_dimension, multisampled: false },
        count: None,
    }
}

fn sampler(binding: u32) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::FRAGMENT,
        ty: wgpu::BindingType::Sampler(wgpu::SamplerBindingType::Filtering),
        count: None,
    }
}

impl Pipelines {
    /// Creates the pipelines for a window format. Errors are reported in the device's error scope.
    pub fn new(device: &wgpu::Device, target: wgpu::TextureFormat) -> Self {
        use wgpu::TextureViewDimension::{D2, D3};
        let smooth = wgpu::TextureSampleType::Float { filterable: true };
        let exact = wgpu::TextureSampleType::Float { filterable: false };
        let mut entries = vec![texture(0, D2, exact), texture(1, D2, exact), sampler(2)];
        for i in 0..LAYERS as u32 {
            entries.push(texture(3 + i, D3, smooth));
            entries.push(texture(3 + LAYERS as u32 + i, D3, exact));
        }
        entries.push(texture(11, D3, wgpu::TextureSampleType::Uint));
        entries.push(texture(12, D3, exact));
        entries.push(texture(13, D2, exact));
        let march_layout = device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some("volumes"), entries: &entries });
        let blit_layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some("picture"),
            entries: &[texture(0, D2, smooth), sampler(1)],
        });
        let march_module = device.create_shader_module(wgpu::include_wgsl!("shader.wgsl"));
        let blit_module = device.create_shader_module(wgpu::include_wgsl!("blit.wgsl"));
        let over = wgpu::BlendState::PREMULTIPLIED_ALPHA_BLENDING;
        let blit_entry = if target.is_srgb() { "to_linear" } else { "as_it_is" };
        Self {
            march: pipeline(device, &march_module, "march", &march_layout, PICTURE_FORMAT, None),
            blit: pipeline(device, &blit_module, blit_entry, &blit_layout, target, Some(over)),
            march_layout,
            blit_layout,
            sampler: device.create_sampler(&wgpu::SamplerDescriptor {
                label: Some("volume"),
                mag_filter: wgpu::FilterMode::Linear,
                min_filter: wgpu::FilterMode::Linear,
                ..Default::default()
            }),
        }
    }
}

fn pipeline(
    device: &wgpu::Device,
    module: &wgpu::ShaderModule,
    entry: &str,
    layout: &wgpu::BindGroupLayout,
    format: wgpu::TextureFormat,
    blend: Option<wgpu::BlendState>,
) -> wgpu::RenderPipeline {
    let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(entry),
        bind_group_layouts: &[Some(layout)],
        immediate_size: 0,
    });
    device.create_render_pipeline(&wgpu::RenderPipelineDescriptor {
        label: Some(entry),
        layout: Some(&layout),
        vertex: wgpu::VertexState {
            module,
            entry_point: Some("cover"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            buffers: &[],
        },
        primitive: wgpu::PrimitiveState::default(),
        depth_stencil: None,
        multisample: wgpu::MultisampleState::default(),
        fragment: Some(wgpu::FragmentState {
            module,
            entry_point: Some(entry),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            targets: &[Some(wgpu::ColorTargetState { format, blend, write_mask: wgpu::ColorWrites::ALL })],
        }),
        multiview_mask: None,
        cache: None,
    })
}
