//! Looks for CUDA's headers and compiler, and says which command installs what is missing.

use std::path::{Path, PathBuf};

/// Headers that every kernel needs, at the top of the include folder.
const NEEDED: [&str; 2] = ["cuda_runtime.h", "cuda_fp16.h"];

/// Feature that needs headers which only some kernels include.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Precisions that tensor cores compute in: `mma.h` includes the headers of 16-bit floats.
    TensorCores,
    /// Copies to shared memory while a kernel computes.
    AsynchronousCopies,
}

impl Purpose {
    const ALL: [Self; 2] = [Self::TensorCores, Self::AsynchronousCopies];

    /// Returns what does not work without the headers, as the subject of a sentence.
    fn name(self) -> &'static str {
        match self {
            Self::TensorCores => "tf32, f16 and bf16",
            Self::AsynchronousCopies => "asynchronous copies",
        }
    }
}

/// Headers that only some kernels include, with the purpose of these kernels.
const WANTED: [(&str, Purpose); 5] = [
    ("cuda_fp16.h", Purpose::TensorCores),
    ("nv/target", Purpose::TensorCores),
    ("mma.h", Purpose::TensorCores),
    ("crt/mma.h", Purpose::TensorCores),
    ("cuda/barrier", Purpose::AsynchronousCopies),
];

/// Where CUDA's headers may be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// The root that Burn uses: `CUDA_PATH`, or a usual folder.
    pub used: Option<PathBuf>,
    /// Roots in Python and conda environments, which Burn uses only if `CUDA_PATH` names them.
    pub environments: Vec<PathBuf>,
    /// Folder of the active conda environment (`CONDA_PREFIX`); `None` if there is none.
    pub conda: Option<PathBuf>,
    /// Whether a virtual environment of Python is active (`VIRTUAL_ENV`), into which pip may install.
    pub has_active_venv: bool,
    /// Whether `LD_LIBRARY_PATH` is set.
    pub has_library_path: bool,
}

/// Result of the search for CUDA's headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Headers {
    /// All headers that compiling kernels needs exist.
    Complete,
    /// Some kernels cannot be compiled.
    Partial {
        /// The headers that are missing.
        missing: Vec<&'static str>,
        /// What they are for, what happens without them, and the command that installs them.
        reason: String,
    },
    /// No kernel can be compiled; why, and the command that installs the headers.
    Missing(String),
}

impl Headers {
    /// Returns whether kernels for tensor cores can be compiled.
    pub(crate) fn suffice_for_tensor_cores(&self) -> bool {
        match self {
            Self::Complete => true,
            Self::Partial { missing, .. } => {
                !WANTED.iter().any(|(name, purpose)| *purpose == Purpose::TensorCores && missing.contains(name))
            }
            Self::Missing(_) => false,
        }
    }
}

