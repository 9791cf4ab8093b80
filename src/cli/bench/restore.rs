//! `bench --resume`: continues after the runs that the results of an interrupted `bench` contain.

use super::metrics::Figures;
use super::results::{GitInfo, Origin, TaskResult};
use super::tasks::Task;
use super::{Progress, TaskRun};
use crate::cli::eprint_line;
use crate::cli::failure::{Failure, Outcome};
use cytoscope_engine::select::fingerprint;
use cytoscope_pipeline::provenance::InputRecord;
use cytoscope_pipeline::{input_record, own_program};
use cytoscope_storage::counted;
use cytoscope_storage::message;
use cytoscope_storage::setting::{FORCE, RESUME};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Returns a fingerprint of what the figures of a task depend on: its command line, and the program that runs it, which is
/// this one or that of a commit.
pub(super) fn task_fingerprint(task: &Task, branch: Option<&GitInfo>) -> String {
    let mut arguments = task.arguments(Path::new("out"), Path::new("trace.json"));
    arguments.push(branch.map_or_else(this_build, |git_info| git_info.commit_hash.clone()));
    fingerprint(arguments.join("\n").as_bytes())
}

/// Returns the records of the files and folders that a task reads, as they are now. Files in folders do not count if
/// they are `left_out` (resolved paths).
pub(super) fn current_input_records(task: &Task, left_out: &[PathBuf]) -> Vec<InputRecord> {
    // The run of the task reports what cannot be read.
    task.inputs().iter().filter_map(|path| input_record(path, left_out).ok()).collect()
}

/// Returns the first change of the inputs of a task since its earlier runs, as a sentence; `None` if there is none.
fn first_change(then: &[InputRecord], now: &[InputRecord]) -> Option<String> {
    then.iter().find_map(|then| {
        let path = then.path.display();
        match now.iter().find(|now| now.path == then.path) {
            Some(now) => then.change(now).map(|change| format!("{path} {change}")),
            None => Some(format!("{path} is missing, or was replaced by another file since it was read")),
        }
    })
}

/// Identifies this build of the program by its version, and by the size and the time of change of its file.
fn this_build() -> String {
    let file_metadata = own_program().and_then(std::fs::metadata).ok();
    let changed = file_metadata.as_ref().and_then(|metadata| metadata.modified().ok());
    let secs = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_secs());
    format!("{} {} {secs}", env!("CARGO_PKG_VERSION"), file_metadata.map_or(0, |metadata| metadata.len()))
}

/// Adds the runs in `earlier` results, those of the file at `path`, to the tasks that they belong to. A task that failed is
/// run again.
///
/// # Errors
/// Bad input if the results are those of other tasks, settings, data or models, or of another program or machine.
pub(super) fn restore(all: &mut [Progress], earlier: &[TaskResult], origin: &Origin, path: &Path) -> Outcome {
    for result in earlier {
        let refused = |problem: &str| {
            Failure::bad_input(format!("{}: {problem}", path.display())).and_next(message!(
                "continue with the table, the data, the program and the machine of these results, or use {FORCE} instead of \
                 {RESUME} to start again"
            ))
        };
        let name = &result.name;
        let matching = all.iter_mut().find(|progress| progress.task.name == *name && progress.task.kind == result.kind);
        let progress = matching.ok_or_else(|| refused(&format!("the table has no task \"{name}\"")))?;
        // Nothing is kept of a task that failed in its first run.
        if !result.success && result.run_metrics.is_empty() {
            continue;
        }
        if result.fingerprint.as_deref() != Some(progress.fingerprint.as_str()) {
            return Err(refused(&format!(
                "task \"{name}\" was measured with other settings or by another build of the program"
            )));
        }
        if let Some(change) = first_change(&result.inputs, &progress.inputs) {
            return Err(refused(&format!("task \"{name}\": {change}")));
        }
        let differences = origin.differences(result);
        if !differences.is_empty() {
            return Err(refused(&format!("they were measured on another machine ({})", differences.join("; "))));
        }
        let run_of =
            |figures: &Figures| TaskRun { figures: figures.clone(), dataset_info: result.dataset_info.clone() };
        progress.runs = result.run_metrics.iter().map(run_of).collect();
    }
    let runs: usize = all.iter().map(|progress| progress.runs.len()).sum();
    if !earlier.is_empty() {
        eprint_line(&format!("continuing after {}", counted(runs, "finished run")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_data_models_and_files_of_options_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let [data, model, output] = ["data", "m.onnx", "data/r.json"].map(|name| folder.path().join(name));
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("a.tif"), "a").unwrap();
        std::fs::write(&model, "weights").unwrap();
        let settings = folder.path().join("t.toml");
        std::fs::write(&settings, "ema = 0.9").unwrap();
        let option = format!("--config={}", settings.display());
        let task = Task::inference(
            "t",
            model.to_str().unwrap(),
            data.to_str().unwrap(),
            vec![option, "--diameter=9".to_owned()],
        );
        let now = || current_input_records(&task, &[cytoscope_storage::target::resolved(&output)]);
        let then = now();
        assert_eq!(then.len(), 3, "{then:?}");
        // The results of the bench itself may lie in the folder.
        std::fs::write(&output, "[]").unwrap();
        assert_eq!(first_change(&then, &now()), None);
        for file in [&data.join("a.tif"), &model, &settings] {
            let before = now();
            let text = std::fs::read_to_string(file).unwrap();
            std::fs::write(file, text + " longer").unwrap();
            let change = first_change(&before, &now()).unwrap();
            assert!(change.contains("bytes when it was recorded"), "{change}");
        }
        std::fs::remove_file(&model).unwrap();
        assert!(first_change(&then[1..2], &now()).unwrap().contains("m.onnx is missing"));
    }
}
