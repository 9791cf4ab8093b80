"""Stacks of nuclei with ground truth from a generator independent of `cytoscope simulate`.

    python bench/nuclei_stacks.py OUT [--count 40] [--seed 1] [--dense] [--crop]

For each stack a nuclear diameter of 4 to 30 µm, a voxel size of 0.1 to 5 µm (at least 7 pixels and 3 slices per diameter)
and a scene are drawn: blobs with random radial functions, packed by relaxation of random points, unevenly illuminated,
blurred by an anisotropic Gaussian and sampled with Poisson and Gaussian noise. The ground truth is the objects before
blurring. With --dense, the stacks show tissue: nuclei fill the Voronoi cells of their centers except for narrow gaps, so
that they touch on most sides. With --crop, a random part of 2 × 2.6 × 2.6 diameters (Z, Y, X) is written, whose sides
cut nearly all nuclei; NAME.json then states the median diameter of the nuclei that are whole before cropping. Files are
NAME_raw.tif and NAME_labels.tif with the voxel size in ImageJ's tags. Needs numpy, scipy and tifffile.
"""
import argparse
import json
from pathlib import Path

import numpy as np
import tifffile
from scipy import ndimage
from scipy.spatial import cKDTree


def centers(rng, extent, spacing, wanted):
    """Random points pushed apart until they are at least about `spacing` from each other."""
    points = rng.random((wanted, 3)) * extent
    for _ in range(60):
        pairs = cKDTree(points).query_pairs(spacing, output_type="ndarray")
        if len(pairs) == 0:
            break
        gap = points[pairs[:, 0]] - points[pairs[:, 1]]
        length = np.linalg.norm(gap, axis=1, keepdims=True) + 1e-6
        push = gap / length * (spacing - length) * 0.5
        np.add.at(points, pairs[:, 0], push)
        np.add.at(points, pairs[:, 1], -push)
        points = np.clip(points, 0, extent)
    # Points that are still too close to an earlier one are dropped.
    kept = []
    tree = cKDTree(points)
    gone = set()
    for i, near in enumerate(tree.query_ball_point(points, 0.85 * spacing)):
        if i not in gone:
            kept.append(i)
            gone.update(j for j in near if j > i)
    return points[kept]


def body(rng, radius):
    """Returns an inside test and the reach of a body: an ellipsoid times the exponential of a few random cosines."""
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    axes = radius * np.exp(rng.normal(0, 0.13, 3))
    waves = rng.normal(size=(6, 3)) * rng.uniform(1.0, 3.0, (6, 1))
    phases, sizes = rng.uniform(0, 2 * np.pi, 6), rng.normal(0, 0.025, 6)

    def inside(offset):
        own = offset @ turn / axes
        length = np.linalg.norm(own, axis=-1)
        direction = own / (length[..., None] + 1e-9)
        bumps = sum(s * np.cos(direction @ w + p) for s, w, p in zip(sizes, waves, phases))
        return length < np.exp(bumps)

    return inside, float(axes.max()) * 1.2


def blobs(rng, shape, voxel, diameter):
    """Labels and brightness of scattered blobs."""
    extent = shape * voxel
    packed = rng.uniform(1.02, 2.2)
    spread = rng.uniform(0.05, 0.2)
    density = 0.5 if packed < 1.3 else 0.9
    wanted = max(4, int(density * extent.prod() / (packed * diameter) ** 3 * 1.6))
    labels = np.zeros(shape, np.uint16)
    light = np.zeros(shape, np.float32)
    brightness_spread = rng.uniform(0.05, 0.45)
    texture = ndimage.gaussian_filter(rng.normal(size=shape).astype(np.float32), 0.08 * diameter / voxel)
    texture *= rng.uniform(0, 0.35) / (texture.std() + 1e-9)
    label = 0
    for center in centers(rng, extent, packed * diameter, wanted):
        radius = 0.5 * diameter * np.exp(rng.normal(0, spread))
        inside, reach = body(rng, radius)
        low = np.maximum(((center - reach) / voxel).astype(int), 0)
        high = np.minimum(((center + reach) / voxel).astype(int) + 2, shape)
        if (high <= low).any():
            continue
        grid = np.stack(np.meshgrid(*[(np.arange(l, h) + 0.5) * v for l, h, v in zip(low, high, voxel)], indexing="ij"), -1)
        box = tuple(slice(l, h) for l, h in zip(low, high))
        free = inside(grid - center) & (labels[box] == 0)
        if free.sum() < 30:
            continue
        label += 1
        labels[box][free] = label
        light[box][free] = np.exp(rng.normal(0, brightness_spread))
    light *= np.maximum(1 + texture, 0.1)
    return labels, light


