//! Converting and scoring many files. The page is drawn in [`crate::panels::batch`].

mod names;
mod scoring;

pub(crate) use scoring::{ScoreSubject, ScoredFiles, ScoredModel};

use crate::channels::PairChannels;
use crate::disk::DiskEffect;
use crate::display::{DisplayAction, PanelTask};
use crate::document::{Document, Role, file_name};
use crate::documents::{Documents, DocumentsAction};
use crate::effect::Effects;
use crate::jobs::{Jobs, JobsAction};
use crate::notifications::first_lines;
use crate::number_text::counted;
use crate::opener::{Content, Expanded, FileRequest};
use crate::work::{JobState, JobView, Purpose};
use cytoscope_formats::{ChannelRef, Compression, SeriesChoice, is_roi_name};
use cytoscope_pipeline::{ConvertJob, DiameterRequest, EvaluateReport, PairRole};
use cytoscope_storage::Overwrite;
use cytoscope_storage::target::extension;
use cytoscope_volume::VoxelSize;
use cytoscope_worker::{Job, JobId, JobResult};
use names::is_series_of;
use scoring::scores_csv;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Minimum number of added files that a notification reports.
const MANY_FILES: usize = 100;
/// Maximum number of notes of conversions that a notification lists.
const LISTED_NOTES: usize = 10;
/// Maximum number of converted files that a notification lists.
const LISTED_FILES: usize = 20;
/// Maximum number of files that are converted together, and that one folder adds to the list: half as many as the engine
/// can queue.
pub(crate) const MAX_CONVERTED: usize = 2_000;

/// A file format to convert to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConvertFormat {
    /// OME-TIFF, with a choice of compression.
    OmeTiff,
    /// TIFF with the metadata of ImageJ.
    ImageJ,
    /// OME-Zarr 0.5, a folder.
    OmeZarr,
    /// OME-Zarr 0.5 in one zip file.
    ZippedOmeZarr,
    /// NumPy array, without metadata.
    Npy,
    /// Cellpose's `_seg.npy`, for labels.
    Cellpose,
    /// ImageJ ROI set of labels.
    Rois,
    /// One ImageJ ROI, for labels with a single object in a single slice.
    Roi,
}

impl ConvertFormat {
    /// All formats, in the order of the menu.
    pub(crate) const ALL: [Self; 8] = [
        Self::OmeTiff,
        Self::ImageJ,
        Self::OmeZarr,
        Self::ZippedOmeZarr,
        Self::Npy,
        Self::Cellpose,
        Self::Rois,
        Self::Roi,
    ];

    /// Name of the format in the menu.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OmeTiff => "OME-TIFF",
            Self::ImageJ => "ImageJ TIFF",
            Self::OmeZarr => "OME-Zarr",
            Self::ZippedOmeZarr => "Zipped OME-Zarr",
            Self::Npy => "NumPy",
            Self::Cellpose => "Cellpose labels",
            Self::Rois => "ImageJ ROI set",
            Self::Roi => "Single ImageJ ROI",
        }
    }

    /// Returns the suffix of the names of converted files.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::OmeTiff => ".ome.tif",
            Self::ImageJ => ".tif",
            Self::OmeZarr => ".zarr",
            Self::ZippedOmeZarr => ".ozx",
            Self::Npy => ".npy",
            Self::Cellpose => "_seg.npy",
            Self::Rois => ".zip",
            Self::Roi => ".roi",
        }
    }

    /// Whether labels can be stored with the image.
    pub(crate) fn holds_labels(self) -> bool {
        matches!(self, Self::OmeZarr | Self::ZippedOmeZarr)
    }

    /// Whether the regions of labels are stored.
    pub(crate) fn holds_regions(self) -> bool {
        matches!(self, Self::Rois | Self::Roi)
    }
}

/// A section of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchSection {
    /// Files to convert.
    Convert,
    /// Predictions or a model to score.
    Evaluate,
}

