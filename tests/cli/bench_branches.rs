//! `bench` with a column of git branches, whose programs are built by a stand-in for cargo.

use crate::common::Fixture;
use cytoscope_testkit::skip;
use serde_json::Value;
use std::process::Command;

const HEADER: &str = "name,kind,model,data,device,precision,overrides,branch\n";
const OVERRIDES: &str = "\"diameter=15;voxel_size=1.75,0.8,0.8\"";

/// Writes a script that takes the place of cargo: the program that it "builds" notes its run in `ran`, and passes its
/// arguments to this program.
fn write_cargo(fixture: &Fixture) {
    let (program, ran) = (env!("CARGO_BIN_EXE_cytoscope"), fixture.path("ran"));
    let built = format!("#!/bin/sh\necho ran >> '{}'\nexec '{program}' \"$@\"\n", ran.display());
    std::fs::write(fixture.path("built"), built).unwrap();
    // The arguments are: build --release --bin cytoscope --target-dir FOLDER.
    let cargo = format!(
        "#!/bin/sh\nset -e\ntest -f mark\nmkdir -p \"$6/release\"\ncp '{}' \"$6/release/cytoscope\"\n\
         chmod +x \"$6/release/cytoscope\"\n",
        fixture.path("built").display()
    );
    // Written by another process: files that are open for writing, here or in a child process of another test, cannot be
    // executed.
    let write = ["-c", "printf '%s' \"$1\" > cargo && chmod 755 cargo", "sh", &cargo];
    assert!(Command::new("sh").args(write).current_dir(fixture.path("")).status().unwrap().success());
}

#[test]
fn the_program_of_a_branch_runs_beside_this_one() {
    let fixture = Fixture::new();
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(fixture.path("")).args(["-c", "user.name=t", "-c", "user.email=t@example.org"]);
        command.args(arguments).output().is_ok_and(|out| out.status.success())
    };
    if !git(&["init", "--quiet"]) {
        return skip("git is not installed");
    }
    std::fs::write(fixture.path("mark"), "source").unwrap();
    assert!(git(&["add", "mark"]) && git(&["commit", "--quiet", "-m", "source"]) && git(&["branch", "feature/x"]));
    write_cargo(&fixture);
    let raw = fixture.nuclei("8,48,48", 1);
    let row = |name: &str, branch: &str| format!("{name},inference,nuclei-dog,{raw},cpu,f32,{OVERRIDES},{branch}\n");
    std::fs::write(fixture.path("t.csv"), format!("{HEADER}{}{}", row("here", ""), row("there", "feature/x"))).unwrap();
    let bench = |output: &str| {
        let mut command = fixture.command(&["bench", "--config", "t.csv", "--output", output, "--compare"]);
        let out = command.env("CARGO", fixture.path("cargo")).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let results: Value = serde_json::from_slice(&fixture.bytes(output)).unwrap();
        (results, String::from_utf8(out.stdout).unwrap())
    };
    let (results, text) = bench("r.json");
    assert!(text.contains("there, compared with here"), "{text}");
    assert_eq!(fixture.bytes("ran"), b"ran\n", "one of the tasks");
    assert_eq!(results[1]["git_info"]["branch"], "feature/x");
    assert_eq!(results[0]["git_info"]["commit_hash"], results[1]["git_info"]["commit_hash"]);
    assert_eq!(results[1]["success"], true);
    // The second time, the worktree exists already.
    bench("s.json");
    assert_eq!(fixture.bytes("ran"), b"ran\nran\n");
    // It is created again if it was removed. Another worktree, which cannot be reached now, stays registered.
    assert!(git(&["worktree", "add", "--quiet", "--detach", "other"]));
    std::fs::rename(fixture.path("other"), fixture.path("unplugged")).unwrap();
    std::fs::remove_dir_all(fixture.path("target/bench-branches")).unwrap();
    bench("t.json");
    assert_eq!(fixture.bytes("ran"), b"ran\nran\nran\n");
    assert!(fixture.path(".git/worktrees/other").is_dir());
}

#[test]
fn a_branch_that_cannot_be_built_is_named() {
    let fixture = Fixture::new();
    let rows = format!("{HEADER}a,inference,nuclei-dog,a.tif,cpu,f32,,nosuch\n");
    std::fs::write(fixture.path("t.csv"), rows).unwrap();
    fixture.fails(3, &["bench", "--config", "t.csv", "--output", "r.json"], &["branch", "nosuch"]);
    assert!(!fixture.path("r.json").exists() && !fixture.path("r.json.runs").exists());
}