def tissue(rng, shape, voxel, diameter):
    """Labels and brightness of nuclei that fill the Voronoi cells of their centers up to narrow gaps."""
    extent = shape * voxel
    spacing = rng.uniform(0.85, 1.05) * diameter
    margin = 0.6 * diameter
    points = centers(rng, extent + 2 * margin, spacing, int(1.3 * (extent + 2 * margin).prod() / spacing**3)) - margin
    # Distances are stretched along random directions, so that nuclei are elongated.
    stretch = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    scales = np.exp(rng.normal(0, 0.15, 3))
    metric = (stretch * (scales / scales.prod() ** (1 / 3))) @ stretch.T
    where = np.stack(np.meshgrid(*[(np.arange(n) + 0.5) * v for n, v in zip(shape, voxel)], indexing="ij"), -1)
    where = where.reshape(-1, 3).astype(np.float32)
    distances, owners = cKDTree(points @ metric).query(where @ metric, k=2)
    apart = np.linalg.norm((points @ metric)[owners[:, 0]] - (points @ metric)[owners[:, 1]], axis=1)
    to_border = (distances[:, 1] ** 2 - distances[:, 0] ** 2) / (2 * apart)
    gap = rng.uniform(0.0, 0.1) * diameter
    waves = ndimage.gaussian_filter(rng.normal(size=shape).astype(np.float32), 0.15 * diameter / voxel)
    waves *= 0.03 * diameter / (waves.std() + 1e-9)
    radius = 0.5 * diameter * np.exp(rng.normal(0.08, rng.uniform(0.05, 0.15), len(points)))
    inside = (to_border > 0.5 * gap + waves.ravel()) & (distances[:, 0] < radius[owners[:, 0]])
    # Some cells hold no nucleus.
    inside &= (rng.random(len(points)) < rng.uniform(0.75, 1.0))[owners[:, 0]]
    numbers, labels = np.unique(np.where(inside, owners[:, 0] + 1, 0), return_inverse=True)
    labels = labels.reshape(shape).astype(np.uint16)
    brightness = np.exp(rng.normal(0, rng.uniform(0.1, 0.4), len(numbers) + 1)).astype(np.float32)
    texture = ndimage.gaussian_filter(rng.normal(size=shape).astype(np.float32), 0.08 * diameter / voxel)
    texture *= rng.uniform(0, 0.3) / (texture.std() + 1e-9)
    return labels, np.where(labels > 0, brightness[labels] * np.maximum(1 + texture, 0.1), 0).astype(np.float32)


def stack(rng, scene):
    diameter = np.exp(rng.uniform(np.log(4), np.log(30)))
    pixel = np.clip(diameter / np.exp(rng.uniform(np.log(7), np.log(40))), 0.1, 5.0)
    spacing = np.clip(pixel * np.exp(rng.uniform(0, np.log(6))), pixel, min(5.0, diameter / 3))
    voxel = np.array([max(spacing, pixel), pixel, pixel])
    extent = np.minimum(np.array([4.5, 6.0, 6.0]) * diameter, np.array([96, 320, 320]) * voxel)
    shape = np.maximum((extent / voxel).astype(int), 4)
    labels, light = scene(rng, shape, voxel, diameter)
    light += rng.uniform(0, 0.12) * (1 + ndimage.gaussian_filter(rng.normal(size=shape), 0.5 * diameter / voxel))
    blur_xy = rng.uniform(0.015, 0.06) * diameter
    light = ndimage.gaussian_filter(light, np.array([blur_xy * rng.uniform(1.5, 4), blur_xy, blur_xy]) / voxel)
    ramp = np.linspace(-0.5, 0.5, shape[2], dtype=np.float32) * rng.uniform(-0.5, 0.5)
    fade = np.exp(-np.linspace(0, rng.uniform(0, 0.8), shape[0], dtype=np.float32))
    light = light * (1 + ramp) * fade[:, None, None]
    photons = np.exp(rng.uniform(np.log(12), np.log(300)))
    counts = rng.poisson(np.maximum(light, 0) * photons) * rng.uniform(2, 20) + rng.normal(0, 4, shape) + 120
    return np.clip(counts, 0, 65535).astype(np.uint16), labels, voxel, diameter


def write(path, array, voxel):
    metadata = {"axes": "ZYX", "spacing": float(voxel[0]), "unit": "um"}
    tifffile.imwrite(path, array, imagej=True, resolution=(1 / voxel[2], 1 / voxel[1]), metadata=metadata)


def crop(rng, raw, labels, voxel):
    """A random small part of a stack, and the median diameter of the nuclei that the sides of the whole stack do not cut."""
    voxels = np.bincount(labels.ravel())
    whole = voxels > 0
    whole[0] = False
    for axis in range(3):
        for side in (0, -1):
            whole[np.unique(labels.take(side, axis))] = False
    if not whole.any():
        return None
    diameter = float(np.median((6 / np.pi * voxels[whole] * voxel.prod()) ** (1 / 3)))
    lengths = np.minimum(np.maximum(np.array([2.0, 2.6, 2.6]) * diameter / voxel, 5).astype(int), raw.shape)
    part = tuple(slice(first, first + n) for n, first in zip(lengths, rng.integers(0, np.array(raw.shape) - lengths + 1)))
    return raw[part], labels[part], diameter


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dense", action="store_true", help="nuclei that touch on most sides")
    parser.add_argument("--crop", action="store_true", help="small parts of the stacks")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    made = 0
    rng = np.random.default_rng(options.seed)
    while made < options.count:
        raw, labels, voxel, diameter = stack(rng, tissue if options.dense else blobs)
        if labels.max() < 3:
            continue
        stem = options.out / f"d{diameter:04.1f}_{made:03d}"
        if options.crop:
            part = crop(rng, raw, labels, voxel)
            if part is None or len(np.unique(part[1])) < 5:
                continue
            raw, labels, median = part
            Path(f"{stem}.json").write_text(json.dumps({"diameter_um": median}))
        write(f"{stem}_raw.tif", raw, voxel)
        write(f"{stem}_labels.tif", labels, voxel)
        made += 1
    print(f"{made} stacks in {options.out}")


if __name__ == "__main__":
    main()
