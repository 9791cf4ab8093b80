//! The table of tasks: one run of `predict` or `train` per row.

use crate::cli::failure::Failure;
use crate::cli::predict::Predict;
use crate::cli::train::{Train, TrainPrecisionName};
use crate::cli::usage::usage_problem;
use crate::cli::{PrecisionName, unreadable};
use clap::{ArgMatches, Args, FromArgMatches, ValueEnum};
use csv::StringRecord;
use cytoscope_engine::DeviceRequest;
use cytoscope_pipeline::{SCRATCH, find_model};
use cytoscope_storage::read::open_regular;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum size of a table in bytes.
const MAX_TABLE_BYTES: u64 = 1 << 20;
/// Options that the bench sets itself, or that would change what is measured.
const RESERVED: [&str; 22] = [
    "out",
    "json",
    "json-progress",
    "trace",
    "stages-only",
    "force",
    "resume",
    "restart",
    "anew",
    "rerun",
    "verbose",
    "help",
    "model",
    "from",
    "data",
    "device",
    "precision",
    "batch",
    "epochs",
    "search",
    "trials",
    "compare-precision",
];

/// Kind of run that a task measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TaskKind {
    /// A training run (`train`).
    Training,
    /// A prediction (`predict`).
    Inference,
}

/// A row of the table.
#[derive(Debug, PartialEq)]
pub(super) struct Task {
    /// Name that identifies the task in the results.
    pub name: String,
    /// The command that runs the task: `train` or `predict`.
    pub kind: TaskKind,
    model: String,
    data: String,
    /// The git branch whose program runs the task; `None` for this program.
    pub branch: Option<String>,
    /// Options from the other columns, as on the command line.
    options: Vec<String>,
}

/// Columns of the table; all but the first four may be missing.
const COLUMNS: [&str; 10] =
    ["name", "kind", "model", "data", "device", "precision", "batch_size", "epochs", "overrides", "branch"];
/// Number of columns that must be there.
const REQUIRED: usize = 4;

/// A cell of the table that cannot be used.
#[derive(Debug, PartialEq)]
struct CellError {
    line: u64,
    column: String,
    problem: String,
}

impl fmt::Display for CellError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.problem)
    }
}

/// Reads the table of tasks.
///
/// # Errors
/// Bad input, with line and column of the first cell that cannot be used.
pub(super) fn read(path: &Path) -> Result<Vec<Task>, Failure> {
    let failed = |problem: String| Failure::bad_input(format!("{}: {problem}", path.display()));
    let mut text = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(MAX_TABLE_BYTES + 1).read_to_end(&mut text));
    read.map_err(|error| unreadable(path, error))?;
    if text.len() as u64 > MAX_TABLE_BYTES {
        return Err(failed(format!("the table is larger than {MAX_TABLE_BYTES} bytes; expected one row per task")));
    }
    parse(&text).map_err(|error| failed(error.to_string()))
}

fn parse(text: &[u8]) -> Result<Vec<Task>, CellError> {
    let mut reader =
        csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).comment(Some(b'#')).from_reader(text);
    let headers = reader.headers().map_err(|e| bad_row(1, &StringRecord::new(), &e))?.clone();
    let at = columns(&headers)?;
    let mut tasks: Vec<Task> = Vec::new();
    let mut names = BTreeSet::new();
    for record in reader.records() {
        let record = record.map_err(|e| bad_row(e.position().map_or(0, csv::Position::line), &headers, &e))?;
        // Spreadsheets may save empty rows below the table.
        if record.iter().all(str::is_empty) {
            continue;
        }
        let row = Row { at: &at, line: record.position().map_or(0, csv::Position::line), record: &record };
        if record.len() > headers.len() {
            let found = record.len();
            return Err(row.error(
                "overrides",
                format!(
                    "the row has {found} cells, expected at most {}; quote cells that contain commas",
                    headers.len()
                ),
            ));
        }
        let task = row.task()?;
        if !names.insert(task.name.clone()) {
            return Err(row.error("name", format!("\"{}\" occurs twice; give each task its own name", task.name)));
        }
        tasks.push(task);
    }
    if tasks.is_empty() {
        let problem = "the table has no rows; expected one for each task".to_owned();
        return Err(CellError { line: 2, column: "name".to_owned(), problem });
    }
    Ok(tasks)
}

