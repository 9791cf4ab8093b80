"""Segmentation accuracy of models: pooled F1 at IoU 0.5 and 0.7 on folders of NAME_raw.tif and NAME_labels.tif.

    python bench/accuracy.py FOLDER... --model nuclei [--model nuclei-dog] [--diameter auto|UM|true] [--match Emb1[01]]

Stacks are predicted as a user would (`predict FILES --model M`), and scored here with numpy and scipy only: objects are
matched one to one by the maximum sum of IoU. True objects under --ignore-below voxels (150), and predicted objects that lie
mostly on them, do not count; the score over all objects is printed as well. `--diameter true` passes the median diameter of
the true labels. Stacks without true objects count with their false objects only. A file NAME.json may state the voxel size
of a stack whose file does not (voxel_um, Z, Y, X), so that its true diameter is known. With `--planes`, the slice of each
stack with most labeled voxels is predicted as a single image, and true objects under --ignore-below pixels (20) do not count.
Needs numpy, scipy, tifffile and `cargo build --release`.
"""
import argparse
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import tifffile
from scipy.optimize import linear_sum_assignment

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "cytoscope"


def counts(truth, found, ignore_below, threshold):
    """Numbers of true positives, predicted objects and true objects, without the ignored ones."""
    truth_ids, t = np.unique(truth, return_inverse=True)
    found_ids, f = np.unique(found, return_inverse=True)
    table = np.zeros((len(truth_ids), len(found_ids)), np.int64)
    np.add.at(table, (t.ravel(), f.ravel()), 1)
    t_size, f_size = table.sum(1), table.sum(0)
    t_is, f_is = truth_ids > 0, found_ids > 0
    small = t_is & (t_size < ignore_below)
    f_is &= ~(table[small].sum(0) > 0.5 * f_size)
    t_is &= ~small
    inner = table[np.ix_(t_is, f_is)]
    iou = inner / np.maximum(t_size[t_is][:, None] + f_size[f_is][None] - inner, 1)
    rows, columns = linear_sum_assignment(-np.where(iou >= threshold, 1 + iou, 0))
    return int((iou[rows, columns] >= threshold).sum()), int(f_is.sum()), int(t_is.sum())


def notes(file):
    """What a JSON file beside the stack states, if there is one."""
    path = file.with_name(file.name.removesuffix("_raw.tif") + ".json")
    return json.loads(path.read_text()) if path.exists() else {}


def voxel(path):
    """Voxel size Z, Y, X in um; relative to that along X if the file states none."""
    with tifffile.TiffFile(path) as tiff:
        is_stated = tiff.is_ome or "unit" in (tiff.imagej_metadata or {})
        if not is_stated and (size := notes(path).get("voxel_um")):
            return np.array(size) / size[2]
        if tiff.is_ome:
            pixels = ElementTree.fromstring(tiff.ome_metadata).find("{*}Image/{*}Pixels")
            return np.array([float(pixels.get(f"PhysicalSize{axis}", 1)) for axis in "ZYX"])
        spacing = (tiff.imagej_metadata or {}).get("spacing", 1.0)
        number, of = tiff.pages[0].tags["XResolution"].value if "XResolution" in tiff.pages[0].tags else (1, 1)
        return np.array([spacing, of / number, of / number])


def plane_of(file, folder):
    """Writes the slice of a stack with most labeled voxels, and its labels, to a folder; returns the path of the image."""
    labels_file = file.with_name(file.name.replace("_raw.tif", "_labels.tif"))
    labels = tifffile.imread(labels_file)
    best = int((labels > 0).sum((1, 2)).argmax())
    tags = {"resolution": tuple(1 / voxel(file)[1:]), "metadata": {"unit": "um"}} if "voxel_um" not in notes(file) else {}
    for source, values in [(file, tifffile.imread(file)[best]), (labels_file, labels[best].astype(np.uint16))]:
        tifffile.imwrite(folder / source.name, values, imagej=True, **tags)
    return folder / file.name


def truth_of(file):
    labels = tifffile.imread(str(file).replace("_raw.tif", "_labels.tif"))
    return labels[None] if labels.ndim == 2 else labels


def true_diameter(file):
    """The diameter that a JSON file beside the stack states, or else that of the labels, as `diameter` defines it.

    In um, or in voxels along X if the file states no voxel size; NaN without objects."""
    if found := notes(file).get("diameter_um"):
        return float(found)
    truth = truth_of(file)
    return diameter(truth, voxel(file)) if truth.any() else np.nan


