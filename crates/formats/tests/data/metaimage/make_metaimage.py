"""Writes small MetaImage files with SimpleITK.

    pip install SimpleITK numpy
    python make_metaimage.py FOLDER

Files: `plain` (three slices of 16 bits with a spacing), `zlib` (the same, compressed), `channels` (two channels of 8 bits, without
a spacing), `times` (two time points of float32). Sample `i` of the file is `i`.
"""

import sys
from pathlib import Path

import numpy as np
import SimpleITK as sitk


def counting(shape, dtype, is_vector=False):
    """An image whose samples count up in the order of the file."""
    return sitk.GetImageFromArray(np.arange(np.prod(shape), dtype=dtype).reshape(shape), isVector=is_vector)


def main(out):
    plain = counting((3, 3, 4), "u2")
    plain.SetSpacing((0.0005, 0.00025, 0.002))
    times = counting((2, 3, 3, 4), "f4", is_vector=False)
    times.SetSpacing((0.001, 0.001, 0.003, 2.0))
    for name, image, is_compressed in [
        ("plain", plain, False),
        ("zlib", plain, True),
        ("channels", counting((3, 3, 4, 2), "u1", is_vector=True), False),
        ("times", times, False),
    ]:
        path = out / f"{name}.mha"
        sitk.WriteImage(image, str(path), useCompression=is_compressed)
        path.rename(path.with_suffix(""))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
