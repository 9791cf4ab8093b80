"""Stacks of nuclei as samples of 20 kinds show them, with ground truth (numpy, scipy and tifffile only).

    python bench/specimen_stacks.py OUT [--match REGEX]
    python bench/accuracy.py OUT --model nuclei --match '^organoid' --each

91 stacks. Nuclei are deformed ellipsoids, placed at random and pushed apart. Their light is blurred by a Gaussian, in
widefield stacks by one whose width grows with the distance along Z. It is then attenuated, unevenly illuminated, and
recorded with Poisson and Gaussian noise. The ground truth is the nuclei before blurring, with narrow gaps where they
touch; debris and fibers do not belong to it. The kinds:

    spheroid       a ball of nuclei, darker toward its center and with depth
    organoid       a wall of radially elongated nuclei around a lumen with debris
    embryo         a ball of fewer nuclei, some of them in mitosis
    monolayer      a layer of flat nuclei in few slices
    widefield      layers and volumes in a widefield microscope
    tissue         large round, small round and elongated nuclei
    elongated      nuclei along a common direction
    hollow         nuclei that are bright at their rims only
    mitotic        metaphase and anaphase plates, and apoptotic bodies
    chromocenter   dark nuclei with bright spots
    lobed          nuclei of several lobes, and bent ones
    sparse         few nuclei in a large field, with debris
    lightsheet     stripes, and light that is attenuated along X
    autofluor      fibers, haze and a bright side
    noisy          3 to 12 photons at the brightness of a nucleus
    aniso          slices 5 to 6 times as thick as pixels are wide
    coarse         voxels of 1 to 5 um, as of cleared tissue
    fine           pixels of 0.1 to 0.15 um
    nometa         files that state no voxel size, as a few of other kinds do
    empty          no nuclei

Files are NAME_raw.tif with the voxel size in ImageJ's tags or in OME-XML, and NAME_labels.tif without it; if the former
states none, NAME.json has it. The random numbers depend on the name only.
"""
import argparse
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tifffile
from scipy import ndimage

from optics_stacks import voxel_size_tags
from specimen_nuclei import (
    Nucleus, ball, block, divide, draw_brightness, draw_debris, draw_labels, draw_radii, layer, nuclear_light,
    pack, smooth_noise,
)  # fmt: skip

WIDEFIELD_PADDING, WIDEFIELD_REACH_UM = 24, 22


@dataclass
class Stack:
    """The voxels and the file of a stack, and what differs between stacks of a kind. Shapes are Z, Y, X."""

    name: str  # the kind and a number
    slice_um: float
    pixel_um: float
    shape: tuple
    bits: int = 16  # 12 bits are stored in 16
    metadata: str = "ome"  # or imagej, none
    radius_um: float = 0.0  # of a typical nucleus
    fill: float = 0.0  # share of the volume
    count: int = 0  # nuclei of an embryo
    thickness_um: float = 0.0  # of the nuclei of a layer
    kinds: tuple = ()  # of nuclei: plain, nucleoli, chromocenters, hollow, bean, lobed
    elongation: tuple = (1.0, 1.5)  # smallest and largest ratio of length to width
    axis_spread: float = 0.3  # of the direction of elongated nuclei
    mitoses: int = 0
    gap_um: float = 0.3
    blur_um: tuple = (0.22, 0.8)  # standard deviations in the plane and along Z
    cone: float = 0.0  # widefield: standard deviation per distance from the focal plane
    summed_um: float = 1.0  # widefield: depth whose light has the brightness of a nucleus
    background: float = 0.05
    photons: float = 100
    read_noise: float = 2.0
    offset: float = 100
    hot_pixels: float = 0.0  # share of the pixels of the camera
    stripes: float = 0.0
    haze: float = 0.0
    specks: int = 0
    arrangement: int = 0  # of several that a kind draws

    @property
    def voxel_um(self):
        return np.array([self.slice_um, self.pixel_um, self.pixel_um], float)

    @property
    def extent_um(self):
        return np.array(self.shape) * self.voxel_um


@dataclass
class Scene:
    """The nuclei of a stack, what is around them, and how they are imaged."""

    nuclei: list
    gap_um: float = 0.3
    max_overlap: float = 0.12  # share of a nucleus
    blur_um: tuple = (0.18, 0.6)
    cone: float = 0.0
    summed_um: float = 1.0
    scatter: float = 0.0  # share of scattered light in the last slice
    debris: tuple | list = ()  # centers, radii and brightness
    cytoplasm: tuple | None = None  # centers, brightness and standard deviation in um
    structures: Callable | None = None  # light in addition, by random numbers, shape and voxel size
    attenuation: Callable | None = None  # factor, by the same
    background: float = 0.05
    vignetting: float = 0.1
    stripes: float = 0.0
    photons: float = 200
    read_noise: float = 2.0
    offset: float = 100
    hot_pixels: float = 0.0