/// Returns the error of a row, or of the header (line 1), that cannot be read as text.
fn bad_row(line: u64, headers: &StringRecord, error: &csv::Error) -> CellError {
    const NEXT_STEP: &str = "save the table as comma-separated text in UTF-8";
    match error.kind() {
        csv::ErrorKind::Utf8 { err, .. } => {
            let column = headers.get(err.field()).map_or_else(|| (err.field() + 1).to_string(), str::to_owned);
            CellError { line, column, problem: format!("the text is not UTF-8; {NEXT_STEP}") }
        }
        _ => CellError { line, column: "1".to_owned(), problem: format!("{error}; {NEXT_STEP}") },
    }
}

/// Returns the position of each of [`COLUMNS`].
fn columns(headers: &StringRecord) -> Result<[Option<usize>; COLUMNS.len()], CellError> {
    let error = |column: &str, problem: String| CellError { line: 1, column: column.to_owned(), problem };
    if let Some(unnamed) = headers.iter().position(str::is_empty) {
        let problem = "the column has no name; give it one, or remove the comma";
        return Err(error(&(unnamed + 1).to_string(), problem.to_owned()));
    }
    if let Some(unknown) = headers.iter().find(|header| !COLUMNS.contains(header)) {
        let expected = COLUMNS.join(", ");
        return Err(error(unknown, format!("this column is not known; expected {expected}, separated by commas")));
    }
    let mut seen = BTreeSet::new();
    if let Some(repeated) = headers.iter().find(|header| !seen.insert(*header)) {
        return Err(error(repeated, "the column occurs twice; remove one of them".to_owned()));
    }
    let at = COLUMNS.map(|column| headers.iter().position(|header| header == column));
    match COLUMNS.iter().zip(&at).take(REQUIRED).find(|(_, at)| at.is_none()) {
        Some((column, _)) => Err(error(column, "the table lacks this column; add it to the first line".to_owned())),
        None => Ok(at),
    }
}

/// A row with the positions of the columns.
struct Row<'a> {
    at: &'a [Option<usize>; COLUMNS.len()],
    line: u64,
    record: &'a StringRecord,
}

