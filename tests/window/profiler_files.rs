//! Runs in the profiler side by side, search in their tables, and the files that the profiler saves.

use crate::accessibility;
use crate::fixture::{Fixture, SMALL, sees};
use crate::gestures::enter_path;
use crate::profiler::{open, write_trace};
use cytoscope_profile::{Recorder, RunFacts, RunRecord, Stage, StoredRun};
use cytoscope_ui::command::Command;
use cytoscope_ui::opener::{ProfileFormat, ProfileTable};
use cytoscope_ui::runs::RunId;
use cytoscope_ui::work::Purpose;
use eframe::egui::Key;
use egui_kittest::kittest::Queryable;
use std::path::PathBuf;
use std::time::Duration;

#[test]
fn stored_runs_are_compared_searched_and_exported() {
    let mut fixture = Fixture::new();
    let (first, second) = (fixture.path("first.json"), fixture.path("second.json"));
    write_trace(&first, 4, &[("Conv a", 500), ("Conv b", 250)]);
    write_trace(&second, 1, &[("Conv a", 1000), ("Resize c", 125)]);
    fixture.window.state_mut().send(Command::ToggleProfiler);
    open(&mut fixture, &second);
    open(&mut fixture, &first);
    // Search leaves out what does not match.
    fixture.click("Operators");
    assert!(fixture.sees("Conv a") && fixture.sees("Conv b"), "{}", fixture.on_screen());
    assert!(fixture.sees("Time (ms)"), "{}", fixture.on_screen());
    fixture.window.get_by_label("Search spans").focus();
    fixture.window.run_steps(2);
    fixture.window.get_by_label("Search spans").type_text("conv A");
    fixture.window.run_steps(4);
    assert!(fixture.sees("Conv a") && !fixture.sees("Conv b"), "{}", fixture.on_screen());
    fixture.click("Compare with");
    fixture.click("Compare with second.json · predict, 2.0 s");
    accessibility::check(&fixture, "comparison");
    assert!(fixture.sees("2.00×") && !fixture.sees("Resize c"), "{}", fixture.on_screen());
    fixture.window.get_by_label("Search spans").focus();
    fixture.window.run_steps(2);
    for _ in 0.."conv A".len() {
        fixture.window.key_press(Key::Backspace);
    }
    fixture.window.run_steps(4);
    assert!(fixture.sees("0.25×"), "total and reading take a quarter: {}", fixture.on_screen());
    // The runs in the order in which they were opened.
    let [newest, other] = [RunId::File(2), RunId::File(1)];
    let mut save = |format, name: &str| -> PathBuf {
        let path = fixture.path(name);
        fixture.window.state_mut().save_profile(format, newest, path.clone());
        fixture.until(name, |_| path.is_file());
        path
    };
    let csv = std::fs::read_to_string(save(ProfileFormat::Csv(ProfileTable::Comparison(other)), "c.csv")).unwrap();
    for line in [
        "total,\"total\",8,2,0.25",
        "stage,\"read\",4,1,0.25",
        "operator,\"Conv a\",0.5,1,2",
        "operator,\"Resize c\",0,0.125,",
    ] {
        let line = format!("{line},\"first.json · predict\",\"second.json · predict\"");
        assert!(csv.lines().any(|l| l == line), "no {line:?} in {csv}");
    }
    let csv = std::fs::read_to_string(save(ProfileFormat::Csv(ProfileTable::Memory), "m.csv")).unwrap();
    assert_eq!(csv.lines().count(), 2, "{csv}");
    let trace = std::fs::read(save(ProfileFormat::Trace, "again.json")).unwrap();
    let original = StoredRun::from_json(&std::fs::read(&first).unwrap()).unwrap();
    assert_eq!(StoredRun::from_json(&trace).unwrap(), original);
}

