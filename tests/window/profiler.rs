//! The profiler: advice that is applied, the timeline, operators beside the peak of their machine, and device memory.

use crate::accessibility;
use crate::fixture::{Fixture, sees};
use cytoscope_engine::DeviceRequest;
use cytoscope_pipeline::DiameterRequest;
use cytoscope_profile::{
    DeviceMemory, DeviceTime, DiameterCertainty, DiameterFacts, EngineMemory, InputFacts, Joining, MachinePeak,
    MemoryMark, Recorder, RunFacts, RunRecord, SpanRecord, Stage, StoredRun, TileFacts, TrainingFacts,
};
use cytoscope_ui::command::Command;
use cytoscope_ui::opener::{ProfileFormat, ProfileTable};
use cytoscope_ui::runs::RunId;
use cytoscope_ui::screenshots::ScreenshotSubject;
use eframe::egui::{Color32, ColorImage, Event, Key, Pos2, UserData, ViewportId, pos2};
use egui_kittest::kittest::{NodeT, Queryable};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Opens a stored run in the profiler.
pub(crate) fn open(fixture: &mut Fixture, path: &Path) {
    let title = format!("{} · predict", path.file_name().unwrap().to_string_lossy());
    fixture.window.state_mut().open_run(path.to_owned());
    fixture.until("the run", |w| sees(w, &title));
}

