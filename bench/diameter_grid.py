"""How well the object diameter is estimated: simulated nuclei of 3 to 30 µm in voxels of 0.1 to 1 µm.

    python bench/diameter_grid.py [--model nuclei] [--seeds 1] [--each]

For each diameter, voxel width and ratio of slice spacing to voxel width (1 to 6), `cytoscope simulate` draws stacks with
its default settings for nuclei, except for sizes and blur, which are relative to the diameter. Combinations with fewer
than 7 voxels or 3 slices per diameter are left out, as are diameters of more than 100 voxels. The estimate that `predict`
reports is compared with the median diameter of the true labels. Prints the share of the stacks within 15 %, in all and by
diameter, voxel width and ratio. Needs numpy, scipy, tifffile and `cargo build --release`.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import tifffile

from accuracy import PROGRAM, diameter
from machine import cpu_name

DIAMETERS_UM = [3, 5, 8, 12, 20, 30]
VOXELS_UM = [0.1, 0.2, 0.4, 0.7, 1.0]
RATIOS = [1, 2, 4, 6]


def run(*arguments):
    done = subprocess.run([str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def simulated(folder, default, diameter_um, voxel_um, ratio, seed):
    """Simulates a stack of about 4 by 6 by 6 diameters and returns its file, or `None` for an unusual combination."""
    voxel = [voxel_um * ratio, voxel_um, voxel_um]
    if not 7 <= diameter_um / voxel_um <= 100 or diameter_um / voxel[0] < 3:
        return None
    settings = json.loads(json.dumps(default))
    settings["seed"] = seed
    limits = [96, 320, 320]
    settings["shape_zyx"] = [min(limit, int(n * diameter_um / v)) for limit, n, v in zip(limits, [4, 6, 6], voxel)]
    settings["voxel_size_um"] = dict(zip("zyx", voxel))
    settings["objects"]["diameter_um"] = diameter_um
    for name in ("psf_sigma_um", "haze_sigma_um"):
        settings["optics"][name] = [s * diameter_um / default["objects"]["diameter_um"] for s in default["optics"][name]]
    stem = f"d{diameter_um}_v{voxel_um}_r{ratio}_s{seed}"
    (folder / f"{stem}.json").write_text(json.dumps(settings))
    run("simulate", "--kind", "nuclei", "--settings", folder / f"{stem}.json", "--out", folder / stem)
    return next((folder / stem).glob("*_raw.tif"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="nuclei")
    parser.add_argument("--seeds", type=int, default=1, help="stacks per combination")
    parser.add_argument("--each", action="store_true", help="print every stack")
    options = parser.parse_args()
    print(f"CPU: {cpu_name()}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run("simulate", "--kind", "nuclei", "--shape", "16,32,32", "--out", folder / "default")
        default = json.loads((folder / "default" / "nuclei_0.json").read_text())
        for d, v, r, seed in np.array(np.meshgrid(DIAMETERS_UM, VOXELS_UM, RATIOS, range(options.seeds))).T.reshape(-1, 4):
            d, v, r, seed = float(d), float(v), int(r), int(seed)
            raw = simulated(folder, default, d, v, r, seed)
            if raw is None:
                continue
            truth = diameter(tifffile.imread(str(raw).replace("_raw", "_labels")), np.array([v * r, v, v]))
            report = json.loads(run("predict", raw, "--model", options.model, "--out", folder / "out", "--outputs", "labels",
                                    "--force", "--json"))["inputs"][0]
            ratio = report["diameter"]["diameter"] / truth
            rows.append((d, v, r, ratio))
            if options.each:
                print(f"  {d:4.0f} µm in voxels of {v} µm, ratio {r}: estimate x{ratio:.2f}", flush=True)
    rows = np.array(rows)
    near = np.abs(np.log(rows[:, 3])) < np.log(1.15)
    print(f"{len(rows)} stacks: within 15 % on {near.mean():.2f}, median ratio {np.median(rows[:, 3]):.2f}")
    for column, name in enumerate(["diameter in µm", "voxel width in µm", "ratio of slice spacing"]):
        shares = [f"{value:g}: {near[rows[:, column] == value].mean():.2f}" for value in np.unique(rows[:, column])]
        print(f"  by {name}: {', '.join(shares)}")


if __name__ == "__main__":
    main()
