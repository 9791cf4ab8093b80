//! A window in a temporary folder, without a display.

use cytoscope_formats::{Container, OpenOptions, WriteSpec, write_array};
use cytoscope_train::TrainConfig;
use cytoscope_ui::{Workbench, WorkbenchOptions};
use cytoscope_volume::Array;
use eframe::egui::accesskit::Role;
use eframe::egui::{Event, Id, Key, Modifiers, PointerButton, Pos2, Rect, Ui, WidgetRect};
use egui_kittest::kittest::{NodeT, Queryable, by};
use egui_kittest::{Harness, Node};
use null_renderer::NullRenderer;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[path = "null_renderer.rs"]
mod null_renderer;

/// Longest wait for anything, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A window and the temporary folder with its files and settings.
pub struct Fixture {
    pub folder: tempfile::TempDir,
    pub window: Harness<'static, Workbench>,
}

/// Whether a click arrived.
#[derive(PartialEq, Eq)]
enum Click {
    /// The widget got it.
    Arrived,
    /// The widget was disabled.
    Disabled,
    /// Another widget or none got it.
    Lost,
}

impl Fixture {
    /// Opens an empty window, which offers a copy of the bundled sample.
    pub fn new() -> Self {
        Self::with(|_| Vec::new())
    }

    /// Opens an empty window, which offers the middle of the bundled sample: it is predicted in a third of the time.
    pub fn with_small_sample() -> Self {
        Self::with(|folder| {
            small_sample(folder);
            Vec::new()
        })
    }

    /// Opens a window with the files that `make` writes into the folder and returns.
    pub fn with(make: impl FnOnce(&Path) -> Vec<PathBuf>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = make(folder.path());
        Self { window: window(folder.path(), files), folder }
    }