/// Writes the trace of a run that reads for half of its time and has these operators, with their milliseconds.
pub(crate) fn write_trace(path: &Path, read_secs: u64, operators: &[(&'static str, u64)]) {
    let recorder = Recorder::new();
    recorder.add(Stage::Read, "stack", Duration::from_secs(read_secs), 1 << 20);
    for (name, millis) in operators {
        recorder.add(Stage::Op, *name, Duration::from_millis(*millis), 0);
    }
    recorder.mark_memory("end");
    let facts = RunFacts { wall_secs: 2.0 * read_secs as f64, ..RunFacts::default() };
    let record = RunRecord::new("cytoscope 0", "predict", &recorder, facts);
    let mut text = Vec::new();
    recorder.write_trace(&record, &mut text).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Facts that call for larger tiles, another device, a diameter and a voxel size.
fn input_to_improve() -> InputFacts {
    let time = |device: &str, best_ms| DeviceTime { device: device.into(), best_ms };
    InputFacts {
        device: "cuda:7".into(),
        measured: vec![time("cuda:7", 30.0), time("cpu", 3.0)],
        tiles: Some(TileFacts {
            joining: Joining::Crop,
            crop_possible: true,
            // Too small for the model, so that a prediction with twice this size is refused at once.
            tile_zyx: [1, 4, 4],
            count: 8,
            computed_voxels: 1000,
            kept_voxels: 300,
            planned_bytes: 100 << 20,
            budget_bytes: None,
            grid_zyx: None,
            halo_zyx: [0; 3],
            reason: None,
        }),
        diameter: Some(DiameterFacts {
            diameter: 9.5,
            has_voxel_size: true,
            estimate: Some((DiameterCertainty::Low, 3)),
            // As if it were stated in nm.
            voxel_zyx: Some([1000.0, 200.0, 200.0]),
        }),
        ..InputFacts::default()
    }
}

/// Writes a report with the facts of one input.
fn write_report(path: &Path, input: InputFacts) {
    let facts = RunFacts { wall_secs: 1.0, inputs: vec![input], ..RunFacts::default() };
    let run = RunRecord::new("cytoscope 0", "predict", &Recorder::totals_only(), facts);
    std::fs::write(path, serde_json::json!({ "run": run }).to_string()).unwrap();
}

fn is_disabled(fixture: &Fixture, button: &str) -> bool {
    fixture.window.get_by_label(button).accesskit_node().is_disabled()
}

#[test]
fn advice_is_shown_with_its_evidence_and_applied_to_the_next_prediction() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.window.state_mut().send(Command::ToggleProfiler);
    // The diameter and voxel size of a stack of the same name in another folder are not those of the open one.
    let (other, elsewhere) = (fixture.path("other.json"), fixture.path("elsewhere/nuclei_raw.tif"));
    write_report(&other, InputFacts { name: elsewhere.display().to_string(), ..input_to_improve() });
    open(&mut fixture, &other);
    fixture.click("Advice (4)");
    assert!(fixture.sees("Use cpu") && !fixture.sees("Set object diameter"), "{}", fixture.on_screen());
    let report = fixture.path("report.json");
    write_report(&report, input_to_improve());
    open(&mut fixture, &report);
    fixture.click("Advice (4)");
    accessibility::check(&fixture, "advice");
    for text in ["70 % of the computed voxels are halo", "Expected gain: up to 3.33×", "Change: --tile 1,8,8"] {
        assert!(fixture.sees(text), "no {text:?}: {}", fixture.on_screen());
    }
    fixture.click("Use cpu");
    assert_eq!(fixture.window.state().settings().device, "cpu".parse::<DeviceRequest>().unwrap());
    assert!(is_disabled(&fixture, "Use cpu"), "it is applied");
    fixture.click("Set object diameter");
    let size = fixture.window.state().document().unwrap().object_size;
    assert_eq!(size.request, DiameterRequest::Given(9.5));
    fixture.click("Set voxel size…");
    assert!(fixture.sees("Voxel size of the file"), "{}", fixture.on_screen());
    fixture.click("Cancel");
    fixture.click("Use tiles of 1 × 8 × 8");
    assert!(fixture.sees("Tiles of 1 × 8 × 8"), "{}", fixture.on_screen());
    fixture.click_enabled("Predict this stack");
    fixture.until("the refusal of the tiles", |w| sees(w, "tile size [1, 8, 8] is too small"));
    fixture.click("Automatic tiles");
    assert!(!is_disabled(&fixture, "Use tiles of 1 × 8 × 8") && !fixture.sees("Automatic tiles"));
    fixture.click("Close report.json · predict");
    assert!(!fixture.sees("report.json"), "{}", fixture.on_screen());
}

#[test]
fn a_training_run_that_waits_for_data_asks_for_workers_which_the_wizard_takes_over() {
    let mut fixture = Fixture::new();
    let with_prefetch = |prefetch| {
        let training = TrainingFacts {
            step_secs: 0.5,
            stalled_secs: 0.25,
            workers: 1,
            prefetch,
            device: "cpu".into(),
            ..TrainingFacts::default()
        };
        RunFacts { wall_secs: 60.0, cores: Some(4), training: Some(training), ..RunFacts::default() }
    };
    let recorder = Recorder::totals_only();
    recorder.add(Stage::Forward, "forward", Duration::from_secs(15), 0);
    // It is unknown how many patches were prepared in advance.
    let run = RunRecord::new("cytoscope 0", "train", &recorder, with_prefetch(0));
    let path = fixture.path("training.json");
    std::fs::write(&path, serde_json::json!({ "run": run }).to_string()).unwrap();
    fixture.window.state_mut().send(Command::ToggleProfiler);
    fixture.window.state_mut().open_run(path);
    fixture.click("Training steps");
    // A quarter of the run is spent in the forward pass.
    for text in ["500.00 ms", "50 %", "25 %"] {
        assert!(fixture.sees(text), "no {text:?}: {}", fixture.on_screen());
    }
    fixture.click("Advice (1)");
    fixture.click("Use 2 data workers");
    assert_eq!(fixture.window.state().wizard().workers(), 2);
    assert!(is_disabled(&fixture, "Use 2 data workers"));
    // One patch in advance is work for one data worker only.
    let run = RunRecord::new("cytoscope 0", "train", &recorder, with_prefetch(1));
    let path = fixture.path("scarce.json");
    std::fs::write(&path, serde_json::json!({ "run": run }).to_string()).unwrap();
    fixture.window.state_mut().open_run(path);
    fixture.until("the run", |w| sees(w, "scarce.json · train"));
    fixture.click("Advice (1)");
    let button = "Use 2 data workers and prepare 4 patches in advance";
    assert!(!is_disabled(&fixture, button), "{}", fixture.on_screen());
    fixture.click(button);
    assert_eq!(fixture.window.state().wizard().prefetch(), Some(4));
    assert!(is_disabled(&fixture, button), "{}", fixture.on_screen());
}

#[test]
fn memory_batch_and_threads_of_advice_are_set_for_predictions_and_for_training_runs() {
    let mut fixture = Fixture::new();
    fixture.window.state_mut().send(Command::ToggleProfiler);
    let show = |fixture: &mut Fixture, kind: &str, facts: RunFacts| {
        let run = RunRecord::new("cytoscope 0", kind, &Recorder::totals_only(), facts);
        let path = fixture.path(&format!("{kind}.json"));
        std::fs::write(&path, serde_json::json!({ "run": run }).to_string()).unwrap();
        fixture.window.state_mut().open_run(path);
        fixture.until("the run", |w| sees(w, &format!("{kind}.json · {kind}")));
    };
    let more_threads_than_cores = RunFacts { wall_secs: 1.0, threads: Some(8), cores: Some(4), ..RunFacts::default() };
    let tiles = input_to_improve().tiles.map(|tiles| TileFacts { budget_bytes: Some(150 << 20), ..tiles });
    let input = InputFacts { device: "cpu".into(), tiles, ..InputFacts::default() };
    show(&mut fixture, "predict", RunFacts { inputs: vec![input], ..more_threads_than_cores.clone() });
    fixture.click("Advice (2)");
    fixture.click("Use a memory budget of 300 MiB");
    fixture.click("Use 4 threads");
    let settings = fixture.window.state().settings();
    assert_eq!((settings.memory_budget_mib, settings.threads), (Some(300), Some(4)));
    assert!(is_disabled(&fixture, "Use a memory budget of 300 MiB") && is_disabled(&fixture, "Use 4 threads"));
    // Those of a training run are settings of the wizard.
    let training = TrainingFacts {
        step_secs: 0.5,
        batch: 4,
        larger_batch: Some(8),
        device: "cpu".into(),
        ..TrainingFacts::default()
    };
    let (peak_bytes, memory_bytes) = (Some(15 << 30), Some(16 << 30));
    show(
        &mut fixture,
        "train",
        RunFacts { training: Some(training), peak_bytes, memory_bytes, ..more_threads_than_cores },
    );
    fixture.click("Advice (3)");
    for button in ["Use a batch size of 8", "Use a memory limit of 8.00 GiB", "Use 4 threads"] {
        fixture.click(button);
        assert!(is_disabled(&fixture, button), "{button}");
    }
    let plan = &fixture.window.state().wizard().plan;
    assert_eq!((plan.batch, plan.memory_mib, plan.threads), (Some(8), Some(8192), Some(4)));
    // A smaller batch is set together with the number of batches that keeps the patches of a step.
    let training = TrainingFacts {
        step_secs: 0.5,
        batch: 4,
        accumulate: 1,
        recomputed_share: Some(0.3),
        device: "cpu".into(),
        ..TrainingFacts::default()
    };
    show(&mut fixture, "recomputing", RunFacts { wall_secs: 1.0, training: Some(training), ..RunFacts::default() });
    fixture.click("Advice (1)");
    fixture.click("Use 2 batches of 2 per step");
    assert!(is_disabled(&fixture, "Use 2 batches of 2 per step"));
    let plan = &fixture.window.state().wizard().plan;
    assert_eq!((plan.batch, plan.accumulate), (Some(2), Some(2)));
}

#[test]
fn the_timeline_is_moved_and_zoomed_with_the_keyboard() {
    let mut fixture = Fixture::new();
    let path = fixture.path("run.json");
    write_trace(&path, 4, &[("Conv a", 500)]);
    fixture.window.state_mut().send(Command::ToggleProfiler);
    open(&mut fixture, &path);
    let whole = "Timeline of spans, 0 ms to 4.0 s";
    assert!(fixture.sees(whole), "{}", fixture.on_screen());
    fixture.window.get_by_label(whole).focus();
    fixture.window.run_steps(4);
    let mut press = |key: Key, expected: &str| {
        fixture.window.key_press(key);
        fixture.window.run_steps(4);
        assert!(fixture.sees(expected), "no {expected:?} after {key:?}: {}", fixture.on_screen());
    };
    // A zoom by 1.25 leaves 3.2 s around the middle, and an arrow moves them by a tenth.
    press(Key::Plus, "Timeline of spans, 400 ms to 3.6 s");
    press(Key::ArrowLeft, "Timeline of spans, 80 ms to 3.3 s");
    press(Key::ArrowRight, "Timeline of spans, 400 ms to 3.6 s");
    press(Key::Minus, whole);
    press(Key::Plus, "Timeline of spans, 400 ms to 3.6 s");
    press(Key::Home, whole);
}

#[test]
fn what_times_of_operators_on_a_gpu_include_is_said_beside_them() {
    let mut fixture = Fixture::new();
    fixture.window.state_mut().send(Command::ToggleProfiler);
    for (device, name, is_said) in [("cpu", "of_cpu.json", false), ("cuda:0", "of_gpu.json", true)] {
        let recorder = Recorder::new();
        recorder.add(Stage::Op, "Conv a", Duration::from_millis(500), 0);
        let inputs = vec![InputFacts { device: device.into(), ..InputFacts::default() }];
        let facts = RunFacts { wall_secs: 1.0, inputs, ..RunFacts::default() };
        let mut text = Vec::new();
        recorder.write_trace(&RunRecord::new("cytoscope 0", "predict", &recorder, facts), &mut text).unwrap();
        let path = fixture.path(name);
        std::fs::write(&path, text).unwrap();
        open(&mut fixture, &path);
        fixture.click("Operators");
        assert!(fixture.sees("Conv a"), "{}", fixture.on_screen());
        let says = fixture.sees("includes the launch of its kernels");
        assert_eq!(says, is_said, "{device}: {}", fixture.on_screen());
    }
}

#[test]
fn operators_are_shown_beside_the_measured_peak_of_their_machine() {
    let mut fixture = Fixture::new();
    let recorder = Recorder::new();
    for (name, macs, bytes) in [("Conv a", 8_000_000, 1_000_000), ("Resize b", 0, 5_000_000)] {
        recorder.span(Stage::Op, name).macs(macs).bytes(bytes).finish();
    }
    let peak = MachinePeak {
        kernels: "avx2".to_owned(),
        threads: 2,
        float_macs_per_sec: 1e11,
        bf16_macs_per_sec: None,
        int8_macs_per_sec: None,
        memory_bytes_per_sec: 1e10,
    };
    let facts = RunFacts { wall_secs: 1.0, machine_peak: Some(peak), ..RunFacts::default() };
    let record = RunRecord::new("cytoscope 0", "predict", &recorder, facts);
    let mut text = Vec::new();
    recorder.write_trace(&record, &mut text).unwrap();
    let path = fixture.path("peak.json");
    std::fs::write(&path, text).unwrap();
    let without = fixture.path("without.json");
    write_trace(&without, 1, &[("Conv a", 500)]);
    fixture.window.state_mut().send(Command::ToggleProfiler);
    open(&mut fixture, &without);
    fixture.click("Operators");
    assert!(fixture.sees("GMAC/s") && !fixture.sees("Of peak"), "{}", fixture.on_screen());
    fixture.click("Roofline");
    assert!(fixture.sees("The run lacks the peak of its machine"), "{}", fixture.on_screen());
    open(&mut fixture, &path);
    fixture.click("Roofline");
    accessibility::check(&fixture, "roofline");
    for shown in ["Peak with 2 threads, avx2: 100 GMAC/s f32, 10.0 GB/s memory", "Roofline, number of operators: 1"] {
        assert!(fixture.sees(shown), "no {shown:?}: {}", fixture.on_screen());
    }
    fixture.click("Operators");
    assert!(fixture.sees("Of peak"), "{}", fixture.on_screen());
    let csv = fixture.path("roofline.csv");
    let format = ProfileFormat::Csv(ProfileTable::Roofline);
    fixture.window.state_mut().save_profile(format, RunId::File(2), csv.clone());
    fixture.until("the table", |_| csv.is_file());
    let csv = std::fs::read_to_string(csv).unwrap();
    assert!(csv.contains(",8000000,1000000,8,") && csv.contains(",memory,"), "{csv}");
    assert_eq!(csv.lines().count(), 3, "{csv}");
}

#[test]
fn a_high_profiler_leaves_room_for_the_views_once_the_window_is_smaller() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    fixture.window.state_mut().send(Command::ToggleProfiler);
    fixture.window.run_steps(6);
    let view_height = |fixture: &Fixture| fixture.window.get_by_label_contains("XY view").rect().height();
    let (before, button) = (view_height(&fixture), fixture.window.get_by_label("Open run…").rect());
    let is_edge = |at: &Pos2| {
        fixture.window.hover_at(*at);
        fixture.window.run_steps(2);
        format!("{:?}", fixture.window.output().platform_output.cursor_icon).starts_with("Resize")
    };
    let edge = (0..40).map(|up| pos2(680.0, button.top() - up as f32)).find(is_edge).unwrap();
    fixture.window.drag_at(edge);
    fixture.window.step();
    fixture.window.hover_at(pos2(edge.x, 100.0));
    fixture.window.run_steps(2);
    fixture.window.drop_at(pos2(edge.x, 100.0));
    fixture.window.run_steps(6);
    assert!(view_height(&fixture) < before - 30.0, "the panel is higher now: {}", view_height(&fixture));
    fixture.window.set_size([800.0, 600.0].into());
    fixture.window.run_steps(6);
    let top = fixture.window.get_by_label("Runs").rect().top();
    assert!(top > 240.0, "the panel begins at {top} of 600");
    let rect = |name: &str| fixture.window.get_by_label_contains(name).rect();
    let views = rect("XZ view").bottom() - rect("XY view").top();
    assert!(views > 0.36 * 600.0, "the views have {views} of 600");
}

#[test]
fn in_the_smallest_window_the_views_leave_the_profiler_uncovered() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    let path = fixture.path("run.json");
    write_trace(&path, 1, &[("Conv a", 500)]);
    fixture.window.state_mut().send(Command::ToggleProfiler);
    open(&mut fixture, &path);
    fixture.click("Operators");
    fixture.window.set_size([640.0, 480.0].into());
    fixture.window.run_steps(6);
    let rect = |name: &str| fixture.window.get_by_label_contains(name).rect();
    let (views, profiler) = (rect("XZ view").bottom(), rect("Save view as CSV").top());
    assert!(views <= profiler, "the views end at {views}, the profiler begins at {profiler}");
}

