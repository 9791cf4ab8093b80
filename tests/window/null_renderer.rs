//! A renderer for windows that are not drawn; also used by the measurements in `examples/`.

/// Draws nothing and keeps no textures.
pub struct NullRenderer;

impl egui_kittest::TestRenderer for NullRenderer {
    fn handle_delta(&mut self, _delta: &eframe::egui::TexturesDelta) {}

    fn render(
        &mut self,
        _ctx: &eframe::egui::Context,
        _output: &eframe::egui::FullOutput,
    ) -> Result<image::RgbaImage, String> {
        Err("this window is not drawn".to_owned())
    }
}
