"""One pass over a stack compared with cropped and with blended tiles: `cytoscope predict` with default options, with
`--blend crop` and with `--blend gaussian`, alternately, on one and on two threads; wall time, CPU time and peak memory of
the whole program. Then a stack of 1,024 slices over one of 64: time per slice and memory.

    python bench/pass.py [--model nuclei] [--shape 64,512,512] [--rounds 3] [--threads 1,2] [--long 1024]

Prints each run, then medians with ratios to the pass, the largest difference between the maps of the pass and of cropped
tiles, and how much of the time the network waited for reading and writing (stage `stall`). `--long 0` leaves the long stack
out, which takes some minutes and 3 GB of disk. Needs numpy, scipy, tifffile and target/release/cytoscope.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "cytoscope"
# Voxels of the model's own grid, and its nominal diameter: nothing is resampled.
GRID = ["--voxel-size", "1.2,0.6,0.6", "--diameter", "12"]
WAYS = {"pass": [], "crop": ["--blend", "crop"], "gaussian": ["--blend", "gaussian"]}


def write_stack(path, shape):
    """Writes blurred noise as 16-bit TIFF, 64 slices at a time."""
    import tifffile
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(7)
    depth, height, width = shape
    with tifffile.TiffWriter(path, bigtiff=depth * height * width * 2 > 2**31) as tif:
        for first in range(0, depth, 64):
            n = min(64, depth - first)
            v = np.clip(gaussian_filter(rng.standard_normal((n, height, width)).astype(np.float32), 4) * 40, 0, None)
            v = (v + 0.3 * rng.standard_normal(v.shape)) * 200 + 1000
            for z in v:
                tif.write(np.clip(z, 0, 65535).astype(np.uint16), contiguous=True)


def run(stack, out, model, threads, more):
    """Runs the program; returns the report of the stack with `cpu`, CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [PROGRAM, "predict", stack, "--model", model, "--device", "cpu", "--outputs", "maps",
               "--threads", str(threads), "--out", out, "--json", *GRID, *more]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(done.stdout)["inputs"][0]
    report["cpu"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return report


def stage(report, name, key="seconds"):
    return next((s[key] for s in report["stages"] if s["stage"] == name), 0)


def line(name, report):
    mib = report["actual_peak_bytes"] / 2**20
    planned = report["plan"]["stated_peak_bytes"] / 2**20
    gmac = stage(report, "compute", "macs") / 1e9
    return (f"{name}: {report['seconds']:.2f} s, {report['cpu']:.2f} CPU s, {gmac:.0f} GMAC, peak {mib:.0f} MiB "
            f"(planned {planned:.0f}), stall {stage(report, 'stall'):.2f} s")


def compare_ways(a, tmp, stack):
    import tifffile

    for threads in a.threads:
        reports = {way: [] for way in WAYS}
        for i in range(a.rounds):
            for way, more in WAYS.items():
                report = run(stack, f"{tmp}/{way}", a.model, threads, more)
                if way == "pass" and not report["plan"].get("pass"):
                    raise SystemExit(f"the stack was not passed: {report['plan']}")
                reports[way].append(report)
                print(line(f"{threads} threads, round {i + 1}, {way}", report), flush=True)
        for way in list(WAYS)[1:]:
            for key in ("seconds", "cpu", "actual_peak_bytes"):
                ratios = [t[key] / p[key] for t, p in zip(reports[way], reports["pass"])]
                print(f"{threads} threads, {way} / pass, {key}: median {statistics.median(ratios):.2f} "
                      f"({min(ratios):.2f} to {max(ratios):.2f})")
        maps = [tifffile.imread(reports[way][0]["outputs"][0]) for way in ("pass", "crop")]
        print(f"{threads} threads: largest difference of pass and crop {np.abs(maps[0] - maps[1]).max():.2e}", flush=True)


def compare_lengths(a, tmp, stack):
    long = f"{tmp}/long.tif"
    write_stack(long, [a.long, *a.shape[1:]])
    threads = max(a.threads)
    ratios = []
    for i in range(a.rounds):
        short, other = (run(s, f"{tmp}/length", a.model, threads, []) for s in (stack, long))
        for name, report in ((a.shape[0], short), (a.long, other)):
            print(line(f"{threads} threads, round {i + 1}, {name} slices", report), flush=True)
        per_slice = (other["seconds"] / a.long) / (short["seconds"] / a.shape[0])
        ratios.append((per_slice, other["actual_peak_bytes"] / short["actual_peak_bytes"]))
    time, memory = (statistics.median(r) for r in zip(*ratios))
    print(f"{a.long} slices over {a.shape[0]}: time per slice {time:.3f}, memory {memory:.3f}")


def main():
    numbers = lambda text: [int(n) for n in text.split(",")]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="nuclei")
    p.add_argument("--shape", type=numbers, default=[64, 512, 512])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=numbers, default=[1, 2])
    p.add_argument("--long", type=int, default=1024)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        stack = f"{tmp}/stack.tif"
        write_stack(stack, a.shape)
        compare_ways(a, tmp, stack)
        if a.long:
            compare_lengths(a, tmp, stack)


if __name__ == "__main__":
    main()