#[test]
fn the_profiler_is_saved_as_a_picture() {
    let mut fixture = Fixture::new();
    let path = fixture.path("run.json");
    write_trace(&path, 1, &[("Conv a", 500)]);
    fixture.window.state_mut().send(Command::ToggleProfiler);
    open(&mut fixture, &path);
    let saved = fixture.path("profile.png");
    fixture.window.state_mut().take_screenshot(ScreenshotSubject::Profile, saved.clone());
    // The frame asks for an image of the window. It gets one whose colors are the positions in steps of 8 points.
    fixture.window.step();
    let [width, height] = [1360usize, 860];
    let pixel = |i: usize| Color32::from_rgb((i % width / 8) as u8, (i / width / 8) as u8, 7);
    let window = ColorImage::new([width, height], (0..width * height).map(pixel).collect());
    fixture.window.event(Event::Screenshot {
        viewport_id: ViewportId::ROOT,
        user_data: UserData::default(),
        image: Arc::new(window),
    });
    fixture.until("the picture", |_| saved.is_file());
    let picture = image::open(&saved).unwrap().to_rgb8();
    let [left, top, _] = picture.get_pixel(0, 0).0;
    let [right, bottom, _] = picture.get_pixel(picture.width() - 1, picture.height() - 1).0;
    let button = fixture.window.get_by_label("Save profile as picture").rect();
    let at = |points: f32| (points / 8.0) as u8;
    assert!(left <= at(button.left()) && at(button.right()) <= right, "{left} {right} {button:?}");
    assert!(top <= at(button.top()) && at(button.bottom()) <= bottom, "{top} {bottom} {button:?}");
    assert!(picture.height() < 860, "only the panel");
}