/// An action on the page.
pub(crate) enum BatchAction {
    /// Adds files to convert, and the stacks in folders.
    Add(Vec<PathBuf>),
    /// Shows the page with the files of the open stacks.
    AddOpen,
    /// Shows the page at the section for scoring.
    ShowEvaluation,
    /// Removes a file from the list.
    Forget(PathBuf),
    /// Removes all files from the list.
    ForgetAll,
    /// Sets the folder for the converted files; `None` for the folder of each file.
    Folder(Option<PathBuf>),
    /// Sets the format.
    Format(ConvertFormat),
    /// Sets the compression of OME-TIFF files.
    Compression(Compression),
    /// Sets the only channel to convert, from 0; `None` converts all.
    ConvertChannel(Option<usize>),
    /// Sets the only time point to convert, from 0; `None` converts all.
    ConvertTime(Option<usize>),
    /// Sets whether each series of a file is converted to its own file.
    AllSeries(bool),
    /// Sets the stack that the regions of ROI sets are drawn on.
    Like(Option<PathBuf>),
    /// Sets whether the labels of open stacks are stored with them in OME-Zarr.
    WithLabels(bool),
    /// Sets whether existing files are replaced.
    Replace(bool),
    /// Converts all files.
    Convert,
    /// Cancels the conversions that have not ended.
    CancelConversions,
    /// Cancels the scoring.
    CancelEvaluation,
    /// Sets whether predictions or a model are scored.
    Score(ScoreSubject),
    /// Sets the folder or file of predictions or ground truth.
    Compare(PairRole, PathBuf),
    /// Sets the channel of predictions or ground truth that is scored, by its index among [`ScoredFiles::channels`].
    Channel(PairRole, Option<usize>),
    /// Sets the series of predictions and ground truth that is scored.
    Series(SeriesChoice),
    /// Ignores true objects with fewer voxels.
    IgnoreBelow(u64),
    /// Sets the true label of voxels that are not annotated.
    IgnoreLabel(Option<i64>),
    /// Sets the folder or table of the pairs that a model is scored on.
    Pairs(PathBuf),
    /// Sets the object diameter that a model is scored with.
    Diameter(DiameterRequest),
    /// Scores the predictions, with a voxel size in µm in place of that of the files, which keep their own along the axes
    /// where it is unknown.
    Evaluate(VoxelSize),
    /// Scores a model on the pairs.
    EvaluateModel(ScoredModel),
    /// Forgets the scores: they are those of other channels.
    ForgetScores,
    /// Asks for the file of the table of scores.
    AskSave,
    /// Saves the table of scores.
    Save(PathBuf),
    /// A job of the page has ended.
    Finished(JobId, Box<JobResult>),
}

/// State of the page for converting and scoring.
pub(crate) struct Batch {
    /// The section that was opened last, and how many times sections were opened: the page scrolls to it each time.
    pub(crate) opened: (BatchSection, u64),
    /// Files to convert.
    pub(crate) files: Vec<PathBuf>,
    /// Series of the open stacks among them, from 0.
    series: BTreeMap<PathBuf, usize>,
    /// Folder for the converted files; `None` for the folder of each file.
    pub(crate) folder: Option<PathBuf>,
    /// Format to convert to.
    pub(crate) format: ConvertFormat,
    /// Compression of OME-TIFF files.
    pub(crate) compression: Compression,
    /// The only channel to convert, from 0; `None` converts all.
    pub(crate) channel: Option<usize>,
    /// The only time point to convert, from 0; `None` converts all.
    pub(crate) time: Option<usize>,
    /// Whether each series of a file is converted to its own file.
    pub(crate) all_series: bool,
    /// The stack that the regions of ROI sets are drawn on; `None` makes labels as large as the regions need.
    pub(crate) like: Option<PathBuf>,
    /// Whether the labels of open stacks are stored with them in OME-Zarr.
    pub(crate) with_labels: bool,
    /// Whether existing files are replaced.
    pub(crate) replace: bool,
    /// The files or the model to score.
    pub(crate) subject: ScoreSubject,
    /// Predictions to score.
    pub(crate) prediction: ScoredFiles,
    /// Ground truth.
    pub(crate) truth: ScoredFiles,
    /// The series of predictions and ground truth that is scored.
    pub(crate) scored_series: SeriesChoice,
    /// Folder or table of the pairs that a model is scored on.
    pub(crate) pairs: Option<PathBuf>,
    /// The channels of their images; none until they are read.
    pub(crate) pair_channels: PairChannels,
    /// Object diameter that a model is scored with.
    pub(crate) diameter: DiameterRequest,
    /// True objects with fewer voxels are ignored.
    pub(crate) ignore_below: u64,
    /// True label of voxels that are not annotated.
    pub(crate) ignore_label: Option<i64>,
    /// The latest scores; `None` until predictions or a model were scored.
    pub(crate) report: Option<EvaluateReport>,
    /// Title of the model that is or was scored; `None` for predictions.
    pub(crate) scored_model: Option<String>,
    /// Conversions that were started together and have not ended.
    converting: BTreeSet<JobId>,
    /// Files that those conversions have written.
    written: Vec<PathBuf>,
    /// The job that scores, until it has ended.
    evaluating: Option<JobId>,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            opened: (BatchSection::Convert, 0),
            files: Vec::new(),
            series: BTreeMap::new(),
            folder: None,
            format: ConvertFormat::OmeTiff,
            compression: Compression::None,
            channel: None,
            time: None,
            all_series: false,
            like: None,
            with_labels: false,
            replace: false,
            subject: ScoreSubject::default(),
            prediction: ScoredFiles::default(),
            truth: ScoredFiles::default(),
            scored_series: SeriesChoice::default(),
            pairs: None,
            pair_channels: PairChannels::default(),
            diameter: DiameterRequest::Auto,
            ignore_below: 0,
            ignore_label: None,
            report: None,
            scored_model: None,
            converting: BTreeSet::new(),
            written: Vec::new(),
            evaluating: None,
        }
    }
}