def diameter(labels, size):
    """Median diameter of the objects that touch no side of the stack; of all objects if fewer than three remain.

    In stacks of up to four slices, it is that of the largest sections."""
    labels = labels.astype(np.int64)
    voxels = np.bincount(labels.ravel())
    cut = np.zeros(len(voxels), bool)
    for axis in range(3) if labels.shape[0] > 4 else (1, 2):
        for side in (0, -1):
            cut[np.unique(labels.take(side, axis))] = True
    objects = voxels > 0
    objects[0] = False
    if (objects & ~cut).sum() >= 3:
        objects &= ~cut
    if labels.shape[0] <= 4:
        sections = np.max([np.bincount(plane.ravel(), minlength=len(voxels)) for plane in labels], axis=0)
        return float(np.median(2 * np.sqrt(sections[objects] * size[1] * size[2] / np.pi)))
    return float(np.median((6 / np.pi * voxels[objects] * size.prod()) ** (1 / 3)))


def predict(binary, model, files, out, extra):
    command = [str(binary), "predict", *map(str, files), "--model", model, "--out", str(out), "--outputs", "labels", "--json"]
    done = subprocess.run(command + extra, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)["inputs"]


def labels_of(out, file):
    found = [p for p in out.iterdir() if re.fullmatch(re.escape(file.stem) + r"_labels(\.ome)?\.tif", p.name)]
    return tifffile.imread(found[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--diameter", default="auto")
    parser.add_argument("--precision", default="auto", help="of the networks: auto, f32 or int8")
    parser.add_argument("--match", default="")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--binary", type=Path, default=PROGRAM)
    parser.add_argument("--ignore-below", type=int)
    parser.add_argument("--planes", action="store_true", help="predict one slice of each stack")
    parser.add_argument("--each", action="store_true", help="print every stack")
    options = parser.parse_args()
    ignore_below = options.ignore_below if options.ignore_below is not None else (20 if options.planes else 150)
    print(f"CPU: {cpu_name()}", flush=True)
    for folder in options.folders:
        files = [f for f in sorted(folder.glob("*_raw.tif")) if re.search(options.match, f.name)][:: options.every]
        for model in options.model:
            with tempfile.TemporaryDirectory() as scratch:
                out = Path(scratch)
                (out / "planes").mkdir()
                stacks = [plane_of(f, out / "planes") for f in files] if options.planes else files
                ratios, secs = [], 0.0
                extra = ["--precision", options.precision]
                if options.diameter == "true":
                    reports = []
                    for f in stacks:
                        true = true_diameter(f)
                        given = ["--diameter", f"{true:.3f}"] if np.isfinite(true) else []
                        reports += predict(options.binary, model, [f], out, extra + given)
                else:
                    extra += ["--diameter", options.diameter] if options.diameter != "auto" else []
                    reports = predict(options.binary, model, stacks, out, extra)
                sums = np.zeros((4, 3))
                for f, report in zip(stacks, reports):
                    truth = truth_of(f)
                    found = labels_of(out, f).reshape(truth.shape)
                    scores = np.array([counts(truth, found, i, t) for i in (ignore_below, 0) for t in (0.5, 0.7)])
                    sums += scores
                    used = (report.get("diameter") or {}).get("diameter")
                    ratios.append(used / true_diameter(f) if used else np.nan)
                    secs += report["seconds"]
                    if options.each:
                        numbers = f"{scores[0].tolist()} {scores[1].tolist()}"
                        print(f"    {f.name}: diameter x{ratios[-1]:.2f}  tp/found/true {numbers}")
                objects = sums[:, 1] + sums[:, 2]
                f1 = np.where(objects > 0, 2 * sums[:, 0] / np.maximum(objects, 1), 1.0)
                kind = "planes" if options.planes else "stacks"
                known = np.array(ratios)[np.isfinite(ratios)]
                near = np.mean(np.abs(np.log(known)) < np.log(1.15)) if len(known) else np.nan
                print(
                    f"{folder.name} ({len(files)} {kind}) {Path(model).name}: F1 {f1[0]:.3f} / {f1[1]:.3f}, all objects"
                    f" {f1[2]:.3f} / {f1[3]:.3f}, found {sums[0, 1]:.0f} of {sums[0, 2]:.0f}, diameter within 15 % on {near:.2f}, {secs:.1f} s"
                )


if __name__ == "__main__":
    main()