STACKS = [
    Stack("spheroid_0", 2.0, 0.65, (40, 160, 160), 16, "ome", 4.2),
    Stack("spheroid_1", 1.0, 0.5, (64, 160, 160), 12, "imagej", 4),
    Stack("spheroid_2", 1.5, 0.83, (60, 136, 136), 8, "ome", 5),
    Stack("spheroid_3", 1.0, 0.8, (80, 136, 136), 16, "imagej", 4.5),
    Stack("spheroid_4", 3, 0.75, (32, 168, 168), 8, "imagej", 4.8),
    Stack("organoid_0", 2, 0.5, (36, 192, 192), 12, "imagej", 4),
    Stack("organoid_1", 1, 0.7, (70, 152, 152), 16, "ome", 4.2),
    Stack("organoid_2", 2.5, 0.6, (30, 176, 176), 8, "imagej", 4.5),
    Stack("organoid_3", 1.5, 0.5, (44, 184, 184), 16, "ome", 3.6),
    Stack("organoid_4", 1.2, 0.6, (50, 176, 176), 12, "imagej", 4),
    Stack("embryo_0", 2, 0.4, (40, 200, 200), 8, "imagej", 5.5, count=24),
    Stack("embryo_1", 1, 0.6, (80, 144, 144), 16, "ome", 4.5, count=90),
    Stack("embryo_2", 2, 0.4, (45, 208, 208), 16, "ome", 6.5, count=14),
    Stack("embryo_3", 1, 0.35, (60, 200, 200), 12, "imagej", 4, count=60),
    Stack("embryo_4", 1.5, 0.8, (64, 160, 160), 16, "ome", 7, count=130),
    Stack("monolayer_0", 1, 0.32, (8, 256, 256), 8, "imagej", 7, thickness_um=4.5),
    Stack("monolayer_1", 0.7, 0.25, (12, 256, 256), 12, "ome", 6, thickness_um=5, mitoses=2),
    Stack("monolayer_2", 2, 0.65, (6, 288, 288), 16, "imagej", 8, thickness_um=6),
    Stack("monolayer_3", 0.5, 0.2, (12, 288, 288), 16, "ome", 7.5, thickness_um=3.5),
    Stack("monolayer_4", 1, 0.45, (10, 240, 240), 8, "none", 6.5, thickness_um=6, mitoses=2),
    Stack("monolayer_5", 1.5, 0.325, (5, 300, 300), 12, "ome", 8, thickness_um=5),
    Stack("widefield_0", 1, 0.32, (16, 224, 224), 16, "ome", 6.5, thickness_um=7, cone=0.35, summed_um=8),
    Stack("widefield_1", 0.5, 0.2, (24, 240, 240), 12, "imagej", 6, thickness_um=6, cone=0.6, summed_um=7),
    Stack("widefield_2", 2, 0.65, (16, 224, 224), 8, "imagej", 7, thickness_um=8, cone=0.35, summed_um=9),
    Stack("widefield_3", 1, 0.4, (24, 184, 184), 16, "ome", 5, cone=0.45, summed_um=9),
    Stack("widefield_4", 1.5, 0.5, (22, 192, 192), 12, "ome", 5.5, cone=0.4, summed_um=10),
    Stack("tissue_0", 1, 0.4, (40, 192, 192), 16, "ome", 4.8),
    Stack("tissue_1", 1.5, 0.5, (32, 192, 192), 8, "imagej", 5.2),
    Stack("tissue_2", 0.8, 0.4, (48, 176, 176), 12, "ome", 4.6),
    Stack("tissue_3", 2, 0.5, (28, 208, 208), 16, "imagej", 5.5),
    Stack("tissue_4", 1, 0.6, (48, 160, 160), 12, "ome", 5),
    Stack("elongated_0", 1, 0.4, (36, 200, 200), 12, "imagej", 3.6, fill=0.16, elongation=(2.5, 4), axis_spread=0.15),
    Stack("elongated_1", 2, 0.5, (24, 208, 208), 16, "ome", 4.2, fill=0.12, elongation=(2, 3), axis_spread=0.3),
    Stack("elongated_2", 1, 0.5, (40, 184, 184), 8, "ome", 3.8, fill=0.22, elongation=(1.8, 2.6), axis_spread=0.2),
    Stack("elongated_3", 0.6, 0.3, (44, 208, 208), 16, "none", 3.2, fill=0.1, elongation=(3, 4.5), axis_spread=0.5),
    Stack("hollow_0", 0.5, 0.25, (48, 192, 192), 16, "ome", 5, fill=0.2, kinds=("hollow",)),
    Stack("hollow_1", 1, 0.3, (30, 208, 208), 12, "imagej", 5.5, fill=0.14, kinds=("hollow",)),
    Stack("hollow_2", 0.8, 0.4, (44, 176, 176), 8, "imagej", 5, fill=0.3, kinds=("hollow", "nucleoli")),
    Stack("hollow_3", 1, 0.25, (30, 224, 224), 16, "ome", 6, fill=0.1, kinds=("hollow",)),
    Stack("mitotic_0", 1, 0.4, (30, 200, 200), 12, "ome", 5.2, fill=0.14),
    Stack("mitotic_1", 1, 0.3, (26, 224, 224), 16, "ome", 5.5, fill=0.1),
    Stack("mitotic_2", 2, 0.5, (20, 208, 208), 8, "imagej", 5.5, fill=0.12),
    Stack("mitotic_3", 0.7, 0.35, (40, 192, 192), 16, "imagej", 5, fill=0.2),
    Stack("chromocenter_0", 0.5, 0.2, (40, 208, 208), 16, "ome", 4.6, fill=0.16),
    Stack("chromocenter_1", 1, 0.3, (28, 208, 208), 8, "imagej", 5, fill=0.2),
    Stack("chromocenter_2", 0.4, 0.16, (44, 208, 208), 12, "ome", 4.8, fill=0.1),
    Stack("chromocenter_3", 1.5, 0.4, (22, 208, 208), 16, "imagej", 5, fill=0.25),
    Stack("chromocenter_4", 1, 0.5, (40, 160, 160), 12, "ome", 4.4, fill=0.3),
    Stack("lobed_0", 0.5, 0.2, (36, 208, 208), 16, "imagej", 4.2, fill=0.12, kinds=("lobed", "plain")),
    Stack("lobed_1", 1, 0.3, (24, 224, 224), 12, "ome", 4.8, fill=0.1, kinds=("bean", "lobed")),
    Stack("lobed_2", 0.6, 0.3, (44, 184, 184), 8, "imagej", 4.4, fill=0.16, kinds=("lobed", "bean", "plain")),
    Stack("lobed_3", 1, 0.4, (36, 176, 176), 16, "ome", 4.6, fill=0.2, kinds=("bean",)),
    Stack("sparse_0", 2, 0.65, (24, 450, 450), 16, "ome", 4.5, fill=0.004, background=0.05, photons=100),
    Stack("sparse_1", 1, 0.8, (40, 315, 315), 16, "imagej", 4, fill=0.003, background=0.2, photons=60, hot_pixels=2e-4),
    Stack("sparse_2", 3, 0.65, (16, 525, 525), 8, "imagej", 5, fill=0.003, background=0.1, photons=30, hot_pixels=1e-4),
    Stack("sparse_3", 2, 1.3, (40, 337, 337), 12, "ome", 6, fill=0.006, background=0.3, photons=80),
    Stack("lightsheet_0", 2, 0.5, (40, 192, 192), 16, "ome", 4, fill=0.22, blur_um=(0.35, 1.2), stripes=0.12),
    Stack("lightsheet_1", 1, 1, (70, 144, 144), 16, "imagej", 5, fill=0.22, blur_um=(0.35, 1.6), stripes=0.2),
    Stack("lightsheet_2", 2, 0.8, (40, 184, 184), 12, "ome", 5, fill=0.12, blur_um=(0.35, 1.8), stripes=0.15),
    Stack("lightsheet_3", 1.5, 0.4, (36, 224, 224), 16, "ome", 4, fill=0.15, blur_um=(0.35, 1.2), stripes=0.25),
    Stack("lightsheet_4", 5, 0.75, (20, 240, 240), 8, "imagej", 7, fill=0.18, blur_um=(0.35, 2.2), stripes=0.15),
    Stack("autofluor_0", 1, 0.4, (36, 200, 200), 16, "imagej", 4.5, fill=0.12),
    Stack("autofluor_1", 2, 0.5, (24, 208, 208), 12, "ome", 5, fill=0.08),
    Stack("autofluor_2", 1, 0.6, (44, 160, 160), 8, "ome", 5, fill=0.18),
    Stack("autofluor_3", 1.5, 0.4, (28, 208, 208), 16, "imagej", 4.2, fill=0.1),
    Stack("noisy_0", 1, 0.4, (36, 192, 192), 16, "ome", 4.5, fill=0.2, background=0.2, photons=6, read_noise=1),
    Stack("noisy_1", 1.5, 0.5, (28, 192, 192), 8, "imagej", 5, fill=0.15, background=0.1, photons=3, read_noise=0.5),
    Stack("noisy_2", 0.8, 0.3, (36, 208, 208), 12, "ome", 4.8, fill=0.12, background=0.3, photons=4, read_noise=0.5),
    Stack("noisy_3", 2, 0.6, (30, 192, 192), 16, "imagej", 4.6, fill=0.25, background=0.15, photons=8,
          read_noise=1.5, offset=400),
    Stack("noisy_4", 1, 0.5, (36, 176, 176), 8, "ome", 4, fill=0.2, background=0.1, photons=12, read_noise=2),
    Stack("aniso_0", 2, 0.35, (22, 224, 224), 16, "ome", 4.8, fill=0.2, blur_um=(0.22, 1)),
    Stack("aniso_1", 3, 0.5, (18, 224, 224), 8, "imagej", 6, fill=0.16, blur_um=(0.22, 1.4)),
    Stack("aniso_2", 1.8, 0.3, (20, 240, 240), 16, "none", 4.5, fill=0.12, blur_um=(0.22, 0.8)),
    Stack("aniso_3", 4, 0.8, (20, 192, 192), 12, "imagej", 8, fill=0.25, blur_um=(0.22, 2)),
    Stack("aniso_4", 2.4, 0.4, (20, 208, 208), 16, "ome", 5, fill=0.3, blur_um=(0.22, 1.2)),
    Stack("coarse_0", 2.5, 1.3, (50, 160, 160), 16, "imagej", 4.5, fill=0.1, gap_um=0.5, blur_um=(0.5, 2)),
    Stack("coarse_1", 2, 1.6, (60, 144, 144), 16, "ome", 4.8, fill=0.06, gap_um=0.5, blur_um=(0.6, 2)),
    Stack("coarse_2", 5, 5, (60, 112, 112), 12, "ome", 14, fill=0.2, gap_um=1.5, blur_um=(1.5, 3)),
    Stack("coarse_3", 3, 2, (50, 144, 144), 16, "imagej", 6, fill=0.12, gap_um=0.6, blur_um=(0.8, 2.5)),
    Stack("coarse_4", 4, 1, (30, 176, 176), 8, "ome", 5, fill=0.1, gap_um=0.5, blur_um=(0.5, 2.2)),
    Stack("fine_0", 0.3, 0.1, (40, 315, 315), 16, "ome", arrangement=0, photons=40),
    Stack("fine_1", 0.2, 0.1, (60, 304, 304), 8, "imagej", arrangement=1, photons=80),
    Stack("fine_2", 0.4, 0.12, (32, 360, 360), 12, "ome", arrangement=2, photons=20),
    Stack("fine_3", 0.3, 0.15, (50, 300, 300), 16, "imagej", arrangement=3, photons=60),
    Stack("nometa_0", 1, 0.4, (36, 192, 192), 16, "none", 4.5, fill=0.2),
    Stack("nometa_1", 1, 0.6, (40, 160, 160), 8, "none", 5, fill=0.15),
    Stack("nometa_2", 0.5, 0.5, (64, 144, 144), 12, "none", 4.2, fill=0.3),
    Stack("nometa_3", 3, 0.5, (18, 224, 224), 16, "none", 6, fill=0.15),
    Stack("empty_0", 1, 0.4, (24, 192, 192), 16, "ome", photons=60),
    Stack("empty_1", 2, 0.65, (20, 240, 240), 16, "ome", photons=100, haze=0.4),
    Stack("empty_2", 1, 0.5, (30, 176, 176), 16, "ome", photons=80, haze=0.4, specks=60),
]  # fmt: skip


