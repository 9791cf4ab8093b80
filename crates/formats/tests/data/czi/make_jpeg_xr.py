"""Writes CZI files whose tiles are compressed with JPEG XR, and reads them with Zeiss' library (pylibCZIrw).

Usage: python make_jpeg_xr.py FOLDER      (needs numpy, imagecodecs and pylibCZIrw)

- jpeg_xr: two slices of 37 x 21 16-bit pixels in two tiles; pixel (x, y) of slice z is 2000 z + 50 y + x.
- jpeg_xr_bgr: one slice of 20 x 18 8-bit colors, stored as blue, green, red; red is 5 x, green 6 y, blue 200 - 5 x.
- jpeg_xr_bgr48: the same in 16 bits, 100 times as bright. JPEG XR has no such format with blue first.

The compression is lossless.
"""

import struct
import sys

import imagecodecs
import numpy

from make_pyramid import dimension, segment

RGB_24, BGR_24 = 0x0D, 0x0C
# Last byte of the identifier of a pixel format; the others are the same for these formats.
FORMATS = bytes([0x24, 0xC3, 0xDD, 0x6F, 0x03, 0x4E, 0xFE, 0x4B, 0xB1, 0x85, 0x3D, 0x77, 0x76, 0x8D, 0xC9])


def entry(at, pixel_type, z, left, width, height):
    head = b"DV" + struct.pack("<iqiiBxii", pixel_type, at, 0, 4, 0, 0, 5)
    extents = [(b"X", left, width), (b"Y", 0, height), (b"C", 0, 1), (b"Z", z, 1), (b"S", 0, 1)]
    return head + b"".join(dimension(name, start, size, size) for name, start, size in extents)


def encoded(pixels):
    """Lossless JPEG XR; 8-bit colors as blue, green, red, as in files of ZEN."""
    data = imagecodecs.jpegxr_encode(pixels)
    if pixels.ndim == 3 and pixels.dtype == numpy.uint8:
        assert data.count(FORMATS + bytes([RGB_24])) == 1
        data = data.replace(FORMATS + bytes([RGB_24]), FORMATS + bytes([BGR_24]))
    return data


def write(path, name, pixel_type, tiles):
    xml = f"<ImageDocument><Metadata><Information><Image><PixelType>{name}</PixelType></Image></Information></Metadata></ImageDocument>".encode()
    at = 32 + 512
    segments, entries = [], []
    for z, left, pixels in tiles:
        found = entry(at, pixel_type, z, left, pixels.shape[1], pixels.shape[0])
        entries.append(found)
        data = encoded(pixels)
        head = struct.pack("<iiq", 0, 0, len(data)) + found
        segments.append(segment(b"ZISRAWSUBBLOCK", head.ljust(256, b"\0") + data))
        at += len(segments[-1])
    directory_at = at
    segments.append(segment(b"ZISRAWDIRECTORY", struct.pack("<i", len(entries)).ljust(128, b"\0") + b"".join(entries)))
    metadata_at = at + len(segments[-1])
    segments.append(segment(b"ZISRAWMETADATA", struct.pack("<ii", len(xml), 0).ljust(256, b"\0") + xml))
    guid = bytes(range(16))
    header = struct.pack("<iiii", 1, 0, 0, 0) + guid + guid + struct.pack("<iqqiq", 0, directory_at, metadata_at, 0, 0)
    with open(path, "wb") as file:
        file.write(segment(b"ZISRAWFILE", header.ljust(512, b"\0")) + b"".join(segments))


def read(path, z=0):
    from pylibCZIrw import czi

    with czi.open_czi(path) as document:
        return document.read(plane={"C": 0, "Z": z, "T": 0})


def main(folder):
    y, x = numpy.mgrid[:21, :37]
    slices = [(2000 * z + 50 * y + x).astype(numpy.uint16) for z in range(2)]
    tiles = [(z, left, numpy.ascontiguousarray(slices[z][:, left:end])) for z in range(2) for left, end in [(0, 20), (20, 37)]]
    write(f"{folder}/jpeg_xr", "Gray16", 1, tiles)
    for z in range(2):
        assert (read(f"{folder}/jpeg_xr", z)[..., 0] == slices[z]).all(), z
    y, x = numpy.mgrid[:18, :20]
    rgb = numpy.stack([5 * x, 6 * y, 200 - 5 * x], axis=-1)
    for name, pixel_type, colors in [("bgr", 3, rgb.astype(numpy.uint8)), ("bgr48", 4, (100 * rgb).astype(numpy.uint16))]:
        write(f"{folder}/jpeg_xr_{name}", "Bgr24" if pixel_type == 3 else "Bgr48", pixel_type, [(0, 0, colors)])
        found = read(f"{folder}/jpeg_xr_{name}")
        # The library returns blue, green, red.
        assert (found == colors[..., ::-1]).all(), (name, found[3, 4], colors[3, 4])
    print("the library reads what was written")


if __name__ == "__main__":
    main(sys.argv[1])
