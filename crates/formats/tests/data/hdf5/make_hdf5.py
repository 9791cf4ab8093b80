"""Writes small HDF5 files with the Python packages `h5py`, `hdf5plugin` and `npy2bdv`.

    pip install h5py hdf5plugin npy2bdv numpy
    python make_hdf5.py FOLDER

Files, in the newer form of HDF5, which is smaller, but for `imaris_old`, `partial_old` and `plain`, which are in the oldest one, as most files are:
- `imaris`: two levels, two time points and two channels of three slices of 5 × 6 samples of 16 bits, padded to chunks of
  2 × 4 × 4 samples, with gzip; `imaris_old`: the first stack of it; `imaris_numbers`: the same with numbers instead of texts.
- `bdv`, with `bdv.xml` beside it: two tiles with two channels, two time points of which one lacks a stack, two levels.
- `links`: a file of BigDataViewer whose only stack is a link to that of `imaris_old`.
- `partial`: datasets, also in a group of many, beside virtual ones and beside links to the same place in two files and to a file
  that does not exist; `partial_old`: the same without links; `virtual`: a virtual dataset alone.
- `many_links`: links to stacks like that of `imaris_old` in 130 files.
- `chunks_differ`: a file of Imaris whose two channels have different chunks; `sizes_differ`: a file of BigDataViewer with another
  size at the second time point.
- `bomb`: a chunk of 180 bytes, in the oldest form, whose LZ4 data expand to 1 MiB.
- `levels_differ`: a file of BigDataViewer whose second level has one setup at one time point only.
- `empty_level`: a file of BigDataViewer whose second level has no samples.
- `ilastik`: 8-bit samples along Z, Y, X and channels, with the axis tags of ilastik and the voxel size.
- `plain`: a stack of floats without axes, a big-endian slice, Booleans along named axes, and datasets that are no images.
- `filters`: the same stack of 16 bits with each filter; `indices`: with each index of chunks, and one with few of its chunks.
- `deep`: big-endian chunks of one sample in a tree of two levels, in the oldest form; where the sum of the indices is a multiple of
  11, none is stored.
- `huge`: a dataset of 4 GB of which no chunk is stored.

Sample `i` of a stack is `i`, plus 1000 for each time point, 200 for each channel, 400 for each tile and 10000 for each level.
"""

import json
import sys
from pathlib import Path

import h5py
import hdf5plugin
import npy2bdv
import numpy as np

SHAPE = (3, 5, 6)


def counting(shape, dtype, first=0):
    """An array whose samples count up from `first`."""
    return (np.arange(np.prod(shape)) + first).reshape(shape).astype(dtype)


def letters(text):
    """A text as Imaris stores it: an array of strings of one character."""
    return np.frombuffer(text.encode("latin-1"), dtype="S1")




def padded(stack, chunk):
    """A stack extended by 9999 to whole chunks."""
    return np.pad(stack, [(0, -n % c) for n, c in zip(stack.shape, chunk)], constant_values=9999)


def imaris(path, libver="v110", counts=(2, 2, 2)):
    chunk = (2, 4, 4)
    levels, times, channels = counts
    with h5py.File(path, "w", libver=libver) as file:
        for level, shape in enumerate([SHAPE, (2, 3, 3)][:levels]):
            for t in range(times):
                for c in range(channels):
                    group = file.create_group(f"DataSet/ResolutionLevel {level}/TimePoint {t}/Channel {c}")
                    stack = counting(shape, "<u2", 10000 * level + 1000 * t + 200 * c)
                    group.create_dataset("Data", data=padded(stack, chunk), chunks=chunk, compression="gzip")
                    for axis, extent in zip("ZYX", shape):
                        group.attrs[f"ImageSize{axis}"] = letters(str(extent))
        info = file.create_group("DataSetInfo/Image")
        sizes = {"X": "6", "Y": "5", "Z": "3", "Unit": "um"}
        ends = {"ExtMin0": "-1.5", "ExtMax0": "1.500", "ExtMin1": "0", "ExtMax1": "2.5", "ExtMin2": "10", "ExtMax2": "16"}
        for key, value in {**sizes, **ends}.items():
            info.attrs[key] = letters(value)
        colors = [("DAPI", "0.000 0.000 1.000"), ("Alexa \u00b5", "1.000 0.500 0.000")]
        for c, (name, color) in enumerate(colors[:channels]):
            group = file.create_group(f"DataSetInfo/Channel {c}")
            for key, value in {"Name": name, "Color": color, "ColorMode": "BaseColor"}.items():
                group.attrs[key] = letters(value)
        time = file.create_group("DataSetInfo/TimeInfo")
        time.attrs["TimePoint1"] = letters("2024-02-29 23:59:59.000")
        time.attrs["TimePoint2"] = letters("2024-03-01 00:00:01.500")


