"""Makes the OME-Zarr folders of this directory with zarr-python 3.1.6: python make.py.

The sample at (t, c, z, y, x) is 10000 t + 2000 c + 200 z + 10 y + x; level n holds every 2^n-th row and column.
"""

import pathlib
import shutil

import numcodecs
import numpy as np
import zarr
from zarr.codecs import BytesCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

HERE = pathlib.Path(__file__).parent


def image(axes, shape, dtype):
    weights = {"t": 10000, "c": 2000, "z": 200, "y": 10, "x": 1}
    grid = np.indices(shape)
    return sum(weights[a] * grid[i] for i, a in enumerate(axes)).astype(dtype)


def multiscales(axes, scales, units):
    kinds = {"t": "time", "c": "channel"}
    described = [{"name": a, "type": kinds.get(a, "space")} for a in axes]
    for axis in described:
        if axis["name"] in units:
            axis["unit"] = units[axis["name"]]
    sets = [
        {"path": str(i), "coordinateTransformations": [{"type": "scale", "scale": s}]} for i, s in enumerate(scales)
    ]
    return [{"version": "0.4", "name": "image", "axes": described, "datasets": sets}]


def fresh(name, version):
    shutil.rmtree(HERE / name, ignore_errors=True)
    return zarr.open_group(HERE / name, mode="w", zarr_format=version)


def v04_blosc():
    """Zarr 2 in the layout of bioformats2raw: Blosc, nested chunks, two levels, labels; the last chunk is missing."""
    group = fresh("v04_blosc", 2)
    full = image("czyx", (2, 3, 10, 12), "uint16")
    for level, data in enumerate([full, full[:, :, ::2, ::2]]):
        group.create_array(
            str(level), data=data, chunks=(1, 2, 8, 8), chunk_key_encoding={"name": "v2", "separator": "/"},
            compressors=numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.SHUFFLE), fill_value=7,
        )
    (HERE / "v04_blosc/0/1/1/1/1").unlink()
    scales = [[1, 1.5, 300, 300], [1, 1.5, 600, 600]]
    group.attrs["multiscales"] = multiscales("czyx", scales, {"z": "micrometer", "y": "nanometer", "x": "nanometer"})
    window = {"min": 0, "max": 65535, "start": 0, "end": 2500}
    group.attrs["omero"] = {"channels": [
        {"label": "DNA", "color": "0000FF", "window": window}, {"label": "Actin", "color": "00FF00", "window": window},
    ]}
    labels = group.create_group("labels")
    labels.attrs["labels"] = ["nuclei"]
    nuclei = labels.create_group("nuclei")
    nuclei.create_array("0", data=(full[0] > 200).astype("uint8"), chunks=(3, 10, 12))
    nuclei.attrs["multiscales"] = multiscales("zyx", [[1.5, 300, 300]], {})
    nuclei.attrs["image-label"] = {"source": {"image": "../../"}}


def v04_fortran():
    """Zarr 2 with big-endian samples in Fortran order, zlib, flat chunk names, no units."""
    group = fresh("v04_fortran", 2)
    group.create_array(
        "0", data=image("zyx", (3, 9, 7), ">i2"), chunks=(2, 4, 5), order="F", compressors=numcodecs.Zlib(level=1),
    )
    group.attrs["multiscales"] = multiscales("zyx", [[1, 1, 1]], {})


def v05(name, axes, shape, dtype, units, scale, **options):
    group = fresh(name, 3)
    group.create_array("0", data=image(axes, shape, dtype), **options)
    group.attrs["ome"] = {"version": "0.5", "multiscales": multiscales(axes, [scale], units)}


v04_blosc()
v04_fortran()
v05(
    "v05_sharded", "tzyx", (2, 3, 20, 14), "float32", {"t": "millisecond", "z": "micrometer", "y": "micrometer",
    "x": "micrometer"}, [500, 2, 0.5, 0.25], chunks=(1, 2, 8, 8), shards=(1, 4, 16, 16), compressors=ZstdCodec(),
)
v05(
    "v05_transposed", "cyx", (3, 11, 6), "uint32", {}, [1, 1, 1], chunks=(2, 4, 6),
    filters=TransposeCodec(order=(2, 0, 1)), serializer=BytesCodec(endian="big"), compressors=GzipCodec(level=1),
)