impl Places {
    /// Returns the places on this system.
    pub(crate) fn on_this_system() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        // Burn uses the variable even if it is empty.
        let set = std::env::var("CUDA_PATH").ok().map(PathBuf::from);
        let usual: &[&str] = if cfg!(windows) {
            &["C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA/"]
        } else {
            &["/usr/local/cuda", "/opt/cuda"]
        };
        let used = set.or_else(|| usual.iter().map(PathBuf::from).find(|p| p.exists()));
        let used = used.or_else(|| Path::new("/usr/bin/nvcc").exists().then(|| PathBuf::from("/usr")));
        let (conda, venv) = (variable("CONDA_PREFIX"), variable("VIRTUAL_ENV"));
        let has_active_venv = venv.is_some();
        let mut python: Vec<PathBuf> = venv.into_iter().chain(conda.clone()).collect();
        python.extend(std::env::current_dir().into_iter().flat_map(|here| [here.join(".venv"), here.join("venv")]));
        if let Some(home) = variable(if cfg!(windows) { "USERPROFILE" } else { "HOME" }) {
            python.extend(user_environments(&home, variable("PYENV_ROOT"), conda.as_deref()));
        }
        if !cfg!(windows) {
            python.extend(conda_environments(Path::new("/opt/conda")));
            python.extend(["/usr/local", "/usr"].map(PathBuf::from));
        }
        let environments = environment_roots(&python);
        let has_library_path = variable("LD_LIBRARY_PATH").is_some();
        Self { used, environments, conda, has_active_venv, has_library_path }
    }

    /// Returns which headers exist. `driver` is the version of the NVIDIA driver, if known.
    pub(crate) fn headers(&self, driver: Option<&str>) -> Headers {
        let Some(root) = self.used.as_deref().filter(|root| is_root(root)) else {
            return Headers::Missing(self.missing_text(driver));
        };
        let missing: Vec<_> = WANTED.into_iter().filter(|(name, _)| !has_header(root, name)).collect();
        if missing.is_empty() {
            return Headers::Complete;
        }
        let need = |purpose: Purpose| {
            let names: Vec<&str> = missing.iter().filter(|(_, of)| *of == purpose).map(|(name, _)| *name).collect();
            (!names.is_empty()).then(|| format!("{} need {}", purpose.name(), names.join(", ")))
        };
        let reason = format!(
            "{} (missing in {}): install with: {}",
            Purpose::ALL.into_iter().filter_map(need).collect::<Vec<_>>().join("; "),
            root.join("include").display(),
            self.command(root, driver)
        );
        Headers::Partial { missing: missing.iter().map(|(name, _)| *name).collect(), reason }
    }

    /// Says what is missing if no kernel can be compiled.
    fn missing_text(&self, driver: Option<&str>) -> String {
        if let Some(found) = self.environments.iter().find(|root| is_root(root)) {
            let setting = if cfg!(windows) { "setx CUDA_PATH " } else { "export CUDA_PATH=" };
            let path = quoted(found);
            return format!("CUDA headers are in {}, which is not searched: run {setting}{path}", found.display());
        }
        match &self.used {
            Some(root) => format!(
                "CUDA headers (cuda_runtime.h) not found in {}: install them with: {} ({THEN})",
                root.join("include").display(),
                self.command(root, driver)
            ),
            None => format!(
                "CUDA headers (cuda_runtime.h) not found: install them with: {} ({THEN})",
                self.command(Path::new(""), driver)
            ),
        }
    }

    /// Says what to do if the loader finds no NVRTC, on systems other than Windows: about NVRTC and, if they are missing too,
    /// about the headers, so that one step suffices. `usual` are folders of libraries outside of environments.
    pub(crate) fn without_nvrtc(&self, headers: &Headers, usual: &[PathBuf], driver: Option<&str>) -> String {
        let lacks_headers = matches!(headers, Headers::Missing(_));
        let libraries = self.environments.iter().flat_map(|root| [root.join("lib"), root.join("lib64")]);
        let nvrtc = usual.iter().cloned().chain(libraries).find(|folder| has_nvrtc(folder));
        let root = self.environments.iter().find(|root| lacks_headers && is_root(root));
        let not_found = match (&nvrtc, lacks_headers && root.is_none()) {
            (None, true) => {
                Some("NVRTC (libnvrtc.so.12 or .13) and CUDA headers (cuda_runtime.h) not found: install both")
            }
            (None, false) => Some("NVRTC (libnvrtc.so.12 or .13) not found: install it"),
            (Some(_), true) => Some("CUDA headers (cuda_runtime.h) not found: install them, and NVRTC beside them,"),
            (Some(_), false) => None,
        };
        if let Some(what) = not_found {
            let own = root.or(self.used.as_ref()).map_or(Path::new(""), PathBuf::as_path);
            return format!("{what} with: {} ({THEN})", self.command(own, driver));
        }
        let mut settings = Vec::new();
        settings.extend(root.map(|root| format!("CUDA_PATH={}", quoted(root))));
        let more = if self.has_library_path { ":$LD_LIBRARY_PATH" } else { "" };
        settings.extend(nvrtc.as_deref().map(|folder| format!("LD_LIBRARY_PATH={}{more}", quoted(folder))));
        let folder = nvrtc.unwrap_or_default();
        let what = match root {
            Some(root) => format!("CUDA headers are in {}, and NVRTC is in {}", root.display(), folder.display()),
            None => format!("NVRTC is in {}", folder.display()),
        };
        format!("{what}, where the loader does not search: run export {}", settings.join(" "))
    }

    /// Returns the one command that installs compiler and headers in the way that the root was installed.
    fn command(&self, root: &Path, driver: Option<&str>) -> String {
        let real = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let text = real.to_string_lossy().into_owned();
        let version = parse_cuda_version(&text);
        if self.conda.as_ref().is_some_and(|conda| root.starts_with(conda)) && !text.contains("site-packages") {
            return "conda install -c conda-forge cuda-nvrtc cuda-cudart-dev cuda-nvcc cuda-cccl".to_owned();
        }
        if text == "/usr" {
            return "sudo apt-get install nvidia-cuda-toolkit".to_owned();
        }
        if let Some((major, minor)) = version.filter(|_| cfg!(target_os = "linux")) {
            let packages = ["cuda-nvrtc", "cuda-cudart-dev", "cuda-nvcc", "cuda-cccl"];
            let packages: Vec<String> = packages.iter().map(|name| format!("{name}-{major}-{minor}")).collect();
            return format!("sudo apt-get install {}", packages.join(" "));
        }
        if needs_cuda_12(driver) {
            // NVIDIA's Python packages of CUDA 12 have their headers in several folders, which Burn cannot use.
            return "conda install -c conda-forge cuda-version=12 cuda-nvrtc cuda-cudart-dev cuda-nvcc cuda-cccl"
                .to_owned();
        }
        let packages = "install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl";
        if self.has_active_venv || cfg!(windows) {
            return format!("{} -m pip {packages}", if cfg!(windows) { "python" } else { "python3" });
        }
        // The Python of Debian and Ubuntu refuses to install packages outside of virtual environments.
        format!("python3 -m venv ~/{OWN_VENV} && ~/{OWN_VENV}/bin/pip {packages}")
    }
}

