"""Writes small Nikon ND2 files (version 3) and checks that Python's `nd2` package reads them as expected.

    pip install nd2 numpy
    python make_nd2.py FOLDER

Files: `positions` (two positions of two slices, two channels of 16 bits, rows with padding), `zlib` (two time points of two slices, 8 bits,
frames and attributes compressed), `float` (three time points of float32, the second frame missing).
Pixel `i` of position `p`, time point `t`, slice `z` and channel `c` is `i + 1000 p + 200 t + 100 z + 50 c`.
"""

import struct
import sys
import zlib
from pathlib import Path

import nd2
import numpy as np

MAGIC = 0x0ABECEDA
MAP_END = b"ND2 CHUNK MAP SIGNATURE 0000001!"


class U32(int):
    """An unsigned 32-bit number; a plain int is a signed one."""


def entry(name, value):
    """An entry of a LiteVariant tree."""
    units = name.encode("utf-16-le") + b"\0\0" if name else b""

    def head(kind):
        return struct.pack("<BB", kind, len(units) // 2) + units

    if isinstance(value, dict):
        members = [entry(k, v) for k, v in value.items()]
    elif isinstance(value, list):
        members = [entry("", v) for v in value]
    else:
        members = None
    if members is not None:
        start = head(11)
        body = b"".join(members)
        length = len(start) + 12 + len(body)
        offsets, at = b"", len(start) + 12
        for member in members:
            offsets += struct.pack("<Q", at)
            at += len(member)
        return start + struct.pack("<IQ", len(members), length) + body + offsets
    if isinstance(value, bool):
        return head(1) + struct.pack("<B", value)
    if isinstance(value, U32):
        return head(3) + struct.pack("<I", value)
    if isinstance(value, int):
        return head(2) + struct.pack("<i", value)
    if isinstance(value, float):
        return head(6) + struct.pack("<d", value)
    if isinstance(value, str):
        return head(8) + value.encode("utf-16-le") + b"\0\0"
    return head(9) + struct.pack("<Q", len(value)) + value


class Writer:
    def __init__(self):
        self.bytes = b""
        self.map = []
        self.bytes += struct.pack("<IIQ", MAGIC, 32, 64) + b"ND2 FILE SIGNATURE CHUNK NAME01!" + b"Ver3.0".ljust(64, b"\0")

    def chunk(self, name, data, name_bytes=None):
        """Appends a chunk; its name is padded to `name_bytes`."""
        name_bytes = name_bytes or len(name) + 8
        self.map.append((name, len(self.bytes), len(data)))
        self.bytes += struct.pack("<IIQ", MAGIC, name_bytes, len(data)) + name.ljust(name_bytes, b"\0") + data

    def tree(self, name, root, content, compressed=False):
        data = entry(root, content)
        if compressed:
            data = b"L\0" + bytes(10) + zlib.compress(data)
        self.chunk(name, data)

    def frame(self, index, pixels, compressed):
        data = zlib.compress(pixels) if compressed else pixels
        # The package expects the pixels of uncompressed frames 4096 bytes after the beginning of the chunk.
        name_bytes = None if compressed else 4096 - 16 - 8
        self.chunk(b"ImageDataSeq|%d!" % index, struct.pack("<d", 0.0) + data, name_bytes)

    def save(self, path):
        at = len(self.bytes)
        table = b"".join(name + struct.pack("<QQ", offset, size) for name, offset, size in self.map)
        table += MAP_END + struct.pack("<Q", at)
        name = b"ND2 FILEMAP SIGNATURE NAME 0001!"
        self.bytes += struct.pack("<IIQ", MAGIC, len(name), len(table)) + name + table
        path.write_bytes(self.bytes)


def attributes(shape_yxc, bits, frames, row_bytes, compressed):
    height, width, channels = shape_yxc
    return {
        "uiWidth": U32(width), "uiWidthBytes": U32(row_bytes), "uiHeight": U32(height), "uiComp": U32(channels),
        "uiBpcInMemory": U32(bits), "uiBpcSignificant": U32(12 if bits == 16 else bits),
        "uiSequenceCount": U32(frames), "uiTileWidth": U32(width), "uiTileHeight": U32(height),
        "eCompression": 0 if compressed else 2, "dCompressionParam": 0.0,
    }


def picture(names, colors):
    planes = {
        f"a{i}": {
            "uiCompCount": U32(1), "uiSampleIndex": U32(i), "sDescription": name, "uiColor": U32(color),
            "pFluorescentProbe": {"m_sName": name}, "pFilterPath": {"m_pFilter": {"a": {"m_sName": "none"}}},
        }
        for i, (name, color) in enumerate(zip(names, colors))
    }
    return {
        "bCalibrated": True, "dCalibration": 0.25, "dXPos": 0.0,
        "sPicturePlanes": {"uiCount": U32(len(names)), "sPlaneNew": planes},
    }


def loop(kind, parameters, inner=None, **more):
    return {"eType": kind, "uLoopPars": parameters, **more, "ppNextLevelEx": [inner] if inner else []}


def slices(count):
    return loop(4, {"uiCount": U32(count), "dZLow": 0.0, "dZHigh": 0.75 * (count - 1), "dZStep": 0.75})


def times(count, inner=None):
    parameters = {"uiCount": U32(count), "dStart": 0.0, "dPeriod": 1500.0, "dDuration": 1500.0 * count}
    return loop(1, parameters, inner)


def values(p, t, z, shape_yxc, dtype):
    height, width, channels = shape_yxc
    i = np.arange(height * width).reshape(height, width, 1)
    return (i + 1000 * p + 200 * t + 100 * z + 50 * np.arange(channels)).astype(dtype)


def write(path, experiment, frames, shape_yxc, dtype, names, compressed=False, padding=0, missing=()):
    dtype = np.dtype(dtype)
    height, width, channels = shape_yxc
    row_bytes = width * channels * dtype.itemsize + padding
    writer = Writer()
    for index, (p, t, z) in enumerate(frames):
        rows = values(p, t, z, shape_yxc, dtype).reshape(height, -1).view(np.uint8)
        rows = np.pad(rows, ((0, 0), (0, padding)))
        if index not in missing:
            writer.frame(index, rows.tobytes(), compressed)
    bits = dtype.itemsize * 8
    content = attributes(shape_yxc, bits, len(frames), row_bytes, compressed)
    writer.tree(b"ImageAttributesLV!", "SLxImageAttributes", content, compressed)
    writer.tree(b"ImageMetadataSeqLV|0!", "SLxPictureMetadata", picture(names, [0xFF0000, 0x00FF00][: len(names)]))
    writer.tree(b"ImageMetadataLV!", "SLxExperiment", experiment)
    writer.save(path)


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    points = [{"dPosX": 10.0 * i, "dPosY": 0.0, "dPosZ": 0.0, "pPosName": f"#{i}"} for i in range(3)]
    # The second of three positions was switched off.
    positions = loop(2, {"uiCount": U32(3), "bUseZ": False, "Points": points}, slices(2), pItemValid=b"\1\0\1")
    frames = [(p, 0, z) for p in range(2) for z in range(2)]
    write(folder / "positions", positions, frames, (3, 4, 2), np.uint16, ["DAPI", "GFP"], padding=4)
    frames = [(0, t, z) for t in range(2) for z in range(2)]
    write(folder / "zlib", times(2, slices(2)), frames, (3, 4, 1), np.uint8, ["Brightfield"], compressed=True)
    frames = [(0, t, 0) for t in range(3)]
    write(folder / "float", times(3), frames, (3, 5, 1), np.float32, ["FRET"], missing=(1,))
    check(folder)


def opened(path):
    # The package looks at the extension.
    link = path.with_suffix(".nd2")
    link.write_bytes(path.read_bytes())
    try:
        with nd2.ND2File(link) as file:
            metadata = file.metadata.channels
            colors = [tuple(c.channel.color)[:3] for c in metadata]
            names = [c.channel.name for c in metadata]
            return file.asarray(), dict(file.sizes), tuple(file.voxel_size()), names, colors, file.attributes, file.experiment
    finally:
        link.unlink()


def check(folder):
    pixels, sizes, voxel, names, colors, attributes, experiment = opened(folder / "positions")
    assert sizes == {"P": 2, "Z": 2, "C": 2, "Y": 3, "X": 4}, sizes
    assert tuple(voxel) == (0.25, 0.25, 0.75) and names == ["DAPI", "GFP"], (voxel, names)
    assert colors == [(0, 0, 255), (0, 255, 0)] and attributes.bitsPerComponentSignificant == 12, colors
    assert [p.name for p in experiment[0].parameters.points] == ["#0", "#2"]
    for p in range(2):
        for z in range(2):
            expected = values(p, 0, z, (3, 4, 2), np.uint16).transpose(2, 0, 1)
            assert pixels.dtype == np.uint16 and np.array_equal(pixels[p, z], expected)
    pixels, sizes, _, names, _, attributes, experiment = opened(folder / "zlib")
    assert sizes == {"T": 2, "Z": 2, "Y": 3, "X": 4} and attributes.compressionType == "lossless", sizes
    assert names == ["Brightfield"] and experiment[0].parameters.periodMs == 1500.0
    for t in range(2):
        for z in range(2):
            assert pixels.dtype == np.uint8 and np.array_equal(pixels[t, z], values(0, t, z, (3, 4, 1), np.uint8)[..., 0])
    pixels, sizes, _, names, _, _, _ = opened(folder / "float")
    assert sizes == {"T": 3, "Y": 3, "X": 5} and pixels.dtype == np.float32 and names == ["FRET"], sizes
    for t in range(3):
        expected = values(0, t, 0, (3, 5, 1), np.float32)[..., 0]
        assert np.array_equal(pixels[t], expected * (t != 1))
    print(f"nd2 {nd2.__version__} reads all files as expected")


main(Path(sys.argv[1]))