#[test]
fn a_search_without_matches_says_so_in_every_table() {
    let mut fixture = Fixture::new();
    let (first, second) = (fixture.path("first.json"), fixture.path("second.json"));
    write_trace(&first, 4, &[("Conv a", 500)]);
    write_trace(&second, 1, &[("Conv a", 1000)]);
    fixture.window.state_mut().send(Command::ToggleProfiler);
    open(&mut fixture, &second);
    open(&mut fixture, &first);
    fixture.window.get_by_label("Search spans").focus();
    fixture.window.run_steps(2);
    fixture.window.get_by_label("Search spans").type_text("pooling");
    fixture.window.run_steps(4);
    fixture.click("Operators");
    assert!(fixture.sees("Nothing matches \"pooling\"."), "{}", fixture.on_screen());
    fixture.click("Compare with");
    fixture.click("Compare with second.json · predict, 2.0 s");
    assert!(fixture.sees("Nothing matches \"pooling\"."), "{}", fixture.on_screen());
}

#[test]
fn runs_of_different_kinds_are_compared_even_without_operators() {
    let mut fixture = Fixture::new();
    let (predicted, trained) = (fixture.path("predicted.json"), fixture.path("trained.json"));
    write_trace(&predicted, 4, &[]);
    let recorder = Recorder::new();
    recorder.add(Stage::Forward, "forward", Duration::from_secs(2), 0);
    let facts = RunFacts { wall_secs: 2.0, ..RunFacts::default() };
    let record = RunRecord::new("cytoscope 0", "train", &recorder, facts);
    let mut text = Vec::new();
    recorder.write_trace(&record, &mut text).unwrap();
    std::fs::write(&trained, text).unwrap();
    fixture.window.state_mut().send(Command::ToggleProfiler);
    fixture.window.state_mut().open_run(trained);
    fixture.until("the training run", |w| sees(w, "trained.json · train"));
    open(&mut fixture, &predicted);
    fixture.click("Compare with");
    fixture.click("Compare with trained.json · train, 2.0 s");
    // A stage that only the second run has has no ratio.
    for shown in ["forward", "0.25×", "–", "0.00×"] {
        assert!(fixture.sees(shown), "no {shown:?}: {}", fixture.on_screen());
    }
}

#[test]
fn the_choice_of_a_run_to_compare_with_is_not_cut_off_in_narrow_windows() {
    let mut fixture = Fixture::new();
    let (first, second) = (fixture.path("first.json"), fixture.path("second.json"));
    write_trace(&first, 4, &[("Conv a", 500), ("Conv b", 250)]);
    write_trace(&second, 1, &[("Conv a", 1000), ("Resize c", 125)]);
    fixture.window.state_mut().send(Command::ToggleProfiler);
    open(&mut fixture, &second);
    open(&mut fixture, &first);
    fixture.click("Compare with");
    fixture.click("Compare with second.json · predict, 2.0 s");
    // Depending on the width, it is in another row of the names of the views.
    for width in [900.0, 820.0, 740.0, 640.0] {
        fixture.window.set_size([width, 600.0].into());
        fixture.window.run_steps(6);
        let right = fixture.window.get_by_label("Compare with").rect().right();
        assert!(right <= width, "it ends at {right} of {width}");
    }
}

#[test]
fn buttons_save_each_view_as_csv_and_the_run_as_a_trace() {
    let mut fixture = Fixture::new();
    fixture.window.state_mut().use_own_file_dialog();
    let (first, second) = (fixture.path("first.json"), fixture.path("second.json"));
    write_trace(&first, 4, &[("Conv a", 500), ("Conv b", 250)]);
    write_trace(&second, 1, &[("Conv a", 1000)]);
    fixture.window.state_mut().send(Command::ToggleProfiler);
    open(&mut fixture, &second);
    open(&mut fixture, &first);
    let saved = |fixture: &mut Fixture, button: &str, name: &str| {
        let path = fixture.path(name);
        fixture.click(button);
        enter_path(fixture, &path);
        fixture.until(name, |_| path.is_file());
        std::fs::read(&path).unwrap()
    };
    let check = |fixture: &mut Fixture, view: &str, header: &str, line: &str| {
        let csv = String::from_utf8(saved(fixture, "Save view as CSV", &format!("{view}.csv"))).unwrap();
        assert!(csv.starts_with(header) && csv.contains(line), "{view}: {csv}");
    };
    for (view, header, line) in [
        ("Timeline", "stage,name,thread,start_us,duration_us,", "\nread,\"stack\","),
        ("Operators", "stage,name,count,seconds,", "\nop,\"Conv b\",1,0.25,0,0,\n"),
        ("Memory", "seconds,label,resident_bytes,", ",\"end\","),
        ("Roofline", "name,seconds,macs,bytes,", "share_of_peak,precision\n"),
    ] {
        fixture.click(view);
        check(&mut fixture, view, header, line);
    }
    fixture.click("Compare with");
    fixture.click("Compare with second.json · predict, 2.0 s");
    check(
        &mut fixture,
        "Comparison",
        "kind,name,first_secs,",
        "\ntotal,\"total\",8,2,0.25,\"first.json · predict\",\"second.json · predict\"\n",
    );
    let trace = saved(&mut fixture, "Save as Chrome trace", "again.json");
    let original = StoredRun::from_json(&std::fs::read(&first).unwrap()).unwrap();
    assert_eq!(StoredRun::from_json(&trace).unwrap(), original);
}

