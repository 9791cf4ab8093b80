"""Simulated stacks of fluorescent nuclei, modeled on data sets that microscopists publish, with ground truth.

    python bench/microscope_stacks.py OUT [--seed 2031] [--match liver] [--montage FOLDER]

Writes NAME_raw.tif and NAME_labels.tif of two stacks of each kind (the first as ImageJ TIFF, the second as OME-TIFF),
and of stacks without nuclei, whose names start with empty. The files state the voxel size. Nuclei have diameters of 3
to 30 um, voxels are 0.1 to 5 um wide, and slices up to six times as far apart. Bodies are painted on a grid finer than
the voxels, blurred by a point-spread function and haze, dimmed by depth and illumination, averaged over voxels, and
recorded by a camera with shot noise, read noise, gain and offset.

Bodies that a person would not see are left out of the ground truth: those whose contrast with their surroundings is
below 0.15 or, summed over their largest section, below five standard deviations of the noise. `--montage` writes a PNG
of each stack: its middle slice and a slice along Z, without and with the true outlines. Needs numpy, scipy and
tifffile.
"""

import argparse
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import tifffile
from scipy import ndimage

from microscope_kinds import EMPTY, KINDS


def write(path, image, labels, voxel, ome):
    z, y, x = voxel
    if ome:
        size = {"PhysicalSizeZ": z, "PhysicalSizeY": y, "PhysicalSizeX": x}
        units = {f"PhysicalSize{axis}Unit": "µm" for axis in "ZYX"}
        tags = {"ome": True, "metadata": {"axes": "ZYX", **size, **units}}
    else:
        tags = {"imagej": True, "resolution": (1 / x, 1 / y), "metadata": {"axes": "ZYX", "spacing": z, "unit": "um"}}
    for name, values in [("raw", image), ("labels", labels)]:
        tifffile.imwrite(f"{path}_{name}.tif", values, **tags)


def montage(path, image, labels, voxel):
    """Middle slice and a slice along Z at the same scale, without and with true outlines."""
    low, high = np.percentile(image, [0.5, 99.7])
    gray = np.clip((image - low) / max(high - low, 1e-6), 0, 1)
    tiles = []
    for cut, zoom in [((len(image) // 2,), (1, 1)), ((slice(None), image.shape[1] // 2), (voxel[0] / voxel[2], 1))]:
        flat = labels[cut]
        edge = (ndimage.maximum_filter(flat, 3) != ndimage.minimum_filter(flat, 3)) & (flat > 0)
        plain = np.repeat(ndimage.zoom(gray[cut], zoom, order=0)[..., None], 3, -1)
        marked = plain.copy()
        marked[ndimage.zoom(edge.astype(np.uint8), zoom, order=0) > 0] = [1, 0.2, 0.2]
        tiles.append(np.concatenate([plain, marked], 1))
    write_png(path, (255 * np.concatenate(tiles)).astype(np.uint8))


def write_png(path, rgb):
    """Writes a PNG with the standard library alone."""
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    rows = b"".join(b"\0" + row.tobytes() for row in rgb)
    head = struct.pack(">IIBBBBB", rgb.shape[1], rgb.shape[0], 8, 2, 0, 0, 0)
    Path(path).write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=2031)
    parser.add_argument("--match", default="")
    parser.add_argument("--montage", type=Path, help="folder for a PNG of each stack")
    options = parser.parse_args()
    for folder in (options.out, options.montage):
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
    names = list(KINDS) + list(EMPTY)
    for name in names:
        for i in filter(lambda i: re.search(options.match, f"{name}{i}"), range(2 if name in KINDS else 1)):
            rng = np.random.default_rng([options.seed, names.index(name), i])
            scene, image, labels = {**KINDS, **EMPTY}[name](rng, i)
            write(options.out / f"{name}{i}", image, labels, scene.voxel, ome=i == 1)
            if options.montage:
                montage(options.montage / f"{name}{i}.png", image, labels, scene.voxel)
            volumes = np.bincount(labels.ravel())[1:]
            volumes = volumes[volumes > 0] * scene.voxel.prod()
            diameter = np.median((6 / np.pi * volumes) ** (1 / 3)) if len(volumes) else 0
            print(
                f"{name}{i}: {image.shape} {image.dtype} {len(volumes)} of {scene.count} nuclei, "
                f"{diameter:.1f} um, {diameter / scene.voxel[2]:.1f} voxels along X"
            )


if __name__ == "__main__":
    main()