#[test]
fn device_memory_is_plotted_and_exported() {
    let mut fixture = Fixture::new();
    let recorder = Recorder::new();
    let device = Some(DeviceMemory { allocated_bytes: 300 << 20, reserved_bytes: 512 << 20 });
    let engines = EngineMemory { arena_bytes: Some(5 << 20), device };
    drop(recorder.sample_memory(Duration::from_millis(1), move || engines));
    recorder.span(Stage::Compute, "tile").finish();
    let record = RunRecord::new("cytoscope 0", "predict", &recorder, RunFacts::default());
    let mut text = Vec::new();
    recorder.write_trace(&record, &mut text).unwrap();
    let path = fixture.path("gpu.json");
    std::fs::write(&path, text).unwrap();
    fixture.window.state_mut().send(Command::ToggleProfiler);
    open(&mut fixture, &path);
    fixture.click("Memory");
    assert!(fixture.sees("Device memory: peak 300 MiB allocated, 512 MiB reserved"), "{}", fixture.on_screen());
    for curve in ["resident memory", "engine arena", "device memory allocated", "device memory reserved"] {
        let name = fixture.window.get_by_label_contains(curve).rect();
        let plot = fixture.window.get_by_label("Memory over time").rect();
        assert!(name.bottom() <= plot.top(), "{curve} covers the plot: {name:?}, {plot:?}");
    }
    let csv = fixture.path("memory.csv");
    let format = ProfileFormat::Csv(ProfileTable::Memory);
    fixture.window.state_mut().save_profile(format, RunId::File(1), csv.clone());
    fixture.until("the table", |_| csv.is_file());
    let csv = std::fs::read_to_string(csv).unwrap();
    assert!(csv.lines().next().unwrap().ends_with("arena_bytes,device_allocated_bytes,device_reserved_bytes"), "{csv}");
    assert!(csv.contains(",5242880,314572800,536870912\n"), "{csv}");
}

