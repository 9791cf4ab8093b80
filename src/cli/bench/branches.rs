//! Builds the programs of git branches for the tasks of `bench` that name a branch.
//!
//! Each branch is checked out in its own worktree below `target/bench-branches` of the repository, which stays there,
//! so that the next build of the branch compiles only what has changed.

use super::results::{GitInfo, git_in};
use crate::cli::eprint_line;
use crate::cli::failure::Failure;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Folder of the worktrees in the repository.
const FOLDER: &str = "target/bench-branches";

/// The program that was built from a git branch.
pub(super) struct BranchProgram {
    pub(super) path: PathBuf,
    pub(super) git_info: GitInfo,
}

/// Builds the program of each branch of the repository that the current folder is in, and returns them by branch.
///
/// # Errors
/// Bad input if the current folder is not in a repository, or a branch does not exist; the failure of git or of the build.
pub(super) fn build<'a>(branches: impl Iterator<Item = &'a str>) -> Result<BTreeMap<String, BranchProgram>, Failure> {
    let mut programs = BTreeMap::new();
    for branch in branches {
        if !programs.contains_key(branch) {
            programs.insert(branch.to_owned(), build_one(branch)?);
        }
    }
    Ok(programs)
}

fn build_one(branch: &str) -> Result<BranchProgram, Failure> {
    let here = Path::new(".");
    let root = git_in(here, &["rev-parse", "--show-toplevel"]).map(PathBuf::from).ok_or_else(|| {
        Failure::bad_input(format!(
            "column branch: the current folder is not in a git repository, so branch {branch} cannot be built"
        ))
        .and_next("run the bench in a clone of this program's repository")
    })?;
    let revision = format!("{branch}^{{commit}}");
    let commit = git_in(&root, &["rev-parse", "--verify", "--quiet", &revision]);
    let commit = commit.ok_or_else(|| {
        Failure::bad_input(format!(
            "column branch: the repository {} has no branch or commit {branch}; git branch --all lists the branches",
            root.display()
        ))
    })?;
    let folder = root.join(FOLDER).join(folder_name(branch));
    check_out(&root, &folder, &commit)?;
    eprint_line(&format!("building branch {branch} in {}", folder.display()));
    let path = compile(branch, &folder)?;
    let commit_date = git_in(&root, &["log", "-1", "--format=%cI", &commit]);
    let commit_date = commit_date.ok_or_else(|| {
        Failure::other(format!("column branch: git log cannot show the date of {commit} in {}", root.display()))
    })?;
    Ok(BranchProgram { path, git_info: GitInfo { branch: branch.to_owned(), commit_hash: commit, commit_date } })
}

/// Returns a name for a folder that no other branch has: the letters of the branch, and a hash (FNV-1a, 64 bits).
fn folder_name(branch: &str) -> String {
    let letters = branch.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(40);
    let hash = branch
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3));
    format!("{}-{hash:016x}", letters.collect::<String>())
}

/// Checks a commit out in a worktree, which is created the first time.
fn check_out(root: &Path, folder: &Path, commit: &str) -> Result<(), Failure> {
    let text = folder.display().to_string();
    let done = if folder.join(".git").exists() {
        git_in(folder, &["checkout", "--quiet", "--detach", commit])
    } else {
        // A worktree whose folder was removed is still registered. `git worktree prune` would also remove those of the user
        // that cannot be reached now, such as on a drive that is not connected.
        git_in(root, &["worktree", "add", "--quiet", "--force", "--detach", &text, commit])
    };
    done.map(drop).ok_or_else(|| {
        Failure::other(format!("column branch: git cannot check out {commit} in {text}"))
            .and_next("remove that folder, or discard the changes in it")
    })
}

/// Builds the program in a worktree, and returns its path. The progress of the build goes to standard error.
fn compile(branch: &str, folder: &Path) -> Result<PathBuf, Failure> {
    let failed = |why: String| Failure::other(format!("column branch: branch {branch} cannot be built: {why}"));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let target = folder.join("target");
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--bin", "cytoscope", "--target-dir"]).arg(&target).current_dir(folder);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().map_err(|error| {
        failed(format!("cargo cannot be started ({error}); install Rust, or set CARGO to the path of cargo"))
    })?;
    if !status.success() {
        return Err(failed(format!("cargo build ended with {status}; its messages are above")));
    }
    let path = target.join("release").join(format!("cytoscope{}", std::env::consts::EXE_SUFFIX));
    if path.is_file() {
        Ok(path)
    } else {
        Err(failed(format!("the build succeeded but did not produce {}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_have_folders_of_their_own() {
        let names = ["work", "a/b", "a_b", "a.b"].map(folder_name);
        assert!(names.iter().all(|name| !name.contains(['/', '.'])), "{names:?}");
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        // The published value of FNV-1a for "a" (Fowler, Noll and Vo).
        assert_eq!(folder_name("a"), "a-af63dc4c8601ec8c");
    }
}
