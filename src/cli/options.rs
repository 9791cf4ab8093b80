//! Options that several commands have in common.
//!
//! The structs have plain comments: clap takes doc comments of flattened structs for descriptions of the command.

use super::failure::Failure;
use super::{parse_threads, parse_um};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use cytoscope_formats::SeriesChoice;
use cytoscope_pipeline::{PARQUET_EXTENSION, TableFormat};
use cytoscope_storage::target::extension;
use cytoscope_volume::Axes;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Returns the format of a table: the requested one, or else the one that the extension of its name stands for.
///
/// # Errors
/// [`Failure`] if CSV is requested for a name that stands for Parquet.
pub(crate) fn table_format(requested: Option<TableFormat>, table: &Path) -> Result<TableFormat, Failure> {
    if requested == Some(TableFormat::Csv) && extension(table).as_deref() == Some(PARQUET_EXTENSION) {
        return Err(Failure::wrong_use(format!("{} ends in .parquet, but --table-format is csv", table.display()))
            .and_next("give a name that ends in .csv, or leave the option out"));
    }
    Ok(requested.unwrap_or_default())
}

/// Returns the parser of an option that takes one of a few words, for types of crates that do not know clap. The words are
/// listed in errors and offered by shells.
pub(crate) fn one_of<T>(words: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: Into<Box<dyn Error + Send + Sync>>,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse::<T>())
}

// How the result and the progress of a command are printed.
#[derive(Args)]
pub(crate) struct ReportOptions {
    /// Print the report as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Report progress as JSON lines on standard error.
    #[arg(long)]
    pub(crate) json_progress: bool,
}

// The trace of a run, of stages and operators.
#[derive(Args)]
pub(crate) struct TraceOptions {
    /// Write a Chrome trace of the run, for cytoscope profile or ui.perfetto.dev.
    #[arg(long, value_name = "FILE.json")]
    pub(crate) trace: Option<PathBuf>,
    /// Leave individual operators out of the trace; timing them makes a GPU wait after each one.
    #[arg(long, requires = "trace")]
    pub(crate) stages_only: bool,
}

// The trace of a run without operators of a network.
#[derive(Args)]
pub(crate) struct StageTraceOption {
    /// Write a Chrome trace of the run, for cytoscope profile or ui.perfetto.dev.
    #[arg(long, value_name = "FILE.json")]
    pub(crate) trace: Option<PathBuf>,
}

// The number of threads of a command.
#[derive(Args)]
pub(crate) struct ThreadsOption {
    /// Number of threads; 0 uses all cores.
    #[arg(long, default_value_t = 0, value_parser = parse_threads)]
    pub(crate) threads: usize,
}

// How the images of several files are read.
#[derive(Args)]
pub(crate) struct ImageOptions {
    /// Series (position, scene, well) to read from multi-series files, by number from 0 or by name; predict also takes
    /// all, which selects every series.
    #[arg(long, default_value = "0", value_name = "N|NAME")]
    pub(crate) series: SeriesChoice,
    /// Axis order, such as ZYX or TCYX, to use instead of the files' own.
    #[arg(long)]
    pub(crate) axes: Option<Axes>,
    /// Voxel size Z,Y,X in µm, to use instead of the files' own.
    #[arg(long, value_name = "Z,Y,X", value_parser = parse_um)]
    pub(crate) voxel_size: Option<[f64; 3]>,
}