impl Batch {
    /// Number of conversions that have not ended.
    pub(crate) fn converting(&self, jobs: &Jobs) -> usize {
        let requested = self.converting.iter().filter(|id| jobs.is_requested(**id)).count();
        requested + jobs.all().iter().filter(|j| self.converting.contains(&j.id) && !j.state.is_over()).count()
    }

    /// Number of conversions that were started together.
    pub(crate) fn started(&self) -> usize {
        self.converting.len()
    }

    /// Whether regions of ROI sets are read or written, so that the stack that they are drawn on matters.
    pub(crate) fn has_regions(&self) -> bool {
        self.format.holds_regions() || self.files.iter().any(|file| is_roi_name(file))
    }

    /// Applies an action. Returns what other states and the disk must do for it.
    pub(crate) fn apply(&mut self, action: BatchAction, jobs: &Jobs, documents: &Documents) -> Effects {
        let mut effects = Effects::default();
        match action {
            BatchAction::Add(paths) => effects.disk(DiskEffect::ListForBatch { paths }),
            BatchAction::AddOpen => {
                self.add(documents.all().iter().map(|d| d.path.clone()).collect());
                self.series.extend(documents.all().iter().map(|d| (d.path.clone(), d.series)));
                self.open(BatchSection::Convert, &mut effects);
            }
            BatchAction::ShowEvaluation => self.open(BatchSection::Evaluate, &mut effects),
            BatchAction::Forget(file) => {
                self.series.remove(&file);
                self.files.retain(|f| *f != file);
            }
            BatchAction::ForgetAll => {
                self.series.clear();
                self.files.clear();
            }
            BatchAction::Folder(folder) => self.folder = folder,
            BatchAction::Format(format) => self.format = format,
            BatchAction::Compression(compression) => self.compression = compression,
            BatchAction::ConvertChannel(channel) => self.channel = channel,
            BatchAction::ConvertTime(time) => self.time = time,
            BatchAction::AllSeries(all_series) => self.all_series = all_series,
            BatchAction::Like(stack) => self.like = stack,
            BatchAction::WithLabels(with_labels) => self.with_labels = with_labels,
            BatchAction::Replace(replace) => self.replace = replace,
            BatchAction::Convert => self.convert(jobs, documents, &mut effects),
            BatchAction::CancelConversions => {
                let active = self.converting.iter().filter(|id| jobs.is_active(**id));
                active.for_each(|id| effects.act(JobsAction::Cancel(*id)));
            }
            BatchAction::Score(subject) => {
                self.subject = subject;
                self.forget_scores();
            }
            BatchAction::Pairs(pairs) => {
                (self.pairs, self.pair_channels) = (Some(pairs.clone()), PairChannels::default());
                self.forget_scores();
                effects.disk(DiskEffect::ReadPairChannels { data: pairs });
            }
            BatchAction::Diameter(diameter) => {
                self.diameter = diameter;
                self.forget_scores();
            }
            BatchAction::CancelEvaluation => {
                self.evaluating.into_iter().for_each(|id| effects.act(JobsAction::Cancel(id)));
            }
            BatchAction::Compare(role, path) => {
                self.compare(role, path, &mut effects);
            }
            BatchAction::Channel(role, channel) => {
                self.scored_mut(role).channel = channel;
                self.forget_scores();
            }
            BatchAction::Series(series) => self.score_series(series, &mut effects),
            BatchAction::ForgetScores => self.forget_scores(),
            BatchAction::IgnoreBelow(voxels) => {
                self.ignore_below = voxels;
                self.forget_scores();
            }
            BatchAction::IgnoreLabel(label) => {
                self.ignore_label = label;
                self.forget_scores();
            }
            BatchAction::Evaluate(voxel_axes_um) => self.evaluate(voxel_axes_um, jobs, &mut effects),
            BatchAction::EvaluateModel(model) => self.evaluate_model(&model, jobs, &mut effects),
            BatchAction::AskSave => {
                let (request, name) = (FileRequest::Scores, "scores.csv".to_owned());
                effects.act(DocumentsAction::Ask { request, folder: self.scores_folder(), name });
            }
            BatchAction::Save(path) => self.save_scores(path, &mut effects),
            BatchAction::Finished(id, result) => self.finished(id, *result),
        }
        effects
    }