def specks(rng, stack, count, radius_um, brightness):
    """Small particles anywhere in the stack: centers, radii and brightness."""
    extent = stack.extent_um
    return [(rng.uniform([0, 0, 0], extent), rng.uniform(*radius_um), rng.uniform(*brightness)) for _ in range(count)]


def direction_in_plane(rng, height):
    angle = rng.uniform(0, 3.14)
    return np.array([height, np.sin(angle), np.cos(angle)])


def centers_um(nuclei):
    return [nucleus.center_um for nucleus in nuclei]


def spheroid(rng, stack):
    extent = stack.extent_um
    ball_um = min(extent[1], extent[2]) * 0.46
    center = np.array([ball_um * rng.uniform(0.75, 0.95), extent[1] / 2, extent[2] / 2])
    count = int(0.42 * ball_um**3 / stack.radius_um**3)
    kinds = ("plain", "plain", "nucleoli")
    nuclei = ball(rng, center, ball_um - stack.radius_um, stack.radius_um, count, kinds, brightness_spread=0.25,
                  elongation=1.3)  # fmt: skip
    length_um = rng.uniform(70, 140)

    def attenuation(_, shape, voxel_um):
        z, y, x = np.meshgrid(*[np.arange(n) * v for n, v in zip(shape, voxel_um)], indexing="ij")
        depth = ball_um - np.sqrt((z - center[0]) ** 2 + (y - center[1]) ** 2 + (x - center[2]) ** 2)
        return np.exp(-z / length_um) * np.exp(-np.clip(depth, 0, None) / (1.6 * ball_um))

    blur_um, photons = (0.3, rng.uniform(0.9, 1.6)), rng.uniform(40, 150)
    return Scene(nuclei, blur_um=blur_um, scatter=0.4, cytoplasm=(centers_um(nuclei), 0.12, 8), attenuation=attenuation,
                 photons=photons)  # fmt: skip


