//! A renderer for windows that nobody looks at; a measurement shares it.

/// Draws nothing, and so keeps no picture that a graphics card would hold.
pub struct Undrawn;

impl egui_kittest::TestRenderer for Undrawn {
    fn handle_delta(&mut self, _delta: &eframe::egui::TexturesDelta) {}

    fn render(
        &mut self,
        _ctx: &eframe::egui::Context,
        _output: &eframe::egui::FullOutput,
    ) -> Result<image::RgbaImage, String> {
        Err("this window is not drawn".to_owned())
    }
}
