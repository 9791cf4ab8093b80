//! Tests of the search for training settings.

use super::*;
use crate::training::Wizard;
use crate::training::plan::{PlanStore, WizardPlan};
use cytoscope_engine::DeviceId;

fn trial(number: usize, rung: usize, score: Option<f64>) -> SearchTrial {
    let settings = vec![format!("ema=0.{number}"), "network.filters=[4, 8]".to_owned()];
    SearchTrial { number, rung, steps: rung * 10, score, seconds: 1.0, error: String::new(), settings }
}

fn job(out: PathBuf) -> SearchJob {
    SearchJob {
        task: TrainingTask::LabelFree,
        data: "/data/pairs".into(),
        from: TrainStart::Scratch,
        out,
        trials: 2,
        steps: 20,
        device: DeviceRequest::Auto,
        threads: 0,
        without_int8: true,
        seed: 5,
    }
}

#[test]
fn the_best_trial_is_that_of_the_last_rung_and_its_settings_are_used() {
    let mut search = SettingsSearch::default();
    assert_eq!(search.best(), None);
    for one in [trial(1, 1, Some(0.9)), trial(2, 1, Some(0.8)), trial(3, 1, None), trial(2, 2, Some(0.7))] {
        search.add(one);
    }
    assert_eq!(search.best().map(|best| best.number), Some(2), "the scores of fewer steps are not compared with it");
    // A failed trial that a continued search runs again.
    search.add(trial(3, 1, Some(0.85)));
    assert_eq!(search.results.len(), 4);
    search.used = search.best().unwrap().settings.clone();
    let config = search.applied_to(TrainConfig { batch: Some(3), ..TrainConfig::default() });
    assert_eq!((config.batch, config.ema, config.network.filters), (Some(3), 0.2, vec![4, 8]));
    assert_eq!(search.problem(&TrainConfig::default()), None);
}

#[test]
fn found_settings_that_training_does_not_have_are_named() {
    let used = ["ema=0.5", "schedule.gone=1", "no value", "network.filters=many"].map(str::to_owned).to_vec();
    let search = SettingsSearch { used, ..SettingsSearch::default() };
    let problem = search.problem(&TrainConfig::default()).unwrap();
    assert!(problem.contains(": schedule.gone=1, no value, network.filters=many. Choose"), "{problem}");
}

#[test]
fn a_search_is_unfinished_until_the_last_rung_has_a_score() {
    let mut search = SettingsSearch::default();
    assert!(!search.is_unfinished(), "there is none");
    search.job = Some(job("/out".into()));
    assert!(search.is_unfinished());
    search.add(trial(0, 1, Some(0.5)));
    search.add(trial(0, 2, None));
    assert!(search.is_unfinished());
    search.add(trial(0, 2, Some(0.5)));
    assert!(!search.is_unfinished());
}

#[test]
fn a_search_continues_on_the_device_that_is_chosen_then() {
    let started = job("/out".into());
    let continued = started.on(DeviceRequest::Device(DeviceId::Cpu)).arguments(true);
    assert!(continued.contains(&OsString::from("--device=cpu")) && continued.contains(&OsString::from("--resume")));
    let others = |arguments: Vec<OsString>| -> Vec<OsString> {
        let is_device = |argument: &OsString| argument.to_string_lossy().starts_with("--device=");
        arguments.into_iter().filter(|argument| !is_device(argument)).collect()
    };
    assert_eq!(others(continued), others(started.arguments(true)), "all else is as it was");
}