impl Row<'_> {
    fn error(&self, column: &str, problem: String) -> CellError {
        CellError { line: self.line, column: column.to_owned(), problem }
    }

    /// Returns a cell; `None` if it is empty or the column is missing.
    fn cell(&self, column: &str) -> Option<&str> {
        let at = COLUMNS.iter().position(|c| *c == column).and_then(|i| self.at.get(i).copied().flatten())?;
        self.record.get(at).filter(|cell| !cell.is_empty())
    }

    fn required(&self, column: &str) -> Result<&str, CellError> {
        self.cell(column).ok_or_else(|| self.error(column, "the cell is empty; expected a value".to_owned()))
    }

    /// Returns a positive number; `None` if the cell is empty.
    fn number(&self, column: &str) -> Result<Option<usize>, CellError> {
        let Some(cell) = self.cell(column) else { return Ok(None) };
        match cell.parse() {
            Ok(number) if number > 0 => Ok(Some(number)),
            _ => Err(self.error(column, format!("invalid number \"{cell}\"; expected an integer of at least 1"))),
        }
    }

    fn task(&self) -> Result<Task, CellError> {
        let kind = match self.required("kind")? {
            "training" => TaskKind::Training,
            "inference" => TaskKind::Inference,
            other => return Err(self.error("kind", format!("found \"{other}\"; expected training or inference"))),
        };
        let mut options = self.device_and_precision(kind)?;
        let (batch, epochs) = (self.number("batch_size")?, self.number("epochs")?);
        match kind {
            TaskKind::Training => {
                options.extend(batch.map(|n| format!("--batch={n}")));
                options.extend(epochs.map(|n| format!("--epochs={n}")));
            }
            TaskKind::Inference if batch.is_some_and(|n| n > 1) => {
                let problem = "predict chooses the batch itself; expected 1 or nothing".to_owned();
                return Err(self.error("batch_size", problem));
            }
            TaskKind::Inference if epochs.is_some() => {
                return Err(self.error("epochs", "only training has epochs; expected nothing".to_owned()));
            }
            TaskKind::Inference => {}
        }
        options.extend(self.overrides()?);
        let (name, model) = (self.required("name")?.to_owned(), self.required("model")?.to_owned());
        let (data, branch) = (self.required("data")?.to_owned(), self.branch()?);
        let task = Task { name, kind, model, data, branch, options };
        self.check(&task)?;
        Ok(task)
    }

    fn device_and_precision(&self, kind: TaskKind) -> Result<Vec<String>, CellError> {
        let mut options = Vec::new();
        if let Some(device) = self.cell("device") {
            let parsed = device.parse::<DeviceRequest>().map_err(|e| self.error("device", e.to_string()))?;
            options.push(format!("--device={parsed}"));
        }
        if let Some(precision) = self.cell("precision") {
            let (is_valid, expected) = match kind {
                TaskKind::Training => (
                    TrainPrecisionName::from_str(precision, false).is_ok(),
                    "auto, f32, tf32, f16 or bf16: int8 is for inference only",
                ),
                TaskKind::Inference => {
                    (PrecisionName::from_str(precision, false).is_ok(), "auto, f32, tf32, f16, bf16 or int8")
                }
            };
            if !is_valid {
                return Err(self.error("precision", format!("found \"{precision}\"; expected {expected}")));
            }
            options.push(format!("--precision={precision}"));
        }
        Ok(options)
    }

    /// Returns the name of a git branch, which no option of git can be mistaken for.
    fn branch(&self) -> Result<Option<String>, CellError> {
        match self.cell("branch") {
            Some(branch) if branch.starts_with('-') || branch.contains(char::is_whitespace) => {
                Err(self.error("branch", format!("found \"{branch}\"; expected the name of a git branch")))
            }
            branch => Ok(branch.map(str::to_owned)),
        }
    }

    /// Returns the options of `key=value;…`; a key without a value is a switch.
    fn overrides(&self) -> Result<Vec<String>, CellError> {
        let cell = self.cell("overrides").unwrap_or_default();
        let mut options = Vec::new();
        for part in cell.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) =
                part.split_once('=').map_or((part, None), |(key, value)| (key.trim(), Some(value.trim())));
            let key = key.replace('_', "-");
            if key.is_empty() || key.starts_with('-') {
                return Err(self.error("overrides", format!("found \"{part}\"; expected key=value, such as threads=2")));
            }
            if RESERVED.contains(&key.as_str()) {
                let problem = format!("\"{key}\" cannot be overridden; use its column, if there is one");
                return Err(self.error("overrides", problem));
            }
            options.push(value.map_or_else(|| format!("--{key}"), |value| format!("--{key}={value}")));
        }
        Ok(options)
    }

    /// Checks the options as the command will.
    fn check(&self, task: &Task) -> Result<(), CellError> {
        let arguments = task.arguments(Path::new("out"), Path::new("trace.json"));
        let command = match task.kind {
            TaskKind::Training => Train::augment_args(clap::Command::new("train")),
            TaskKind::Inference => Predict::augment_args(clap::Command::new("predict")),
        };
        let problem = match command.try_get_matches_from(arguments) {
            // The program of a branch may know other settings.
            Ok(matches) if task.kind == TaskKind::Training && task.branch.is_none() => settings_problem(&matches),
            Ok(_) => None,
            Err(error) => {
                let command = match task.kind {
                    TaskKind::Training => "train",
                    TaskKind::Inference => "predict",
                };
                Some(format!("{}; cytoscope {command} --help lists the options", usage_problem(&error)))
            }
        };
        problem.map_or(Ok(()), |problem| Err(self.error("overrides", problem)))
    }
}

/// Returns why the settings of a training run with these options cannot be used; `None` if they can.
fn settings_problem(matches: &ArgMatches) -> Option<String> {
    match Train::from_arg_matches(matches) {
        Ok(train) => train.settings_failure().map(|failure| failure.to_string()),
        Err(error) => Some(usage_problem(&error)),
    }
}

impl Task {
    /// Returns a prediction of the stack at `data`; `options` are options of `predict`.
    pub(super) fn inference(name: &str, model: &str, data: &str, options: Vec<String>) -> Self {
        let (name, model, data) = (name.to_owned(), model.to_owned(), data.to_owned());
        Self { name, kind: TaskKind::Inference, model, data, branch: None, options }
    }