    /// Saves the table of the latest scores.
    fn save_scores(&self, path: PathBuf, effects: &mut Effects) {
        if let Some(text) = self.report.as_ref().map(scores_csv) {
            let content: Content = Box::new(move || Ok(text.into_bytes()));
            effects.act(DocumentsAction::Save { path, content });
        }
    }

    /// The series of a file that is converted, from 0.
    fn series_for(&self, input: &Path) -> usize {
        self.series.get(input).copied().unwrap_or(0)
    }

    /// Adds the files of a drop or dialog. A notification reports that many files were added, that a folder has more than
    /// can be listed, or that it has none.
    pub(crate) fn listed(&mut self, Expanded { files, truncated, unreadable, .. }: Expanded) -> Effects {
        let mut effects = Effects::default();
        let all_read = unreadable.is_empty();
        if !all_read {
            effects.error("Folder not added", unreadable.join("\n"));
        }
        let before = self.files.len();
        let found = files.len();
        self.add(files);
        let added = self.files.len() - before;
        if found == 0 && all_read {
            effects.info(
                "No files were added",
                "The folder contains no stacks. Stacks in folders inside it are not added.",
            );
        } else if truncated {
            let details = format!("A folder has more than {MAX_CONVERTED} stacks; the others are not in the list.");
            effects.info(format!("{} added", counted(added as u64, "file")), details);
        } else if added >= MANY_FILES {
            effects.info(format!("{} added", counted(added as u64, "file")), "\"Clear list\" removes them.");
        }
        effects
    }

    /// Shows the page at a section.
    fn open(&mut self, section: BatchSection, effects: &mut Effects) {
        self.opened = (section, self.opened.1 + 1);
        effects.act(DisplayAction::Task(PanelTask::Batch));
    }

    fn add(&mut self, files: Vec<PathBuf>) {
        let mut known: BTreeSet<PathBuf> = self.files.iter().cloned().collect();
        self.files.extend(files.into_iter().filter(|file| known.insert(file.clone())));
    }

    fn convert(&mut self, jobs: &Jobs, documents: &Documents, effects: &mut Effects) {
        if self.files.len() > MAX_CONVERTED {
            let details = format!(
                "The list has {} files, but at most {MAX_CONVERTED} can be converted at a time. Remove some from the \
                 list, and convert them afterwards.",
                self.files.len()
            );
            return effects.error("Nothing was converted", details);
        }
        if let Some(clash) = self.clash() {
            return effects.error("Nothing was converted", clash.details());
        }
        let is_written = |open: &Path, out: &Path| open == out || (self.all_series && is_series_of(open, out));
        let is_open = |out: &PathBuf| documents.all().iter().any(|d| is_written(&d.path, out));
        let outputs = self.files.iter().map(|file| self.converted_path(file));
        if let Some(open) = outputs.filter(|_| self.replace).find(is_open) {
            let details = format!("{} is open here. Close it, or choose another folder or format.", open.display());
            return effects.error("Nothing was converted", details);
        }
        let mut listed = documents.all().iter().filter(|d| self.files.contains(&d.path));
        if let Some(details) = listed.find_map(|document| self.labels_problem(document)) {
            return effects.error("Nothing was converted", details);
        }
        self.written.clear();
        for input in &self.files {
            let compression = match self.format {
                ConvertFormat::OmeTiff => self.compression,
                _ => Compression::None,
            };
            let series = self.series_for(input);
            let is_shown = |d: &&Document| d.path == *input && (self.all_series || d.series == series);
            let open = documents.all().iter().find(is_shown);
            // A voxel size of which the file states a part belongs to one series.
            let given_um = |d: &Document| if self.all_series { d.given_axes_um().zyx_um() } else { d.given_voxel_um() };
            let job = ConvertJob {
                preprocess: Vec::new(),
                input: input.clone(),
                output: self.converted_path(input),
                labels: open.filter(|_| self.stores_labels()).and_then(saved_labels),
                series: if self.all_series { SeriesChoice::All } else { SeriesChoice::Index(series) },
                // Those that the user has set for an open stack, and its voxel size.
                axes: open.and_then(|d| d.axes.clone()),
                voxel_um: open.and_then(given_um),
                channel: self.channel.map(ChannelRef::Index),
                time: self.time,
                like: self.like.clone().filter(|_| self.format.holds_regions() || is_roi_name(input)),
                compression,
                overwrite: Overwrite::from_force(self.replace),
            };
            let title = format!("{} · convert", file_name(input));
            self.converting.insert(jobs.request(title, Purpose::Convert, Job::Convert(job), effects));
        }
    }

