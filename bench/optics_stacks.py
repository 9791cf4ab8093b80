"""Stacks of nuclei with ground truth, imaged by simulated microscopes (numpy, scipy and tifffile only).

    python bench/optics_stacks.py OUT [--match REGEX]
    python bench/accuracy.py OUT --model nuclei --match '^f5' --each

57 scenes. Nuclei are deformed ellipsoids with chromatin and nucleoli; some are mitotic or apoptotic. The light is
blurred by the point spread function of a confocal, light-sheet or widefield microscope (a Gaussian whose width grows
with the distance along Z), haze and background are added, and photons are counted with Poisson noise and the camera's
Gaussian noise. The ground truth is the nuclei before blurring; apoptotic nuclei, debris and fibers do not belong to it.
Names begin with:

    s, m, l   small, medium-sized and large nuclei, by microscope, noise, density and voxel size
    f         one to five nuclei
    t         two sizes of nuclei
    e         elongated and flat nuclei
    d         debris, fibers, apoptotic and mitotic nuclei
    z         no nuclei
    q         3 to 8 slices
    b         nuclei that are large for the stack
    n         files that state no voxel size
    v         unequal brightness, little of the range, saturation, uneven illumination

Files are NAME_raw.tif and NAME_labels.tif with the voxel size in ImageJ's tags or in OME-XML; if they state none,
NAME.json has it. The random numbers depend on the name only.
"""
import argparse
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tifffile
from scipy import fft, ndimage
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

DIAMETER_SPREAD, DEFORMATION, GAP = 0.1, 0.08, 0.06
FOURIER_PADDING = 8
CAMERA_OFFSET, CAMERA_GAIN = 100, 3.0


@dataclass
class Scene:
    """What a stack shows, and how it is imaged. Shapes and axes are Z, Y, X."""

    name: str
    diameter_um: float
    pixel_um: float
    slice_um: float
    shape: tuple
    placement: str = "tissue"  # or spheroid, sparse, culture (one layer), clump (nuclei that touch), none
    fill: float = 0.5  # share of the volume of a tissue or spheroid
    count: int = 0  # nuclei in the other placements
    large_um: float = 0.0  # a second diameter
    large_share: float = 0.3  # of nuclei with the second diameter
    axes: tuple = (1, 1, 1)  # relative to the diameter
    aligned: bool = True
    brightness_spread: float = 0.25
    texture: float = 0.35
    nucleoli: bool = True
    chromocenters: int = 0
    mitotic: float = 0.02  # share of nuclei
    apoptotic: float = 0.0  # share of nuclei
    debris: int = 0
    fibers: int = 0
    microscope: str = "confocal"  # or light sheet, widefield
    photons: float = 150
    background: float = 0.05
    haze: float = 0.1
    attenuation_um: float = 0.0  # depth at which the light has fallen to 1 / e
    vignetting: float = 0.0
    read_noise: float = 2.0
    bits: int = 16
    exposure: float = 1.0  # of 8-bit stacks: share of the range that is used, above about 1.1 saturated
    metadata: str = "imagej"  # or ome, none


