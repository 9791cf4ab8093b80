"""Stacks of nuclei with ground truth under conditions that mislead programs (numpy, scipy and tifffile only).

    python bench/difficult_stacks.py OUT [--each 6] [--seed 1] [--only sparse --only debris20 ...]
    python bench/accuracy.py OUT --model nuclei --match '^sparse' --each

Each stack shows ellipsoids whose surfaces are disturbed by smooth noise, textured, blurred by an anisotropic Gaussian and sampled
with Poisson and Gaussian noise. Diameters are 14 to 26 pixels, slices one to three times as thick as pixels are wide. The ground
truth is the objects before blurring. The conditions:

    plain          40 nuclei
    sparse         three nuclei in 500 x 500 pixels
    debris8, debris20, debris50
                   40 nuclei and a glowing sphere of more than twice their diameter, 8, 20 or 50 times as bright
    dim            few photons
    saturated      8 bits, three fifths of the range clipped
    attenuated     the last slice has an eighth of the brightness of the first
    two_sizes      three fifths of the nuclei have 0.4 times the diameter of the others
    hollow         bright shells
    crowded        200 nuclei that touch
    background     three times as bright as the nuclei
    blurred        by 0.1 diameters in the plane and 0.25 along Z
    flat           a single layer, three tenths as thick as wide

Files are NAME_raw.tif and NAME_labels.tif with the voxel size in ImageJ's tags.
"""
import argparse
from pathlib import Path

import numpy as np
import tifffile
from scipy import ndimage

CONDITIONS = [
    "plain", "sparse", "debris8", "debris20", "debris50", "dim", "saturated", "attenuated", "two_sizes", "hollow", "crowded",
    "background", "blurred", "flat",
]  # fmt: skip
PEAK, CAMERA_OFFSET = 200.0, 100.0


def axes_and_turn(rng, diameter, condition):
    """Radii Z, Y, X of a body, and its rotation."""
    if condition == "flat":
        angle = rng.uniform(0, np.pi)
        turn = np.eye(3)
        turn[1:, 1:] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        return diameter / 2 * np.array([0.3, rng.uniform(1, 1.5), rng.uniform(0.8, 1)]), turn
    radii = np.exp(rng.uniform(np.log(0.8), np.log(1.25), 3))
    return diameter / 2 * radii / np.prod(radii) ** (1 / 3), np.linalg.qr(rng.normal(size=(3, 3)))[0]


def bodies(rng, shape, voxel, median, count, condition):
    """Labels, and the distance of each labeled voxel from its center relative to the surface."""
    extent = shape * voxel
    labels, depth = np.zeros(shape, np.uint16), np.zeros(shape, np.float32)
    placed = []
    for _ in range(30 * count):
        if len(placed) == count:
            break
        small = condition == "two_sizes" and rng.random() < 0.6
        size = 0.6 if small else 1.5 if condition == "two_sizes" else np.exp(rng.normal(0, 0.12))
        diameter = median * size
        center = rng.random(3) * extent
        squeeze = np.ones(3)
        if condition == "flat":
            center[0] = extent[0] / 2 + rng.normal(0, 0.05 * median)
            squeeze[0] = 0.2
        gap = 0.72 if condition == "crowded" else 0.85
        if any(np.linalg.norm((center - p) * squeeze) < gap * (diameter + q) / 2 for p, q in placed):
            continue
        radii, turn = axes_and_turn(rng, diameter, condition)
        reach = 1.35 * radii.max()
        low = np.maximum(np.floor((center - reach) / voxel), 0).astype(int)
        high = np.minimum(np.ceil((center + reach) / voxel) + 1, shape).astype(int)
        grid = np.meshgrid(*[(np.arange(a, b) + 0.5) * v for a, b, v in zip(low, high, voxel)], indexing="ij")
        relative = np.linalg.norm((np.stack(grid, -1) - center) @ turn / radii, axis=-1)
        bumps = ndimage.gaussian_filter(rng.normal(size=relative.shape), np.maximum(radii.min() / voxel * 0.5, 0.5))
        place = tuple(slice(a, b) for a, b in zip(low, high))
        inside = (relative + 0.07 * bumps / (bumps.std() + 1e-9) < 1) & (labels[place] == 0)
        parts, number = ndimage.label(inside)
        if number == 0:
            continue
        inside = parts == 1 + np.argmax(ndimage.sum(inside, parts, range(1, number + 1)))
        placed.append((center, diameter))
        labels[place][inside] = len(placed)
        depth[place][inside] = relative[inside]
    return labels, depth


