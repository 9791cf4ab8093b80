//! A window to work at, without a display.

use cytoscope_train::TrainConfig;
use cytoscope_ui::{Workbench, WorkbenchOptions};
use eframe::egui::accesskit::Role;
use egui_kittest::Harness;
use egui_kittest::kittest::{NodeT, Queryable, by};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use undrawn::Undrawn;

#[path = "undrawn.rs"]
mod undrawn;

/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Temporary folders and a window.
pub struct Desk {
    pub folder: tempfile::TempDir,
    pub window: Harness<'static, Workbench>,
}

impl Desk {
    /// An empty window; `sample` is the one it offers.
    pub fn new() -> Self {
        Self::with(|_| Vec::new())
    }

    /// A window with files opened, which `make` writes into a folder.
    pub fn with(make: impl FnOnce(&Path) -> Vec<PathBuf>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = make(folder.path());
        Self { window: window(folder.path(), files), folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Draws until something is so.
    pub fn until(&mut self, what: &str, is: impl Fn(&Harness<'static, Workbench>) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            self.window.step();
            if is(&self.window) {
                return;
            }
            assert!(Instant::now() < end, "{what} did not come; on screen: {}", self.on_screen());
            std::thread::sleep(Duration::from_millis(4));
        }
    }

    /// Draws until the stack on screen is complete.
    pub fn settle(&mut self) {
        self.until("a stack", |w| w.state().document().is_some());
        self.until("a complete picture", |w| w.state().is_settled());
        self.window.run_steps(3);
    }

    /// Clicks what has this name, scrolled into view; not a mere text of the same words.
    pub fn click(&mut self, name: &str) {
        let found = |w: &Harness<'static, Workbench>| {
            w.query_all_by_label(name).any(|n| n.accesskit_node().role() != Role::Label)
        };
        self.until(name, found);
        for scroll in [true, false] {
            let node = self.window.query_all_by_label(name).find(|n| n.accesskit_node().role() != Role::Label);
            match node {
                Some(node) if scroll => node.scroll_to_me(),
                Some(node) => node.click(),
                None => panic!("{name} has gone; on screen: {}", self.on_screen()),
            }
            self.window.run_steps(8);
        }
    }

    /// Whether words are somewhere on screen.
    pub fn sees(&self, text: &str) -> bool {
        sees(&self.window, text)
    }

    /// Every name and text, for messages.
    pub fn on_screen(&self) -> String {
        let words = |n: egui_kittest::Node<'_>| {
            let node = n.accesskit_node();
            node.label().or_else(|| node.value()).unwrap_or_default()
        };
        let all: Vec<String> = self.window.query_all(by()).map(words).filter(|w| !w.is_empty()).collect();
        all.join(" | ")
    }
}

/// Whether words are somewhere on screen.
pub fn sees(window: &Harness<'static, Workbench>, text: &str) -> bool {
    window.query_all_by_label_contains(text).next().is_some()
}

/// A window; the engine process is the real program.
pub fn window(home: &Path, files: Vec<PathBuf>) -> Harness<'static, Workbench> {
    window_with(home, files, TrainConfig::default())
}

/// A window whose trainings begin with other settings.
pub fn window_with(home: &Path, files: Vec<PathBuf>, train_config: TrainConfig) -> Harness<'static, Workbench> {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data");
    let sample = home.join("sample/nuclei_raw.tif");
    std::fs::create_dir_all(home.join("sample")).unwrap();
    std::fs::copy(samples.join("nuclei_raw.tif"), &sample).unwrap();
    let options = WorkbenchOptions {
        files,
        program: Some(PathBuf::from(env!("CARGO_BIN_EXE_cytoscope"))),
        settings_path: Some(home.join("settings/settings.json")),
        sample: Some(sample),
        train_config,
    };
    Harness::builder()
        .with_size([1360.0, 860.0])
        .with_step_dt(1.0 / 60.0)
        .renderer(Undrawn)
        .build_eframe(move |cc| Workbench::new(&cc.egui_ctx, options))
}