    /// Returns a training task once for each batch size, with the size in its name; other tasks as they are.
    pub(super) fn at_batch_sizes(self, sizes: &[usize]) -> Vec<Self> {
        if self.kind != TaskKind::Training || sizes.is_empty() {
            return vec![self];
        }
        let others: Vec<String> = self.options.iter().filter(|o| !o.starts_with("--batch=")).cloned().collect();
        let with_batch = |size: &usize| {
            let mut options = others.clone();
            options.push(format!("--batch={size}"));
            let (model, data, branch) = (self.model.clone(), self.data.clone(), self.branch.clone());
            Self { name: format!("{}, batch {size}", self.name), kind: self.kind, model, data, branch, options }
        };
        sizes.iter().map(with_batch).collect()
    }

    /// Returns the options from the columns of the table, as on the command line.
    pub(super) fn options(&self) -> &[String] {
        &self.options
    }

    /// Returns the existing files and folders that the task reads: its data, its model, and files among its options.
    pub(super) fn inputs(&self) -> Vec<PathBuf> {
        let is_scratch = self.kind == TaskKind::Training && self.model == SCRATCH;
        let model = if is_scratch { None } else { find_model(&self.model).ok() };
        let option_values = self.options.iter().filter_map(|option| option.split_once('=')).map(|(_, value)| value);
        let files = option_values.map(PathBuf::from).filter(|path| path.is_file());
        std::iter::once(PathBuf::from(&self.data)).filter(|path| path.exists()).chain(model).chain(files).collect()
    }

    /// Returns why the task will fail unless missing data or a missing model appears before its first run; nothing if
    /// nothing is missing.
    pub(super) fn missing(&self) -> Vec<String> {
        let is_scratch = self.kind == TaskKind::Training && self.model == SCRATCH;
        // The program of a branch may know other models.
        let is_unchecked = is_scratch || self.branch.is_some();
        let model = if is_unchecked { None } else { find_model(&self.model).err() };
        let model = model.map(|error| error.to_string());
        let data = (!Path::new(&self.data).exists()).then(|| format!("{}: no such file or folder", self.data));
        model.into_iter().chain(data).collect()
    }