    /// Opens an empty window whose engine process is the program that `make` writes into the folder.
    #[cfg(unix)]
    pub fn with_program(make: impl FnOnce(&Path) -> PathBuf) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = make(folder.path());
        Self { window: window_with_engine(folder.path(), Vec::new(), TrainConfig::default(), program), folder }
    }

    /// Replaces the window and its engine by the ones that `open` opens with the same folder.
    pub fn next_window(&mut self, open: impl FnOnce(&Path) -> Harness<'static, Workbench>) {
        // The window is closed before the next one opens its files.
        let elsewhere = tempfile::tempdir().unwrap();
        self.window = window(elsewhere.path(), Vec::new());
        self.window = open(self.folder.path());
        self.window.run_steps(3);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Steps the window until `is` holds; panics after [`TIMEOUT`] with what is on screen.
    pub fn until(&mut self, what: &str, is: impl Fn(&Harness<'static, Workbench>) -> bool) {
        let end = Instant::now() + TIMEOUT;
        loop {
            self.window.step();
            if is(&self.window) {
                return;
            }
            assert!(Instant::now() < end, "timed out waiting for {what}; on screen: {}", self.on_screen());
            std::thread::sleep(Duration::from_millis(4));
        }
    }

    /// Waits without frames of the window until `is` holds; panics after [`TIMEOUT`]. On a busy machine, the engine may do much
    /// during one frame.
    pub fn until_between_frames(&self, what: &str, is: impl Fn() -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !is() {
            assert!(Instant::now() < end, "timed out waiting for {what}; on screen: {}", self.on_screen());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops the engine process until [`Fixture::resume_engine`], so that its job does not go on meanwhile. Only Unix can stop a
    /// process; tests that call this function are ignored elsewhere.
    pub fn stop_engine(&self) {
        self.signal_engine("-STOP");
    }

    /// Lets the engine process continue.
    pub fn resume_engine(&self) {
        self.signal_engine("-CONT");
    }

    /// Kills the engine process, and returns its process id.
    pub fn kill_engine(&self) -> u32 {
        let pid = self.window.state().engine_pid().expect("an engine process");
        if cfg!(unix) {
            self.signal_engine("-KILL");
        } else {
            let killed = std::process::Command::new("taskkill").args(["/F", "/PID", &pid.to_string()]).status();
            assert!(killed.unwrap().success(), "taskkill /F /PID {pid}");
        }
        pid
    }

    fn signal_engine(&self, signal: &str) {
        let pid = self.window.state().engine_pid().expect("an engine process").to_string();
        let sent = std::process::Command::new("kill").args([signal, &pid]).status();
        assert!(sent.unwrap().success(), "kill {signal} {pid}");
    }

    /// Steps the window until the stack on screen is fully loaded.
    pub fn settle(&mut self) {
        self.until("a stack", |w| w.state().document().is_some());
        self.until("a complete picture", |w| w.state().is_settled());
        self.window.run_steps(3);
    }

    /// Scrolls the widget with this name into view and clicks it; plain labels with the same text are skipped.
    pub fn click(&mut self, name: &str) {
        for _ in 0..20 {
            if self.click_once(name) != Click::Lost {
                return;
            }
        }
        panic!("all clicks on {name} were lost; on screen: {}", self.on_screen());
    }

    /// Scrolls the widget with this name into view, clicks it once, and returns whether the click arrived.
    fn click_once(&mut self, name: &str) -> Click {
        let is_disabled = |window: &Harness<'static, Workbench>| {
            on_widget(window, name, |node| node.accesskit_node().is_disabled()) == Some(true)
        };
        let at = self.bring_under_pointer(name);
        // A click has no effect on a button that was disabled in the frame before it, or is in the frame that gets it.
        let was_disabled = is_disabled(&self.window);
        let place = on_widget(&self.window, name, |node| node.rect());
        self.window.input_mut().events.extend(click_events(at));
        self.window.ctx.data_mut(|data| data.remove::<WidgetRect>(clicked_widget()));
        self.window.step();
        let click = if was_disabled || is_disabled(&self.window) {
            Click::Disabled
        } else if place.zip(self.clicked_place(at)).is_some_and(|(place, clicked)| is_same_widget(place, clicked)) {
            Click::Arrived
        } else {
            Click::Lost
        };
        self.window.run_steps(7);
        click
    }

    /// Returns the place of the widget that got a click at this position in the last frame; `None` if the click had no effect.
    /// egui gives a click to the id that the widget had in the frame before, and ids change if rows come and go.
    fn clicked_place(&self, at: Pos2) -> Option<Rect> {
        let widget = self.window.ctx.data(|data| data.get_temp::<WidgetRect>(clicked_widget()))?;
        widget.interact_rect.contains(at).then_some(widget.rect)
    }

    /// Scrolls the widget with this name into view, moves the pointer over it, and returns the position of its center.
    fn bring_under_pointer(&mut self, name: &str) -> Pos2 {
        self.until(name, |w| on_widget(w, name, |_| ()).is_some());
        let scrolled = on_widget(&self.window, name, |node| node.scroll_to_me());
        assert!(scrolled.is_some(), "{name} disappeared; on screen: {}", self.on_screen());
        // Until scrolling ends, and while rows above it come and go, the pointer would miss it.
        let mut before = None;
        for _ in 0..50 {
            self.window.run_steps(8);
            on_widget(&self.window, name, |node| node.hover());
            self.window.run_steps(2);
            let place = on_widget(&self.window, name, |node| node.rect());
            if place.is_some() && place == before {
                break;
            }
            before = place;
        }
        // The click follows in the next frame: results that arrive between two frames may move the widget away.
        let center = on_widget(&self.window, name, |node| node.rect().center());
        center.unwrap_or_else(|| panic!("{name} disappeared; on screen: {}", self.on_screen()))
    }

    /// Scrolls the last widget with this name into view, moves the pointer over it and waits until this text is shown. If the
    /// widget moves meanwhile, because rows above it come or go, the pointer follows.
    pub fn until_hover_shows(&mut self, name: &str, text: &str) {
        let place = Cell::new(None);
        self.until(&format!("{text:?} over {name}"), |w| {
            if let Some(node) = w.query_all_by_label(name).last() {
                let rect = Some(node.rect());
                if place.replace(rect) != rect {
                    node.scroll_to_me();
                    node.hover();
                }
            }
            sees(w, text)
        });
    }

    /// Steps the window until a button is enabled: other jobs, such as an estimate, may still be running.
    pub fn until_enabled(&mut self, name: &str) {
        self.until(&format!("{name} to be enabled"), |w| {
            on_widget(w, name, |node| !node.accesskit_node().is_disabled()).unwrap_or(false)
        });
    }

    /// Clicks a button while it is enabled. The start of another job may disable it between two frames, and then the click has
    /// no effect and is repeated.
    pub fn click_enabled(&mut self, name: &str) {
        let end = Instant::now() + TIMEOUT;
        loop {
            self.until_enabled(name);
            if self.click_once(name) == Click::Arrived {
                return;
            }
            assert!(Instant::now() < end, "no click on {name} arrived; on screen: {}", self.on_screen());
        }
    }

    /// Replaces the text of the field with this name.
    pub fn type_into(&mut self, field: &str, text: &str) {
        self.window.get_by_label(field).focus();
        self.window.run_steps(2);
        self.window.key_press_modifiers(Modifiers::COMMAND, Key::A);
        self.window.run_steps(2);
        match text {
            "" => self.window.key_press(Key::Backspace),
            text => self.window.get_by_label(field).type_text(text),
        }
        self.window.run_steps(3);
    }

    /// Whether this text is somewhere on screen.
    pub fn sees(&self, text: &str) -> bool {
        sees(&self.window, text)
    }

    /// All names and texts on screen, for failure messages.
    pub fn on_screen(&self) -> String {
        on_screen(&self.window)
    }
}

/// Calls `act` on the first widget with this name that is not a plain label.
fn on_widget<T>(window: &Harness<'static, Workbench>, name: &str, act: impl FnOnce(&Node<'_>) -> T) -> Option<T> {
    let mut named = window.query_all_by_label(name).filter(|node| node.accesskit_node().role() != Role::Label);
    named.next().map(|node| act(&node))
}

/// Whether the widget of this place before a click is the clicked one. It may have moved in between, and a link on several lines
/// has one place for each line.
fn is_same_widget(before: Rect, clicked: Rect) -> bool {
    (before.size() - clicked.size()).length() < 1.0 || before.expand(1.0).contains_rect(clicked)
}

/// Id under which [`record_click`] stores the place of the widget.
fn clicked_widget() -> Id {
    Id::new("clicked widget")
}

/// Stores the place of the widget that is clicked in this pass. If a click opens something, egui may discard the pass, and then
/// shows no clicked widget at the end of the frame.
fn record_click(ui: &mut Ui) {
    let ctx = ui.ctx();
    let Some(id) = ctx.interaction_snapshot(|interaction| interaction.clicked) else { return };
    if let Some(widget) = ctx.viewport(|viewport| viewport.this_pass.widgets.get(id).copied()) {
        ctx.data_mut(|data| data.insert_temp(clicked_widget(), widget));
    }
}

/// A click at a position of the window.
fn click_events(at: Pos2) -> [Event; 3] {
    let (button, modifiers) = (PointerButton::Primary, Modifiers::NONE);
    let button = |pressed| Event::PointerButton { pos: at, button, pressed, modifiers };
    [Event::PointerMoved(at), button(true), button(false)]
}

/// The content of a JSON file, such as a provenance record.
pub fn read_json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Whether this text is somewhere on screen.
pub fn sees(window: &Harness<'static, Workbench>, text: &str) -> bool {
    window.query_all_by_label_contains(text).next().is_some()
}

/// All names and texts on screen, for failure messages.
pub fn on_screen(window: &Harness<'static, Workbench>) -> String {
    let words = |n: Node<'_>| {
        let node = n.accesskit_node();
        node.label().or_else(|| node.value()).unwrap_or_default()
    };
    let all: Vec<String> = window.query_all(by()).map(words).filter(|w| !w.is_empty()).collect();
    all.join(" | ")
}

