"""Writes a CZI with two lower resolution levels, segment by segment, and reads it with Zeiss' library (pylibCZIrw).

Usage: python make_pyramid.py FILE

Two slices of 37 x 21 pixels in two tiles, and levels of a half and a quarter in one tile each. Pixel (x, y) of slice z in
level k is 20000 k + 2000 z + 50 y + x, so that a pixel tells from which level it was read.
"""

import struct
import sys

import numpy

WIDTH, HEIGHT = 37, 21
# Level, left edge, width and height at full resolution, stored width and height.
TILES = [(0, 0, 20, 21, 20, 21), (0, 20, 17, 21, 17, 21), (1, 0, 37, 21, 19, 11), (2, 0, 37, 21, 10, 6)]
XML = b"<ImageDocument><Metadata><Information><Image><PixelType>Gray16</PixelType></Image></Information></Metadata></ImageDocument>"


def value(level, z, y, x):
    return 20000 * level + 2000 * z + 50 * y + x


def segment(name, data):
    data += b"\0" * (-len(data) % 32)
    return name.ljust(16, b"\0") + struct.pack("<qq", len(data), len(data)) + data


def dimension(name, start, size, stored):
    return name.ljust(4, b"\0") + struct.pack("<iifi", start, size, float(start), stored)


def entry(at, z, left, width, height, stored_width, stored_height):
    pyramid = 0 if (width, height) == (stored_width, stored_height) else 2
    head = b"DV" + struct.pack("<iqiiBxii", 1, at, 0, 0, pyramid, 0, 5)
    return head + b"".join(
        [
            dimension(b"X", left, width, stored_width),
            dimension(b"Y", 0, height, stored_height),
            dimension(b"C", 0, 1, 1),
            dimension(b"Z", z, 1, 1),
            dimension(b"S", 0, 1, 1),
        ]
    )


def write(path):
    at = 32 + 512
    segments, entries = [], []
    for z in range(2):
        for level, left, width, height, stored_width, stored_height in TILES:
            found = entry(at, z, left, width, height, stored_width, stored_height)
            entries.append(found)
            origin = left if level == 0 else 0
            y, x = numpy.mgrid[:stored_height, :stored_width]
            pixels = value(level, z, y, x + origin).astype("<u2").tobytes()
            head = struct.pack("<iiq", 0, 0, len(pixels)) + found
            segments.append(segment(b"ZISRAWSUBBLOCK", head.ljust(256, b"\0") + pixels))
            at += len(segments[-1])
    directory_at = at
    segments.append(segment(b"ZISRAWDIRECTORY", struct.pack("<i", len(entries)).ljust(128, b"\0") + b"".join(entries)))
    metadata_at = at + len(segments[-1])
    segments.append(segment(b"ZISRAWMETADATA", struct.pack("<ii", len(XML), 0).ljust(256, b"\0") + XML))
    guid = bytes(range(16))
    header = struct.pack("<iiii", 1, 0, 0, 0) + guid + guid + struct.pack("<iqqiq", 0, directory_at, metadata_at, 0, 0)
    with open(path, "wb") as file:
        file.write(segment(b"ZISRAWFILE", header.ljust(512, b"\0")) + b"".join(segments))


def check(path):
    from pylibCZIrw import czi

    with czi.open_czi(path) as document:
        for level, zoom in enumerate([1, 0.5, 0.25]):
            step = 2**level
            roi = (0, 0, WIDTH // step * step, HEIGHT // step * step)
            for z in range(2):
                found = document.read(plane={"C": 0, "Z": z, "T": 0}, roi=roi, zoom=zoom)[..., 0]
                y, x = numpy.mgrid[: roi[3] // step, : roi[2] // step]
                # The library maps 37 pixels to 10, so that it may read a neighboring pixel of the same level.
                tolerance = 0 if level < 2 else 51
                apart = numpy.abs(found.astype(int) - value(level, z, y, x))
                assert (apart <= tolerance).all(), (level, z, found)
    print("the library reads the levels as they were written")


if __name__ == "__main__":
    write(sys.argv[1])
    check(sys.argv[1])