NOISY = {"photons": 12, "background": 0.25, "read_noise": 4.0}
CLEAN = {"photons": 400, "background": 0.02, "haze": 0.05}
SPARSE = {"placement": "sparse"}
CULTURE = {"placement": "culture"}
EMPTY = {"placement": "none"}
SHEET = {"microscope": "light sheet"}
WIDE = {"microscope": "widefield"}
OME = {"metadata": "ome"}
UNSTATED = {"metadata": "none"}
SCENES = [
    Scene("s1_iso_dense_clean", 5, 0.4, 0.4, (48, 160, 160), **SHEET, **CLEAN),
    Scene("s2_aniso3_dense_noisy", 5.5, 0.3, 1.0, (30, 256, 256), fill=0.45, **OME, **NOISY),
    Scene("s3_sparse_clean", 4, 0.2, 0.4, (40, 256, 256), **SPARSE, count=70, **CLEAN),
    Scene("s4_sparse_wide_noisy", 6, 0.3, 0.9, (40, 256, 256), **SPARSE, count=90, **WIDE, **NOISY),
    Scene("s5_coarse", 6, 0.5, 1.5, (30, 200, 200), fill=0.4, bits=8),
    Scene("s6_fine", 4, 0.1, 0.3, (30, 300, 300), **SPARSE, count=40, **OME, nucleoli=False),
    Scene("m1_iso_dense_clean", 8, 0.5, 0.5, (64, 200, 200), fill=0.52, **SHEET, **CLEAN),
    Scene("m2_iso_dense_noisy", 8, 0.6, 0.6, (50, 180, 180), **OME, **NOISY),
    Scene("m3_aniso3_dense_clean", 9, 0.35, 1.05, (40, 256, 256), fill=0.52, **CLEAN),
    Scene("m4_aniso5_dense_noisy", 10, 0.4, 2.0, (30, 256, 256), bits=8, **NOISY),
    Scene("m5_aniso6_dense", 9, 0.5, 3.0, (30, 256, 256), fill=0.45),
    Scene("m6_iso_sparse_clean", 10, 0.5, 0.5, (80, 200, 200), **SPARSE, count=60, bits=8, **CLEAN),
    Scene("m7_aniso5_sparse_noisy", 11, 0.3, 1.5, (30, 320, 320), **SPARSE, count=45, **OME, **NOISY),
    Scene("m8_fine", 8, 0.15, 0.5, (40, 400, 400), fill=0.3),
    Scene("m9_spheroid_sheet", 8, 0.8, 0.8, (80, 128, 128), "spheroid", **SHEET, attenuation_um=60, photons=60),
    Scene("m10_sheet_1um", 10, 1.0, 2.0, (40, 200, 200), fill=0.4, **SHEET, photons=80),
    Scene("m11_wide_hazy", 9, 0.325, 1.0, (40, 256, 256), fill=0.35, **WIDE, haze=0.35, background=0.1, **OME),
    Scene("m12_deep_atten", 9, 0.4, 1.0, (80, 200, 200), fill=0.45, attenuation_um=30, photons=100, haze=0.2),
    Scene("l1_dense", 15, 0.3, 0.9, (40, 300, 300)),
    Scene("l2_moderate", 20, 0.5, 1.0, (60, 256, 256), fill=0.35, **OME),
    Scene("l3_30um_sparse", 30, 0.5, 1.0, (70, 400, 400), **SPARSE, count=14, **CLEAN),
    Scene("l4_aniso5_noisy", 25, 0.8, 4.0, (30, 256, 256), fill=0.4, **NOISY),
    Scene("l5_fine_few", 18, 0.2, 1.0, (40, 400, 400), **SPARSE, count=8),
    Scene("l6_chromocenters", 16, 0.25, 0.5, (60, 300, 300), **SPARSE, count=14, chromocenters=14, texture=0.5),
    Scene("l7_coarse_1um_5um", 30, 1.0, 5.0, (30, 200, 200), fill=0.4, bits=8),
    Scene("f1_one", 12, 0.3, 0.6, (40, 200, 200), **SPARSE, count=1),
    Scene("f2_two_touching", 10, 0.25, 0.5, (40, 200, 200), "clump", count=2),
    Scene("f3_three_noisy", 8, 0.4, 1.2, (30, 256, 256), **SPARSE, count=3, **NOISY),
    Scene("f4_five_wide", 20, 0.4, 1.2, (40, 300, 300), **SPARSE, count=5, **WIDE, haze=0.3),
    Scene("f5_four_small_noisy", 5, 0.3, 0.6, (40, 300, 300), **SPARSE, count=4, **OME, **NOISY),
    Scene("t1_6_12_tissue", 6, 0.35, 0.7, (50, 220, 220), large_um=12, large_share=0.35, fill=0.45),
    Scene("t2_8_20_sparse", 8, 0.4, 1.0, (50, 256, 256), large_um=20, large_share=0.4, **SPARSE, count=45),
    Scene("e1_elong_aligned", 9, 0.35, 0.8, (40, 256, 256), axes=(0.75, 0.75, 1.8), fill=0.48),
    Scene("e2_elong_random", 9, 0.3, 0.6, (50, 256, 256), axes=(0.7, 0.7, 2.1), aligned=False, **SPARSE, count=45),
    Scene("e3_flat_culture", 11, 0.2, 0.4, (30, 400, 400), axes=(0.45, 1.5, 1.5), **CULTURE, count=26),
    Scene("e4_flat_wide_noisy", 11, 0.325, 1.0, (12, 300, 300), axes=(0.45, 1.5, 1.5), **CULTURE, count=36,
          **WIDE, photons=40, background=0.2, **OME),
    Scene("e5_columnar", 8, 0.25, 0.6, (40, 256, 256), axes=(1.7, 0.77, 0.77), **CULTURE, count=75),
    Scene("d1_debris_sparse", 10, 0.35, 0.8, (40, 256, 256), **SPARSE, count=35, debris=60),
    Scene("d2_debris_fibres_tissue", 9, 0.4, 1.0, (40, 256, 256), fill=0.3, debris=50, fibers=12),
    Scene("d3_apop_mito", 8, 0.3, 0.9, (40, 256, 256), fill=0.4, mitotic=0.1, apoptotic=0.08, bits=8),
    Scene("z1_noise", 10, 0.3, 0.8, (30, 200, 200), **EMPTY, photons=40, background=0.2),
    Scene("z2_haze_8bit", 10, 0.3, 0.8, (30, 200, 200), **EMPTY, photons=40, background=0.3, vignetting=0.6, bits=8),
    Scene("z3_debris", 10, 0.3, 0.8, (30, 200, 200), **EMPTY, photons=100, background=0.1, debris=30),
    Scene("q1_3slices", 9, 0.3, 1.0, (3, 320, 320), fill=0.45),
    Scene("q2_5slices_2um", 10, 0.4, 2.0, (5, 320, 320), fill=0.4, **OME),
    Scene("q3_8slices_iso", 9, 0.4, 0.4, (8, 320, 320), fill=0.45),
    Scene("q4_6slices_sparse", 12, 0.25, 1.5, (6, 400, 400), **CULTURE, count=22, bits=8),
    Scene("b1_big_in_small", 20, 0.4, 0.5, (40, 128, 128)),
    Scene("b2_thin_slab", 12, 0.35, 0.7, (14, 300, 300), fill=0.48),
    Scene("n1_iso_dense", 8, 0.4, 0.4, (50, 200, 200), **UNSTATED, **SHEET),
    Scene("n2_aniso4", 9, 0.4, 1.6, (30, 256, 256), fill=0.45, **UNSTATED),
    Scene("n3_aniso2_sparse", 12, 0.3, 0.6, (50, 256, 256), **SPARSE, count=30, **UNSTATED),
    Scene("n4_aniso3_fine_large", 14, 0.2, 0.6, (40, 400, 400), fill=0.4, **UNSTATED, bits=8),
    Scene("v1_uneven_brightness", 9, 0.35, 0.9, (40, 256, 256), fill=0.42, brightness_spread=0.8),
    Scene("v2_8bit_low", 9, 0.35, 0.9, (40, 256, 256), fill=0.42, bits=8, exposure=0.15, photons=60),
    Scene("v3_8bit_saturated", 9, 0.35, 0.9, (40, 256, 256), fill=0.42, bits=8, exposure=2.5),
    Scene("v4_illum_gradient", 9, 0.35, 0.9, (40, 256, 256), fill=0.35, vignetting=0.8, photons=60, background=0.15),
]  # fmt: skip