def imaris_old(path):
    imaris(path, "earliest", (1, 1, 1))


def imaris_numbers(path):
    imaris(path, "v110", (1, 1, 1))
    with h5py.File(path, "r+", libver="v110") as file:
        channel, image = file["DataSet/ResolutionLevel 0/TimePoint 0/Channel 0"], file["DataSetInfo/Image"]
        for axis, extent, number in zip("ZYX", SHAPE, [np.int32, np.uint64, np.float64]):
            for attrs, name in [(channel.attrs, f"ImageSize{axis}"), (image.attrs, axis)]:
                del attrs[name]
                attrs[name] = number(extent)
        ends = {"ExtMin0": -1.5, "ExtMax0": np.float32(1.5), "ExtMin1": np.int16(0), "ExtMax1": 2.5, "ExtMin2": 10, "ExtMax2": [16]}
        for name, value in ends.items():
            del image.attrs[name]
            image.attrs[name] = value
        del file["DataSetInfo/Channel 0"].attrs["Color"]
        file["DataSetInfo/Channel 0"].attrs["Color"] = [0.0, 0.5, 1.0]


def bdv(folder):
    for name in ["bdv.h5", "bdv.xml"]:
        (folder / name).unlink(missing_ok=True)
    levels, blocks = ((1, 1, 1), (1, 2, 2)), ((2, 4, 4), (2, 2, 2))
    writer = npy2bdv.BdvWriter(str(folder / "bdv.h5"), subsamp=levels, blockdim=blocks, nchannels=2, ntiles=2, compression="gzip")
    writer.set_attribute_labels("channel", ("GFP", "RFP"))
    for t in range(2):
        for tile in range(2):
            for c in range(2):
                if (t, tile, c) != (1, 1, 0):
                    # Values above 32767 are stored as negative numbers.
                    stack = counting(SHAPE, "u2", 40000 + 1000 * t + 200 * c + 400 * tile)
                    sizes = {"voxel_size_xyz": (0.25, 0.5, 2.0), "voxel_units": "um"}
                    writer.append_view(stack, time=t, channel=c, tile=tile, **sizes)
    writer.write_xml()
    writer.close()
    with h5py.File(folder / "bdv.h5") as file, h5py.File(folder / "bdv", "w", libver="v110") as small:

        def copy(name, item):
            if isinstance(item, h5py.Dataset):
                small.create_dataset(name, data=item[()], chunks=item.chunks, compression=item.compression)

        file.visititems(copy)
    (folder / "bdv.h5").unlink()


def ilastik(path):
    with h5py.File(path, "w", libver="v110") as file:
        stack = counting((3, 5, 6, 2), "u1")
        data = file.create_dataset("exported_data", data=stack, chunks=(2, 3, 4, 2), compression="gzip", shuffle=True)
        axes = [{"key": key, "typeFlags": 2, "resolution": 0, "description": ""} for key in "zyxc"]
        data.attrs["axistags"] = json.dumps({"axes": axes})
        data.attrs["element_size_um"] = np.array([2.0, 0.5, 0.25])


