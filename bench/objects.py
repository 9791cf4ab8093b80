"""Segmentation of a probability map: `cytoscope segment` compared with the same steps in scikit-image and SciPy,
interleaved; CPU time of the whole process, reading and writing included for both.

    python bench/objects.py [--rounds 3]

The map: 64 x 512 x 512 voxels, about 180 balls of 11 voxels radius, some touching. Needs numpy, scipy, scikit-image, tifffile.
"""
import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tifffile

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
RIVAL = """
import sys
import numpy as np, tifffile
from scipy import ndimage as ndi
from skimage import filters, measure, morphology, segmentation
p = tifffile.imread(sys.argv[1])
mask = p > filters.threshold_otsu(p)
distance = ndi.distance_transform_edt(mask, sampling=(1.0, 1.0, 1.0)).astype(np.float32)
seeds = measure.label(morphology.h_maxima(distance, 0.5))
labels = segmentation.watershed(-distance, seeds, mask=mask)
labels = morphology.remove_small_objects(labels, 20)
tifffile.imwrite(sys.argv[2], labels.astype(np.uint16))
table = measure.regionprops_table(labels, p, properties=('label', 'area', 'centroid', 'bbox', 'mean_intensity', 'max_intensity'))
print(len(table['label']))
"""
# h_maxima of a whole stack takes minutes; local maxima are the usual shortcut.
QUICK = RIVAL.replace(
    "seeds = measure.label(morphology.h_maxima(distance, 0.5))",
    "from skimage.feature import peak_local_max\n"
    "at = peak_local_max(distance, min_distance=7, labels=measure.label(mask), exclude_border=False)\n"
    "seeds = np.zeros(mask.shape, np.int32); seeds[tuple(at.T)] = np.arange(1, len(at) + 1)")


def cpu(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, run.stdout


def peak_mib(command):
    run = subprocess.run(["/usr/bin/time", "-f", "%M", *command], check=True, capture_output=True, text=True)
    return int(run.stderr.splitlines()[-1]) / 1024


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--rounds", type=int, default=3)
    a = a.parse_args()
    print(f"CPU: {cpu_name()}", flush=True)
    program = str(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "cytoscope")
    with tempfile.TemporaryDirectory() as tmp:
        rng = np.random.default_rng(1)
        p = np.zeros((64, 512, 512), np.float32)
        for _ in range(180):
            c = rng.uniform((8, 12, 12), (56, 500, 500))
            z, y, x = (np.arange(max(0, int(v) - 13), min(n, int(v) + 14)) for v, n in zip(c, p.shape))
            d = np.sqrt(sum((g - v) ** 2 for g, v in zip(np.meshgrid(z, y, x, indexing="ij"), c)))
            box = p[np.ix_(z, y, x)]
            p[np.ix_(z, y, x)] = np.maximum(box, np.clip(1.2 - d / 11, 0, 1))
        tifffile.imwrite(f"{tmp}/p.tif", p, imagej=True, resolution=(1, 1), metadata={"axes": "ZYX", "spacing": 1, "unit": "um"})
        ours = [program, "segment", f"{tmp}/p.tif", "--force", "--out", f"{tmp}/a.tif", "--table", f"{tmp}/a.csv"]
        rival = [sys.executable, "-c", QUICK, f"{tmp}/p.tif", f"{tmp}/b.tif"]
        idle, _ = cpu([sys.executable, "-c", "\n".join(l for l in QUICK.splitlines() if "import" in l)])
        rows = []
        for i in range(a.rounds):
            mine, output = cpu(ours)
            theirs, count = cpu(rival)
            theirs -= idle
            rows.append((mine, theirs))
            print(f"round {i + 1}: ours {mine:.2f} s ({output.split()[0]} objects)  scikit-image {theirs:.2f} s ({count.strip()} "
                  f"objects, imports not counted)  ratio {theirs / mine:.1f}")
        print(f"median ratio {statistics.median(t / m for m, t in rows):.1f}; peak memory ours {peak_mib(ours):.0f} MiB, "
              f"scikit-image {peak_mib(rival):.0f} MiB")


if __name__ == "__main__":
    main()