    /// Returns the arguments of the program.
    pub(super) fn arguments(&self, out: &Path, trace: &Path) -> Vec<String> {
        let (out, trace) = (out.display().to_string(), trace.display().to_string());
        let mut arguments: Vec<String> = match self.kind {
            TaskKind::Training => {
                vec!["train".to_owned(), format!("--data={}", self.data), format!("--from={}", self.model)]
            }
            TaskKind::Inference => vec!["predict".to_owned(), format!("--model={}", self.model)],
        };
        arguments.extend([
            format!("--out={out}"),
            format!("--trace={trace}"),
            "--stages-only".to_owned(),
            "--json".to_owned(),
        ]);
        // A machine profile that is stored between two benches must not change what is measured.
        if !self.options.iter().any(|option| option.starts_with("--performance")) {
            arguments.push("--performance=off".to_owned());
        }
        arguments.extend(self.options.iter().cloned());
        if self.kind == TaskKind::Inference {
            arguments.extend(["--".to_owned(), self.data.clone()]);
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "name,kind,model,data,device,precision,batch_size,epochs,overrides\n";

    fn refused(rows: &str) -> CellError {
        parse(format!("{HEADER}{rows}").as_bytes()).unwrap_err()
    }

    #[test]
    fn rows_become_the_words_of_a_command() {
        let first = "# two tasks\np, inference,nuclei,a.tif,cpu,int8,1,,\"threads=2; tile=8,16,16\"\n";
        let second = "t,training,scratch,sim,,,2,3,task=segmentation;without_int8\n";
        let tasks = parse(format!("{HEADER}{first}{second}").as_bytes()).unwrap();
        let arguments = |i: usize| tasks[i].arguments(Path::new("o"), Path::new("t.json")).join(" ");
        assert_eq!(
            arguments(0),
            "predict --model=nuclei --out=o --trace=t.json --stages-only --json --performance=off --device=cpu \
             --precision=int8 --threads=2 --tile=8,16,16 -- a.tif"
        );
        assert_eq!(
            arguments(1),
            "train --data=sim --from=scratch --out=o --trace=t.json --stages-only --json --performance=off --batch=2 \
             --epochs=3 --task=segmentation --without-int8"
        );
    }

    #[test]
    fn a_machine_profile_is_used_only_on_request() {
        let rows = "p,inference,nuclei,a.tif,,,,,performance=fastest\n";
        let tasks = parse(format!("{HEADER}{rows}").as_bytes()).unwrap();
        let arguments = tasks[0].arguments(Path::new("o"), Path::new("t.json"));
        let given: Vec<&String> = arguments.iter().filter(|word| word.starts_with("--performance")).collect();
        assert_eq!(given, ["--performance=fastest"]);
    }

    #[test]
    fn training_tasks_are_repeated_at_each_batch_size() {
        let rows = "p,inference,nuclei,a.tif\nt,training,scratch,sim,,,2,3,task=segmentation\n";
        let tasks = parse(format!("{HEADER}{rows}").as_bytes()).unwrap();
        let all: Vec<Task> = tasks.into_iter().flat_map(|task| task.at_batch_sizes(&[1, 4])).collect();
        let names: Vec<&str> = all.iter().map(|task| task.name.as_str()).collect();
        assert_eq!(names, ["p", "t, batch 1", "t, batch 4"]);
        let arguments = all[2].arguments(Path::new("o"), Path::new("t.json"));
        let batches: Vec<&String> = arguments.iter().filter(|word| word.starts_with("--batch")).collect();
        assert_eq!((batches, arguments.contains(&"--epochs=3".to_owned())), (vec![&"--batch=4".to_owned()], true));
    }

    #[test]
    fn tables_of_spreadsheets_are_read() {
        // With a byte order mark, line breaks of Windows, quoted cells, and an empty row at the end.
        let text = "\u{feff}name,kind,model,data\r\n\"a, \"\"b\"\"\",inference,nuclei,\"my stack.tif\"\r\n,,,\r\n";
        let tasks = parse(text.as_bytes()).unwrap();
        assert_eq!(tasks.len(), 1);
        assert_eq!((tasks[0].name.as_str(), tasks[0].data.as_str()), ("a, \"b\"", "my stack.tif"));
        // Excel's "CSV" is in the code page of the system, and its "Unicode text" is UTF-16.
        let error = parse(b"name,kind,model,data\na,inference,nuclei,z\xfcrich.tif\n").unwrap_err();
        assert_eq!((error.line, error.column.as_str()), (2, "data"), "{error}");
        assert!(error.problem.contains("not UTF-8; save the table"), "{error}");
        let utf16: Vec<u8> = "name".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let error = parse(&[&[0xff, 0xfe][..], &utf16[..]].concat()).unwrap_err();
        assert!(error.line == 1 && error.problem.contains("not UTF-8"), "{error}");
    }

    #[test]
    fn missing_data_and_models_are_noticed_before_a_task_runs() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("a.tif");
        std::fs::write(&data, "a").unwrap();
        let (data, missing) = (data.display().to_string(), folder.path().join("b").display().to_string());
        assert_eq!(Task::inference("t", &data, &data, Vec::new()).missing(), Vec::<String>::new());
        let found = Task::inference("t", &missing, &missing, Vec::new()).missing();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("no model") && found[1].contains("no such file or folder"), "{found:?}");
        let rows = format!("t,training,scratch,{missing},,,,,task=segmentation\n");
        let tasks = parse(format!("{HEADER}{rows}").as_bytes()).unwrap();
        assert_eq!(tasks[0].missing().len(), 1, "a new network needs no model: {:?}", tasks[0].missing());
    }

    #[test]
    fn missing_columns_at_the_end_are_empty() {
        let tasks = parse(b"name,kind,model,data\nA,inference,nuclei,a.tif\n").unwrap();
        assert_eq!((tasks[0].name.as_str(), tasks[0].options.len()), ("A", 0));
        assert_eq!(tasks[0].branch, None, "this program");
    }