def plain(path):
    with h5py.File(path, "w") as file:
        file["volume/raw"] = counting(SHAPE, "<f4") / 4
        file["a_slice"] = counting((5, 6), ">u2", 300)
        file["volume/mask"] = counting((2, 3, 4), "u1") % 3 == 0
        for i, label in enumerate(["Time", "y", "X"]):
            file["volume/mask"].dims[i].label = label
        file["volume/half"] = counting((2, 3, 3), "<f2") / 2
        file["volume/link"] = h5py.SoftLink("/volume")
        file["numbers"] = np.arange(7)
        file["text"] = "not an image"
        file["table"] = np.zeros((3, 4), dtype=[("a", "<i4"), ("b", "<f4")])


def filters(path):
    compressions = {
        "gzip": {"compression": "gzip"},
        "shuffled": {"compression": "gzip", "shuffle": True, "fletcher32": True},
        "lzf": {"compression": "lzf", "shuffle": True},
        "scaleoffset": {"scaleoffset": 0},
        "szip": {"compression": "szip"},
        "lz4": hdf5plugin.LZ4(),
        "lz4_blocks": hdf5plugin.LZ4(nbytes=20),
        "zstd": hdf5plugin.Zstd(),
        "blosc": hdf5plugin.Blosc(cname="lz4"),
        "bitshuffle": hdf5plugin.Bitshuffle(),
        "bitshuffle_blocks": hdf5plugin.Bitshuffle(nelems=8, cname="zstd"),
        "bitshuffle_plain": hdf5plugin.Bitshuffle(cname="none"),
        "bzip2": hdf5plugin.BZip2(),
        "blosc2": hdf5plugin.Blosc2(),
    }
    with h5py.File(path, "w", libver="v110") as file:
        for name, options in compressions.items():
            # Blosc stores small chunks as they are.
            chunks = SHAPE if name == "blosc" else (2, 4, 4)
            file.create_dataset(name, data=counting(SHAPE, "<u2"), chunks=chunks, **options)


def indices(path):
    with h5py.File(path, "w", libver="v110") as file:
        limits = {"single": None, "fixed": None, "extensible": (None, 5, 6), "btree": (None, None, 6), "early": None}
        for name, maximum in limits.items():
            chunks = SHAPE if name == "single" else (2, 4, 4)
            if name == "early":
                # Chunks are in the file before they are written, without an index.
                plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                plist.set_chunk(chunks)
                plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                space = h5py.h5s.create_simple(SHAPE)
                h5py.h5d.create(file.id, name.encode(), h5py.h5t.STD_U16LE, space, plist)
                file[name][...] = counting(SHAPE, "<u2")
            else:
                file.create_dataset(name, data=counting(SHAPE, "<u2"), chunks=chunks, maxshape=maximum)
        sparse = file.create_dataset("sparse", shape=SHAPE, dtype="<u2", chunks=(2, 4, 4), fillvalue=7)
        sparse[2, 4, 5] = 9


def deep(path):
    with h5py.File(path, "w") as file:
        data = file.create_dataset("deep", shape=(10, 12), dtype=">u2", chunks=(1, 1), fillvalue=500)
        for y in range(10):
            for x in range(12):
                if (x + y) % 11:
                    data[y, x] = 12 * y + x


def links(path):
    with h5py.File(path, "w", libver="v110") as file:
        file["s00/resolutions"] = np.array([[1.0, 1, 1]])
        stack = "/DataSet/ResolutionLevel 0/TimePoint 0/Channel 0/Data"
        file["t00000/s00/0/cells"] = h5py.ExternalLink("imaris_old", stack)


def add_virtual(file, name):
    layout = h5py.VirtualLayout(shape=SHAPE, dtype="<u2")
    layout[:] = h5py.VirtualSource("other", "data", shape=SHAPE)
    file.create_virtual_dataset(name, layout)