#[test]
fn a_search_that_ended_without_its_window_has_the_trials_of_its_table() {
    let folder = tempfile::tempdir().unwrap();
    let job = job(folder.path().join("pairs"));
    assert_eq!(job.stored_trials(), Ok(Vec::new()), "there is no table");
    let header = "trial,rung,steps,score,seconds,error,ema,network.filters,search\n";
    let rows = "1,1,10,0.5,1.0,,0.1,\"[4, 8]\",abc\n1,2,20,,1.0,no memory,0.1,\"[4, 8]\",abc\n";
    std::fs::write(job.table(), format!("{header}{rows}")).unwrap();
    let failed = SearchTrial { error: "no memory".to_owned(), ..trial(1, 2, None) };
    assert_eq!(job.stored_trials(), Ok(vec![trial(1, 1, Some(0.5)), failed]));

    let wake: crate::effect::Wake = std::sync::Arc::new(|| {});
    let (mut training, jobs) = (Training::new(None, TrainConfig::default(), &wake), Jobs::new(None, None, None, &wake));
    training.wizard.plan.search.job = Some(job.clone());
    let ended = vec![trial(1, 1, Some(0.5)), trial(1, 2, Some(0.6))];
    let _ = training.continue_search(SearchJob { trials: 9, ..job.clone() }, Ok(ended.clone()), &jobs);
    assert!(training.wizard.plan.search.is_unfinished(), "it is another search");
    let _ = training.continue_search(job.clone(), Ok(ended), &jobs);
    assert!(!training.wizard.plan.search.is_unfinished());

    std::fs::write(job.table(), format!("{header}one,1,10,0.5,1.0,,0.1,[4],abc\n")).unwrap();
    let error = job.stored_trials().unwrap_err();
    assert!(error.contains("pairs.search.csv: row 2 cannot be read"), "{error}");
}

#[test]
fn a_removed_search_leaves_the_files_of_others_and_a_running_one_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let names = || {
        let mut names: Vec<String> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let setup = SearchSetup { job: job("pairs".into()), config: TrainConfig::default(), ranges: None };
    let job = setup.write(folder.path().join("pairs")).unwrap();
    std::fs::write(folder.path().join("pairs 2.search.csv"), "another search").unwrap();
    std::fs::write(job.table(), "trial,rung,steps,score,seconds,error,search\n").unwrap();
    let before = names();
    assert_eq!(before.len(), 4);
    let running = ResultsLock::beside_folder(&job.file("search")).unwrap();
    assert!(job.remove().is_err());
    drop(running);
    assert_eq!(names(), before, "its process still searches");
    // A package that this program did not write.
    std::fs::create_dir(&job.out).unwrap();
    std::fs::write(job.out.join("mine.txt"), "x").unwrap();
    assert!(job.remove().unwrap_err().contains("mine.txt"));
    assert!(job.table().exists());
    std::fs::remove_dir_all(&job.out).unwrap();
    assert_eq!(job.remove(), Ok(()));
    assert_eq!(names(), ["pairs 2.search.csv"]);
    assert_eq!(job.remove(), Ok(()), "there is nothing left");
}

#[test]
fn the_trials_of_a_search_stay_until_its_files_are_removed() {
    let wake: crate::effect::Wake = std::sync::Arc::new(|| {});
    let (mut training, jobs) = (Training::new(None, TrainConfig::default(), &wake), Jobs::new(None, None, None, &wake));
    let removed = job("/out".into());
    training.wizard.plan.search.job = Some(removed.clone());
    training.wizard.plan.search.add(trial(0, 1, Some(0.5)));
    let mut effects = Effects::default();
    training.apply_to_search(SearchAction::Remove, &jobs, &mut effects);
    assert!(training.wizard.plan.search.job.is_none(), "it cannot be continued meanwhile");
    let _ = training.search_removed(removed.clone(), Err("it is in use".to_owned()));
    assert_eq!(training.wizard.plan.search.job, Some(removed.clone()));
    assert_eq!(training.wizard.plan.search.results.len(), 1);
    // A search that was canceled before it started does not replace the latest one.
    let _ = training.search_removed(job("/other".into()), Ok(()));
    assert_eq!(training.wizard.plan.search.results.len(), 1);
    training.apply_to_search(SearchAction::Remove, &jobs, &mut effects);
    let _ = training.search_removed(removed, Ok(()));
    assert!(training.wizard.plan.search.results.is_empty());
}