class Grid:
    """The voxels in which a scene is drawn: the stack with a margin on each side, thick slices divided."""

    def __init__(self, scene):
        slices, rows, columns = scene.shape
        pixel = scene.pixel_um
        self.per_slice = max(1, int(np.ceil(scene.slice_um / max(pixel * 1.3, 0.4))))
        largest = scene.large_um or scene.diameter_um
        above = min(largest * 0.6, 8.0 if scene.microscope == "widefield" else 5.0)
        above = int(np.ceil(above / scene.slice_um)) * self.per_slice
        beside = int(np.ceil(min(largest * 0.5, 4.0) / pixel))
        if scene.placement in ("spheroid", "clump"):
            above, beside = self.per_slice, 1
        self.padding = (above, beside)
        self.shape = (slices * self.per_slice + 2 * above, rows + 2 * beside, columns + 2 * beside)
        self.voxel_um = (scene.slice_um / self.per_slice, pixel, pixel)
        self.stack_um = np.array([slices * scene.slice_um, rows * pixel, columns * pixel])
        self.margin_um = np.array([above * self.voxel_um[0], beside * pixel, beside * pixel])
        self.extent_um = self.stack_um + 2 * self.margin_um

    def stack(self, scene, values):
        """The voxels of the stack: those at the middle of its slices, without the margin."""
        slices, rows, columns = scene.shape
        above, beside = self.padding
        planes = slice(above + self.per_slice // 2, above + slices * self.per_slice, self.per_slice)
        return values[planes, beside : beside + rows, beside : beside + columns]


class Canvas:
    """What has been drawn: light of nuclei and of debris, labels, and the relative distance from the nearest center."""

    def __init__(self, rng, scene, grid):
        self.light = np.zeros(grid.shape, np.float32)
        self.debris = np.zeros(grid.shape, np.float32)
        self.labels = np.zeros(grid.shape, np.int32)
        self.distance = np.full(grid.shape, 9.0, np.float32)
        repeated = (96, 128, 128)
        self.fine = smooth_noise(rng, repeated, grid.voxel_um, max(0.25, 0.9 * scene.pixel_um))
        self.coarse = smooth_noise(rng, repeated, grid.voxel_um, max(0.7, scene.diameter_um * 0.07))


def smooth_noise(rng, shape, voxel_um, smooth_um):
    """Periodic Gaussian noise of standard deviation 1."""
    noise = rng.standard_normal(shape).astype(np.float32)
    noise = ndimage.gaussian_filter(noise, [smooth_um / v for v in voxel_um], mode="wrap", truncate=3)
    return noise / noise.std()


def draw_diameters(rng, scene, count):
    diameters = scene.diameter_um * np.exp(rng.normal(0, DIAMETER_SPREAD, count))
    if scene.large_um:
        diameters[rng.random(count) < scene.large_share] *= scene.large_um / scene.diameter_um
    return diameters


def place(rng, scene, grid):
    """Centers in um from the corner of the margin, and diameters."""
    if scene.placement == "none":
        return np.zeros((0, 3)), np.zeros(0)
    if scene.placement in ("tissue", "spheroid"):
        return place_packed(rng, scene, grid)
    if scene.placement == "clump":
        return place_clump(rng, scene, grid)
    return place_apart(rng, scene, grid)


def place_packed(rng, scene, grid):
    """Random spheres pushed apart, in a space that is stretched afterwards if the nuclei are elongated and aligned.

    A tissue continues for a diameter beyond the margin."""
    stretch = np.array(scene.axes, float) if scene.aligned else np.ones(3)
    is_spheroid = scene.placement == "spheroid"
    beyond = np.zeros(3) if is_spheroid else scene.diameter_um * stretch
    size = (grid.extent_um + 2 * beyond) / stretch
    diameters = draw_diameters(rng, scene, 40_000)
    volumes = np.cumsum(np.pi / 6 * (diameters * (1 + GAP)) ** 3)
    volume = np.prod(size) * (np.pi / 6 if is_spheroid else 1)
    diameters = diameters[: max(1, int(np.searchsorted(volumes, scene.fill * volume)))]
    count = len(diameters)
    points = rng.random((count, 3)) * size
    if is_spheroid:
        directions = rng.standard_normal((count, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        points = size / 2 + directions * rng.random((count, 1)) ** (1 / 3) * (size / 2 * 0.88)
    return push_apart(points, diameters / 2 * (1 + GAP), size, is_spheroid) * stretch - beyond, diameters


def push_apart(points, radii, size, is_spheroid):
    """Moves overlapping spheres apart, up to 150 times; points stay in the box or in the ellipsoid inside of it."""
    for _ in range(150):
        pairs = cKDTree(points).query_pairs(2 * radii.max(), output_type="ndarray")
        between = points[pairs[:, 0]] - points[pairs[:, 1]]
        apart = np.linalg.norm(between, axis=1) + 1e-6
        overlap = radii[pairs[:, 0]] + radii[pairs[:, 1]] - apart
        close = overlap > 0
        if not close.any():
            break
        push = (between[close] / apart[close, None]) * (overlap[close, None] * 0.3)
        np.add.at(points, pairs[close, 0], push)
        np.add.at(points, pairs[close, 1], -push)
        if is_spheroid:
            relative = (points - size / 2) / (size / 2 * 0.9)
            length = np.linalg.norm(relative, axis=1, keepdims=True)
            surface = size / 2 + relative / np.maximum(length, 1e-6) * (size / 2 * 0.9)
            points = np.where(length > 1, surface, points)
        else:
            points = np.where(points < 0, -points, points)
            points = np.where(points > size, 2 * size - points, points)
    return points


def place_clump(rng, scene, grid):
    """A row of nuclei along X that touch."""
    diameters = draw_diameters(rng, scene, scene.count)
    centers = [grid.extent_um / 2 - [0, 0, diameters[0] * 0.5]]
    for before, after in zip(diameters, diameters[1:]):
        step = np.array([rng.normal(0, 0.5), rng.normal(0, 0.5), (before + after) / 2 * 0.98])
        centers.append(centers[-1] + step)
    return np.array(centers), diameters


def place_apart(rng, scene, grid):
    """Random centers at least about a diameter apart, the largest nuclei first; up to eight nuclei lie inside the stack."""
    axes = np.array(scene.axes, float)
    in_layer = scene.placement == "culture"
    reach = axes[2] if in_layer else max(1, axes.max() * 0.85)
    used = slice(1, None) if in_layer else slice(None)
    centers, diameters = [], []
    for diameter in -np.sort(-draw_diameters(rng, scene, scene.count)):
        for _ in range(4000):
            if in_layer:
                height = grid.margin_um[0] + grid.stack_um[0] * 0.5 + rng.normal(0, 0.1 * diameter * axes[0])
                center = np.array([height, *(rng.random(2) * grid.extent_um[1:])])
            else:
                center = rng.random(3) * grid.stack_um + grid.margin_um
                if scene.count <= 8:
                    low = grid.margin_um + diameter * 0.45
                    high = grid.margin_um + grid.stack_um - diameter * 0.45
                    middle = (low + high) / 2
                    center = np.clip(center, np.minimum(low, middle), np.maximum(high, middle))
            distances = [np.linalg.norm((center - other)[used]) for other in centers]
            if all(d > (diameter + other) / 2 * reach * 1.02 for d, other in zip(distances, diameters)):
                centers.append(center)
                diameters.append(diameter)
                break
    return np.array(centers), np.array(diameters)


def rotation(rng, scene):
    """A rotation matrix: nearly upright in a culture, nearly the identity for aligned nuclei, random otherwise."""
    if scene.placement == "culture":
        return Rotation.from_rotvec([rng.uniform(0, 2 * np.pi), rng.normal(0, 0.06), rng.normal(0, 0.06)]).as_matrix()
    if scene.aligned and np.ptp(scene.axes) > 0:
        return Rotation.from_rotvec(rng.normal(0, 0.12, 3)).as_matrix()
    return Rotation.from_quat(np.random.RandomState(rng.integers(1 << 31)).normal(size=4)).as_matrix()


def draw_nucleus(rng, scene, grid, canvas, number, center, diameter):
    """Draws a nucleus, or the bright fragments of an apoptotic one."""
    brightness = np.exp(rng.normal(0, scene.brightness_spread))
    kind = rng.random()
    is_apoptotic = kind < scene.apoptotic
    is_mitotic = not is_apoptotic and kind < scene.apoptotic + scene.mitotic
    radii = diameter / 2 * np.array(scene.axes, float) * np.exp(rng.normal(0, 0.09, 3))
    radii *= (diameter / 2) / np.prod(radii) ** (1 / 3)
    if is_mitotic:
        radii = diameter / 2 * 0.85 * np.array([0.55, 1.1, 1.1])[rng.permutation(3)]
        brightness *= 1.8
    turn = rotation(rng, scene)
    if is_apoptotic:
        for _ in range(rng.integers(3, 7)):
            fragment, radius = center + rng.normal(0, diameter * 0.18, 3), diameter * rng.uniform(0.06, 0.14)
            draw_ball(canvas.debris, grid, fragment, radius, brightness * rng.uniform(1.5, 4))
        return
    voxel = grid.voxel_um
    reach = np.sqrt(((turn * radii) ** 2).sum(1)) * 1.35 + 2 * np.array(voxel)
    low = np.maximum(0, np.floor((center - reach) / voxel)).astype(int)
    high = np.minimum(grid.shape, np.ceil((center + reach) / voxel).astype(int) + 1)
    if (high <= low).any():
        return
    box = tuple(slice(a, b) for a, b in zip(low, high))
    along = [(np.arange(a, b) + 0.5) * v - c for a, b, v, c in zip(low, high, voxel, center)]
    offsets = np.stack(np.meshgrid(*along, indexing="ij"), -1).astype(np.float32)
    relative, distance = deform(rng, (offsets @ turn.astype(np.float32)) / radii.astype(np.float32))
    coverage = np.clip((1 - distance) * diameter / 2 / max(scene.pixel_um, voxel[0]) + 0.5, 0, 1)
    nearest = distance < canvas.distance[box]
    light = brightness * coverage * chromatin(rng, scene, canvas, relative, distance, is_mitotic)
    drawn = nearest & (coverage > 0)
    canvas.light[box][drawn] = light[drawn]
    canvas.distance[box][nearest] = distance[nearest]
    canvas.labels[box][nearest & (distance < 1)] = number


def deform(rng, relative):
    """Bends an ellipsoid of radius 1 and adds a few random cosines to its surface.

    Returns the coordinates, and the distances from the center relative to the surface."""
    bend = rng.normal(0, DEFORMATION * 1.2)
    relative[..., 0] += bend * (relative[..., 2] ** 2 - 0.33)
    distance = np.sqrt((relative**2).sum(-1)) + 1e-6
    directions = relative / distance[..., None]
    surface = np.ones_like(distance)
    for _ in range(5):
        wave = rng.normal(0, 1.4, 3).astype(np.float32)
        surface += DEFORMATION * 0.6 * rng.normal() * np.cos(directions @ wave + rng.uniform(0, 6.3))
    return relative, distance / np.clip(surface, 0.7, 1.35)


def chromatin(rng, scene, canvas, relative, distance, is_mitotic):
    """Relative brightness inside a nucleus: texture and a bright rim, dark nucleoli, bright chromocenters."""
    starts = [rng.integers(0, n) for n in canvas.fine.shape]
    part = np.ix_(*[(np.arange(n) + start) % m for n, start, m in zip(distance.shape, starts, canvas.fine.shape)])
    fine, coarse = canvas.fine[part], canvas.coarse[part]
    if is_mitotic:
        return np.exp(0.1 * fine)
    light = np.exp(scene.texture * (0.5 * fine + 0.8 * coarse)) * (1 + 0.25 * np.exp(-(((1 - distance) / 0.12) ** 2)))

    def ball(exponent, farthest, smallest, largest):
        center = rng.standard_normal(3)
        center *= rng.random() ** exponent * farthest / np.linalg.norm(center)
        radius = rng.uniform(smallest, largest)
        away = np.sqrt(((relative - center.astype(np.float32)) ** 2).sum(-1))
        return np.clip((radius - away) / 0.05 + 0.5, 0, 1)

    if scene.nucleoli:
        for _ in range(rng.integers(1, 5)):
            light = light * (1 - 0.75 * ball(0.5, 0.6, 0.13, 0.26))
    for _ in range(scene.chromocenters):
        light = light + 2.2 * ball(0.4, 0.85, 0.06, 0.14)
    return light


def draw_ball(light, grid, center, radius, brightness):
    voxel = grid.voxel_um
    low = [max(0, int((c - radius) / v - 2)) for c, v in zip(center, voxel)]
    high = [min(n, int((c + radius) / v + 3)) for c, v, n in zip(center, voxel, grid.shape)]
    if any(b <= a for a, b in zip(low, high)):
        return
    z, y, x = [((np.arange(a, b) + 0.5) * v - c) ** 2 for a, b, v, c in zip(low, high, voxel, center)]
    away = np.sqrt(z[:, None, None] + y[None, :, None] + x[None, None])
    box = tuple(slice(a, b) for a, b in zip(low, high))
    edge = max(voxel[0] * 0.7, voxel[1])
    light[box] = np.maximum(light[box], brightness * np.clip((radius - away) / edge + 0.5, 0, 1))


def draw_debris(rng, scene, grid, light):
    """Specks, heaps of specks, and fibers."""
    for _ in range(scene.debris):
        center = rng.random(3) * np.array(grid.shape) * grid.voxel_um
        if rng.random() < 0.6:
            draw_ball(light, grid, center, rng.uniform(0.2, 0.7), rng.uniform(2, 8))
        else:
            for _ in range(rng.integers(2, 6)):
                draw_ball(light, grid, center + rng.normal(0, 0.8, 3), rng.uniform(0.25, 1.0), rng.uniform(1, 4))
    for _ in range(scene.fibers):
        center = rng.random(3) * np.array(grid.shape) * grid.voxel_um
        direction = rng.standard_normal(3) * [0.2, 1, 1]
        direction /= np.linalg.norm(direction)
        for _ in range(150):
            center = center + direction * 0.5
            direction = direction + rng.normal(0, 0.08, 3)
            direction /= np.linalg.norm(direction)
            draw_ball(light, grid, center, 0.5, 0.9)


def point_spread(scene, z_um):
    """Share of the light and standard deviation in the plane in um, by the distance from the focal plane."""
    if scene.microscope == "widefield":
        share = 1 / (1 + np.abs(z_um) ** 0.6) * np.exp(-np.abs(z_um) / 12)
        sigma = np.maximum(np.sqrt(0.15**2 + (0.75 * z_um) ** 2) * 0.6, 0.15)
        return share / share.sum(), sigma
    if scene.microscope == "confocal":
        focus, depth, slope = (0.3, 1.2, 0.25) if scene.pixel_um > 0.6 else (0.16, 0.55, 0.25)
    else:
        focus, depth, slope = (0.35, 1.1 if scene.pixel_um > 0.45 else 0.8, 0.1)
    share = np.exp(-(z_um**2) / 2 / depth**2) + 0.01 * np.exp(-np.abs(z_um) / 4)
    return share / share.sum(), np.sqrt(focus**2 + (slope * z_um) ** 2)


def blur(scene, grid, light):
    """Convolves with the point spread function: in Fourier space along Y and X, as a sum along Z."""
    slices, rows, columns = light.shape
    rows, columns = rows + 2 * FOURIER_PADDING, columns + 2 * FOURIER_PADDING
    steps = 2 * slices + 1
    share, sigma = point_spread(scene, fft.fftfreq(steps, 1 / steps) * grid.voxel_um[0])
    frequency_y, frequency_x = fft.fftfreq(rows, scene.pixel_um), fft.rfftfreq(columns, scene.pixel_um)
    squared = (frequency_y[:, None] ** 2 + frequency_x[None] ** 2).astype(np.float32)
    inside = slice(FOURIER_PADDING, -FOURIER_PADDING)
    padding = [(0, 0), (FOURIER_PADDING, FOURIER_PADDING), (FOURIER_PADDING, FOURIER_PADDING)]
    spectrum = fft.rfft2(np.pad(light, padding, mode="reflect"), axes=(1, 2)).astype(np.complex64)
    blurred = np.zeros_like(spectrum)
    for step in range(-slices + 1, slices):
        if share[step] < 2e-3 * share[0]:
            continue
        transfer = (share[step] * np.exp(-2 * np.pi**2 * sigma[step] ** 2 * squared)).astype(np.float32)
        first, end = max(0, step), min(slices, slices + step)
        blurred[first:end] += spectrum[first - step : end - step] * transfer
    return fft.irfft2(blurred, s=(rows, columns), axes=(1, 2))[:, inside, inside].astype(np.float32)


def image(rng, scene, grid, canvas):
    """Expected light of each voxel of the stack."""
    shape, voxel = grid.shape, grid.voxel_um
    coarse_shape = [max(4, int(n * v / 2) + 1) for n, v in zip(shape, voxel)]
    tissue = smooth_noise(rng, coarse_shape, (2, 2, 2), 4.0)
    tissue = np.clip(1 + 0.5 * ndimage.zoom(tissue, [n / m for n, m in zip(shape, coarse_shape)], order=1), 0, None)
    light = blur(scene, grid, canvas.light + canvas.debris + scene.background * 0.3 * tissue)
    steps = [max(1, int(2 / v)) for v in voxel]
    haze = ndimage.uniform_filter(light, steps)[:: steps[0], :: steps[1], :: steps[2]]
    widths = [width / v / n for width, v, n in zip((min(8, grid.stack_um[0] / 3), 8, 8), voxel, steps)]
    haze = ndimage.gaussian_filter(haze, widths, mode="nearest", truncate=2.5)
    haze = ndimage.zoom(haze, [(n + 1e-6) / m for n, m in zip(shape, haze.shape)], order=1)
    light = light * (1 - scene.haze * 0.3) + scene.haze * haze
    light = grid.stack(scene, light + scene.background * 0.7)
    if scene.attenuation_um:
        depths = np.arange(scene.shape[0])[:, None, None] * scene.slice_um
        light = scene.background * 0.4 + light * np.exp(-depths / scene.attenuation_um)
    if scene.vignetting:
        rows, columns = scene.shape[1:]
        y, x = np.mgrid[:rows, :columns]
        squared = (y / rows - 0.3) ** 2 + (x / columns - 0.35) ** 2
        light = light * np.exp(-scene.vignetting * 3 * squared)[None]
    return light


def record(rng, scene, light):
    """Photon counts with the noise of the camera, as integers of 8 or 16 bits."""
    counts = rng.poisson(np.clip(light, 0, None) * scene.photons).astype(np.float32)
    counts = counts + rng.normal(0, scene.read_noise, counts.shape)
    if scene.bits == 16:
        return np.clip(CAMERA_OFFSET + counts * CAMERA_GAIN, 0, 65535).round().astype(np.uint16)
    bright = np.percentile(counts, 99.9)
    return np.clip(5 + counts / bright * 230 * scene.exposure, 0, 255).round().astype(np.uint8)


def main_parts(labels):
    """Labels without the smaller parts of objects in several parts, numbered from 1."""
    labels = labels.copy()
    for label, box in enumerate(ndimage.find_objects(labels), 1):
        if box is None:
            continue
        mask = labels[box] == label
        parts, count = ndimage.label(mask)
        if count > 1:
            voxels = np.bincount(parts.ravel())
            voxels[0] = 0
            labels[box][mask & (parts != voxels.argmax())] = 0
    numbers = np.unique(labels, return_inverse=True)[1]
    return numbers.reshape(labels.shape).astype(np.uint16)


def simulate(scene):
    """Intensities and labels of a scene."""
    rng = np.random.default_rng(zlib.crc32(scene.name.encode()))
    grid = Grid(scene)
    centers, diameters = place(rng, scene, grid)
    canvas = Canvas(rng, scene, grid)
    for number, (center, diameter) in enumerate(zip(centers, diameters), 1):
        draw_nucleus(rng, scene, grid, canvas, number, center, diameter)
    draw_debris(rng, scene, grid, canvas.debris)
    raw = record(rng, scene, image(rng, scene, grid, canvas))
    return raw, main_parts(grid.stack(scene, canvas.labels))


def voxel_size_tags(scene):
    """Arguments of tifffile that state the voxel size, or none."""
    if scene.metadata == "imagej":
        metadata = {"axes": "ZYX", "spacing": scene.slice_um, "unit": "um"}
        return {"imagej": True, "resolution": (1 / scene.pixel_um, 1 / scene.pixel_um), "metadata": metadata}
    if scene.metadata == "ome":
        sizes = {"X": scene.pixel_um, "Y": scene.pixel_um, "Z": scene.slice_um}
        metadata = {"axes": "ZYX"}
        for axis, size in sizes.items():
            metadata |= {f"PhysicalSize{axis}": size, f"PhysicalSize{axis}Unit": "µm"}
        return {"ome": True, "metadata": metadata}
    return {"metadata": None, "photometric": "minisblack"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--match", default="", help="regular expression for the names of scenes; default: all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for scene in SCENES:
        if not re.search(options.match, scene.name):
            continue
        raw, labels = simulate(scene)
        for kind, values in [("raw", raw), ("labels", labels)]:
            tifffile.imwrite(options.out / f"{scene.name}_{kind}.tif", values, **voxel_size_tags(scene))
        if scene.metadata == "none":
            voxel = [scene.slice_um, scene.pixel_um, scene.pixel_um]
            (options.out / f"{scene.name}.json").write_text(json.dumps({"voxel_um": voxel}))
        print(f"{scene.name}: {labels.max()} nuclei", flush=True)


if __name__ == "__main__":
    main()
