//! The Models page: installed models and model files that were opened, their tests, measurements, quantization, export and
//! removal. The page is drawn in [`crate::panels::models`].
//!
//! All work runs as jobs of the engine process, except removing a model, which is work on a disk.

mod findings;

use crate::disk::{DiskEffect, ModelPlace};
use crate::display::{DisplayAction, PanelTask};
use crate::document::file_name;
use crate::documents::{Documents, DocumentsAction};
use crate::effect::Effects;
use crate::jobs::{Jobs, JobsAction};
use crate::opener::FileRequest;
use crate::settings::Settings;
use crate::training::plan::clean_name;
use crate::work::{JobView, ModelWork, Purpose};
use cytoscope_pipeline::packages::{ImportJob, is_undescribed};
use cytoscope_pipeline::{
    ExportFormat, ExportJob, ImportSettings, LeftOut, ModelSpeedJob, ModelSpeedReport, ModelTestJob, ModelTestReport,
    PredictJob, user_folder,
};
use cytoscope_quantize::{ACCURACY_BUDGET, QuantizeJob, QuantizeMode, QuantizeReport};
use cytoscope_storage::Overwrite;
use cytoscope_worker::{Job, JobId, JobResult};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Default of the maximum minutes of quantization-aware training.
const QAT_MINUTES: f64 = 10.0;

/// An action on the Models page.
pub(crate) enum ModelsAction {
    /// Shows a model by its path.
    Select(PathBuf),
    /// Shows the page with model files that were dropped or chosen, and tests them.
    Open(Vec<PathBuf>),
    /// Removes a model file from the list; the file is kept.
    Forget(PathBuf),
    /// Sets the name under which the shown file is added to the user's models.
    Name(String),
    /// Sets what the user states about the shown model file, and tests it unless only sizes changed.
    Describe(ImportSettings),
    /// Adds the shown file to the user's models.
    Add,
    /// Runs the self-test of the shown model.
    Test,
    /// Measures the speed of the shown model on this machine.
    Measure,
    /// Sets how the shown model is quantized.
    QuantizeMode(QuantizeMode),
    /// Sets the maximum minutes of quantization-aware training.
    QatMinutes(f64),
    /// Sets the maximum steps of quantization-aware training; `None` leaves them to the program.
    QatSteps(Option<u64>),
    /// Sets the names of the layers of the shown model that stay in float, separated by commas.
    KeepFloat(String),
    /// Sets whether a quantized model has no float network.
    WithoutFloat(bool),
    /// Sets the maximum relative L2 error of a quantized model.
    AccuracyBudget(f64),
    /// Quantizes the shown model, calibrated with the open stacks.
    Quantize,
    /// Asks for the file of an export of the shown model.
    AskExport(ExportFormat),
    /// Exports the model whose file was requested.
    Export {
        /// Format of the file.
        format: ExportFormat,
        /// Number of the request.
        request: usize,
        /// File to write; the file dialog has already asked about replacing it.
        out: PathBuf,
    },
    /// Asks whether to remove the shown model.
    AskRemove,
    /// Answers whether to remove the shown model.
    AnswerRemove(bool),
    /// Selects the shown model for predictions.
    Use,
    /// A job of the page has ended.
    Finished(JobId, Box<JobResult>),
}

/// A job of the page.
struct ModelJob {
    /// Path of the model.
    model: PathBuf,
    /// Path of the package that the job writes, if any.
    out: Option<PathBuf>,
    /// Stacks that a quantization is calibrated with; empty for other jobs.
    calibrated_with: &'static str,
    /// Whether the job is a test with a voxel size that the user states.
    has_stated_um: bool,
}

/// Returns the name of the data that a job is calibrated with; empty if the job is not a quantization.
fn calibrated_with(job: &Job) -> &'static str {
    match job {
        Job::Quantize { quantization, .. } if quantization.mode == QuantizeMode::Dynamic => "no data",
        Job::Quantize { quantization, .. } if quantization.predictions.is_empty() => "its test tensors",
        Job::Quantize { .. } => "the open stacks",
        _ => "",
    }
}

/// Results about a model besides its card.
#[derive(Default)]
pub(crate) struct ModelFindings {
    /// Result of its test.
    pub(crate) test: Option<Box<ModelTestReport>>,
    /// Voxel size Z, Y, X in µm that a model file states, once a test of the model has read it.
    file_um: Option<[f64; 3]>,
    /// Its speed on this machine.
    pub(crate) speed: Option<ModelSpeedReport>,
    /// Report of its quantization.
    pub(crate) quantized: Option<Box<QuantizeReport>>,
    /// Name of the package that was written from it last or that it was added as, and what this package lacks.
    pub(crate) left_out: Option<(String, Vec<LeftOut>)>,
    /// The latest job on the model.
    pub(crate) latest: Option<JobId>,
}

