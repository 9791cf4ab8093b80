//! The checkpoint of an earlier run in the folder of a job: whether and with which settings the job continues it.

use super::Checkpoint;
use crate::checkpoint::{CheckpointSummary, RunFolder, TrainState};
use crate::config::{BudgetConfig, TrainConfig, TrainPrecision};
use crate::job::TrainJob;
use crate::setup::check_same_run;
use cytoscope_pipeline::JobError;
use cytoscope_storage::message;
use cytoscope_storage::setting::{RESTART, RESUME};

/// Returns the settings of a resumed run: the settings of its checkpoint, with the given limits, patience, precision and license
/// if there are any. The precision may change because another device may not have it.
pub(super) fn resumed(checkpoint: &TrainConfig, given: &TrainConfig) -> TrainConfig {
    let limits = if given.budget.is_given() { given.budget } else { checkpoint.budget };
    // A new limit alone does not state the patience, which is then 0.
    let patience = if given.budget.patience > 0 { given.budget.patience } else { checkpoint.budget.patience };
    let budget = BudgetConfig { patience, ..limits };
    let precision = if given.precision == TrainPrecision::Auto { checkpoint.precision } else { given.precision };
    let license = given.license.clone().or_else(|| checkpoint.license.clone());
    TrainConfig { budget, precision, license, ..checkpoint.clone() }
}

/// Returns whether a resumed run has the given settings, apart from those that were left open and were derived from the data.
pub(super) fn has_settings(resumed: &TrainConfig, given: &TrainConfig) -> bool {
    let (budget, precision, license) = (resumed.budget, resumed.precision, resumed.license.clone());
    let patch_zyx = given.patch_zyx.or(resumed.patch_zyx);
    let voxel_um = given.voxel_um.or(resumed.voxel_um);
    let object_diameter_um = given.object_diameter_um.or(resumed.object_diameter_um);
    let mut given =
        TrainConfig { budget, precision, license, patch_zyx, voxel_um, object_diameter_um, ..given.clone() };
    if given.data.channels.is_empty() {
        given.data.image_channel = given.data.image_channel.or(resumed.data.image_channel);
    }
    if given.network.strides.is_empty() {
        given.network.strides.clone_from(&resumed.network.strides);
    }
    *resumed == given
}

/// Returns the error for a run that neither resumes nor discards an existing checkpoint.
pub(super) fn unfinished(folder: &RunFolder) -> JobError {
    let progress =
        CheckpointSummary::read(folder).map_or_else(String::new, |k| format!(" (step {} of {})", k.step, k.steps));
    JobError::Mismatch {
        path: folder.path.clone(),
        problem: format!("an unfinished training run already exists here{progress}").into(),
        next_step: message!("use {RESUME} to continue it, or {RESTART} to discard it"),
    }
}

