"""Writes fuzz/seeds/read_czi/{lzw,jpeg,jpeg_bgr}: the subblocks of files of Zeiss' library, compressed again.

Zeiss' library writes neither LZW nor JPEG, so the pixels of two of its files are replaced: new subblocks are added at the end
of the file, and the directory points to them. Run it in the root of the repository; it needs numpy, imagecodecs and Pillow.
"""

import io
import struct
from pathlib import Path

import imagecodecs
import numpy as np
from PIL import Image

SEEDS = Path("fuzz/seeds/read_czi")
HEADER = 32


def replaced(seed, dimensions, pixel_type, compression, data):
    """The file with other pixels in the subblocks of its directory, whose entries have this number of dimensions."""
    file = bytearray((SEEDS / seed).read_bytes())
    (directory,) = struct.unpack_from("<q", file, 84)
    length = 32 + 20 * dimensions
    for i, pixels in enumerate(data):
        at = directory + HEADER + 128 + i * length
        struct.pack_into("<i", file, at + 2, pixel_type)
        struct.pack_into("<q", file, at + 6, len(file))
        struct.pack_into("<i", file, at + 18, compression)
        entry = bytes(file[at : at + length])
        body = struct.pack("<iiq", 0, 0, len(pixels)) + entry
        body = body.ljust(256, b"\0") + pixels
        body = body.ljust(-(-len(body) // 32) * 32, b"\0")
        file += b"ZISRAWSUBBLOCK".ljust(16, b"\0") + struct.pack("<qq", len(body), len(body)) + body
    return bytes(file)


def jpeg(pixels):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=100, subsampling=0, optimize=True)
    return out.getvalue()


# Two slices of two channels, 3 × 4 pixels.
planes = [100 * z + 50 * c + np.arange(12).reshape(3, 4) for z in range(2) for c in range(2)]
lzw = [imagecodecs.lzw_encode(plane.astype("<u2").tobytes()) for plane in planes]
(SEEDS / "lzw").write_bytes(replaced("plain", 7, 1, 2, lzw))
(SEEDS / "jpeg").write_bytes(replaced("plain", 7, 0, 1, [jpeg(plane.astype("u1")) for plane in planes]))
# Red 200, green 100, blue 20 and 40 in the second slice. The first component of the JPEG is blue, as Bio-Formats and czifile
# read it.
colors = [np.full((3, 4, 3), (20 + 20 * z, 100, 200), "u1") for z in range(2)]
(SEEDS / "jpeg_bgr").write_bytes(replaced("bgr", 7, 3, 1, [jpeg(plane) for plane in colors]))