    #[test]
    fn a_task_may_name_the_branch_whose_program_runs_it() {
        let tasks = parse(b"name,kind,model,data,branch\nA,inference,nuclei,a.tif,\nB,training,m,d,feature/x\n");
        // Options are checked for each row: a training run needs a task.
        assert_eq!(tasks.unwrap_err().column, "overrides");
        let rows = "A,inference,nuclei,a.tif\nB,training,m,d,,,1,,task=segmentation,feature/x\n";
        let header = HEADER.replace("overrides", "overrides,branch");
        let tasks = parse(format!("{header}{rows}").as_bytes()).unwrap();
        let branches: Vec<Option<&str>> = tasks.iter().map(|task| task.branch.as_deref()).collect();
        assert_eq!(branches, [None, Some("feature/x")]);
        let all: Vec<Task> = tasks.into_iter().flat_map(|task| task.at_batch_sizes(&[2])).collect();
        assert_eq!(all[1].branch.as_deref(), Some("feature/x"), "at every batch size");
        let rows = "C,training,m,d,,,,,task=segmentation;set=nosuch=1,feature/x\n";
        assert!(parse(format!("{header}{rows}").as_bytes()).is_ok(), "the branch may know the setting");
        for branch in ["--upload-pack=x", "two words"] {
            let rows = format!("A,inference,nuclei,a.tif,,,,,,{branch}\n");
            let error = parse(format!("{header}{rows}").as_bytes()).unwrap_err();
            assert_eq!(error.column, "branch");
        }
    }

    #[test]
    fn cells_that_cannot_be_used_are_named_by_line_and_column() {
        let cases = [
            ("p,guess,m,d\n", 2, "kind", "training or inference"),
            (",inference,m,d\n", 2, "name", "empty"),
            ("p,inference,m,\n", 2, "data", "empty"),
            ("p,inference,m,d\np,inference,m,d\n", 3, "name", "twice"),
            ("p,inference,m,d,gpu\n", 2, "device", "gpu"),
            ("p,inference,m,d,,f17\n", 2, "precision", "int8"),
            ("t,training,m,d,,int8,,,task=segmentation\n", 2, "precision", "inference only"),
            ("p,inference,m,d,,,4\n", 2, "batch_size", "chooses the batch itself"),
            ("p,inference,m,d,,,,2\n", 2, "epochs", "only training"),
            ("t,training,m,d,,,none\n", 2, "batch_size", "at least 1"),
            ("t,training,m,d,,,,,steps=2\n", 2, "overrides", "--task"),
            ("p,inference,m,d,,,,,color=red\n", 2, "overrides", "color"),
            ("p,inference,m,d,,,,,threads=many\n", 2, "overrides", "threads"),
            ("p,inference,m,d,,,,,out=x\n", 2, "overrides", "cannot be overridden"),
            ("p,inference,m,d,,,,,=3\n", 2, "overrides", "key=value"),
            ("p,inference,m,d,,,,,help\n", 2, "overrides", "cannot be overridden"),
            (",,,,,,,,\n", 2, "name", "no rows"),
            ("p,inference,m,d,,,,,tile=1,2,3\n", 2, "overrides", "quote"),
            ("t,training,m,d,,,,,task=segmentation;set=nosuch=1\n", 2, "overrides", "nosuch"),
            ("t,training,m,d,,,,,task=segmentation;set=workers=0\n", 2, "overrides", "workers is 0"),
            ("t,training,m,d,,,,,task=segmentation;steps=0\n", 2, "overrides", "budget.steps is 0"),
            ("t,training,m,d,,,,,task=segmentation;minutes=0\n", 2, "overrides", "--minutes is 0"),
            ("t,training,m,d,,,,,task=segmentation;config=nosuch.toml\n", 2, "overrides", "nosuch.toml"),
            ("", 2, "name", "no rows"),
        ];
        for (rows, line, column, word) in cases {
            let error = refused(rows);
            assert_eq!((error.line, error.column.as_str()), (line, column), "{rows}: {error}");
            assert!(error.problem.contains(word), "{rows}: {error}");
        }
        let header = |text: &str| parse(text.as_bytes()).unwrap_err();
        assert_eq!(header("name,kind,model\n").column, "data");
        assert_eq!(header("name,kind,model,data,speed\n").column, "speed");
        let unnamed = header("name,kind,model,data,\np,inference,m,d,\n");
        assert!(unnamed.column == "5" && unnamed.problem.contains("no name"), "{unnamed}");
        let twice = header("name,kind,model,data,name\np,inference,m,d,q\n");
        assert_eq!((twice.line, twice.column.as_str()), (1, "name"), "{twice}");
        assert!(header("name;kind;model;data\n").problem.contains("separated by commas"));
    }
}
