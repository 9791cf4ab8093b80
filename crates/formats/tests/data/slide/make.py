"""Writes a small whole-slide image as Aperio's scanners do: levels of JPEG tiles as pages, their tables in the tag JPEGTables,
a thumbnail and a label. tifffile reads it back.

Usage: python make.py FILE

The pixel (x, y) of the scene at full resolution has the color (x / 2, y / 2, 90). The pixels of a level are those at the
centers of its own.
"""

import sys

import imagecodecs
import numpy
import tifffile

TILE = 64


def scene(width, height, step):
    y, x = numpy.mgrid[:height, :width] * step + (step - 1) / 2
    return numpy.stack([x / 2, y / 2, 0 * x + 90], -1).round().astype("u1")


def split(stream):
    """The tables of a JPEG stream, as a stream without an image, and the stream without them."""
    tables, rest, at = b"\xff\xd8", b"\xff\xd8", 2
    while True:
        marker, length = stream[at + 1], int.from_bytes(stream[at + 2 : at + 4], "big")
        if marker == 0xDA:
            return tables + b"\xff\xd9", rest + stream[at:]
        segment = stream[at : at + 2 + length]
        at += len(segment)
        if marker in (0xDB, 0xC4):
            tables += segment
        elif marker != 0xE0:
            rest += segment


def tiles(image):
    height, width = image.shape[:2]
    padded = numpy.pad(image, [(0, -height % TILE), (0, -width % TILE), (0, 0)], mode="edge")
    for y in range(0, height, TILE):
        for x in range(0, width, TILE):
            tile = numpy.ascontiguousarray(padded[y : y + TILE, x : x + TILE])
            yield split(imagecodecs.jpeg8_encode(tile, level=90, colorspace="RGB", outcolorspace="YCBCR"))


def put(out, image, text):
    parts = list(tiles(image))
    assert len({tables for tables, _ in parts}) == 1
    out.write(
        iter([tile for _, tile in parts]),
        shape=image.shape,
        dtype="u1",
        tile=(TILE, TILE),
        photometric="ycbcr",
        compression="jpeg",
        extratags=[(347, 7, len(parts[0][0]), parts[0][0], False)],
        description=text,
        software=False,
        metadata=None,
    )


path = sys.argv[1]
text = "Aperio Image Library v11.2.1 \r\n300x200 [0,0 300x200] (64x64) JPEG/RGB Q=90|AppMag = 20|MPP = 0.5040"
strips = {"photometric": "rgb", "compression": "jpeg", "software": False, "metadata": None}
with tifffile.TiffWriter(path, byteorder="<") as out:
    put(out, scene(300, 200, 1), text)
    out.write(scene(100, 66, 3), description=text + " thumbnail", **strips)
    put(out, scene(150, 100, 2), text)
    put(out, scene(37, 25, 8), text)
    out.write(scene(40, 40, 2), description="label", subfiletype=1, **strips)
with tifffile.TiffFile(path) as file:
    assert file.is_svs and file.pages[0].jpegtables
    series = file.series
    assert [level.shape for level in series[0].levels] == [(200, 300, 3), (100, 150, 3), (25, 37, 3)]
    for level, (width, height, step) in zip(series[0].levels, [(300, 200, 1), (150, 100, 2), (37, 25, 8)]):
        apart = numpy.abs(level.asarray().astype(int) - scene(width, height, step)).max()
        print(level.shape, "largest difference from the scene:", apart)
