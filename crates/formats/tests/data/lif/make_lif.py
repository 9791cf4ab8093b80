"""Writes small Leica LIF files and checks that Python's `liffile` reads them as expected.

    pip install liffile numpy
    python make_lif.py FOLDER

Files: `series` (version 2; an image of two time points, three slices and two channels of 12 bits in 16, and an image of two
slices of 8 bits in a folder), `tiles` (version 1; two tiles of a color image, whose rows are filled up to 15 bytes),
`float` (version 2; channels follow each other after all slices).
Pixel `i` of time point `t`, slice `z` and channel `c` is `i + 200 t + 50 z + 20 c`; of tile `m` and part `s` of a color,
`3 i + s + 100 m`.
"""

import struct
import sys
from pathlib import Path

import liffile
import numpy as np

UNITS = {1: "m", 2: "m", 3: "m", 4: "s", 10: ""}


def dimension(number, count, length, step):
    return (
        f'<DimensionDescription DimID="{number}" NumberOfElements="{count}" Origin="0" Length="{length}" '
        f'Unit="{UNITS[number]}" BitInc="0" BytesInc="{step}"/>'
    )


def channel(bits, step, table, tag=0, dye=None, kind=0):
    properties = f"<ChannelProperty><Key>DyeName</Key><Value>{dye}</Value></ChannelProperty>" if dye else ""
    return (
        f'<ChannelDescription DataType="{kind}" ChannelTag="{tag}" Resolution="{bits}" NameOfMeasuredQuantity="" Min="0" '
        f'Max="{2**bits - 1}" Unit="" LUTName="{table}" IsLUTInverted="0" BytesInc="{step}" BitInc="0">{properties}'
        "</ChannelDescription>"
    )


def image(name, block, size, channels, dimensions):
    return (
        f'<Element Name="{name}" Visibility="1" UniqueID="{name}"><Data><Image TextDescription=""><ImageDescription>'
        f"<Channels>{''.join(channels)}</Channels><Dimensions>{''.join(dimensions)}</Dimensions></ImageDescription>"
        '<Attachment Name="HardwareSetting"><Image><ImageDescription/></Image></Attachment></Image></Data>'
        f'<Memory Size="{size}" MemoryBlockID="{block}"/><Children/></Element>'
    )


def folder(name, data, children):
    return f'<Element Name="{name}" UniqueID="{name}"><Data>{data}</Data><Memory Size="0" MemoryBlockID="empty"/><Children>{children}</Children></Element>'


def lif(version, children, blocks):
    xml = f'<LMSDataContainerHeader Version="{version}">{folder("project.lif", "<Experiment/>", children)}</LMSDataContainerHeader>'
    text = xml.encode("utf-16-le")
    file = struct.pack("<IIBI", 0x70, len(text) + 5, 0x2A, len(text) // 2) + text
    for name, data in [("empty", b""), *blocks]:
        text = name.encode("utf-16-le")
        length = struct.pack("<Q" if version == 2 else "<I", len(data))
        head = b"\x2a" + length + b"\x2a" + struct.pack("<I", len(text) // 2)
        file += struct.pack("<II", 0x70, len(head) + len(text)) + head + text + data
    return file


def main(out):
    t, z, c, i = np.ogrid[:2, :3, :2, :12]
    stack = (i + 200 * t + 50 * z + 20 * c).astype("<u2").reshape(2, 3, 2, 3, 4)
    # Sizes are those from the first to the last sample; the stage moves down.
    first = image(
        "Series001",
        "MemBlock_1",
        stack.nbytes,
        [channel(12, 0, "Green", dye="Leica/ALEXA 488"), channel(12, 24, "Red", dye="DAPI")],
        [dimension(1, 4, 7.5e-7, 2), dimension(2, 3, 5e-7, 8), dimension(3, 3, -1e-6, 48), dimension(4, 2, 3, 144)],
    )
    slices = (np.arange(12) + 50 * np.arange(2)[:, None]).astype("u1").reshape(2, 3, 4)
    second = image(
        "Series002",
        "MemBlock_2",
        slices.nbytes,
        [channel(8, 0, "Gray")],
        [dimension(1, 4, 7.5e-7, 1), dimension(2, 3, 5e-7, 4), dimension(3, 2, 2e-6, 12)],
    )
    children = first + folder("Folder &amp; more", "<Collection/>", second)
    blocks = [("MemBlock_1", stack.tobytes()), ("MemBlock_2", slices.tobytes())]
    (out / "series").write_bytes(lif(2, children, blocks))
    with liffile.LifFile(out / "series") as file:
        assert [(image.path, image.dims) for image in file.images] == [
            ("Series001", ("T", "Z", "C", "Y", "X")),
            ("Folder & more/Series002", ("Z", "Y", "X")),
        ]
        assert (file.images[0].asarray() == stack).all() and (file.images[1].asarray() == slices).all()
        assert np.allclose(np.diff(file.images[0].coords["X"]), 2.5e-7)

    m, i, s = np.ogrid[:2, :8, :3]
    color = (3 * i + s + 100 * m).astype("u1").reshape(2, 2, 4, 3)
    padded = np.zeros((2, 2, 15), "u1")
    padded[..., :12] = color.reshape(2, 2, 12)
    tiles = image(
        "Tiles",
        "MemBlock_3",
        padded.nbytes,
        [channel(8, 0, "Blue", 3), channel(8, 1, "Green", 2), channel(8, 2, "Red", 1)],
        [dimension(1, 4, 3e-6, 3), dimension(2, 2, 1e-6, 15), dimension(10, 2, 0, 30)],
    )
    (out / "tiles").write_bytes(lif(1, tiles, [("MemBlock_3", padded.tobytes())]))
    with liffile.LifFile(out / "tiles") as file:
        read = file.images[0]
        assert read.dims == ("M", "Y", "X", "S"), read.dims
        # Blue comes first in the file.
        assert (read.asarray()[..., ::-1] == color).all()

    c, z, i = np.ogrid[:2, :3, :12]
    values = (i + 50 * z + 20 * c).astype("<f4").reshape(2, 3, 3, 4)
    planes = image(
        "Lifetimes",
        "MemBlock_4",
        values.nbytes,
        [channel(32, 0, "Cyan", kind=1), channel(32, 144, "Glow (O&amp;U)", kind=1)],
        [dimension(1, 4, 7.5e-7, 4), dimension(2, 3, 5e-7, 16), dimension(3, 3, 1e-6, 48)],
    )
    (out / "float").write_bytes(lif(2, planes, [("MemBlock_4", values.tobytes())]))
    with liffile.LifFile(out / "float") as file:
        assert file.images[0].dims == ("C", "Z", "Y", "X") and (file.images[0].asarray() == values).all()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
