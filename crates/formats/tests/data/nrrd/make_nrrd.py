"""Writes small NRRD files with the Python package `pynrrd`.

    pip install pynrrd numpy
    python make_nrrd.py FOLDER

Files: `raw` (three slices of 16 bits, with directions in µm), `gzip` (two time points of three slices of float32, compressed,
with spacings), `channels` (two channels as the fastest axis, 8 bits, big-endian does not matter), `big` (big-endian slices of 16
bits without any size). Sample `i` of the file is `i`.
"""

import sys
from pathlib import Path

import nrrd
import numpy as np


def counting(shape, dtype):
    """An array whose samples count up in the order of the file: the first axis is the fastest."""
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape, order="F")


def main(out):
    directions = {"space dimension": 3, "space directions": np.diag([0.25, 0.5, -2.0])}
    units = {"space units": ["microns", "microns", "microns"], "kinds": ["domain", "domain", "domain"]}
    nrrd.write(str(out / "raw.nrrd"), counting((4, 3, 3), "<u2"), {"encoding": "raw", **directions, **units})
    header = {"encoding": "gzip", "spacings": [0.5, 0.5, 1.5, 3.0], "units": ["mm", "mm", "mm", "s"]}
    nrrd.write(str(out / "gzip.nrrd"), counting((4, 3, 3, 2), "<f4"), header)
    header = {"encoding": "raw", "kinds": ["vector", "domain", "domain", "domain"]}
    nrrd.write(str(out / "channels.nrrd"), counting((2, 4, 3, 3), "u1"), header)
    nrrd.write(str(out / "big.nrrd"), counting((4, 3, 3), ">u2"), {"encoding": "raw", "endian": "big"})
    for path in out.glob("*.nrrd"):
        path.rename(path.with_suffix(""))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
