"""How much fine-tuning on few labels helps: F1 on embryos 10 and 11 of BBBC050 after training on 1, 2, 4 or 9 others.

    python bench/learning_curve.py BBBC050_FOLDER WORK --from MODEL [--embryos 1,2,4,9] [--minutes 5,20 | --steps 580,2350]
    python bench/learning_curve.py BBBC050_FOLDER WORK --from MODEL --partial

The start model is scored first. The int8 network of each package is scored by bench/accuracy.py without further options.
With --steps, each training has a number of steps instead of a time, so that it does not depend on what else the machine does.
With --partial, training uses one stack of which only every fourth slice is labeled; all other voxels have the ignore
label. Results are kept in WORK, and a second run only adds what is missing. Start from a network that has not seen
the embryos in training, such as the first stage of `models/make nuclei`. An interrupted training continues from its
checkpoint; to start it over, remove its folder `NAME.training` in WORK. Needs numpy, tifffile and `cargo build --release`.
"""
import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import tifffile

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
IGNORED = 65535


def score(options, model):
    command = [sys.executable, ROOT / "bench" / "accuracy.py", options.data, "--model", model, "--match", "Emb1[01]"]
    command += ["--binary", options.binary]
    lines = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout.strip().splitlines()
    return "\n".join(line for line in lines if not line.startswith("CPU: "))


def train(options, name, folder, duration, config):
    out = options.work / name
    result = options.work / f"{name}.txt"
    if result.exists():
        return result.read_text()
    if not (out / "rdf.yaml").exists():
        command = [options.binary, "train", "--task", "segmentation", "--data", folder, "--from", options.start, *duration]
        is_unfinished = out.with_name(f"{name}.training").is_dir()
        command += ["--seed", 1, "--out", out] + (["--config", config] if config else [])
        done = subprocess.run(list(map(str, command + ["--resume"] * is_unfinished)), capture_output=True, text=True)
        with (options.work / f"{name}.log").open("a" if is_unfinished else "w") as log:
            log.write(done.stdout + done.stderr)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
    result.write_text(score(options, out) + "\n")
    return result.read_text()


def links(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        if not (folder / file.name).exists():
            os.symlink(file.resolve(), folder / file.name)
    return folder


def partial(options):
    """A folder with one stack, of which every fourth slice is labeled."""
    folder = options.work / "partial-data"
    folder.mkdir(parents=True, exist_ok=True)
    links(folder, [options.data / "Emb05_t301_raw.tif"])
    with tifffile.TiffFile(options.data / "Emb05_t301_labels.tif") as file:
        labels, description = file.asarray().astype(np.uint16), file.pages[0].description
        tags = {name: file.pages[0].tags[name].value for name in ("XResolution", "YResolution") if name in file.pages[0].tags}
        metadata = file.imagej_metadata or {}
    kept = np.zeros(len(labels), bool)
    kept[2::4] = True
    labels[~kept] = IGNORED
    if description.startswith("<?xml"):
        tifffile.imwrite(folder / "Emb05_t301_labels.tif", labels, description=description, metadata=None)
    else:
        resolution = tuple(n / d for n, d in tags.values()) if tags else None
        spacing = {"axes": "ZYX", "spacing": metadata.get("spacing", 1.0), "unit": metadata.get("unit", "um")}
        tifffile.imwrite(folder / "Emb05_t301_labels.tif", labels, imagej=True, resolution=resolution, metadata=spacing)
    config = options.work / "partial.toml"
    config.write_text(f"[data]\nignore_label = {IGNORED}\n")
    return folder, config


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--from", dest="start", required=True)
    parser.add_argument("--embryos", default="9,1,2,4")
    duration = parser.add_mutually_exclusive_group()
    duration.add_argument("--minutes", default="5,20")
    duration.add_argument("--steps")
    parser.add_argument("--partial", action="store_true")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/cytoscope")
    options = parser.parse_args()
    print(f"CPU: {cpu_name()}", flush=True)
    options.work.mkdir(parents=True, exist_ok=True)
    start = options.work / "start.txt"
    if not start.exists():
        start.write_text(score(options, options.start) + "\n")
    print("start:", start.read_text(), end="", flush=True)
    if options.partial:
        folder, config = partial(options)
        scores = train(options, "partial-5", folder, ["--minutes", 5], config)
        print("every fourth slice of one stack, 5 minutes:", scores, end="")
        return
    unit = "steps" if options.steps else "minutes"
    for length in (options.steps or options.minutes).split(","):
        for embryos in map(int, options.embryos.split(",")):
            files = [f for e in range(1, embryos + 1) for f in sorted(options.data.glob(f"Emb{e:02}_t*.tif"))]
            folder = links(options.work / f"data-{embryos}", files)
            name = f"embryos{embryos}-{length}{'steps' if options.steps else ''}"
            trained = train(options, name, folder, [f"--{unit}", length], None)
            print(f"{embryos} embryos, {length} {unit}:", trained, end="", flush=True)


if __name__ == "__main__":
    main()
