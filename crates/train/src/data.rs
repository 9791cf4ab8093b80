//! What a training set turns into: pairs that can be used, split, and the samplers over them.

use crate::config::TrainConfig;
use crate::details;
use crate::error::{data, wrong};
use crate::planning::too_short;
use cytoscope_pipeline::{Context, JobError};
use cytoscope_samples::{
    CheckOptions, Dataset, Pair, Report, SamplesError, Split, SplitOptions, TargetKind, Task, check_with,
    find_pairs_with, split,
};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Pairs and seconds after which it shows what looking through all of them takes.
const LEAST_LOOKED: usize = 3;
/// See [`LEAST_LOOKED`].
const LEAST_LOOKED_SECS: f64 = 3.0;
/// What looking for statistics and objects takes as well, in looks.
const LOOKS: f64 = 2.0;

/// A training set, looked through and split.
pub(crate) struct Data {
    pub dataset: Dataset,
    pub report: Report,
    pub split: Split,
}

/// Finds, checks and splits the pairs; problems are told. `keep` is what an earlier run of the training validated on, as
/// [`Split::validation_names`] gives it: that stays so, and all else is learnt from. A training that
/// began at `began` and whose minutes are too few even for this is refused.
pub(crate) fn load(
    context: &Context,
    path: &Path,
    task: Task,
    config: &TrainConfig,
    seed: u64,
    keep: Option<&[String]>,
    began: Option<Instant>,
) -> Result<Data, JobError> {
    let dataset = find(path, task, config)?.map_err(|error| {
        if let SamplesError::NoPairs { dataset, .. } = &error
            && dataset.problems.len() > 1
        {
            details::tell(context, path, &dataset.problems, None);
        }
        data(error)
    })?;
    let report = look(context, &dataset, config, config.budget.minutes.zip(began))?;
    details::tell(context, path, &report.problems, None);
    let usable: Vec<Pair> = report.usable(&dataset);
    if usable.is_empty() {
        let first = report.problems.first();
        return Err(JobError::Mismatch {
            path: first.map_or_else(|| path.to_owned(), |p| p.file.clone()),
            problem: first.map_or_else(|| "no pair can be used".to_owned(), |p| p.sentence.clone()),
            next_step: first.map_or_else(|| "check the data".to_owned(), |p| p.next_step.clone()),
        });
    }
    let split = divide(&usable, &report, config, seed, keep).map_err(data)?;
    if split.train.is_empty() {
        return Err(wrong("nothing is left to learn from after the split: lower validation.fraction"));
    }
    context.note(format!(
        "{} pairs to learn from, {} to validate on. {}",
        split.train.len(),
        split.validation.len(),
        split.how
    ));
    Ok(Data { dataset, report, split })
}

/// Finds the pairs, as the settings say what is taken of files. The outer failure is that of the settings.
pub(crate) fn find(path: &Path, task: Task, config: &TrainConfig) -> Result<Result<Dataset, SamplesError>, JobError> {
    config.data.check()?;
    let found = find_pairs_with(path, task, &config.data.find_options());
    Ok(found.map(|mut dataset| {
        dataset.ignore_label = config.data.ignore_label.or(dataset.ignore_label);
        dataset
    }))
}

/// Splits pairs that can be used; those of one image stay together. `keep` as for [`load`].
pub(crate) fn divide(
    usable: &[Pair],
    report: &Report,
    config: &TrainConfig,
    seed: u64,
    keep: Option<&[String]>,
) -> Result<Split, SamplesError> {
    let options = SplitOptions {
        fraction: config.validation.fraction,
        seed,
        together: report.copies(),
        keep: keep.map(<[String]>::to_vec).unwrap_or_default(),
        ..SplitOptions::default()
    };
    split(usable, &options)
}

