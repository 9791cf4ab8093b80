"""Writes small TIFF files in the dialects of microscopes, and checks that tifffile reads the same pixels and metadata as the
tests expect.

    pip install tifffile imagecodecs numpy
    python make_dialects.py FOLDER

Files: `lsm` (two time points of two slices, two channels), `lsm_lzw` (the same, compressed; the file states decoded sizes, as
Zeiss' software does), `stk` (three slices), `fluoview` (two channels of two slices), `scanimage_flyback` (two volumes of three
slices and a flyback frame, two channels), `scanimage_5` (two volumes of three slices and a flyback frame, settings in the
description), `scanimage_3` (two slices of three frames), `ndpi` (two levels and an overview).
"""

import struct
import sys
from pathlib import Path

import imagecodecs
import numpy
import tifffile

BYTE, ASCII, SHORT, LONG, RATIONAL, DOUBLE = 1, 2, 3, 4, 5, 12


class Tiff:
    """A classic little-endian TIFF, written page by page."""

    def __init__(self):
        self.bytes = bytearray(b"II*\0\0\0\0\0")
        self.link = 4

    def data(self, data):
        self.bytes += b"\0" * (len(self.bytes) % 2)
        at = len(self.bytes)
        self.bytes += data
        return at

    def page(self, tags):
        body = struct.pack("<H", len(tags))
        for tag, kind, count, raw in sorted(tags, key=lambda t: t[0]):
            field = raw.ljust(4, b"\0") if len(raw) <= 4 else struct.pack("<I", self.data(raw))
            body += struct.pack("<HHI", tag, kind, count) + field
        at = self.data(body + b"\0\0\0\0")
        struct.pack_into("<I", self.bytes, self.link, at)
        self.link = at + len(body)


def shorts(tag, *values):
    return tag, SHORT, len(values), struct.pack(f"<{len(values)}H", *values)


def longs(tag, *values):
    return tag, LONG, len(values), struct.pack(f"<{len(values)}I", *values)


def text(tag, value):
    raw = value.encode("latin-1") + b"\0"
    return tag, ASCII, len(raw), raw


def gray(width, height, at, rows_bytes, bits=8):
    """The tags of a gray page of one strip."""
    return [
        longs(256, width),
        longs(257, height),
        shorts(258, bits),
        shorts(259, 1),
        shorts(262, 1),
        longs(273, at),
        shorts(277, 1),
        longs(278, height),
        longs(279, rows_bytes),
    ]


def lsm(compressed):
    """Two time points of two slices of 20 x 30 pixels: channel c of page p has the value 10 p + c."""
    tiff = Tiff()
    names = b"".join(struct.pack("<I", len(name)) + name for name in (b"nuclei\0", b"membrane\0"))
    colors = bytes([0, 0, 255, 0, 255, 0, 0, 0])
    block = tiff.data(struct.pack("<6I", 24 + len(colors) + len(names), 2, 2, 24, 32, 0) + colors + names)
    info = bytearray(512)
    struct.pack_into("<8i", info, 0, 0x0400_494C, len(info), 30, 20, 2, 2, 2, 1)
    struct.pack_into("<6d", info, 40, 1e-7, 2e-7, 5e-7, 0, 0, 0)
    struct.pack_into("<HH", info, 88, 6, 0)
    struct.pack_into("<I", info, 108, block)
    struct.pack_into("<d", info, 112, 1.5)
    # Two numbers of 16 bits at a position, though they fit into the tag, as tifffile expects of LSM.
    bits = 258, SHORT, 2, struct.pack("<I", tiff.data(struct.pack("<2H", 8, 8)))
    for page in range(4):
        strips = [bytes([10 * page + c]) * 600 for c in range(2)]
        stored = [imagecodecs.lzw_encode(strip) if compressed else strip for strip in strips]
        tags = gray(30, 20, 0, 0)
        tags = [t for t in tags if t[0] not in (258, 259, 262, 273, 277, 279)]
        tags += [
            longs(254, 0),
            bits,
            shorts(259, 5 if compressed else 1),
            shorts(262, 2),
            longs(273, *(tiff.data(strip) for strip in stored)),
            shorts(277, 2),
            longs(279, 600, 600),
            shorts(284, 2),
        ]
        if page == 0:
            tags.append((34412, BYTE, len(info), bytes(info)))
        tiff.page(tags)
        thumbnail = [t for t in gray(1, 1, 0, 0) if t[0] not in (258, 262, 273, 277, 279)]
        at = tiff.data(bytes([9, 9, 9]))
        thumbnail += [longs(254, 1), shorts(258, 8, 8, 8), shorts(262, 2), longs(273, at), shorts(277, 3), longs(279, 3)]
        tiff.page(thumbnail)
    return tiff.bytes


