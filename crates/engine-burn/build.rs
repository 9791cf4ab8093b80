//! Hashes the sources of the kernels. CubeCL identifies a kernel by the names of its function and types and by its
//! compile-time arguments, not by its code: without the hash, kernels that another build has compiled would be used.

use std::io::Result;
use std::path::{Path, PathBuf};

/// Offset and prime of the 64-bit hash FNV-1a.
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

fn main() -> Result<()> {
    let folder = Path::new("src/kernels");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files = Vec::new();
    add_files(folder, &mut files)?;
    files.sort();
    let mut hash = OFFSET;
    for file in files {
        let text = std::fs::read(&file)?;
        let name = file.file_name().map(|name| name.as_encoded_bytes().to_vec()).unwrap_or_default();
        // Git may check out texts with other line ends.
        let bytes = name.into_iter().chain([0]).chain(text.into_iter().filter(|byte| *byte != b'\r')).chain([0]);
        hash = bytes.fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    }
    println!("cargo::rustc-env=CYTOSCOPE_KERNELS={hash:016x}");
    Ok(())
}

/// Adds all files below a folder.
fn add_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            add_files(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