/// Returns the checkpoint that a job continues, from its locked folder; `None` for a new run, for which the folder is
/// emptied. Before the folder was locked, another process may have used it: `earlier` is the state that was read then,
/// and `config` the settings that were chosen with it.
pub(super) fn load_locked(
    job: &TrainJob,
    folder: &RunFolder,
    earlier: Option<&TrainState>,
    config: &TrainConfig,
) -> Result<Option<Checkpoint>, JobError> {
    let changed = || JobError::Mismatch {
        path: folder.path.clone(),
        problem: "another process has changed or ended the training run here since this one was started".into(),
        next_step: "start this training run again".into(),
    };
    match (earlier, folder.has_checkpoint()) {
        (Some(earlier), true) => {
            let (state, tensors) = folder.load()?;
            check_same_run(&state, job, folder)?;
            // The data were read with these.
            let is_same = resumed(&state.config, &job.config) == *config && state.validation == earlier.validation;
            if is_same { Ok(Some((state, tensors))) } else { Err(changed()) }
        }
        (Some(_), false) => Err(changed()),
        (None, true) if !job.restart => Err(if job.resume { changed() } else { unfinished(folder) }),
        (None, _) => {
            folder.clear()?;
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::history::History;
    use crate::step::ModelState;
    use cytoscope_graph::Tensor;
    use cytoscope_storage::MARKER;
    use cytoscope_storage::write::PartialFile;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn save(folder: &RunFolder, job: &TrainJob, step: u64, validation: &[&str]) {
        let mut state: TrainState = serde_json::from_value(json!({
            "version": 0, "job": job, "config": {}, "data_fingerprint": "", "step": step, "steps": 10,
            "next_patch": step, "folded": false, "rate_factor": 1.0, "rescues": 0, "seconds": 1.0, "best": null, "peak": null,
            "start_score": null, "since_best": 0, "due": false, "validation": validation, "history": History::default(),
            "optimizer_steps": step, "tensors": "",
        }))
        .unwrap();
        let model = ModelState {
            values: Vec::new(),
            first_moment: Vec::new(),
            second_moment: Vec::new(),
            average: Vec::new(),
            running_stats: BTreeMap::new(),
            optimizer_steps: step as u32,
            loss_scale: 1.0,
            steady_steps: 0,
        };
        folder.save(&mut state, &[], &model).unwrap();
    }

    #[test]
    fn damaged_and_missing_files_of_a_checkpoint_are_named() {
        let parent = tempfile::tempdir().unwrap();
        let out = parent.path().join("m");
        let job: TrainJob =
            serde_json::from_value(json!({"task": "segmentation", "data": "d", "from": "scratch", "out": out}))
                .unwrap();
        let folder = RunFolder::for_package(&out);
        let _lock = folder.lock().unwrap();
        save(&folder, &job, 3, &["a"]);
        let refused = || folder.load().map(|(state, _)| state.step).unwrap_err().to_string();
        let tensors = folder.path.join("tensors-3.safetensors");
        let bytes = std::fs::read(&tensors).unwrap();
        std::fs::write(&tensors, [&bytes[..], b"x"].concat()).unwrap();
        let text = refused();
        assert!(
            text.contains("tensors-3") && text.contains("damaged or changed") && text.contains("--restart"),
            "{text}"
        );
        std::fs::remove_file(&tensors).unwrap();
        assert!(refused().contains("is missing"), "{}", refused());
        std::fs::write(&tensors, &bytes).unwrap();
        assert_eq!(folder.load().unwrap().0.step, 3);
        let text = std::fs::read_to_string(folder.path.join("training.json")).unwrap();
        let with_best = text.replace("\"best\": null", "\"best\": [0.5, 2]");
        assert_ne!(with_best, text);
        std::fs::write(folder.path.join("training.json"), with_best).unwrap();
        assert!(refused().contains("best-2") && refused().contains("best network"), "{}", refused());
    }

    #[test]
    fn a_folder_whose_creation_was_interrupted_is_used() {
        let parent = tempfile::tempdir().unwrap();
        let folder = RunFolder::for_package(&parent.path().join("m"));
        std::fs::create_dir(&folder.path).unwrap();
        let marker = PartialFile::create(&folder.path.join(MARKER)).unwrap();
        let unfinished = cytoscope_testkit::file_names(&folder.path).pop().unwrap();
        drop(marker);
        std::fs::write(folder.path.join(unfinished), "{").unwrap();
        folder.check(&[]).unwrap();
        drop(folder.lock().unwrap());
        assert!(folder.belongs_to_run());
        // A file of the user is kept.
        let other = RunFolder::for_package(&parent.path().join("n"));
        std::fs::create_dir(&other.path).unwrap();
        std::fs::write(other.path.join("mine"), "data").unwrap();
        assert!(other.check(&[]).is_err() && other.path.join("mine").is_file());
    }

    #[test]
    fn a_checkpoint_that_cannot_be_saved_leaves_the_one_before_it_even_of_the_same_step() {
        let parent = tempfile::tempdir().unwrap();
        let out = parent.path().join("m");
        let job: TrainJob =
            serde_json::from_value(json!({"task": "segmentation", "data": "d", "from": "scratch", "out": out}))
                .unwrap();
        let folder = RunFolder::for_package(&out);
        let lock = folder.lock().unwrap();
        save(&folder, &job, 3, &["a"]);
        let (mut state, _) = folder.load().unwrap();
        let mut save_value = |value: f32| {
            let values = vec![Tensor::vector(vec![value])];
            let model = ModelState {
                first_moment: values.clone(),
                values,
                second_moment: Vec::new(),
                average: Vec::new(),
                running_stats: BTreeMap::new(),
                optimizer_steps: 3,
                loss_scale: 1.0,
                steady_steps: 0,
            };
            folder.save(&mut state, &["w".to_owned()], &model)
        };
        let loaded = || folder.load().unwrap().1.get("value/w").cloned();
        let tensor_files = || {
            let names = cytoscope_testkit::file_names(&folder.path);
            names.into_iter().filter(|name| name.starts_with("tensors-")).collect::<Vec<_>>()
        };
        save_value(1.0).unwrap();
        assert_eq!(loaded(), Some(Tensor::vector(vec![1.0f32])));
        assert_eq!(tensor_files().len(), 1, "that of the earlier state is removed");
        // The state cannot be written, as on a full disk: a folder has its name.
        let (json, aside) = (folder.path.join("training.json"), parent.path().join("aside"));
        std::fs::rename(&json, &aside).unwrap();
        std::fs::create_dir_all(json.join("full")).unwrap();
        assert!(save_value(2.0).is_err());
        std::fs::remove_dir_all(&json).unwrap();
        std::fs::rename(&aside, &json).unwrap();
        assert_eq!(loaded(), Some(Tensor::vector(vec![1.0f32])), "the tensors that it names are unchanged");
        save_value(3.0).unwrap();
        assert_eq!(loaded(), Some(Tensor::vector(vec![3.0f32])));
        assert_eq!(tensor_files().len(), 1);
        drop(lock);
        assert_eq!(folder.remove().unwrap(), Vec::<String>::new(), "all files are known to be those of a run");
    }

    #[test]
    fn settings_that_were_derived_from_the_data_are_not_changed_settings() {
        let given = TrainConfig::default();
        let (voxel_um, object_diameter_um) = (Some([2.0, 0.5, 0.5]), Some(9.0));
        let mut derived = TrainConfig { patch_zyx: Some([1, 64, 64]), voxel_um, object_diameter_um, ..given.clone() };
        derived.network.strides = vec![[1, 2, 2]; 2];
        derived.budget.steps = Some(9);
        assert!(has_settings(&derived, &given));
        assert!(!has_settings(&derived, &TrainConfig { patch_zyx: Some([2, 64, 64]), ..given.clone() }));
        assert!(!has_settings(&derived, &TrainConfig { ema: 0.5, ..given.clone() }));
        assert!(!has_settings(&derived, &TrainConfig { voxel_um: Some([1.0; 3]), ..given.clone() }));
        // A license that is given when the run is resumed replaces an earlier one.
        let licensed = |license: &str| TrainConfig { license: Some(license.to_owned()), ..given.clone() };
        for (stored, given) in [(given.clone(), licensed("MIT")), (licensed("CC0-1.0"), licensed("MIT"))] {
            let resumed = resumed(&stored, &given);
            assert!(resumed.license.as_deref() == Some("MIT") && has_settings(&resumed, &given));
        }
        assert_eq!(resumed(&licensed("MIT"), &given).license.as_deref(), Some("MIT"));
    }

    #[test]
    fn a_new_limit_keeps_the_patience_and_a_new_patience_the_limits() {
        let of = |steps: Option<usize>, minutes: Option<f64>, patience: usize| TrainConfig {
            budget: BudgetConfig { epochs: None, minutes, steps, patience },
            ..TrainConfig::default()
        };
        let stored = of(Some(100), None, 5);
        assert_eq!(resumed(&stored, &of(None, Some(40.0), 0)), of(None, Some(40.0), 5));
        assert_eq!(resumed(&stored, &of(None, None, 8)), of(Some(100), None, 8));
        assert_eq!(resumed(&stored, &of(Some(200), None, 8)), of(Some(200), None, 8));
        assert_eq!(resumed(&stored, &TrainConfig::default()), stored);
    }

    #[test]
    fn what_another_process_did_before_the_folder_was_locked_is_noticed() {
        let parent = tempfile::tempdir().unwrap();
        let out = parent.path().join("m");
        let job: TrainJob =
            serde_json::from_value(json!({"task": "segmentation", "data": "d", "from": "scratch", "out": out}))
                .unwrap();
        let resuming = TrainJob { resume: true, ..job.clone() };
        let folder = RunFolder::for_package(&out);
        let _lock = folder.lock().unwrap();
        let load = |job: &TrainJob, earlier: Option<&TrainState>| load_locked(job, &folder, earlier, &job.config);
        let mismatch = |found: Result<Option<Checkpoint>, JobError>| match found {
            Err(JobError::Mismatch { problem, .. }) => problem.to_string(),
            other => format!("{:?}", other.map(|checkpoint| checkpoint.map(|(state, _)| state.step))),
        };
        save(&folder, &job, 3, &["a"]);
        let earlier = folder.load_state().unwrap();
        save(&folder, &job, 5, &["a"]);
        assert_eq!(load(&resuming, Some(&earlier)).unwrap().unwrap().0.step, 5);
        assert!(mismatch(load(&job, None)).contains("already exists here (step 5 of 10)"));
        save(&folder, &job, 6, &["b"]);
        assert!(mismatch(load(&resuming, Some(&earlier))).contains("changed or ended"), "other validation pairs");
        assert!(mismatch(load(&resuming, None)).contains("changed or ended"), "it was started meanwhile");
        let restarted = TrainJob { restart: true, ..job };
        assert!(load(&restarted, None).unwrap().is_none() && !folder.has_checkpoint());
        assert!(mismatch(load(&resuming, Some(&earlier))).contains("changed or ended"), "it was finished");
    }
}