/// The sample that the window offers.
fn sample_path(home: &Path) -> PathBuf {
    home.join("sample/nuclei_raw.tif")
}

/// The bundled sample.
pub fn bundled_sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_raw.tif")
}

/// The size of [`small_sample`] along Y and X.
pub const SMALL: usize = 80;

/// Writes the middle of the bundled sample, with all its slices, where the window looks for the sample.
fn small_sample(home: &Path) {
    let whole = cytoscope_formats::open(&bundled_sample(), &OpenOptions::default()).unwrap();
    let values = whole.read_all().unwrap().samples().to_f32();
    let (nz, n) = (values.len() / (160 * 160), SMALL);
    let at = |z: usize, y: usize, x: usize| values[(z * 160 + y + 40) * 160 + x + 40] as u16;
    let part = (0..nz).flat_map(|z| (0..n).flat_map(move |y| (0..n).map(move |x| at(z, y, x)))).collect::<Vec<u16>>();
    let array = Array::new("ZYX".parse().unwrap(), vec![nz, n, n], part).unwrap();
    let mut spec = WriteSpec::of(&array, Container::ImageJ);
    spec.voxel_size_um = whole.meta().voxel_size_um;
    std::fs::create_dir_all(home.join("sample")).unwrap();
    write_array(&sample_path(home), &array, &spec).unwrap();
}

