//! The test fixture: a temporary folder, the built program, and the results of its commands.

use cytoscope_builders::{UNet3d, Weights, unet3d};
use cytoscope_formats::{Container, OpenOptions, WriteSpec, container_for_path, open, write_array};
use cytoscope_volume::{Array, Samples};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use cytoscope_testkit::{python, shared_folder as shared_data, uniform};

/// A trace that passes all checks before a run, and yet cannot be written.
#[cfg(target_os = "linux")]
pub const UNWRITABLE_TRACE: &str = "/proc/trace.json";

/// Exit code and output of a command.
pub struct CommandResult {
    pub command_line: String,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl CommandResult {
    /// Asserts that the command succeeded.
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}\nstdout: {}\nstderr: {}", self.command_line, self.stdout, self.stderr);
        self
    }

    /// Asserts success and returns the JSON value on standard output.
    pub fn json(self) -> Value {
        let ran = self.ok();
        serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{}: {e}\n{}", ran.command_line, ran.stdout))
    }
}

/// A temporary folder in which commands run.
pub struct Fixture {
    folder: tempfile::TempDir,
    home: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), home: tempfile::tempdir().unwrap() }
    }

    /// A fixture whose folders are in the target folder of Cargo, and not where temporary files usually are.
    #[cfg(target_os = "linux")]
    pub fn in_target_folder() -> Self {
        let make = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self { folder: make(), home: make() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The user's folder of the program, on Linux.
    #[cfg(target_os = "linux")]
    pub fn user_folder(&self) -> PathBuf {
        self.home.path().join("cytoscope")
    }

    /// Writes a small U-Net with static normalization as `net.onnx`; its first level has this number of channels.
    pub fn unet(&self, channels: usize) {
        let filters = vec![channels, 2 * channels];
        let config = UNet3d { filters, strides: vec![[2; 3]], convs_per_block: 1, ..UNet3d::default() };
        cytoscope_onnx::save(&unet3d(&config, &Weights::Random { seed: 3 }).unwrap(), &self.path("net.onnx")).unwrap();
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cytoscope"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("HOME", self.home.path())
            .env("XDG_DATA_HOME", self.home.path())
            // Shared, so that networks are verified only once for all tests.
            .env("CYTOSCOPE_CACHE", env!("CARGO_TARGET_TMPDIR"))
            .env("CYTOSCOPE_MODELS", Path::new(env!("CARGO_MANIFEST_DIR")).join("models"))
            .env_remove("DISPLAY")
            .env_remove("WAYLAND_DISPLAY")
            .env_remove("WAYLAND_SOCKET")
            // A software GPU is slow; tests that need one set the variable.
            .env_remove("CYTOSCOPE_SOFTWARE_GPU")
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> CommandResult {
        let out = self.command(arguments).output().unwrap();
        let ran = CommandResult {
            command_line: format!("cytoscope {}", arguments.join(" ")),
            code: out.status.code(),
            stdout: String::from_utf8(out.stdout).unwrap(),
            stderr: String::from_utf8(out.stderr).unwrap(),
        };
        assert!(!ran.stderr.contains("panicked"), "{}: {}", ran.command_line, ran.stderr);
        ran
    }

    /// Asserts that a command fails with this exit code, prints these words on stderr, and leaves no partial files.
    pub fn fails(&self, code: i32, arguments: &[&str], words: &[&str]) -> CommandResult {
        let before = self.leftovers();
        let ran = self.run(arguments);
        assert_eq!(ran.code, Some(code), "{}\nstdout: {}\nstderr: {}", ran.command_line, ran.stdout, ran.stderr);
        for word in words {
            assert!(ran.stderr.contains(word), "{}: no \"{word}\" in: {}", ran.command_line, ran.stderr);
        }
        // What an earlier, killed command left may be gone.
        let new: Vec<PathBuf> = self.leftovers().into_iter().filter(|path| !before.contains(path)).collect();
        assert!(new.is_empty(), "{} left {new:?} behind", ran.command_line);
        ran
    }

    /// Hidden and partial files, which must never remain.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
            // A command that runs may have renamed or removed the folder meanwhile.
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                // The marker of a package is part of it.
                let hidden = name.starts_with('.') && name != cytoscope_storage::MARKER;
                if hidden || name.contains(".partial") || name.contains(".tmp") || name.ends_with(".old") {
                    found.push(path.clone());
                }
                if path.is_dir() {
                    walk(&path, found);
                }
            }
        }
        let mut found = Vec::new();
        walk(self.folder.path(), &mut found);
        found.sort();
        found
    }

    /// Sorted names of the entries of a folder; empty if it does not exist.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).into_iter().flatten();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Simulates nuclei in `sim/` and returns the path of the raw stack.
    pub fn nuclei(&self, shape: &str, seed: u64) -> String {
        self.run(&[
            "simulate",
            "--kind",
            "nuclei",
            "--shape",
            shape,
            "--seed",
            &seed.to_string(),
            "--out",
            "sim",
            "--force",
        ])
        .ok();
        format!("sim/nuclei_{seed}_raw.tif")
    }

    /// Writes a stack whose prediction in small tiles takes many seconds on a CPU, and returns its name.
    pub fn large_stack(&self) -> String {
        let name = "large.tif";
        if !self.path(name).exists() {
            let values = self.integers(&self.nuclei("16,64,64", 1));
            let mut large = Vec::with_capacity(48 * 384 * 384);
            for z in 0..48 {
                for y in 0..384 {
                    let row = ((z % 16) * 64 + y % 64) * 64;
                    (0..6).for_each(|_| large.extend_from_slice(&values[row..row + 64]));
                }
            }
            self.write(name, "ZYX", &[48, 384, 384], large);
        }
        name.to_owned()
    }

    /// Writes an image in the format given by the extension (ImageJ TIFF by default), and returns its name.
    pub fn write(&self, name: &str, axes: &str, shape: &[usize], samples: impl Into<Samples>) -> String {
        let array = Array::new(axes.parse().unwrap(), shape.to_vec(), samples).unwrap();
        let path = self.path(name);
        let container = container_for_path(&path).unwrap_or(Container::ImageJ);
        write_array(&path, &array, &WriteSpec::of(&array, container)).unwrap();
        name.to_owned()
    }

    pub fn image(&self, name: &str) -> Array {
        open(&self.path(name), &OpenOptions::default()).unwrap().read_all().unwrap()
    }

    /// The values of an image of integers that fit 16 bits.
    pub fn integers(&self, name: &str) -> Vec<u16> {
        self.image(name).samples().to_f32().iter().map(|v| *v as u16).collect()
    }

    /// The labels of an image.
    pub fn labels(&self, name: &str) -> Vec<u32> {
        self.image(name).samples().to_f32().iter().map(|v| *v as u32).collect()
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// The rows of a CSV table as cells, header included.
    pub fn table(&self, name: &str) -> Vec<Vec<String>> {
        let text = String::from_utf8(self.bytes(name)).unwrap();
        text.lines().map(|l| l.split(',').map(str::to_owned).collect()).collect()
    }
}