def stk():
    """Three slices of 2 x 2 pixels of 16 bits that count up, 0.5 um apart, over midnight."""
    tiff = Tiff()
    pixels = tiff.data(numpy.arange(12, dtype="<u2").tobytes())
    fraction = tiff.data(struct.pack("<2I", 13, 100))
    unit = tiff.data(struct.pack("<I", 3) + b"um\0")
    uic1 = struct.pack("<6I", 4, fraction, 5, fraction, 6, unit)
    times = [(2_450_000, 86_399_000), (2_450_001, 0), (2_450_001, 1000)]
    uic2 = b"".join(struct.pack("<6I", 5, 10, day, ms, day, ms) for day, ms in times)
    tags = [t for t in gray(2, 2, 0, 0, bits=16) if t[0] not in (273, 278, 279)]
    tags += [longs(273, pixels, pixels + 4), longs(278, 1), longs(279, 4, 4)]
    tiff.page(tags + [(33628, LONG, 3, uic1), (33629, RATIONAL, 3, uic2)])
    return tiff.bytes


def pages(count, first, each=()):
    """Pages of 3 x 2 pixels that count up."""
    tiff = Tiff()
    for page in range(count):
        at = tiff.data(bytes(range(6 * page, 6 * page + 6)))
        tiff.page(gray(3, 2, at, 6) + list(first if page == 0 else ()) + list(each))
    return tiff.bytes


def fluoview():
    header = bytearray(1454)
    dimensions = [("X", 3, 0.25, "um"), ("Y", 2, 0.5, "um"), ("Z", 2, 1.5, "um"), ("Ch", 2, 1.0, "")]
    for i in range(10):
        name, size, resolution, unit = dimensions[i] if i < len(dimensions) else ("", 0, 0.0, "")
        struct.pack_into("<16sidd64s", header, 284 + 100 * i, name.encode(), size, 0.0, resolution, unit.encode())
    return pages(4, [(34361, BYTE, len(header), bytes(header))], [(34362, DOUBLE, 8, bytes(64))])


FLYBACK = """SI.TIFF_FORMAT_VERSION = 4
SI.hChannels.channelName = {'Channel 1' 'Channel 2' 'Channel 3' 'Channel 4'}
SI.hChannels.channelSave = [1;2]
SI.hFastZ.discardFlybackFrames = true
SI.hFastZ.enable = true
SI.hFastZ.numDiscardFlybackFrames = 1
SI.hRoiManager.imagingFovUm = [-45 -45;45 -45;45 45;-45 45]
SI.hRoiManager.scanFrameRate = 10
SI.hRoiManager.scanVolumeRate = 2.5
SI.hScan2D.logAverageFactor = 1
SI.hStackManager.actualNumSlices = 3
SI.hStackManager.actualStackZStepSize = 5
SI.hStackManager.enable = true
SI.hStackManager.framesPerSlice = 1
SI.hStackManager.numFramesPerVolume = 3
SI.hStackManager.numFramesPerVolumeWithFlyback = 4
SI.hStackManager.numSlices = 11
SI.hStackManager.stackMode = 'fast'
"""
FRAME = "frameNumbers = 1\nacquisitionNumbers = 1\nframeNumberAcquisition = 1\nframeTimestamps_sec = 0.000000000\n"
SI5 = """frameNumberAcquisition = 1
scanimage.SI5.acqNumFrames = 1
scanimage.SI5.channelsSave = 1
scanimage.SI5.fastZDiscardFlybackFrames = true
scanimage.SI5.fastZEnable = true
scanimage.SI5.fastZImageType = 'XY-Z'
scanimage.SI5.fastZNumDiscardFrames = 1
scanimage.SI5.stackNumSlices = 3
scanimage.SI5.stackZStepSize = 2
"""
SI3 = "state.configName='a'\rstate.acq.numberOfChannelsSave=1\rstate.acq.numberOfZSlices=2\rstate.acq.numberOfFrames=3\r"