/// The real program. If software GPUs are allowed, a script starts it without them: tuning kernels for one takes minutes,
/// and these tests are about the window.
fn program(home: &Path) -> PathBuf {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_cytoscope"));
    #[cfg(unix)]
    if std::env::var_os("CYTOSCOPE_SOFTWARE_GPU").is_some() {
        let script = home.join("cytoscope-without-software-gpu");
        let text = format!("#!/bin/sh\nunset CYTOSCOPE_SOFTWARE_GPU\nexec '{}' \"$@\"\n", program.display());
        write_script(&script, &text);
        return script;
    }
    program
}

/// Writes an executable script. Another process writes it: a process that a test starts while this one writes would inherit
/// the open file, and files that are open for writing cannot be executed.
#[cfg(unix)]
pub fn write_script(path: &Path, text: &str) {
    let write = "printf '%s' \"$2\" > \"$1\" && chmod 755 \"$1\"";
    let written = std::process::Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(text).status();
    assert!(written.unwrap().success(), "{}", path.display());
}

/// Opens a window whose engine process is the real program.
pub fn window(home: &Path, files: Vec<PathBuf>) -> Harness<'static, Workbench> {
    window_with(home, files, TrainConfig::default())
}

/// Opens a window with other default training settings.
pub fn window_with(home: &Path, files: Vec<PathBuf>, train_config: TrainConfig) -> Harness<'static, Workbench> {
    window_with_engine(home, files, train_config, program(home))
}

/// Opens a window whose engine process is a program.
fn window_with_engine(
    home: &Path,
    files: Vec<PathBuf>,
    train_config: TrainConfig,
    program: PathBuf,
) -> Harness<'static, Workbench> {
    let sample = sample_path(home);
    if !sample.exists() {
        std::fs::create_dir_all(home.join("sample")).unwrap();
        std::fs::copy(bundled_sample(), &sample).unwrap();
    }
    let options = WorkbenchOptions {
        files,
        program: Some(program),
        settings_path: Some(home.join("settings/settings.json")),
        sample: Some(sample),
        log_folder: None,
        train_config,
    };
    Harness::builder().with_size([1360.0, 860.0]).with_step_dt(1.0 / 60.0).renderer(NullRenderer).build_eframe(
        move |cc| {
            cc.egui_ctx.on_end_pass("record clicks", Arc::new(record_click));
            Workbench::new(&cc.egui_ctx, options)
        },
    )
}