    /// Whether the labels of open stacks are stored with them. They belong to one series.
    pub(crate) fn stores_labels(&self) -> bool {
        self.with_labels && self.format.holds_labels() && !self.all_series
    }

    /// Why the labels of an open stack cannot be stored with it, because they belong to a time point that is not the only one
    /// that is converted; `None` if they can, or are not stored.
    fn labels_problem(&self, document: &Document) -> Option<String> {
        let labels = document.overlay_with_role(Role::Labels).filter(|_| self.stores_labels())?;
        let is_converted = document.series == self.series_for(&document.path) && saved_labels(document).is_some();
        // Corrected labels are saved for each time point.
        let time = labels.only_time.or(document.saved_labels.as_ref().map(|_| document.time))?;
        (is_converted && document.extents.times > 1 && self.time != Some(time)).then(|| {
            format!(
                "The labels of {} belong to time point {}: convert only this time point, or turn off \"With labels of open \
                 stacks\".",
                file_name(&document.path),
                time + 1
            )
        })
    }

    fn finished(&mut self, id: JobId, result: JobResult) {
        match result {
            JobResult::Convert { output, outputs, .. } if self.converting.contains(&id) => {
                // There are several outputs if there are several series.
                self.written.extend(if outputs.is_empty() { vec![output] } else { outputs });
            }
            JobResult::Evaluate(report) if self.evaluating == Some(id) => self.report = Some(*report),
            _ => {}
        }
    }

    /// Reports the conversions that were started together once all have ended, even if some failed.
    pub(crate) fn poll(&mut self, jobs: &Jobs) -> Effects {
        let mut effects = Effects::default();
        if self.converting.is_empty() || self.converting(jobs) > 0 {
            return effects;
        }
        let converted = jobs.all().iter().filter(|job| self.converting.contains(&job.id));
        let converted: Vec<&JobView> = converted.collect();
        let notes: Vec<String> = converted.iter().copied().flat_map(job_notes).collect();
        let has_failed = converted.iter().any(|job| matches!(job.state, JobState::Failed(_)));
        self.converting.clear();
        let written = std::mem::take(&mut self.written);
        let n = written.len();
        if n > 0 {
            let title = format!("{} converted", counted(n as u64, "file"));
            effects.success(title, converted_details(&written, &notes));
        } else if has_failed && !notes.is_empty() {
            // They say why further series failed.
            effects.info("Nothing was converted", first_lines(&notes, LISTED_NOTES, "further note").join("\n"));
        }
        effects
    }
}

/// The notes of a job, each with the job's title, which names its file.
fn job_notes(job: &JobView) -> impl Iterator<Item = String> {
    job.notes.iter().map(move |note| format!("{}: {note}", job.title))
}

/// The text of the notification about converted files: the first of them, and the first notes.
fn converted_details(written: &[PathBuf], notes: &[String]) -> String {
    let files: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
    let files = first_lines(&files, LISTED_FILES, "further file");
    [files, first_lines(notes, LISTED_NOTES, "further note")].concat().join("\n")
}

/// File of the labels that a document shows, unless they are a preview.
fn saved_labels(document: &Document) -> Option<PathBuf> {
    document.labels_path().filter(|_| !document.has_label_preview()).map(Path::to_owned)
}

/// Folder in which a dialog starts after a path was chosen: the folder of the file, or the chosen folder itself. Paths
/// with an extension are files or OME-Zarr folders.
pub(crate) fn start_folder(chosen: &Path) -> Option<&Path> {
    if extension(chosen).is_some() { chosen.parent() } else { Some(chosen) }
}

#[cfg(test)]
mod tests;