/// The virtual environment that is advised for CUDA's components, in the user's home.
const OWN_VENV: &str = ".local/share/cytoscope/cuda";

/// Next step after the installation.
const THEN: &str = "then see `cytoscope devices`, which names variables to set, if any";

/// Returns a path as a shell reads it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:".contains(c) || (cfg!(windows) && c == '\\');
    if text.chars().all(is_plain) {
        return text;
    }
    if cfg!(windows) { format!("\"{text}\"") } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Returns whether a folder has NVRTC under a name that is loaded.
fn has_nvrtc(folder: &Path) -> bool {
    nvrtc_names(false).iter().any(|name| folder.join(name).is_file())
}

/// Returns whether a folder is a root of CUDA's headers.
fn is_root(root: &Path) -> bool {
    NEEDED.iter().any(|name| has_header(root, name))
}

/// Returns whether a root has a header, in one of the two folders that Burn passes to the compiler.
fn has_header(root: &Path, name: &str) -> bool {
    let include = root.join("include");
    include.join(name).is_file() || include.join("cccl").join(name).is_file()
}

/// Returns the major and minor version in the name of a folder such as `/usr/local/cuda-12.4`.
fn parse_cuda_version(path: &str) -> Option<(u32, u32)> {
    let (_, after) = path.rsplit_once("cuda-")?;
    let version = after.split(['/', '\\']).next()?;
    let (major, minor) = version.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns whether a driver is too old for CUDA 13, which requires version 580.
fn needs_cuda_12(driver: Option<&str>) -> bool {
    let major = driver.and_then(|d| d.split('.').next()).and_then(|d| d.parse::<u32>().ok());
    major.is_some_and(|major| major < 580)
}

/// Returns the entries of a folder in the order of their names; none if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder).map(|all| all.flatten().map(|e| e.path()).collect()).unwrap_or_default();
    found.sort();
    found
}

/// Returns a conda installation and its environments.
fn conda_environments(installation: &Path) -> Vec<PathBuf> {
    std::iter::once(installation.to_owned()).chain(entries(&installation.join("envs"))).collect()
}