def organoid(rng, stack):
    extent, radius_um = stack.extent_um, stack.radius_um
    outer = min(extent[1], extent[2]) * 0.45
    center = np.array([extent[0] * rng.uniform(0.4, 0.7), extent[1] / 2, extent[2] / 2])
    lumen = outer - radius_um * rng.uniform(3.2, 6)
    wall = (outer**3 - lumen**3) / radius_um**3
    radial = rng.uniform(1.5, 2.1)
    nuclei = ball(rng, center, outer - radius_um, radius_um, int(0.45 * wall), ("plain", "nucleoli"), lumen_um=lumen,
                  crowding=0.9, radial=radial)  # fmt: skip
    debris = []
    for _ in range(8):
        debris.append((center + rng.normal(size=3) * 0.35 * lumen, rng.uniform(0.8, 1.8), rng.uniform(1.2, 3)))

    def attenuation(rng, shape, voxel_um):
        return np.exp(-np.arange(shape[0]) * voxel_um[0] / rng.uniform(80, 160))[:, None, None]

    blur_um, photons = (0.25, rng.uniform(0.7, 1.4)), rng.uniform(40, 200)
    return Scene(nuclei, blur_um=blur_um, scatter=0.3, debris=debris, cytoplasm=(centers_um(nuclei), 0.1, 6),
                 attenuation=attenuation, photons=photons)  # fmt: skip


