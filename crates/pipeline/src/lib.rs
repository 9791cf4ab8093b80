//! Jobs from input files to output files: predict, segment, measure, mesh, convert and evaluate; import, test and export
//! models.
//!
//! The crate owns [`PredictJob`] (stacks to labels, maps and tables), [`predict_volume`] (the same in memory), [`Model`]
//! (a package that is ready to run), [`devices`] (the compute devices of this machine and the choice among them),
//! [`MachineProfile`] (the settings that were measured to be best for a model on this machine), [`calibration_tiles`], and
//! what all long jobs share: [`Context`] with progress, cancellation and spans. A job is a value that can be serialized,
//! sent to the worker and run again; a provenance record contains one ([`provenance::Provenance::rerun`] for
//! predictions, [`job_record::JobRecord`] for the others).
//!
//! Stacks are read, predicted and written in slabs, with temporary files in between, so that memory use does not grow
//! with the number of slices. Jobs fail with [`JobError`]; its [`JobError::kind`] determines the exit code of the
//! command line. A failed or canceled job leaves no partly written result.
#![forbid(unsafe_code)]

mod artifact;
mod background_check;
mod calibration;
pub mod cards;
mod checkpoints;
mod convert;
mod convert_series;
mod convert_zarr;
mod deserialize;
pub mod devices;
mod diameter;
mod engine_memory;
mod error;
mod evaluate;
mod evaluation;
mod export;
mod float_loss;
mod folder_digest;
mod frame_check;
mod image_files;
mod import_settings;
mod inherited;
mod installed_models;
mod job;
pub mod job_record;
mod label_check;
mod label_notes;
mod machine_peak;
mod machine_profile;
mod measure;
mod mesh;
mod middle_slice;
mod misuse;
mod model;
mod model_check;
mod model_inputs;
mod model_outputs;
pub mod note;
mod ops;
mod package_test;
pub mod packages;
pub mod predict;
mod predicted_part;
mod preprocess;
mod probe_input;
mod process_event;
mod program;
mod progress;
pub mod provenance;
mod record_summary;
mod recorded;
mod recorded_jobs;
mod rerun;
pub mod results;
mod sample_type;
mod saturation_check;
mod scored_channels;
mod search_table;
mod segment;
mod slice_statistics;
mod spool;
mod stack;
mod stain;
mod table;
mod tensors;
mod verify;

pub use artifact::{Artifact, ArtifactKind};
pub use calibration::{CalibrationImage, CalibrationTile, calibration_tiles, calibration_tiles_from_images};
pub use convert::ConvertJob;
pub use convert_series::{ConvertOutcome, ConvertedSeries};
pub use diameter::{
    Certainty, DiameterEstimate, DiameterJob, DiameterRequest, DiameterUnit, ObjectDiameter, is_usual_intensity,
};
pub use engine_memory::engine_memory;
pub use error::{ExistingOutput, JobError, JobErrorKind, model_error_message};
pub use evaluate::{ChannelScores, EvaluateJob, EvaluateReport, Ignored, PairReport, PairRole, channels_to_score};
pub use evaluation::{Evaluation, ScoredImage};
pub use export::{ExportFormat, ExportJob, ExportReport};
pub use folder_digest::{input_record, records_before, refuse_changed};
pub use import_settings::{FinalActivation, ImportSettings};
pub use inherited::LeftOut;
pub use installed_models::{find_model, log_folder, model_folders, user_folder};
pub use job::{CancelToken, Context, DeviceInUse, Event, MAX_THREADS, Meter, check_threads};
pub use machine_peak::machine_peak;
pub use machine_profile::{
    AppliedProfile, InferenceSettings, MACHINE_PROFILES_FORMAT, MachineProfile, MachineProfiles, PerformanceRequest,
    Preset, ProfiledSetting, SCRATCH, TrainingSettings, machine_key, measured_gpu_name,
};
pub use measure::{MeasureJob, MeasureReport};
pub use mesh::{MeshJob, MeshReport, MeshedObject};
pub use misuse::Misuse;
pub use model::{Model, ModelTask};
pub use model_check::{
    ModelSpeedJob, ModelSpeedReport, ModelTestJob, ModelTestReport, NetworkSpeed, UploadReport, check_upload,
};
pub use model_inputs::{ModelInput, move_channels};
pub use model_outputs::{ModelOutput, OutputTensor};
pub use note::{Note, NoteLevel};
pub use predict::{
    ImagePreprocessing, InputFailure, InputReport, InputTensor, Output, PredictJob, PredictOptions, PredictOutcome,
    PredictedVolume, ResultFormat, VolumeOutputs, predict_part, predict_volume, predict_volume_on_devices,
};
pub use preprocess::{PreprocessRecord, preprocessed};
pub use probe_input::join_tensors;
pub use process_event::{CandidateOutcome, ProcessEvent, SearchTrial};
pub use program::{ChildProgram, PROGRAM, own_program, program_folders};
pub use progress::{ProgressStage, ProgressUnit, StageProgress};
pub use record_summary::{AS_RECORDED, RecordLine, RecordPart, RecordSummary};
pub use recorded::Recorded;
pub use rerun::Rerun;
pub use search_table::{
    MAX_SEARCH_TABLE_BYTES, SEARCH_COLUMNS, SEARCH_FINGERPRINT, SEARCH_FOLDER_KIND, SearchTable, SearchTableError,
    is_search_table, read_search_table,
};
pub use segment::{LabelFormat, SegmentJob, SegmentReport};
pub use slice_statistics::StatisticsScope;
pub use stack::Extents;
pub use table::{PARQUET_EXTENSION, TableFormat, parquet_table};
pub use verify::Verification;