/// Looks into every pair, and tells how far it is. A training of so many minutes that began at an instant is refused as soon as
/// it shows that looking takes longer.
pub(crate) fn look(
    context: &Context,
    dataset: &Dataset,
    config: &TrainConfig,
    minutes: Option<(f64, Instant)>,
) -> Result<Report, JobError> {
    let options = CheckOptions { semantic: config.target == Some(TargetKind::Semantic), ..CheckOptions::default() };
    let total = dataset.pairs.len() as u64;
    let meter = Mutex::new(context.meter("check", total, "pairs"));
    let (seen, too_long) = (AtomicUsize::new(0), Mutex::new(None));
    let looking = Instant::now();
    let report = check_with(dataset, &options, &|done, _| {
        let before = seen.swap(done, Ordering::Relaxed);
        let go_on = match meter.lock() {
            Ok(mut meter) => meter.add(done.saturating_sub(before) as u64).is_ok(),
            Err(_) => true,
        };
        let late = minutes.and_then(|(minutes, began)| longer(minutes, began, looking, done, dataset.pairs.len()));
        if let (Some(late), Ok(mut too_long)) = (&late, too_long.lock()) {
            *too_long = Some(*late);
        }
        if go_on && late.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    context.check()?;
    if let (Ok(Some((looking, least))), Some((minutes, _))) = (too_long.into_inner(), minutes) {
        return Err(too_short(minutes, least, &format!("looking through the data alone takes about {looking:.0} s")));
    }
    Ok(report)
}

/// The seconds that looking through all pairs takes, and the least minutes for a training, where these are more than are given.
fn longer(minutes: f64, began: Instant, looking: Instant, done: usize, all: usize) -> Option<(f64, f64)> {
    let secs = looking.elapsed().as_secs_f64();
    if done < LEAST_LOOKED || secs < LEAST_LOOKED_SECS {
        return None;
    }
    let whole = secs / done as f64 * all as f64;
    let earlier = looking.saturating_duration_since(began).as_secs_f64();
    // Statistics and objects are gathered in a second look.
    let least = (earlier + LOOKS * whole) / 60.0;
    (least > minutes).then(|| (whole, (least * 2.0).ceil()))
}

/// The voxel size in µm that most files have.
pub(crate) fn usual_voxel_um(report: &Report) -> Option<[f64; 3]> {
    let known = |[z, y, x]: [Option<f64>; 3]| Some([z?, y?, x?]);
    let mut all: Vec<[f64; 3]> = report.pairs.iter().filter_map(|p| known(p.voxel_um)).collect();
    all.sort_by(|a, b| a.iter().product::<f64>().total_cmp(&b.iter().product::<f64>()));
    all.get(all.len() / 2).copied()
}

impl Data {
    /// The voxel size that most files have.
    pub(crate) fn voxel_um(&self) -> Option<[f64; 3]> {
        usual_voxel_um(&self.report)
    }

    /// The median of the pairs' median object diameters: in µm, or in voxels of a pair that states no voxel size.
    pub(crate) fn median_diameter(&self, assumed: [f64; 3]) -> Option<f64> {
        let unit = assumed.iter().product::<f64>().cbrt();
        let mut all: Vec<f64> = self
            .report
            .pairs
            .iter()
            .filter_map(|p| Some(p.median_diameter_um? * if p.voxel_um.contains(&None) { unit } else { 1.0 }))
            .collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().filter(|d| *d > 0.0)
    }

    /// The least volume in µm³ that an object should have: a tenth of that of a median one of the data. Where files do not say
    /// how large their voxels are, `assumed_um` says it.
    pub(crate) fn small_object_um3(&self, assumed_um: Option<[f64; 3]>) -> Option<f64> {
        let assumed: f64 = assumed_um.map_or(1.0, |v| v.iter().product());
        let mut all: Vec<f64> = self
            .report
            .pairs
            .iter()
            .filter_map(|p| {
                let unit = if p.voxel_um.contains(&None) { assumed } else { 1.0 };
                Some(std::f64::consts::PI / 6.0 * p.median_diameter_um?.powi(3) * unit)
            })
            .collect();
        all.sort_by(f64::total_cmp);
        Some(all.get(all.len() / 2)? * 0.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::CheckJob;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::Array;

    /// Files of two channels, an image and its labels, at two time points of which the first is blank.
    fn write_films(folder: &Path, numbers: std::ops::Range<usize>) {
        for number in numbers {
            let labels: Vec<u16> = (0..320).map(|i| if i % 10 > 4 { 1 + i / 80 } else { 0 }).collect();
            let image: Vec<u16> =
                labels.iter().enumerate().map(|(i, l)| 100 + 50 * l + ((i * 31 + number * 7) % 17) as u16).collect();
            let voxels = [vec![0; 640], image, labels].concat();
            let array = Array::new("TCZYX".parse().unwrap(), vec![2, 2, 4, 8, 10], voxels).unwrap();
            let spec = WriteSpec::of(&array, Container::OmeTiff);
            write_array(&folder.join(format!("film{number}.ome.tif")), &array, &spec).unwrap();
        }
    }

    #[test]
    fn data_that_take_longer_to_look_through_than_there_are_minutes_are_known_early() {
        let ago = |secs| Instant::now().checked_sub(std::time::Duration::from_secs(secs)).unwrap();
        // 10 of 1000 pairs in 10 s: 1000 s, twice, and 20 s before that are 34 minutes.
        let (whole, least) = longer(20.0, ago(30), ago(10), 10, 1000).unwrap();
        assert!((whole - 1000.0).abs() < 20.0 && least >= 67.0, "{whole} {least}");
        assert_eq!(longer(40.0, ago(30), ago(10), 10, 1000), None);
        assert_eq!(longer(20.0, ago(30), ago(1), 10, 1_000_000), None, "too early to tell");
    }

    #[test]
    fn two_channels_of_a_time_point_are_chosen_by_settings_and_validation_stays() {
        let folder = tempfile::tempdir().unwrap();
        write_films(folder.path(), 0..5);
        let context = Context::default();
        let plain = TrainConfig::default();
        assert!(load(&context, folder.path(), Task::Segmentation, &plain, 1, None, None).is_err());
        let text = "[data]\nsame_file = true\nimage_channel = 0\ntarget_channel = 1\ntime = 1\n";
        let config: TrainConfig = toml::from_str(text).unwrap();
        let task = Task::Segmentation;
        let load = |keep: Option<&[String]>| load(&context, folder.path(), task, &config, 1, keep, None).unwrap();
        let first = load(None);
        assert!(first.report.pairs.iter().all(|p| p.usable && p.objects == Some(4)), "{:#?}", first.report.problems);
        assert!(first.report.pairs.iter().all(|p| p.intensities.is_some_and(|i| i.min >= 100.0)));
        assert_eq!((first.split.train.len(), first.split.validation.len()), (4, 1));
        let job = CheckJob { task, data: folder.path().to_owned(), config: config.clone(), seed: 1, details: None };
        assert_eq!(job.run(&context).unwrap().split, Some(first.split.clone()));
        // Files that come later are learnt from.
        let keep = first.split.validation_names();
        write_films(folder.path(), 5..12);
        let later = load(Some(&keep));
        assert_eq!((later.split.train.len(), later.split.validation_names()), (11, keep));
        let none = load(Some(&["other".to_owned()]));
        assert_eq!((none.split.train.len(), none.split.validation.len()), (10, 2));
    }
}