def partial(path):
    with h5py.File(path, "w", libver="v110") as file:
        file["good"] = counting(SHAPE, "<u2")
        add_virtual(file, "virtual")
        for i in range(9):
            file[f"many/{i}"] = np.full((3, 4), i, "u1")
        add_virtual(file, "many/virtual")
        stack = "/DataSet/ResolutionLevel 0/TimePoint 0/Channel 0/Data"
        for name in ["imaris_old", "copy", "nowhere"]:
            file[f"links/{name}"] = h5py.ExternalLink(name, stack)


def partial_old(path):
    with h5py.File(path, "w", libver="earliest") as file:
        file["good"] = counting(SHAPE, "<u2")
        file["zero"] = counting(SHAPE, "<u2") * 0
        add_virtual(file, "virtual")


def virtual(path):
    with h5py.File(path, "w", libver="v110") as file:
        add_virtual(file, "virtual")


def empty_level(path):
    with h5py.File(path, "w", libver="v110") as file:
        file["s00/resolutions"] = np.array([[1.0, 1, 1], [2, 2, 2]])
        file["t00000/s00/0/cells"] = counting(SHAPE, "<i2")
        file["t00000/s00/1/cells"] = counting((0, 3, 3), "<i2")


def many_links(path):
    with h5py.File(path, "w", libver="v110") as file:
        for i in range(130):
            file[f"{i:03}"] = h5py.ExternalLink(f"{i:03}", "/DataSet/ResolutionLevel 0/TimePoint 0/Channel 0/Data")


def chunks_differ(path):
    with h5py.File(path, "w", libver="v110") as file:
        for c, chunks in enumerate([(1, 2, 2), SHAPE]):
            name = f"DataSet/ResolutionLevel 0/TimePoint 0/Channel {c}/Data"
            file.create_dataset(name, data=counting(SHAPE, "<u2", 200 * c), chunks=chunks)


def sizes_differ(path):
    with h5py.File(path, "w", libver="v110") as file:
        file["s00/resolutions"] = np.array([[1.0, 1, 1]])
        file["t00000/s00/0/cells"] = counting(SHAPE, "<i2")
        file["t00001/s00/0/cells"] = counting((4, 5, 6), "<i2")


def bomb(path):
    size = 1 << 20
    # A zero, repetitions of it, and five zeros at the end.
    repeated = size - 6 - 19
    block = b"\x1f\0\1\0" + b"\xff" * (repeated // 255) + bytes([repeated % 255]) + b"\x50" + bytes(5)
    encoded = size.to_bytes(8, "big") + size.to_bytes(4, "big") + len(block).to_bytes(4, "big") + block
    with h5py.File(path, "w", libver="earliest") as file:
        options = {"chunks": SHAPE, "compression": 32004, "allow_unknown_filter": True}
        data = file.create_dataset("bomb", shape=SHAPE, dtype="<u2", **options)
        data.id.write_direct_chunk((0, 0, 0), encoded)


def levels_differ(path):
    with h5py.File(path, "w", libver="v110") as file:
        for setup in ["s00", "s02"]:
            file[f"{setup}/resolutions"] = np.array([[1.0, 1, 1], [2, 2, 2]])
            for t in range(2):
                file[f"t{t:05}/{setup}/0/cells"] = counting(SHAPE, "<i2")
        file["t00000/s00/1/cells"] = counting((2, 3, 3), "<i2")


def huge(path):
    with h5py.File(path, "w", libver="v110") as file:
        file.create_dataset("huge", shape=(20, 10000, 10000), dtype="<u2", chunks=(1, 1000, 1000), fillvalue=3)


def main(out):
    for make in [imaris, imaris_old, imaris_numbers, ilastik, plain, filters, indices, deep, links, huge, partial, partial_old, virtual, empty_level, many_links, chunks_differ, sizes_differ, bomb, levels_differ]:
        make(out / make.__name__)
    bdv(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
