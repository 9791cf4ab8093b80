"""Ablation: how much each change to simulated training data, preprocessing and augmentation contributes, with equal steps.

    python bench/ablation.py WORK --score EMBRYOS [--score OWN] [--match 'Emb1[01]'] [--stacks 120] [--steps 1000] [--seeds 1,2]

`plain` is trained on stacks with every change reversed: outlines at a fraction of each object's own peak, one object size,
no dim objects in the truth, smooth ellipsoids on an even background, z-scores, and no rotation or rescaling. Each other row
adds one change, and `all` has all of them. The stacks of all rows have the same seeds. Networks are scored by
bench/accuracy.py with true diameters. Two networks are trained at a time, on one thread each. Results are kept in WORK, and a
second run only adds what is missing. Needs `cargo build --release`.
"""
import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
CHANGES = ["outlines", "sizes", "dim", "shapes", "percentiles", "augmentation"]
ENVIRONMENT = dict(os.environ, CYTOSCOPE_MODELS=str(ROOT / "models"))


def run(options, *arguments):
    done = subprocess.run([str(options.binary), *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode:
        raise SystemExit(f"{arguments}: {done.stderr[-2000:]}")


def without(values, change):
    """The settings of a varied stack with one change reversed."""
    objects, truth = values["objects"], values["truth"]
    if change == "outlines":
        truth["outline"]["visible"]["common"] = 0.0
    elif change == "sizes":
        objects["diameter_spread"] = 0.1
    elif change == "dim":
        truth["least_brightness"] = 0.45
        objects["brightness_spread"] = min(objects["brightness_spread"], 0.25)
    elif change == "shapes":
        objects.update(bumps=0.0, hollow=0.0, glow=0.0, pressed={"swell": 1.0, "gap": 0.0})
        objects["spots"]["count"] = 0.0
        objects["background"]["strength"] = 0.0
        values["optics"]["bias"] = 0.0
        values["camera"]["smoothing_voxels"] = 0.0


def stacks(options, changes):
    """Simulates the stacks with the given changes of the simulator; returns their folder."""
    simulated = [c for c in CHANGES[:4] if c in changes]
    folder = options.work / "stacks" / ("-".join(simulated) or "plain")
    folder.mkdir(parents=True, exist_ok=True)
    varied = options.work / "varied"
    count = ["--count", options.stacks, "--shape", "48,128,128", "--seed", options.first_seed]
    if not (varied / f"nuclei_{options.first_seed + options.stacks - 1}.json").exists():
        run(options, "simulate", "--kind", "nuclei", "--varied", *count, "--out", varied, "--force")
    for file in sorted(varied.glob("*.json")):
        if file.name.endswith("_provenance.json"):
            continue
        if (folder / file.name).exists():
            continue
        values = json.loads(file.read_text())
        for change in CHANGES[:4]:
            if change not in changes:
                without(values, change)
        settings = options.work / f"settings-{folder.name}.json"
        settings.write_text(json.dumps(values))
        run(options, "simulate", "--kind", "nuclei", "--settings", settings, "--out", folder, "--force")
    return folder


def settings(options, changes):
    lines = ["voxel_um = [1.2, 0.6, 0.6]", "object_diameter_um = 12.0", "patch_zyx = [24, 64, 64]", "batch = 2", "ema = 0.998"]
    if "percentiles" in changes:
        lines.append('normalize = { kind = "scale_range", min_percentile = 1.0, max_percentile = 99.8 }')
    else:
        lines.append('normalize = { kind = "zero_mean_unit_variance" }')
    lines += ["[network]", "filters = [16, 32, 64, 128]", "[schedule]", "rate = 0.002"]
    lines += ["[validation]", "fraction = 0.03", "times = 1", "max_files = 3"]
    if "augmentation" in changes:
        lines += ["[augment.scale]", "probability = 0.7", "min = 0.75", "max = 1.35", "[augment.elastic]", "probability = 0.4"]
    else:
        lines += ["[augment.scale]", "probability = 0.0", "[augment.elastic]", "probability = 0.0"]
        lines += ["[augment.rotate]", "quarter_turns = 0.0", "any_angle = 0.0"]
    return "\n".join(lines) + "\n"


def train(options, name, changes, seed):
    out = options.work / "models" / f"{name}-{seed}"
    if not (out / "rdf.yaml").exists():
        config = options.work / f"{name}.toml"
        config.write_text(settings(options, changes))
        data = stacks(options, changes)
        begun = out.with_name(f"{out.name}.training").exists()
        run(options, "train", "--task", "segmentation", "--data", data, "--from", "scratch", "--config", config, "--seed", seed,
            "--steps", options.steps, "--threads", 1, "--without-int8", "--resume" if begun else "--restart", "--out", out)
    scores = options.work / "models" / f"{name}-{seed}.txt"
    if not scores.exists():
        lines = []
        for folder in options.score:
            command = [sys.executable, ROOT / "bench" / "accuracy.py", folder, "--model", out, "--diameter", "true",
                       "--binary", options.binary]
            command += ["--match", options.match] if folder is options.score[0] and options.match else []
            printed = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout
            lines += [line for line in printed.strip().splitlines() if not line.startswith("CPU: ")]
        scores.write_text("\n".join(lines) + "\n")
    return scores.read_text()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--score", type=Path, action="append", required=True)
    parser.add_argument("--match", help="names of the first scored folder")
    parser.add_argument("--stacks", type=int, default=120)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--first-seed", type=int, default=20000)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/cytoscope")
    options = parser.parse_args()
    print(f"CPU: {cpu_name()}", flush=True)
    (options.work / "models").mkdir(parents=True, exist_ok=True)
    rows = [("plain", []), ("all", CHANGES), *((change, [change]) for change in CHANGES)]
    rows += [(f"all-but-{change}", [c for c in CHANGES if c != change]) for change in ("outlines", "dim")]
    for _, changes in rows:
        stacks(options, changes)
    jobs = [(name, changes, seed) for seed in map(int, options.seeds.split(",")) for name, changes in rows]
    with ThreadPoolExecutor(2) as pool:
        for (name, _, seed), scores in zip(jobs, pool.map(lambda job: train(options, *job), jobs)):
            print(f"{name} (seed {seed})\n{scores}", flush=True)


if __name__ == "__main__":
    main()