#[test]
fn an_export_replaces_an_existing_file_only_on_request() {
    let mut fixture = Fixture::new();
    fixture.window.state_mut().use_own_file_dialog();
    let (path, existing) = (fixture.path("run.json"), fixture.path("spans.csv"));
    write_trace(&path, 4, &[("Conv a", 500)]);
    std::fs::write(&existing, "mine").unwrap();
    fixture.window.state_mut().send(Command::ToggleProfiler);
    open(&mut fixture, &path);
    let save = |fixture: &mut Fixture| {
        fixture.click("Save view as CSV");
        fixture.until("the dialog", |w| sees(w, "File name"));
        fixture.type_into("File name", &existing.display().to_string());
        fixture.window.key_press(Key::Enter);
        fixture.until("the question", |w| sees(w, "Replace the file?"));
    };
    save(&mut fixture);
    fixture.click("Keep file");
    fixture.click("Cancel dialog");
    fixture.until("no dialog", |w| !sees(w, "File name"));
    assert_eq!(std::fs::read(&existing).unwrap(), b"mine");
    save(&mut fixture);
    fixture.click("Replace file");
    fixture.until("the table", |_| std::fs::read(&existing).unwrap().starts_with(b"stage,name,thread,"));
}

#[test]
fn a_job_of_the_window_is_exported_with_its_facts() {
    let mut fixture = Fixture::with_small_sample();
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click_enabled("Predict this stack");
    fixture.until("objects", |w| sees(w, " objects in "));
    fixture.window.state_mut().send(Command::ToggleProfiler);
    fixture.window.run_steps(4);
    let jobs = fixture.window.state().jobs();
    let job = jobs.iter().rev().find(|j| matches!(j.purpose, Purpose::Predict { .. })).unwrap();
    let (id, seconds, title) = (RunId::Job(job.id), job.seconds, job.title.clone());
    let path = fixture.path("job.json");
    fixture.window.state_mut().save_profile(ProfileFormat::Trace, id, path.clone());
    fixture.until("the trace", |_| path.is_file());
    let run = StoredRun::from_json(&std::fs::read(&path).unwrap()).unwrap();
    let facts = &run.record.facts;
    assert_eq!((run.record.command.as_str(), facts.wall_secs), ("predict", seconds));
    assert_eq!(facts.inputs.iter().map(|i| i.voxels).collect::<Vec<_>>(), [(32 * SMALL * SMALL) as u64]);
    assert!(run.spans.iter().any(|s| s.stage == Stage::Read), "the spans of the job");
    assert!(run.timeline.len() > run.marks.len(), "its memory was sampled");
    assert!(run.timeline.iter().any(|sample| sample.arena_bytes.is_some()), "with the arenas of the engine");
    open(&mut fixture, &path);
    // A stored run is compared with a job.
    fixture.click("Compare with");
    fixture.window.run_steps(4);
    let offered = format!("Compare with {title}, ");
    fixture.window.query_all_by_label_contains(&offered).next().unwrap().click();
    fixture.until("the comparison", |w| sees(w, "times as long") && sees(w, "Ratio"));
}