#[test]
fn marks_and_growth_of_the_memory_are_those_of_the_command_line() {
    let mut fixture = Fixture::new();
    let span = |name: &'static str, start_us: f64, change_mib: i64| SpanRecord {
        resident_change_bytes: Some(change_mib << 20),
        ..SpanRecord::new(Stage::Load, name, start_us, 1000.0)
    };
    let mark = |label: &'static str, at_us: f64, mib: u64| MemoryMark {
        label: label.into(),
        at_us,
        resident_bytes: mib << 20,
    };
    let record = RunRecord::new("cytoscope 0", "predict", &Recorder::new(), RunFacts::default());
    let spans = vec![span("weights", 2e6, 5), span("maps", 3e6, 9), span("freed", 4e6, -1)];
    let marks = vec![mark("model loaded", 1e6, 40), mark("stack predicted", 5e6, 60)];
    let run = StoredRun { record, spans, marks, timeline: Vec::new(), spans_not_kept: 0 };
    let mut text = Vec::new();
    run.write_trace(&mut text).unwrap();
    let path = fixture.path("run.json");
    std::fs::write(&path, text).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cytoscope"));
    let printed = String::from_utf8(command.arg("profile").arg(&path).output().unwrap().stdout).unwrap();
    fixture.window.state_mut().send(Command::ToggleProfiler);
    open(&mut fixture, &path);
    fixture.click("Memory");
    accessibility::check(&fixture, "marks of the memory");
    for name in ["model loaded", "stack predicted", "load (maps)", "load (weights)"] {
        let line = printed.lines().find_map(|line| line.trim().strip_prefix(name));
        let listed = format!("{name}: {}", line.unwrap_or_else(|| panic!("no {name} in {printed}")).trim());
        assert!(fixture.sees(&listed), "{listed}: {}", fixture.on_screen());
    }
    assert!(!fixture.sees("load (freed)"), "{}", fixture.on_screen());
}