/// State of the Models page.
pub(crate) struct Models {
    /// Folder of the user's own models.
    own_folder: PathBuf,
    /// Path of the shown model.
    shown: Option<PathBuf>,
    /// Model files that are not installed, oldest first.
    files: Vec<PathBuf>,
    /// Name under which the shown file would be added.
    name: String,
    /// Settings that the user entered for model files.
    settings: BTreeMap<PathBuf, ImportSettings>,
    mode: QuantizeMode,
    qat_minutes: f64,
    qat_steps: Option<u64>,
    /// Names of the layers that stay in float when a model is quantized, as typed.
    keep_float: BTreeMap<PathBuf, String>,
    without_float: bool,
    accuracy_budget: f64,
    /// The model that the user was asked to remove.
    removal: Option<PathBuf>,
    /// Models whose export was requested; the number of a request is its index.
    export_requests: Vec<PathBuf>,
    findings: BTreeMap<PathBuf, ModelFindings>,
    jobs: BTreeMap<JobId, ModelJob>,
}

impl Models {
    /// A page without model files; the user's own models are beside the settings.
    pub(crate) fn new(settings_path: Option<&Path>) -> Self {
        let beside = settings_path.and_then(Path::parent).map(Path::to_owned);
        let own_folder = beside.or_else(user_folder).unwrap_or_else(std::env::temp_dir).join("models");
        Self {
            own_folder,
            shown: None,
            files: Vec::new(),
            name: String::new(),
            settings: BTreeMap::new(),
            mode: QuantizeMode::Static,
            qat_minutes: QAT_MINUTES,
            qat_steps: None,
            keep_float: BTreeMap::new(),
            without_float: false,
            accuracy_budget: ACCURACY_BUDGET,
            removal: None,
            export_requests: Vec::new(),
            findings: BTreeMap::new(),
            jobs: BTreeMap::new(),
        }
    }

    /// Path of the shown model.
    pub(crate) fn shown(&self) -> Option<&Path> {
        self.shown.as_deref()
    }

    /// Model files that are not installed, oldest first.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Name under which the shown file would be added.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the settings that the user entered for a model file.
    pub(crate) fn settings(&self, model: &Path) -> ImportSettings {
        self.settings.get(model).cloned().unwrap_or_default()
    }

    /// How the shown model would be quantized.
    pub(crate) fn mode(&self) -> QuantizeMode {
        self.mode
    }

    /// Maximum minutes of quantization-aware training.
    pub(crate) fn qat_minutes(&self) -> f64 {
        self.qat_minutes
    }

    /// Maximum steps of quantization-aware training; `None` leaves them to the program.
    pub(crate) fn qat_steps(&self) -> Option<u64> {
        self.qat_steps
    }

    /// Names of the layers that stay in float when a model is quantized, as typed: separated by commas.
    pub(crate) fn keep_float(&self, model: &Path) -> &str {
        self.keep_float.get(model).map_or("", String::as_str)
    }

    /// Whether a quantized model has no float network.
    pub(crate) fn without_float(&self) -> bool {
        self.without_float
    }

    /// Maximum relative L2 error of a quantized model.
    pub(crate) fn accuracy_budget(&self) -> f64 {
        self.accuracy_budget
    }

    /// The model that the user was asked to remove.
    pub(crate) fn removal(&self) -> Option<&Path> {
        self.removal.as_deref()
    }

    /// Returns the results about a model.
    pub(crate) fn findings(&self, model: &Path) -> Option<&ModelFindings> {
        self.findings.get(model)
    }