/// Returns the Python and conda environments of a user whose home is given: that of pip's option `--user`, our own, those of
/// pyenv, and those of conda, whether they are active or not. `pyenv` is `PYENV_ROOT`, and `conda` the active environment.
pub(crate) fn user_environments(home: &Path, pyenv: Option<PathBuf>, conda: Option<&Path>) -> Vec<PathBuf> {
    let mut all = vec![home.join(OWN_VENV), home.join(".local")];
    all.extend(entries(&pyenv.unwrap_or_else(|| home.join(".pyenv")).join("versions")));
    // An environment is a folder in `envs` of the installation, or the installation itself.
    let active_installation = conda.map(|active| match active.parent().filter(|parent| parent.ends_with("envs")) {
        Some(parent) => parent.parent().unwrap_or(parent).to_owned(),
        None => active.to_owned(),
    });
    let usual = ["miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba"].map(|name| home.join(name));
    all.extend(active_installation.into_iter().chain(usual).flat_map(|installation| conda_environments(&installation)));
    // Conda lists environments elsewhere in this file.
    let listed = std::fs::read_to_string(home.join(".conda/environments.txt")).unwrap_or_default();
    all.extend(listed.lines().map(str::trim).filter(|line| !line.is_empty()).take(MAX_LISTED).map(PathBuf::from));
    all
}

/// Maximum number of environments that are read from conda's list.
const MAX_LISTED: usize = 200;

/// Returns the roots of CUDA in Python and conda environments: NVIDIA's Python packages of CUDA 13 have one root each,
/// `nvidia/cu13`; conda has `targets/<platform>`, or `Library` on Windows. Debian's Python has `dist-packages`.
pub(crate) fn environment_roots(environments: &[PathBuf]) -> Vec<PathBuf> {
    let is_python = |folder: &PathBuf| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("python") || name.starts_with("pypy")
    };
    let mut roots = Vec::new();
    for environment in environments {
        let mut packages: Vec<PathBuf> = entries(&environment.join("lib"));
        packages.retain(is_python);
        packages.push(environment.join("Lib"));
        for (folder, name) in packages.iter().flat_map(|p| ["site-packages", "dist-packages"].map(|name| (p, name))) {
            roots.extend(entries(&folder.join(name).join("nvidia")));
        }
        roots.extend(entries(&environment.join("targets")));
        roots.push(environment.join("Library"));
    }
    roots.retain(|root| root.join("include").is_dir());
    roots
}

/// The names under which Burn's CUDA bindings load NVRTC, in their order. The bindings are built for CUDA 13, unless the
/// machine that builds this program has another CUDA toolkit.
pub(crate) fn nvrtc_names(windows: bool) -> &'static [&'static str] {
    if windows {
        &[
            "nvrtc.dll",
            "nvrtc64.dll",
            "nvrtc64_13.dll",
            "nvrtc64_10.dll",
            "nvrtc64_11.dll",
            "nvrtc64_12.dll",
            "nvrtc64_130_0.dll",
            "nvrtc64_9.dll",
        ]
    } else {
        &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11"]
    }
}