#[test]
fn searches_before_the_latest_one_can_be_removed_after_it() {
    let wake: crate::effect::Wake = std::sync::Arc::new(|| {});
    let (mut training, jobs) = (Training::new(None, TrainConfig::default(), &wake), Jobs::new(None, None, None, &wake));
    let [first, second] = ["/first", "/second"].map(|out| job(out.into()));
    let _ = training.search_ready(Ok(Box::new(first.clone())), &jobs);
    training.wizard.plan.search.add(trial(0, 1, Some(0.5)));
    let _ = training.search_ready(Ok(Box::new(second.clone())), &jobs);
    assert_eq!(
        (training.wizard.plan.search.job.as_ref(), training.wizard.plan.search.results.len()),
        (Some(&second), 0)
    );
    // A search that was canceled before it started, and whose files stay.
    let other = job("/other".into());
    let _ = training.search_removed(other.clone(), Err("it is in use".to_owned()));
    let mut effects = Effects::default();
    for (removed, before, trials) in
        [(second, Some(other.clone()), 0), (other, Some(first.clone()), 1), (first, None, 0)]
    {
        training.apply_to_search(SearchAction::Remove, &jobs, &mut effects);
        let _ = training.search_removed(removed, Ok(()));
        let search = &training.wizard.plan.search;
        assert_eq!((&search.job, search.results.len()), (&before, trials));
    }
    assert!(training.wizard.plan.search.earlier.is_empty());
}

#[test]
fn a_window_returns_to_the_search_before_one_whose_removal_was_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let earlier = EarlierSearch { job: job("/first".into()), results: vec![trial(0, 1, Some(0.5))] };
    let mut plan = WizardPlan::default();
    plan.search.results = vec![trial(0, 1, Some(0.75))];
    plan.search.earlier = vec![earlier.clone()];
    let (store, ..) = PlanStore::open(folder.path()).unwrap();
    store.save(&plan, None);
    drop(store);
    let wake: crate::effect::Wake = std::sync::Arc::new(|| {});
    let wizard = Wizard::new(Some(&folder.path().join("settings.json")), TrainConfig::default(), &wake);
    let search = &wizard.plan.search;
    assert_eq!((search.job.as_ref(), &search.results), (Some(&earlier.job), &earlier.results));
    assert!(search.earlier.is_empty());
}

#[test]
fn a_search_runs_with_the_settings_and_ranges_beside_its_package() {
    let folder = tempfile::tempdir().unwrap();
    let config = TrainConfig { batch: Some(3), ..TrainConfig::default() };
    let setup = SearchSetup { job: job("pairs".into()), config: config.clone(), ranges: None };
    let job = setup.write(folder.path().join("pairs 2")).unwrap();
    let [space, settings] = ["pairs 2.space.toml", "pairs 2.settings.toml"].map(|name| folder.path().join(name));
    assert_eq!(TrainConfig::read(&settings).unwrap(), config);
    let keys: Vec<String> = SearchSpace::read(&space).unwrap().keys().map(str::to_owned).collect();
    assert_eq!(keys, ["ema", "schedule.rate"]);
    let words: Vec<String> = job.arguments(true).into_iter().map(|word| word.into_string().unwrap()).collect();
    assert_eq!(
        words[..3],
        ["train".to_owned(), format!("--search={}", space.display()), format!("--config={}", settings.display())]
    );
    let options =
        ["--task=labelfree", "--from=scratch", "--trials=2", "--steps=20", "--seed=5", "--without-int8", "--resume"];
    for word in options {
        assert!(words.iter().any(|one| one == word), "{word} in {words:?}");
    }
    // No combination of settings is tried twice.
    std::fs::write(folder.path().join("few.toml"), "ema = { values = [0.5, 0.9, 0.5] }\n").unwrap();
    let many = SearchJob { trials: 8, ..setup.job.clone() };
    let few = SearchSetup { job: many, ranges: Some(folder.path().join("few.toml")), config: config.clone() };
    assert_eq!(few.write(folder.path().join("pairs 3")).unwrap().trials, 2);
    // Ranges that cannot be used are refused before a process is started.
    std::fs::write(folder.path().join("mine.toml"), "ema = 0.5\n").unwrap();
    let invalid = SearchSetup { ranges: Some(folder.path().join("mine.toml")), ..setup };
    let error = invalid.write(folder.path().join("other")).unwrap_err();
    assert!(error.contains("mine.toml: ema: found 0.5"), "{error}");
    assert!(!folder.path().join("other.space.toml").exists());
}
