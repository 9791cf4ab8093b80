"""Writes small MRC files with the Python package `mrcfile`.

    pip install mrcfile numpy
    python make_mrc.py FOLDER

Files: `volume` (three slices of 16 bits with the size of a cell, and an extended header), `float` (three slices of float32),
`half` (the same in float16), `bytes` (signed, from -18 to 17), `big` (big-endian slices of unsigned 16 bits), `stack` (two volumes
of three slices), `images` (a stack of three images). Sample `i` of the file is `i`, except in `bytes`.
"""

import sys
from pathlib import Path

import mrcfile
import numpy as np


def write(path, data, change=lambda mrc: None):
    with mrcfile.new(path, overwrite=True) as mrc:
        mrc.set_data(data)
        # The label of the header has the time; files written again are the same.
        mrc.header.label[:] = b""
        mrc.header.nlabl = 0
        change(mrc)


def main(out):
    def counting(shape, dtype):
        return np.arange(np.prod(shape), dtype=dtype).reshape(shape)

    def with_size(mrc):
        mrc.set_extended_header(np.frombuffer(b"extended header", dtype="V15"))
        mrc.voxel_size = (2500.0, 5000.0, 10000.0)

    write(out / "volume", counting((3, 3, 4), "i2"), with_size)
    write(out / "float", counting((3, 3, 4), "f4"))
    write(out / "half", counting((3, 3, 4), "f2"))
    write(out / "bytes", counting((3, 3, 4), "i1") - np.int8(18))
    write(out / "big", counting((3, 3, 4), ">u2"))
    write(out / "stack", counting((2, 3, 3, 4), "i2"), lambda mrc: setattr(mrc, "voxel_size", 2500.0))

    def as_images(mrc):
        mrc.set_image_stack()
        mrc.voxel_size = 2500.0

    write(out / "images", counting((3, 3, 4), "i2"), as_images)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