def ndpi():
    tiff = Tiff()
    for width, height, first in [(8, 4, 0), (4, 2, 100), (5, 5, 200)]:
        at = tiff.data(bytes(range(first, first + width * height)))
        tiff.page(gray(width, height, at, width * height) + [text(271, "Hamamatsu"), longs(65420, 1)])
    return tiff.bytes


def write(folder):
    files = {
        "lsm": lsm(False),
        "lsm_lzw": lsm(True),
        "stk": stk(),
        "fluoview": fluoview(),
        "scanimage_flyback": pages(16, [text(270, FRAME), text(305, FLYBACK)]),
        "scanimage_5": pages(8, [text(270, SI5)]),
        "scanimage_3": pages(6, [text(270, SI3)]),
        "ndpi": ndpi(),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)


def check(folder):
    """Checks the files with tifffile."""

    def opened(name):
        return tifffile.TiffFile(folder / name)

    for name in ("lsm", "lsm_lzw"):
        with opened(name) as file:
            series = file.series[0]
            assert (series.kind, series.axes, series.shape) == ("lsm", "TZCYX", (2, 2, 2, 20, 30)), series
            values = series.asarray().reshape(8, 600)
            assert (values == [[10 * p + c] for p in range(4) for c in range(2)]).all()
            info = file.lsm_metadata
            assert (info["VoxelSizeX"], info["VoxelSizeY"], info["VoxelSizeZ"]) == (1e-7, 2e-7, 5e-7)
            assert info["TimeIntervall"] == 1.5
            assert info["ChannelColors"]["ColorNames"] == ["nuclei", "membrane"]
            assert info["ChannelColors"]["Colors"] == [[0, 0, 255, 0], [255, 0, 0, 0]]
    with opened("stk") as file:
        series = file.series[0]
        assert (series.kind, series.axes, series.shape) == ("stk", "ZYX", (3, 2, 2)), series
        assert (series.asarray().ravel() == range(12)).all()
        info = file.stk_metadata
        assert (info["XCalibration"], info["CalibrationUnits"], info["ZDistance"][1]) == (0.13, "um", 0.5), info
        steps = numpy.diff(info["DatetimeCreated"])
        assert (steps == numpy.timedelta64(1, "s")).all(), steps
    with opened("fluoview") as file:
        series = file.series[0]
        assert (series.kind, series.axes, series.shape) == ("fluoview", "CZYX", (2, 2, 2, 3)), series
        assert (series.asarray().ravel() == range(24)).all()
    with opened("scanimage_flyback") as file:
        assert file.is_scanimage and len(file.pages) == 16
        settings = tifffile.matlabstr2py(file.pages[0].software)
        assert settings["SI.hStackManager.numFramesPerVolumeWithFlyback"] == 4, settings
        assert len(settings["SI.hChannels.channelSave"]) == 2, settings
    with opened("scanimage_5") as file:
        assert file.is_scanimage and len(file.pages) == 8
    with opened("ndpi") as file:
        assert [level.shape for level in file.series[0].levels] == [(4, 8), (2, 4)], file.series


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    check(Path(sys.argv[1]))
