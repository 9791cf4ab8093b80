//! Pictures of every step of the training wizard, for the guide.

use crate::fixture::{Fixture, sees};
use crate::training::{pairs, tiny_config};
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_simulate::{Kind, Settings, simulate};
use cytoscope_train::{NetworkConfig, TrainConfig};
use cytoscope_ui::training::plan::WizardStep;
use cytoscope_ui::training::run::RunState;
use cytoscope_ui::{Workbench, WorkbenchOptions};
use eframe::egui::Theme;
use egui_kittest::Harness;
use egui_kittest::kittest::Queryable;
use std::path::{Path, PathBuf};

/// A window that is rendered, for screenshots.
fn rendered_window(home: &Path, steps: usize) -> Harness<'static, Workbench> {
    let options = WorkbenchOptions {
        program: Some(PathBuf::from(env!("CARGO_BIN_EXE_cytoscope"))),
        settings_path: Some(home.join("settings/settings.json")),
        sample: Some(home.join("sample/nuclei_raw.tif")),
        train_config: TrainConfig {
            patch_zyx: Some([8, 32, 32]),
            network: NetworkConfig { filters: vec![8, 16], ..tiny_config(steps).network },
            ..tiny_config(steps)
        },
        ..WorkbenchOptions::default()
    };
    let builder = Harness::builder().with_size([1360.0, 860.0]).with_step_dt(1.0 / 60.0).wgpu();
    builder.build_eframe(move |cc| Workbench::new(&cc.egui_ctx, options))
}

/// Saves screenshots of a step: light, dark and small.
fn save_screenshots(fixture: &mut Fixture, to: &Path, name: &str) {
    for (look, theme, size) in [
        ("light", Theme::Light, [1360.0, 860.0]),
        ("dark", Theme::Dark, [1360.0, 860.0]),
        ("small", Theme::Dark, [1024.0, 700.0]),
    ] {
        fixture.window.set_size(size.into());
        fixture.window.ctx.set_theme(theme);
        // Thumbnails load when they are first drawn.
        for _ in 0..20 {
            fixture.window.step();
            std::thread::sleep(std::time::Duration::from_millis(15));
        }
        fixture.window.render().unwrap().save(to.join(format!("{name}_{look}.png"))).unwrap();
    }
    fixture.window.set_size([1360.0, 860.0].into());
    fixture.window.run_steps(3);
}

#[test]
#[ignore = "takes the pictures of the guide: CYTOSCOPE_PICTURES names a folder for them"]
fn pictures_of_every_step() {
    let to = PathBuf::from(std::env::var_os("CYTOSCOPE_PICTURES").expect("a folder is named"));
    std::fs::create_dir_all(&to).unwrap();
    let fixture = Fixture::new();
    let data = pairs(fixture.folder.path(), 6);
    let Fixture { folder, window: other } = fixture;
    drop(other);
    let mut fixture = Fixture { window: rendered_window(folder.path(), 1500), folder };
    fixture.window.run_steps(4);
    save_screenshots(&mut fixture, &to, "0_empty");
    fixture.click("Train a model…");
    save_screenshots(&mut fixture, &to, "1_task");
    fixture.click("Next");
    save_screenshots(&mut fixture, &to, "2_no_data");
    // One faulty pair.
    let made = simulate(&Settings::new(Kind::Nuclei, [6, 40, 48], 9), |_| true).unwrap();
    let labels = made.labels.unwrap();
    write_array(&data.join("embryo3_labels.tif"), &labels, &WriteSpec::of(&labels, Container::ImageJ)).unwrap();
    std::fs::copy(data.join("embryo0_raw.tif"), data.join("lonely_raw.tif")).unwrap();
    fixture.window.state_mut().train_on(data);
    fixture.until("the pairs", |w| sees(w, "5 of 6 pairs can be used"));
    save_screenshots(&mut fixture, &to, "2_data");
    fixture.click("Next");
    fixture.until("the models", |w| w.query_by_label("nuclei").is_some());
    save_screenshots(&mut fixture, &to, "3_start");
    fixture.click("New network");
    fixture.click_enabled("Start training");
    save_screenshots(&mut fixture, &to, "4_preparing");
    fixture.until("many steps", |w| w.state().wizard().run.step() >= 800);
    save_screenshots(&mut fixture, &to, "4_training");
    fixture.click("Pause training");
    fixture.until("the pause", |w| w.state().wizard().run.state == RunState::Paused);
    fixture.click("Stop…");
    save_screenshots(&mut fixture, &to, "4_paused");
    fixture.click("Cancel");
    fixture.click_enabled("Continue training");
    fixture.until("the results", |w| w.state().wizard().plan.step == WizardStep::Results);
    save_screenshots(&mut fixture, &to, "5_results");
    fixture.click("Next");
    save_screenshots(&mut fixture, &to, "6_use");
    fixture.click("Save to my models");
    fixture.until("the model", |w| sees(w, "Saved to your models."));
    save_screenshots(&mut fixture, &to, "6_saved");
}