    /// The latest job of a model, if the list of jobs still contains it.
    pub(crate) fn latest_job<'a>(&self, model: &Path, jobs: &'a Jobs) -> Option<&'a JobView> {
        jobs.get(self.findings.get(model)?.latest?)
    }

    /// Whether a job of a model waits or runs.
    fn is_busy(&self, model: &Path, jobs: &Jobs) -> bool {
        self.findings.get(model).and_then(|findings| findings.latest).is_some_and(|id| jobs.is_active(id))
    }

    /// Whether a model is one of the user's own, which can be removed.
    pub(crate) fn is_own(&self, model: &Path) -> bool {
        model.parent() == Some(self.own_folder.as_path())
    }

    /// Applies an action. Returns what other states and the disk have to do for it.
    pub(crate) fn apply(&mut self, action: ModelsAction, jobs: &Jobs) -> Effects {
        let mut effects = Effects::default();
        match action {
            ModelsAction::Select(model) => self.select(model),
            ModelsAction::Open(files) => self.open(files, jobs, &mut effects),
            ModelsAction::Forget(model) => {
                self.files.retain(|f| *f != model);
                self.shown.take_if(|shown| *shown == model);
            }
            ModelsAction::Name(name) => self.name = name,
            ModelsAction::Describe(settings) => self.describe(settings, jobs, &mut effects),
            ModelsAction::Add => {
                let name = clean_name(&self.name);
                self.prepare(ModelWork::Add, name, &mut effects);
            }
            ModelsAction::Test => {
                if let Some(model) = self.shown.clone() {
                    self.test(model, jobs, &mut effects);
                }
            }
            ModelsAction::Measure => {
                if let Some(model) = self.shown.clone() {
                    let job = ModelSpeedJob { model: model.display().to_string(), cpu_because: None };
                    let job = Job::ModelSpeed(job);
                    self.run(jobs, model, ModelWork::Measure, None, job, &mut effects);
                }
            }
            ModelsAction::QuantizeMode(mode) => self.mode = mode,
            ModelsAction::QatMinutes(minutes) => self.qat_minutes = minutes,
            ModelsAction::QatSteps(steps) => self.qat_steps = steps,
            ModelsAction::KeepFloat(layers) => {
                if let Some(model) = self.shown.clone() {
                    self.keep_float.insert(model, layers);
                }
            }
            ModelsAction::WithoutFloat(without_float) => self.without_float = without_float,
            ModelsAction::AccuracyBudget(budget) => self.accuracy_budget = budget,
            ModelsAction::Quantize => {
                let name = self.shown.as_deref().map(stem).unwrap_or_default();
                let name = clean_name(&format!("{name}-int8"));
                self.prepare(ModelWork::Quantize, name, &mut effects);
            }
            ModelsAction::AskExport(format) => {
                if let Some(model) = self.shown.clone() {
                    let extension = format.extensions().first().copied().unwrap_or_default();
                    let name = format!("{}.{extension}", stem(&model));
                    let request = FileRequest::ModelExport(format, self.export_requests.len());
                    self.export_requests.push(model);
                    effects.act(DocumentsAction::Ask { request, folder: None, name });
                }
            }
            ModelsAction::Export { format, request, out } => self.export(format, request, out, jobs, &mut effects),
            ModelsAction::AskRemove => self.removal = self.shown.clone().filter(|model| self.is_own(model)),
            ModelsAction::AnswerRemove(remove) => {
                if let Some(path) = self.removal.take().filter(|_| remove) {
                    effects.disk(DiskEffect::RemoveModel { path });
                }
            }
            ModelsAction::Use => {
                let card = jobs.models().iter().find(|m| Some(m.path.as_path()) == self.shown.as_deref());
                if let Some(card) = card {
                    effects.act(DisplayAction::Model(card.name.clone()));
                    effects.act(JobsAction::ForgetRefined);
                    effects.act(DisplayAction::Task(PanelTask::Predict));
                }
            }
            ModelsAction::Finished(id, result) => self.finished(id, *result, &mut effects),
        }
        effects
    }

    fn select(&mut self, model: PathBuf) {
        self.name = stem(&model);
        self.shown = Some(model);
    }

    fn open(&mut self, files: Vec<PathBuf>, jobs: &Jobs, effects: &mut Effects) {
        for file in files {
            let file = std::path::absolute(&file).unwrap_or(file);
            let is_installed = jobs.models().iter().any(|m| m.path == file);
            if !is_installed && !self.files.contains(&file) {
                self.files.push(file.clone());
            }
            self.test(file.clone(), jobs, effects);
            self.select(file);
        }
        effects.act(DisplayAction::Task(PanelTask::Models));
    }

    /// Sets what the user states about the shown model file, and tests it unless only sizes changed.
    fn describe(&mut self, settings: ImportSettings, jobs: &Jobs, effects: &mut Effects) {
        let Some(model) = self.shown.clone() else { return };
        let before = self.settings(&model);
        // Outputs on test tensors do not depend on sizes, which change often while they are dragged.
        let ImportSettings { voxel_um, object_diameter_um, .. } = settings;
        let is_tested = ImportSettings { voxel_um, object_diameter_um, ..before } == settings;
        self.settings.insert(model.clone(), settings);
        if is_tested {
            return self.show_sizes(&model);
        }
        // The result of the last test is that of other settings, and the next test may fail.
        if let Some(findings) = self.findings.get_mut(&model) {
            findings.test = None;
        }
        self.test(model, jobs, effects);
    }

    /// Sets the voxel size on the card of a tested model file to the one that the user states, or else to that of the file, and
    /// the object diameter of a file without a description to the one that the user states.
    fn show_sizes(&mut self, model: &Path) {
        let stated = self.settings(model);
        if let Some(findings) = self.findings.get_mut(model)
            && let Some(test) = &mut findings.test
        {
            test.card.voxel_um = stated.voxel_um.or(findings.file_um);
            if is_undescribed(model) {
                // Without a voxel size, a diameter in µm has no effect.
                test.card.object_diameter_um = stated.object_diameter_um.filter(|_| test.card.voxel_um.is_some());
            }
        }
    }

    fn test(&mut self, model: PathBuf, jobs: &Jobs, effects: &mut Effects) {
        let (file, settings) = (model.clone(), self.settings(&model));
        let job = Job::ModelTest(ModelTestJob { file, cpu_because: None, settings });
        self.run(jobs, model, ModelWork::Test, None, job, effects);
    }

    /// Exports the model that was shown when the file was requested.
    fn export(&mut self, format: ExportFormat, request: usize, out: PathBuf, jobs: &Jobs, effects: &mut Effects) {
        let Some(model) = self.export_requests.get(request).cloned() else { return };
        if self.is_busy(&model, jobs) {
            let details = "Another job of this model is running. Wait until it has ended, then export again.";
            return effects.error(format!("{} was not exported", stem(&model)), details);
        }
        let job = ExportJob { model: model.display().to_string(), format, out, overwrite: Overwrite::Replace };
        self.run(jobs, model, ModelWork::Export, None, Job::Export(job), effects);
    }

    /// Starts a job of a model, unless one of its jobs is waiting or running.
    fn run(
        &mut self,
        jobs: &Jobs,
        model: PathBuf,
        work: ModelWork,
        out: Option<PathBuf>,
        job: Job,
        effects: &mut Effects,
    ) {
        if self.is_busy(&model, jobs) {
            return;
        }
        let title = format!("{} · {}", stem(&model), work.title());
        let calibrated_with = calibrated_with(&job);
        let has_stated_um = matches!(&job, Job::ModelTest(test) if test.settings.voxel_um.is_some());
        let id = jobs.request(title, Purpose::Model(work), job, effects);
        self.findings.entry(model.clone()).or_default().latest = Some(id);
        self.jobs.insert(id, ModelJob { model, out, calibrated_with, has_stated_um });
    }

    /// Asks for a free path in the user's models, for a job that writes a package.
    fn prepare(&self, work: ModelWork, name: String, effects: &mut Effects) {
        if let (Some(model), false) = (self.shown.clone(), name.is_empty()) {
            effects.disk(DiskEffect::PrepareModel(ModelPlace { model, work, folder: self.own_folder.clone(), name }));
        }
    }

    /// Starts the job that writes a package, once its path is known.
    pub(crate) fn ready(
        &mut self,
        place: ModelPlace,
        out: Result<PathBuf, String>,
        jobs: &Jobs,
        documents: &Documents,
        settings: &Settings,
    ) -> Effects {
        let mut effects = Effects::default();
        let out = match out {
            Ok(out) => out,
            Err(reason) => {
                effects.error("The model cannot be written", reason);
                return effects;
            }
        };
        let ModelPlace { model, work, .. } = place;
        let job = match work {
            ModelWork::Quantize => {
                let stacks = documents.all().iter().filter_map(|d| jobs.calibration_job(&model, d, settings));
                self.quantization(&model, out.clone(), stacks.collect())
            }
            _ => Job::Import(ImportJob {
                file: model.clone(),
                out: out.clone(),
                overwrite: Overwrite::Refuse,
                cpu_because: None,
                settings: self.settings(&model),
            }),
        };
        self.run(jobs, model, work, Some(out), job, &mut effects);
        effects
    }

    /// The quantization of a model, calibrated with the open stacks, which are read as in these predictions. Without stacks,
    /// the package's test tensors are used.
    fn quantization(&self, model: &Path, out: PathBuf, mut stacks: Vec<PredictJob>) -> Job {
        if self.mode == QuantizeMode::Dynamic {
            stacks.clear();
        }
        let quantization = QuantizeJob {
            model: model.display().to_string(),
            out,
            mode: self.mode,
            calibrate: Vec::new(),
            predictions: stacks,
            accuracy_budget: self.accuracy_budget,
            keep_float: layer_names(self.keep_float(model)),
            without_float: self.without_float,
            overwrite: Overwrite::Refuse,
        };
        // The other modes do not train.
        let is_trained = self.mode == QuantizeMode::Qat;
        let minutes = is_trained.then_some(self.qat_minutes);
        Job::Quantize { quantization, minutes, steps: self.qat_steps.filter(|_| is_trained) }
    }
}