def embryo(rng, stack):
    extent, radius_um = stack.extent_um, stack.radius_um
    ball_um = min(extent[1], extent[2]) * 0.44
    center = np.array([extent[0] * 0.52, extent[1] / 2, extent[2] / 2])
    nuclei = ball(rng, center, ball_um - radius_um, radius_um, stack.count, ("plain", "nucleoli"), size_spread=0.15,
                  crowding=1.15, brightness_spread=0.3)  # fmt: skip
    for _ in range(max(1, stack.count // 14)):
        nuclei = divide(rng, nuclei)

    def attenuation(_, shape, voxel_um):
        return np.exp(-np.arange(shape[0]) * voxel_um[0] / 130)[:, None, None]

    blur_um, photons = (0.3, rng.uniform(0.9, 1.8)), rng.uniform(50, 200)
    return Scene(nuclei, blur_um=blur_um, cytoplasm=([center], 0.15, ball_um * 0.6), attenuation=attenuation,
                 background=0.03, photons=photons)  # fmt: skip


def monolayer(rng, stack):
    extent, radius_um = stack.extent_um, stack.radius_um
    fill, area_um2 = rng.uniform(0.3, 0.62), (extent[1] + radius_um) * (extent[2] + radius_um)
    count = int(fill * area_um2 / (np.pi * radius_um**2))
    nuclei = layer(rng, stack, radius_um, stack.thickness_um, count, ("nucleoli", "plain"))
    for _ in range(stack.mitoses):
        nuclei = divide(rng, nuclei)
    return Scene(nuclei, background=0.04, vignetting=0.25, photons=rng.uniform(30, 300))


def widefield(rng, stack):
    extent, radius_um = stack.extent_um, stack.radius_um
    if stack.thickness_um:
        count = int(0.4 * extent[1] * extent[2] / (np.pi * radius_um**2))
        nuclei = layer(rng, stack, radius_um, stack.thickness_um, count, ("nucleoli", "plain"))
    else:
        radii = draw_radii(rng, radius_um, int(0.14 * np.prod(extent) / (4.19 * radius_um**3)), 0.12)
        margin = np.array([radius_um * 0.6, 0, 0])
        nuclei = []
        for point, radius in zip(pack(rng, margin, extent - margin, radii), radii):
            brightness = draw_brightness(rng, 0.2)
            nuclei.append(Nucleus(rng, point, radius * np.array([0.95, 1, 1.1]), brightness=brightness))
    return Scene(nuclei, blur_um=(0.2, 0.6), cone=stack.cone, summed_um=stack.summed_um, photons=rng.uniform(100, 500))


def tissue(rng, stack):
    axis, radius_um = direction_in_plane(rng, 0.2), stack.radius_um
    large = block(rng, stack, radius_um, 0.12, ("nucleoli", "plain"), elongation=(1, 1.3))
    small = block(rng, stack, radius_um * 0.55, 0.07, elongation=(1, 1.3))
    kinds = ("plain", "bean")
    thin = block(rng, stack, radius_um * 0.75, 0.07, kinds, elongation=(2.2, 3.8), axis=axis, axis_spread=0.25)
    nuclei = large + thin + small
    blur_um, photons = (0.22, rng.uniform(0.6, 1.1)), rng.uniform(50, 200)
    return Scene(nuclei, gap_um=0.35, max_overlap=0.04, blur_um=blur_um, cytoplasm=(centers_um(nuclei), 0.1, 5),
                 photons=photons)  # fmt: skip


def elongated(rng, stack):
    axis = direction_in_plane(rng, 0.15)
    nuclei = block(rng, stack, kinds=("plain", "bean"), elongation=stack.elongation, axis=axis,
                   axis_spread=stack.axis_spread)  # fmt: skip
    blur_um, photons = (0.2, rng.uniform(0.5, 1)), rng.uniform(50, 200)
    return Scene(nuclei, gap_um=0.35, max_overlap=0.05, blur_um=blur_um, background=0.06, photons=photons)


def hollow(rng, stack):
    nuclei = block(rng, stack, kinds=stack.kinds)
    blur_um, photons = (0.18, rng.uniform(0.5, 0.8)), rng.uniform(60, 200)
    return Scene(nuclei, gap_um=0.4, max_overlap=0.05, blur_um=blur_um, background=0.06, photons=photons)


def mitotic(rng, stack):
    nuclei = block(rng, stack, kinds=("nucleoli", "plain"))
    for _ in range(max(2, len(nuclei) // 6)):
        nuclei = divide(rng, nuclei)
    debris = []
    for _ in range(6):
        center = rng.uniform([0, 0, 0], stack.extent_um)
        for _ in range(int(rng.integers(3, 7))):
            debris.append((center + rng.normal(0, 1.6, 3), rng.uniform(0.5, 1.4), rng.uniform(1.5, 3)))
    debris += specks(rng, stack, 40, (0.3, 0.7), (0.6, 2))
    return Scene(nuclei, max_overlap=0.05, blur_um=(0.2, 0.7), debris=debris, photons=rng.uniform(60, 200))


def chromocenter(rng, stack):
    nuclei = block(rng, stack, kinds=("chromocenters",), brightness_spread=0.2)
    blur_um, photons = (0.16, rng.uniform(0.4, 0.7)), rng.uniform(60, 200)
    return Scene(nuclei, gap_um=0.35, max_overlap=0.06, blur_um=blur_um, photons=photons)


def lobed(rng, stack):
    nuclei = block(rng, stack, kinds=stack.kinds, elongation=(1.0, 1.6), crowding=1.15)
    return Scene(nuclei, gap_um=0.4, max_overlap=0.02, blur_um=(0.18, 0.55), photons=rng.uniform(60, 200))


def sparse(rng, stack):
    nuclei = block(rng, stack, kinds=("plain", "nucleoli"), crowding=1.3)
    debris = specks(rng, stack, 80, (0.4, 1.0), (0.5, 2))
    return Scene(nuclei, blur_um=(0.3, 1.2), debris=debris, background=stack.background, vignetting=0.3,
                 photons=stack.photons, hot_pixels=stack.hot_pixels)  # fmt: skip


def lightsheet(rng, stack):
    nuclei = block(rng, stack, brightness_spread=0.3)
    rate, photons = rng.uniform(0.2, 0.5), rng.uniform(60, 250)

    def attenuation(_, shape, __):
        return np.exp(-rate * np.linspace(0, 1.5, shape[2]))[None, None, :] * np.ones(shape)

    return Scene(nuclei, gap_um=0.5, blur_um=stack.blur_um, cytoplasm=(centers_um(nuclei), 0.2, 7), background=0.1,
                 attenuation=attenuation, stripes=stack.stripes, photons=photons, hot_pixels=1e-4)  # fmt: skip


def autofluor(rng, stack):
    nuclei = block(rng, stack, kinds=("plain", "nucleoli"))

    def structures(rng, shape, voxel_um):
        fibers = np.zeros(shape, np.float32)
        starts = rng.uniform(0, 1, (10, 3)) * stack.extent_um
        z, y, x = np.meshgrid(*[np.arange(n) * v for n, v in zip(shape, voxel_um)], indexing="ij")
        for start in starts[:8]:
            direction = rng.normal(size=3) * [0.2, 1, 1]
            direction /= np.linalg.norm(direction)
            offset = np.stack([z - start[0], y - start[1], x - start[2]], -1)
            along = offset @ direction
            distance = np.sqrt(np.maximum((offset * offset).sum(-1) - along * along, 0))
            fibers += 0.35 * np.exp(-0.5 * (distance / 1.2) ** 2)
        side = np.linspace(0, 1, shape[2])[None, None] * np.linspace(0.3, 1, shape[1])[None, :, None] * 0.5
        haze = 0.25 * np.clip(1 + 0.5 * smooth_noise(rng, shape, 6 / voxel_um), 0, None)
        return (fibers + side + haze).astype(np.float32)

    return Scene(nuclei, blur_um=(0.22, 0.8), structures=structures, photons=rng.uniform(60, 200))


def noisy(rng, stack):
    nuclei = block(rng, stack, kinds=("plain", "nucleoli"), brightness_spread=0.2)
    return Scene(nuclei, gap_um=0.35, blur_um=(0.22, 0.8), background=stack.background, photons=stack.photons,
                 read_noise=stack.read_noise, offset=stack.offset)  # fmt: skip


def aniso(rng, stack):
    nuclei = block(rng, stack, kinds=("plain", "nucleoli"))
    return Scene(nuclei, gap_um=0.4, blur_um=stack.blur_um, background=0.06, photons=rng.uniform(40, 200))


def coarse(rng, stack):
    nuclei = block(rng, stack, brightness_spread=0.3)
    return Scene(nuclei, gap_um=stack.gap_um, blur_um=stack.blur_um, cytoplasm=(centers_um(nuclei), 0.15, 12),
                 background=0.15, photons=rng.uniform(60, 200))  # fmt: skip


def fine(rng, stack):
    # All four are drawn, although a stack shows one of them: its random numbers depend on that.
    arrangements = [
        block(rng, stack, 4.5, 0.2, ("nucleoli",)),
        block(rng, stack, 2.2, 0.2, ("plain", "chromocenters")),
        layer(rng, stack, 7, 5.5, 14, ("nucleoli", "plain"), 1.05),
        block(rng, stack, 5.5, 0.18, ("chromocenters", "nucleoli")),
    ]
    nuclei = arrangements[stack.arrangement]
    return Scene(nuclei, max_overlap=0.05, blur_um=(0.13, 0.4), photons=stack.photons)


def nometa(rng, stack):
    nuclei = block(rng, stack, kinds=("plain", "nucleoli"))
    return Scene(nuclei, gap_um=0.35, blur_um=(0.22, 0.8), background=0.06, photons=rng.uniform(50, 200))


def empty(rng, stack):
    def haze(rng, shape, voxel_um):
        return stack.haze * np.clip(1 + 0.5 * smooth_noise(rng, shape, 10 / voxel_um), 0, None)

    debris = specks(rng, stack, stack.specks, (0.4, 0.9), (0.5, 1.5))
    return Scene([], structures=haze if stack.haze else None, debris=debris, background=0.2, photons=stack.photons,
                 hot_pixels=2e-4)  # fmt: skip


KINDS = {
    function.__name__: function
    for function in (
        spheroid, organoid, embryo, monolayer, widefield, tissue, elongated, hollow, mitotic, chromocenter, lobed,
        sparse, lightsheet, autofluor, noisy, aniso, coarse, fine, nometa, empty,
    )
}  # fmt: skip


def cytoplasm_light(rng, scene, shape, voxel_um):
    """Light around the nuclei, computed on a coarse grid."""
    centers, brightness, sigma_um = scene.cytoplasm
    step = np.maximum(1, np.floor(sigma_um / 4 / voxel_um)).astype(int)
    coarse = tuple(-(-np.array(shape) // step) + 1)
    coarse_um = voxel_um * step
    light = np.zeros(coarse, np.float32)
    for center in centers:
        index = np.round(center / coarse_um).astype(int)
        if (index >= 0).all() and (index < coarse).all():
            light[tuple(index)] += 1
    light = ndimage.gaussian_filter(light, sigma_um / coarse_um, mode="constant")
    light = ndimage.zoom(brightness * light / (light.max() + 1e-9), step, order=1)
    light = light[: shape[0], : shape[1], : shape[2]]
    return light * (1 + 0.2 * smooth_noise(rng, shape, 1.5 / (coarse_um / step)))


def gaussian_blur(light, voxel_um, in_plane_um, along_z_um):
    sigma = (along_z_um / voxel_um[0], in_plane_um / voxel_um[1], in_plane_um / voxel_um[2])
    return ndimage.gaussian_filter(light, sigma, mode="nearest")


def widefield_blur(scene, light, voxel_um, planes):
    """Light in the given focal planes, in which the light of each plane spreads with its distance; none is lost."""
    pad = WIDEFIELD_PADDING
    padded = np.pad(light, ((0, 0), (pad, pad), (pad, pad)), mode="edge")
    spectrum = np.fft.rfft2(padded)
    frequency_y = np.fft.fftfreq(padded.shape[1], voxel_um[1])[:, None]
    frequency_x = np.fft.rfftfreq(padded.shape[2], voxel_um[2])[None]
    squared = (2 * np.pi) ** 2 * (frequency_y**2 + frequency_x**2)
    blurred = np.zeros((len(planes), *light.shape[1:]), np.float32)
    for index, focus in enumerate(planes):
        total = 0
        for plane in range(light.shape[0]):
            away_um = (plane - focus) * voxel_um[0]
            variance = scene.blur_um[0] ** 2 + (scene.cone * away_um) ** 2
            if abs(away_um) < WIDEFIELD_REACH_UM:
                total = total + spectrum[plane] * np.exp(-0.5 * squared * variance)
        blurred[index] = np.fft.irfft2(total, s=padded.shape[1:])[pad:-pad, pad:-pad] * voxel_um[0]
    return blurred / scene.summed_um


def blur(scene, light, voxel_um, planes):
    """Light in the given planes after the point spread function; scattered light grows with depth."""
    if scene.cone:
        return widefield_blur(scene, light, voxel_um, planes)
    light = gaussian_blur(light, voxel_um, *scene.blur_um)
    if scene.scatter:
        share = np.linspace(0, scene.scatter, light.shape[0])[:, None, None]
        light = light * (1 - share) + gaussian_blur(light, voxel_um, 1.5, 1.5) * share
    return light[planes.start :: planes.step]


def illuminate(rng, stack, scene, light):
    """Adds background and structures, and applies attenuation, vignetting and the stripes of a light sheet."""
    shape, voxel_um = stack.shape, stack.voxel_um
    light = light + scene.background
    if scene.structures:
        light = light + scene.structures(rng, shape, voxel_um)
    if scene.attenuation:
        light = light * scene.attenuation(rng, shape, voxel_um)
    y, x = np.meshgrid(np.linspace(-1, 1, shape[1]), np.linspace(-1, 1, shape[2]), indexing="ij")
    squared = (y - rng.uniform(-0.4, 0.4)) ** 2 + (x - rng.uniform(-0.4, 0.4)) ** 2
    light = light * (1 - scene.vignetting * squared)[None]
    if scene.stripes:
        stripes = rng.standard_normal((shape[0], shape[1]))
        stripes = ndimage.gaussian_filter(stripes, (2 / voxel_um[0] + 0.5, 1.2))
        stripes /= stripes.std()
        light = light * np.clip(1 + scene.stripes * stripes, 0.3, None)[:, :, None]
    return np.clip(light, 0, None)


def record(rng, stack, scene, light):
    """Photon counts with the noise of the camera and its hot pixels, as integers of 8, 12 or 16 bits."""
    counts = rng.poisson(light * scene.photons).astype(np.float32)
    counts = counts + rng.normal(0, scene.read_noise, light.shape).astype(np.float32)
    if scene.hot_pixels:
        count = int(scene.hot_pixels * counts.size / stack.shape[0])
        rows = rng.integers(0, stack.shape[1], count)
        columns = rng.integers(0, stack.shape[2], count)
        counts[:, rows, columns] += rng.exponential(3 * scene.photons, count)
    if stack.bits == 8:
        bright = np.percentile(counts, 99.9) * rng.uniform(0.9, 1.6)
        return np.clip(counts / bright * 255 + rng.uniform(0, 12), 0, 255).astype(np.uint8)
    if stack.bits == 12:
        bright = np.percentile(counts, 99.9) * rng.uniform(0.9, 4)
        return np.clip(counts / bright * 4000 + scene.offset * 0.5, 0, 4095).astype(np.uint16)
    return np.clip(counts * rng.uniform(0.5, 4) + scene.offset, 0, 65535).astype(np.uint16)


def simulate(stack):
    """Intensities and labels of a stack. It is drawn in thinner slices, of which those at the middle are kept."""
    rng = np.random.default_rng(zlib.crc32(stack.name.encode()) + 7)
    scene = KINDS[stack.name.split("_")[0]](rng, stack)
    thickest_um = max(0.8 * scene.blur_um[1], stack.pixel_um)
    per_slice = int(np.clip(np.ceil(stack.slice_um / thickest_um), 1, 6))
    shape = (stack.shape[0] * per_slice, *stack.shape[1:])
    voxel_um = stack.voxel_um / [per_slice, 1, 1]
    planes = range(per_slice // 2, shape[0], per_slice)
    labels, nearest, drawn = draw_labels(scene, shape, voxel_um)
    light = nuclear_light(rng, labels, nearest, drawn, voxel_um)
    draw_debris(scene, labels, light, voxel_um)
    if scene.cytoplasm:
        light = light + cytoplasm_light(rng, scene, shape, voxel_um)
    light = illuminate(rng, stack, scene, blur(scene, light, voxel_um, planes))
    return record(rng, stack, scene, light), labels[planes.start :: per_slice]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--match", default="", help="regular expression for the names of stacks; default: all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for stack in STACKS:
        if not re.search(options.match, stack.name):
            continue
        raw, labels = simulate(stack)
        tifffile.imwrite(options.out / f"{stack.name}_raw.tif", raw, **voxel_size_tags(stack))
        tifffile.imwrite(options.out / f"{stack.name}_labels.tif", labels, compression="zlib")
        if stack.metadata == "none":
            (options.out / f"{stack.name}.json").write_text(json.dumps({"voxel_um": list(stack.voxel_um)}))
        print(f"{stack.name}: {len(np.unique(labels)) - 1} nuclei", flush=True)


if __name__ == "__main__":
    main()