#[test]
fn a_diameter_without_objects_is_replaced_by_an_estimate() {
    let mut fixture = Fixture::new();
    fixture.click("Open the sample");
    fixture.settle();
    let diameter = DiameterFacts { diameter: 99.0, has_voxel_size: true, estimate: None, voxel_zyx: None };
    let report = fixture.path("none.json");
    write_report(&report, InputFacts { diameter: Some(diameter), objects: Some(0), ..InputFacts::default() });
    fixture.window.state_mut().send(Command::ToggleProfiler);
    open(&mut fixture, &report);
    fixture.click("Advice (1)");
    assert!(fixture.sees("No objects were found with the given object diameter"), "{}", fixture.on_screen());
    // The sample's diameter is estimated already.
    assert!(is_disabled(&fixture, "Estimate object diameter"));
}

#[test]
fn long_names_leave_the_controls_inside_the_window() {
    let mut fixture = Fixture::new();
    let path = fixture.path(&format!("{}.json", "a long name ".repeat(12)));
    write_trace(&path, 1, &[("Conv a", 500)]);
    fixture.window.state_mut().send(Command::ToggleProfiler);
    open(&mut fixture, &path);
    let close = format!("Close {} · predict", path.file_name().unwrap().to_string_lossy());
    let rect = |name: &str| fixture.window.get_by_label(name).rect();
    for name in [close.as_str(), "Open run…", "Compare with", "Save as Chrome trace", "Save profile as picture"] {
        let rect = rect(name);
        assert!(rect.left() >= 0.0 && rect.right() <= 1360.0 && rect.width() < 300.0, "{name}: {rect:?}");
    }
    // The list does not reach into the views.
    assert!(rect(&close).right() <= rect("Operators").left(), "{:?}", rect(&close));
}

#[test]
fn a_file_without_a_run_is_refused_with_a_reason() {
    let mut fixture = Fixture::new();
    let path = fixture.path("other.json");
    std::fs::write(&path, "{}").unwrap();
    fixture.window.state_mut().open_run(path);
    // Options of the command line are left out.
    let expected = "contains no run; expected a trace or a report of a command that runs a job";
    fixture.until("the reason", |w| sees(w, "The run cannot be opened") && sees(w, expected));
}