/// The names of layers in a text, which are separated by commas.
fn layer_names(text: &str) -> BTreeSet<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Name of a model file or folder, without the extension of a file. The description of a package, which is always named
/// `rdf.yaml` or similar, has the name of its folder.
pub(crate) fn stem(path: &Path) -> String {
    let extension = cytoscope_storage::target::extension(path);
    let folder = path.parent().and_then(Path::file_name);
    match (extension.as_deref(), folder) {
        (Some("yaml" | "yml"), Some(folder)) => folder.to_string_lossy().into_owned(),
        (Some(_), _) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        (None, _) => file_name(path),
    }
}

#[cfg(test)]
#[allow(clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use crate::action::Action;
    use crate::effect::{Effect, Wake};
    use std::sync::Arc;

    #[test]
    fn a_model_whose_job_was_requested_gets_no_second_one_before_the_first_is_queued() {
        let wake: Wake = Arc::new(|| {});
        let jobs = Jobs::new(None, None, None, &wake);
        let mut models = Models::new(None);
        let requested = |effects: Effects| {
            let is_run = |effect: &Effect| matches!(effect, Effect::Act(Action::Jobs(JobsAction::Run(_))));
            effects.into_iter().filter(is_run).count()
        };
        let file = PathBuf::from("/m/net.onnx");
        assert_eq!(requested(models.apply(ModelsAction::Open(vec![file.clone(), file]), &jobs)), 1);
        assert_eq!(requested(models.apply(ModelsAction::Test, &jobs)), 0);
        let other = PathBuf::from("/m/other.onnx");
        assert_eq!(requested(models.apply(ModelsAction::Open(vec![other]), &jobs)), 1);
    }

    #[test]
    fn only_quantization_with_training_has_limits_of_the_training() {
        let mut models = Models::new(None);
        (models.qat_steps, models.without_float) = (Some(12), true);
        for (mode, minutes, steps) in
            [(QuantizeMode::Static, None, None), (QuantizeMode::Qat, Some(QAT_MINUTES), Some(12))]
        {
            models.mode = mode;
            let job = models.quantization(Path::new("/m/net"), PathBuf::from("/m/net-int8"), Vec::new());
            let Job::Quantize { quantization, minutes: given_minutes, steps: given_steps } = job else { panic!() };
            assert_eq!((given_minutes, given_steps), (minutes, steps));
            assert!(quantization.without_float);
        }
    }

    #[test]
    fn layers_that_are_typed_for_a_model_stay_in_float_in_this_model_only() {
        let wake: Wake = Arc::new(|| {});
        let (mut models, jobs) = (Models::new(None), Jobs::new(None, None, None, &wake));
        let [net, other] = ["/m/net", "/m/other"].map(Path::new);
        models.shown = Some(net.to_owned());
        let _ = models.apply(ModelsAction::KeepFloat(" head.out, down.1.conv,".to_owned()), &jobs);
        let kept = |model: &Path| {
            let job = models.quantization(model, PathBuf::from("/m/int8"), Vec::new());
            let Job::Quantize { quantization, .. } = job else { panic!() };
            quantization.keep_float.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(kept(net), ["down.1.conv", "head.out"]);
        assert!(kept(other).is_empty());
    }

    #[test]
    fn only_models_in_the_users_folder_are_own() {
        let models = Models::new(Some(Path::new("/home/a/settings.json")));
        assert!(models.is_own(Path::new("/home/a/models/mine")));
        assert!(!models.is_own(Path::new("/opt/cytoscope/models/nuclei")));
        assert!(!models.is_own(Path::new("/home/a/models/mine/weights.onnx")));
    }

    #[test]
    fn names_of_models_have_no_extensions() {
        let names = ["/m/net.onnx", "/m/net-1.2", "/m/net.v2", "/m/a.b.zip"].map(|p| stem(Path::new(p)));
        assert_eq!(names, ["net", "net-1.2", "net.v2", "a.b"]);
        let descriptions = ["/m/mine/rdf.yaml", "/m/net-1.2/v0_4.bioimageio.yaml", "rdf.yaml"];
        assert_eq!(descriptions.map(|p| stem(Path::new(p))), ["mine", "net-1.2", "rdf"]);
    }
}
