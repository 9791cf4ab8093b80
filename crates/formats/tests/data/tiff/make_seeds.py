"""Writes small TIFF files with WebP, CCITT group 4, and as slide scanners write them, and checks that tifffile reads the same
pixels and levels as the tests expect.

    pip install tifffile imagecodecs pillow numpy
    python make_seeds.py FOLDER

Files: `webp_strips` (lossless, 18 × 37 pixels in strips of 7 rows), `webp_tiles_alpha` (lossy, big-endian, tiles of 16 × 16
with transparency), `fax4_strips` (18 × 37 pixels of 1 bit in strips of 7 rows), `svs` (two levels in JPEG tiles, a thumbnail
and a label).

Pixel (x, y) is red 5 x, green 6 y, blue 200 - 5 x; in `fax4_strips` it is 1 where (x + 2 y) % 5 is 3 or 4, or
else 0. The transparency is 4 (x + y).
"""

import sys
from pathlib import Path

import numpy
import tifffile
from PIL import Image


def colors(height, width, step=1):
    y, x = numpy.mgrid[:height, :width] * step
    return numpy.stack([5 * x, 6 * y, 200 - 5 * x], -1).astype("u1")


def webp(folder):
    path = folder / "webp_strips"
    pixels = colors(18, 37)
    tifffile.imwrite(
        path,
        pixels,
        photometric="rgb",
        compression="webp",
        compressionargs={"lossless": True},
        rowsperstrip=7,
        metadata=None,
        software=False,
    )
    assert (tifffile.imread(path) == pixels).all()
    alpha = numpy.concatenate([pixels, numpy.indices((18, 37)).sum(0)[..., None].astype("u1") * 4], -1)
    tifffile.imwrite(
        folder / "webp_tiles_alpha",
        alpha,
        photometric="rgb",
        extrasamples=["unassalpha"],
        compression="webp",
        compressionargs={"level": 80},
        tile=(16, 16),
        byteorder=">",
        metadata=None,
        software=False,
    )
    # Lossy WebP stores transparency without losses.
    assert (tifffile.imread(folder / "webp_tiles_alpha")[..., 3] == alpha[..., 3]).all()


def fax(folder):
    path = folder / "fax4_strips"
    y, x = numpy.mgrid[:18, :37]
    values = (x + 2 * y) % 5 > 2
    Image.fromarray(values).save(path, format="TIFF", compression="group4", tiffinfo={278: 7})
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        assert (page.compression, page.rowsperstrip, len(page.dataoffsets)) == (4, 7, 3), page
    assert (numpy.asarray(Image.open(path)) == values).all()
    assert (tifffile.imread(path) == values).all()


def svs(folder):
    text = "Aperio Image Library v11.2.1 \r\n32x16 [0,0 32x16] (16x16) JPEG/RGB Q=90|AppMag = 20|MPP = 0.5040"
    options = {"photometric": "rgb", "compression": "jpeg", "software": False, "metadata": None}
    with tifffile.TiffWriter(folder / "svs", byteorder="<") as out:
        out.write(colors(16, 32), tile=(16, 16), description=text, **options)
        out.write(colors(4, 8, 4), description=text + " thumbnail", **options)
        out.write(colors(8, 16, 2), tile=(16, 16), description=text, **options)
        out.write(colors(4, 4), description="label", subfiletype=1, **options)
    # The fuzz target chooses the second series if the last byte is that of the end of a JPEG stream.
    with open(folder / "svs", "ab") as file:
        file.write(b"\0")
    with tifffile.TiffFile(folder / "svs") as file:
        levels = [[level.shape for level in series.levels] for series in file.series]
        assert file.is_svs and levels == [[(16, 32, 3), (8, 16, 3)], [(4, 8, 3)], [(4, 4, 3)]], levels


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for write in [webp, fax, svs]:
        write(folder)