/// Returns what to do if none of the [`nvrtc_names`] was found on Windows; `others` are the names of similar files, which
/// cannot be loaded.
pub(crate) fn nvrtc_advice_on_windows(others: &[String]) -> String {
    let found = match others.first() {
        Some(other) => format!("; {other} was found, but belongs to a version that cannot be used"),
        None => String::new(),
    };
    format!(
        "NVRTC of CUDA 13 (nvrtc64_130_0.dll) not found{found}: install the CUDA toolkit 13 with: winget install \
         Nvidia.CUDA (then add its folder bin\\x64 to PATH)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed when the test ends.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("cytoscope-toolkit-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Self(path.canonicalize().unwrap())
        }

        /// Creates empty headers below `root/include`.
        fn with(&self, root: &str, headers: &[&str]) -> PathBuf {
            let root = self.0.join(root);
            for name in headers {
                let file = root.join("include").join(name);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, "").unwrap();
            }
            root
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const ALL: [&str; 6] =
        ["cuda_runtime.h", "cuda_fp16.h", "cccl/nv/target", "mma.h", "crt/mma.h", "cccl/cuda/barrier"];

    #[test]
    fn headers_are_found_and_missing_ones_are_named() {
        let folder = Folder::new("named");
        let places = |root: PathBuf| Places { used: Some(root), ..Places::default() };
        assert_eq!(places(folder.with("whole", &ALL)).headers(None), Headers::Complete);
        let some = ["cuda_runtime.h", "cuda_fp16.h", "nv/target", "mma.h", "cuda/barrier"];
        let Headers::Partial { missing, reason } = places(folder.with("partial", &some)).headers(None) else {
            panic!()
        };
        assert_eq!(missing, ["crt/mma.h"]);
        assert!(reason.starts_with("tf32, f16 and bf16 need crt/mma.h (missing in "), "{reason}");
        assert!(reason.contains("pip install") && !reason.contains("copies"), "{reason}");
        let suffice =
            |name: &str, headers: &[&str]| places(folder.with(name, headers)).headers(None).suffice_for_tensor_cores();
        assert!(suffice("without copies", &ALL[..5]) && suffice("whole", &ALL));
        assert!(!suffice("partial", &some) && !suffice("without 16 bits", &["cuda_runtime.h", "mma.h", "crt/mma.h"]));
        let Headers::Missing(reason) = places(folder.with("other", &["other.h"])).headers(None) else { panic!() };
        assert!(reason.contains("cuda_runtime.h") && reason.contains("install them with"), "{reason}");
        assert!(reason.contains("variables to set"), "the root may be one that CUDA_PATH names by mistake: {reason}");
        let Headers::Missing(reason) = Places::default().headers(Some("535.104")) else { panic!() };
        assert!(reason.contains("cuda-version=12") && reason.contains("variables to set"), "{reason}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_command_fits_the_way_cuda_was_installed() {
        let folder = Folder::new("command");
        let runtime = ["cuda_runtime.h"];
        let reason = |places: Places| match places.headers(Some("580.1")) {
            Headers::Partial { reason, .. } | Headers::Missing(reason) => reason,
            Headers::Complete => String::new(),
        };
        let toolkit = folder.with("cuda-12.4", &runtime);
        let said = reason(Places { used: Some(toolkit), ..Places::default() });
        assert!(said.contains("sudo apt-get install cuda-nvrtc-12-4") && said.contains("cuda-cccl-12-4"), "{said}");
        let conda = folder.0.join("conda");
        let root = folder.with("conda/targets/x86_64-linux", &runtime);
        let said = reason(Places { used: Some(root), conda: Some(conda), ..Places::default() });
        assert!(said.contains("conda install -c conda-forge"), "{said}");
        let used = Some(folder.with("elsewhere", &runtime));
        let own = Places { used, ..Places::default() };
        let said = reason(own.clone());
        // Debian's Python refuses to install packages outside of a virtual environment.
        let venv = "python3 -m venv ~/.local/share/cytoscope/cuda && ~/.local/share/cytoscope/cuda/bin/pip install";
        assert!(said.contains(venv) && said.contains("nvidia-cuda-nvrtc"), "{said}");
        let said = reason(Places { has_active_venv: true, ..own });
        assert!(said.contains("python3 -m pip install nvidia-cuda-nvrtc") && !said.contains("venv"), "{said}");
    }

    /// Creates an empty library.
    #[cfg(target_os = "linux")]
    fn library(folder: &Path) -> PathBuf {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("libnvrtc.so.13"), "").unwrap();
        folder.to_owned()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn one_sentence_says_what_is_missing_of_compiler_and_headers() {
        let folder = Folder::new("both");
        let none = Headers::Missing("no headers".to_owned());
        let nowhere = Places::default();
        let said = nowhere.without_nvrtc(&none, &[], None);
        assert!(
            said.starts_with("NVRTC (libnvrtc.so.12 or .13) and CUDA headers (cuda_runtime.h) not found"),
            "{said}"
        );
        assert!(said.contains("nvidia-cuda-nvrtc nvidia-cuda-runtime") && said.contains("cytoscope devices"), "{said}");
        let said = nowhere.without_nvrtc(&Headers::Complete, &[], None);
        assert!(said.starts_with("NVRTC (libnvrtc.so.12 or .13) not found") && !said.contains("headers ("), "{said}");
        // Both are in an environment, whose path has a space.
        let root = folder.with("my env/lib/python3.12/site-packages/nvidia/cu13", &ALL);
        let lib = library(&root.join("lib"));
        let environments = environment_roots(&[folder.0.join("my env")]);
        let found = Places { environments, ..Places::default() };
        let said = found.without_nvrtc(&none, &[], None);
        let settings = format!("run export CUDA_PATH='{}' LD_LIBRARY_PATH='{}'", root.display(), lib.display());
        assert!(said.ends_with(&settings), "{said}");
        // What the user has set stays.
        let with_path = Places { has_library_path: true, ..found };
        let said = with_path.without_nvrtc(&Headers::Complete, &[], None);
        let setting = format!("run export LD_LIBRARY_PATH='{}':$LD_LIBRARY_PATH", lib.display());
        assert!(said.ends_with(&setting) && !said.contains("CUDA_PATH"), "{said}");
        let toolkit = library(&folder.0.join("cuda/lib64"));
        let said = with_path.without_nvrtc(&none, std::slice::from_ref(&toolkit), None);
        assert!(said.ends_with(&format!("LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH", toolkit.display())), "{said}");
        // Installing the headers brings an NVRTC that fits them.
        let said = nowhere.without_nvrtc(&none, &[toolkit], None);
        assert!(said.starts_with("CUDA headers (cuda_runtime.h) not found") && said.contains("nvrtc"), "{said}");
    }

    #[test]
    fn environments_are_found_that_are_not_active() {
        let folder = Folder::new("environments");
        let home = folder.0.clone();
        let package = "site-packages/nvidia/cu13";
        let pyenv = folder.with(&format!(".pyenv/versions/3.12.1/lib/python3.12/{package}"), &ALL);
        let own = folder.with(&format!(".local/share/cytoscope/cuda/lib/python3.11/{package}"), &ALL);
        let conda = folder.with("miniforge3/envs/other/targets/x86_64-linux", &ALL);
        let sibling = folder.with("conda/envs/sibling/targets/x86_64-linux", &ALL);
        let elsewhere = folder.with("data/listed/targets/x86_64-linux", &ALL);
        let list = home.join(".conda/environments.txt");
        std::fs::create_dir_all(list.parent().unwrap()).unwrap();
        std::fs::write(list, format!("{}\n\n", home.join("data/listed").display())).unwrap();
        let active = home.join("conda/envs/active");
        let found = environment_roots(&user_environments(&home, None, Some(&active)));
        for root in [&pyenv, &own, &conda, &sibling, &elsewhere] {
            assert!(found.contains(root), "{} is not in {found:?}", root.display());
        }
        // Packages of Debian's Python, as in /usr/local and /usr.
        let debian = folder.with("usr/lib/python3/dist-packages/nvidia/cu13", &ALL);
        folder.with("usr/lib/other/dist-packages/nvidia/cu13", &ALL);
        assert_eq!(environment_roots(&[folder.0.join("usr")]), [debian]);
    }

    #[test]
    fn headers_in_a_python_environment_are_found() {
        let folder = Folder::new("python");
        let root = folder.with("env/lib/python3.11/site-packages/nvidia/cu13", &ALL);
        folder.with("env/lib/python3.11/site-packages/torch", &["torch.h"]);
        let environments = environment_roots(&[folder.0.join("env"), folder.0.join("none")]);
        assert_eq!(environments, std::slice::from_ref(&root));
        let Headers::Missing(reason) = (Places { environments, ..Places::default() }).headers(None) else { panic!() };
        assert!(reason.contains("CUDA_PATH") && reason.contains(&root.display().to_string()), "{reason}");
    }

    #[test]
    fn only_names_that_are_loaded_count_as_nvrtc() {
        assert!(nvrtc_names(true).contains(&"nvrtc64_130_0.dll") && !nvrtc_names(true).contains(&"nvrtc64_120_0.dll"));
        assert!(nvrtc_names(false).contains(&"libnvrtc.so.12"));
        let advice = nvrtc_advice_on_windows(&["nvrtc64_120_0.dll".to_owned()]);
        assert!(advice.contains("nvrtc64_120_0.dll was found, but") && advice.contains("winget"), "{advice}");
    }
}
