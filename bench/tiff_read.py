"""Reads the same TIFF files alternately with tifffile and cytoscope-formats, on one core; prints CPU times and ratios.

    cargo build --release -p cytoscope-formats --example read_bench
    python bench/tiff_read.py [--rounds 7] [--folder DIR] [--binary target/release/examples/read_bench]

Needs tifffile, imagecodecs and numpy. A ratio above 1 means that cytoscope-formats uses less CPU time. Medians are
over rounds; files are in the page cache (each is read once beforehand).
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy
import tifffile

from machine import cpu_name

TARGETS = {"raw": 1.0, "lzw": 2.0, "lzw_p2": 2.0, "deflate": 1.2, "deflate_p2": 1.2, "zstd": 1.0, "zstd_p2": 1.0}
CODECS = {"raw": None, "lzw": "lzw", "deflate": "adobe_deflate", "zstd": "zstd"}


def make(folder: Path) -> None:
    """Writes 128 MiB of camera-like uint16 data: smooth structures with photon noise."""
    if all((folder / f"{name}.tif").exists() for name in TARGETS):
        return
    rng = numpy.random.default_rng(1)
    y, x = numpy.mgrid[0:1024, 0:1024].astype("f4")
    stack = numpy.empty((64, 1024, 1024), "u2")
    for z in range(64):
        stack[z] = rng.poisson(200 + 800 * (numpy.sin(x / 37 + z / 9) * numpy.sin(y / 41) + 1))
    for name in TARGETS:
        codec = CODECS[name.split("_")[0]]
        tifffile.imwrite(
            folder / f"{name}.tif",
            stack,
            compression=codec,
            predictor=2 if name.endswith("_p2") else None,
            photometric="minisblack",
            rowsperstrip=64 if codec else None,
        )


def ours(binary: str, path: Path) -> float:
    env = dict(os.environ, RAYON_NUM_THREADS="1")
    out = subprocess.run([binary, str(path)], env=env, check=True, capture_output=True, text=True).stdout
    return json.loads(out)["cpu_s"]


def theirs(path: Path) -> float:
    began = time.process_time()
    array = tifffile.imread(path, maxworkers=1)
    spent = time.process_time() - began
    assert array.nbytes == 128 << 20
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "cytoscope_bench_tiff")
    parser.add_argument("--binary", default="target/release/examples/read_bench")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    make(args.folder)
    print(f"CPU: {cpu_name()}", flush=True)
    print(f"tifffile {tifffile.__version__}, {args.rounds} rounds, 128 MiB uint16, CPU seconds (median, min)")
    print(f"{'file':12} {'tifffile':>16} {'cytoscope':>16} {'ratio':>7} {'by min':>7} {'target':>7}")
    for name, target in TARGETS.items():
        path = args.folder / f"{name}.tif"
        theirs(path), ours(args.binary, path)
        pairs = []
        for number in range(args.rounds):
            # Who begins alternates, so that neither always finds a warmer machine.
            if number % 2:
                mine = ours(args.binary, path)
                pairs.append((theirs(path), mine))
            else:
                pairs.append((theirs(path), ours(args.binary, path)))
        a, b = [p[0] for p in pairs], [p[1] for p in pairs]
        ratio = statistics.median(x / y for x, y in pairs)
        print(
            f"{name:12} {statistics.median(a):8.3f} {min(a):7.3f} {statistics.median(b):8.3f} {min(b):7.3f}"
            f" {ratio:7.2f} {min(a) / min(b):7.2f} {target:7.1f}"
        )


if __name__ == "__main__":
    main()