/// Returns the arguments with which `predict` runs the model `nuclei-dog` on the CPU, followed by `more`.
pub fn predict<'a>(input: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["predict", input, "--model", "nuclei-dog", "--device", "cpu", "--out", out][..], more].concat()
}

/// Parses a C-order little-endian NPY file by its published format: type, shape, bytes.
pub fn parse_npy(bytes: &[u8]) -> (String, Vec<usize>, Vec<u8>) {
    assert_eq!(&bytes[..6], b"\x93NUMPY");
    let (start, len) = match bytes[6] {
        1 => (10, usize::from(u16::from_le_bytes([bytes[8], bytes[9]]))),
        _ => (12, u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize),
    };
    let header = std::str::from_utf8(&bytes[start..start + len]).unwrap();
    assert!(header.contains("'fortran_order': False"), "{header}");
    let after = |key: &str| &header[header.find(key).unwrap() + key.len()..];
    let descr = after("'descr': '").split('\'').next().unwrap().to_owned();
    let shape = after("'shape': (").split(')').next().unwrap();
    let shape = shape.split(',').map(str::trim).filter(|s| !s.is_empty()).map(|s| s.parse().unwrap()).collect();
    (descr, shape, bytes[start + len..].to_vec())
}

/// An NPY file of 32-bit floats.
pub fn npy_f32(shape: &[usize], values: &[f32]) -> Vec<u8> {
    let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    bytes
}

/// Little-endian bytes as 32-bit floats.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Pearson's correlation by its definition.
pub fn pearson(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let mean = |v: &[f32]| v.iter().map(|x| f64::from(*x)).sum::<f64>() / v.len() as f64;
    let (ma, mb) = (mean(a), mean(b));
    let sum = |f: &dyn Fn(f64, f64) -> f64| {
        a.iter().zip(b).map(|(x, y)| f(f64::from(*x) - ma, f64::from(*y) - mb)).sum::<f64>()
    };
    sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt()
}

/// The keys that a JSON object lacks.
pub fn missing<'a>(value: &Value, keys: &[&'a str]) -> Vec<&'a str> {
    keys.iter().copied().filter(|k| value.get(k).is_none()).collect()
}