def stack(rng, condition):
    """Intensities, labels and voxel size Z, Y, X in um of a random stack."""
    pixels, pixel, ratio = rng.uniform(14, 26), rng.choice([0.1, 0.2, 0.4, 0.65]), rng.uniform(1, 3)
    diameter, voxel = pixels * pixel, np.array([pixel * ratio, pixel, pixel])
    edge = 500 if condition == "sparse" else 160
    slices = max(10, int(1.6 * diameter / voxel[0])) if condition == "flat" else int(np.ceil(3.2 * diameter / voxel[0]))
    shape = np.array([np.clip(slices, 6, 40), edge, edge])
    count = {"sparse": 3, "crowded": 200}.get(condition, 40)
    labels, depth = bodies(rng, shape, voxel, diameter, count, condition)
    brightness = np.exp(rng.normal(0, 0.35, int(labels.max()) + 1))
    brightness[0] = 0
    texture = ndimage.gaussian_filter(rng.normal(size=shape), np.maximum(0.08 * diameter / voxel, 0.3))
    image = brightness[labels] * np.clip(1 + 0.25 * texture / texture.std(), 0.1, None)
    if condition == "hollow":
        image *= np.where(depth > 0.7, 1, 0.35)
    blur = 0.1 if condition == "blurred" else 0.04
    image = ndimage.gaussian_filter(image, blur * diameter * np.array([2.5, 1, 1]) / voxel)
    peak = 20.0 if condition == "dim" else PEAK
    image *= peak
    if condition == "attenuated":
        image *= np.exp(-np.linspace(0, np.log(8), shape[0]))[:, None, None]
    if condition.startswith("debris"):
        center = rng.random(3) * shape * voxel
        square = 0.0
        for axis in range(3):
            at = (np.arange(shape[axis]) + 0.5) * voxel[axis] - center[axis]
            square = square + at.reshape([-1 if a == axis else 1 for a in range(3)]) ** 2
        image += float(condition.removeprefix("debris")) * peak * np.exp(-square / (2 * (0.6 * diameter) ** 2))
    image += {"dim": 5.0, "background": 3 * PEAK}.get(condition, 20.0)
    image = rng.poisson(image) + rng.normal(0, 1.0 if condition == "dim" else 3.0, shape)
    if condition == "saturated":
        return np.clip(image / (0.6 * peak) * 255, 0, 255).astype(np.uint8), labels, voxel
    return np.clip(image + CAMERA_OFFSET, 0, 65535).astype(np.uint16), labels, voxel


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--each", type=int, default=6, help="stacks of each condition")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=CONDITIONS, help="conditions; default: all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for condition in options.only or CONDITIONS:
        for i in range(options.each):
            rng = np.random.default_rng([options.seed, CONDITIONS.index(condition), i])
            image, labels, voxel = stack(rng, condition)
            tags = {"imagej": True, "resolution": (1 / voxel[2], 1 / voxel[1])}
            tags["metadata"] = {"axes": "ZYX", "spacing": float(voxel[0]), "unit": "um"}
            for kind, values in [("raw", image), ("labels", labels)]:
                tifffile.imwrite(options.out / f"{condition}-{i}_{kind}.tif", values, **tags)


if __name__ == "__main__":
    main()
