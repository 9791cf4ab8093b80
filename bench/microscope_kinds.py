"""Kinds of stacks of bench/microscope_stacks.py: one function for each. Needs numpy and scipy."""

import numpy as np
from scipy import ndimage

from microscope_scene import Scene, ball, camera, chromatin, record, rotation, shell, sizes, spread

# Functions that simulate a stack, by name, from random numbers and the number of the stack. They return the scene, the
# image and the labels.
KINDS = {}
EMPTY = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


def empty(function):
    EMPTY[f"empty_{function.__name__}"] = function
    return function


# Embryos


@kind
def worm_embryo(rng, i):
    """C. elegans, histone-GFP, spinning disk with slices five times coarser, few photons (Fluo-N3DH-CE)."""
    s = Scene(rng, (30, 160, 190), (1.0, 0.2, 0.2), (4, 1, 1))
    where = ball(s.size / 2, (13, 15, 24))
    early = i == 0
    s.scatter(
        10 if early else 90,
        sizes(rng, 6.5 if early else 3.4),
        where,
        texture=chromatin(s, 0.4, 0.2),
        nucleoli=int(early),
        bright=lambda: spread(rng, 1, 0.3),
        overlap=0.02,
    )
    z = s.coordinates()[0]
    light = s.image((0.55, 0.14), haze=0.05, background=0.12, patchy=0.03, field=np.exp(-z / 45))
    return s, *record(s, light, 35, 3, gain=1.5, offset=10, bits=8)


@kind
def fly_blastoderm(rng, i):
    """Drosophila syncytial blastoderm: one curved layer of closely spaced nuclei, light sheet."""
    s = Scene(rng, (32, 180, 180), (1.5, 0.4, 0.4), (3, 1, 1))
    middle, radius, spacing = s.size / 2 + [70, 0, 0], 80.0, 6.6 if i else 8.5
    for a in np.arange(-0.6, 0.6, spacing / radius):
        for b in np.arange(-0.6, 0.6, spacing / radius * 0.87):
            t, u = (
                a + (round(b / spacing * radius / 0.87) % 2) * spacing / radius / 2 + 0.006 * rng.normal(),
                b + 0.006 * rng.normal(),
            )
            out = np.array([-np.cos(t) * np.cos(u), np.sin(t), np.sin(u)])
            r = spacing * np.array([0.55 if i else 0.42, 0.4, 0.4]) * spread(rng, 1, 0.05)
            s.add(
                middle + out * (radius + 0.4 * rng.normal()),
                r,
                rotation(rng, out, 0.08),
                spread(rng, 1, 0.12),
                texture=None,
                rim=0.2,
            )
    s.light *= chromatin(s, 0.6, 0.15)
    light = s.image((1.1, 0.35), haze=0.12, haze_um=(10, 4), background=0.1, patchy=0.06)
    return s, *record(s, light, 250, 2, gain=2, offset=110)


@kind
def zebrafish_sheet(rng, i):
    """Zebrafish gastrula in a light sheet: several layers of a shell, stripes of shadow, haze; some nuclei divide."""
    s = Scene(rng, (36, 180, 180), (2.0, 0.5, 0.5), (4, 1, 1))
    where = shell(s.size / 2 + [90, 0, 0], (115, 115, 115), 32)
    s.scatter(
        14,
        lambda: np.array([1.6, 4.2, 4.2]) * spread(rng, 1, 0.1),
        where,
        bright=lambda: spread(rng, 2.2, 0.1),
        bumps=0.15,
    )
    s.scatter(
        240, sizes(rng, 8.5, 0.12, 0.15), where, texture=chromatin(s, 0.7, 0.2), bright=lambda: spread(rng, 1, 0.25)
    )
    y = s.coordinates()[1]
    shadow = ndimage.gaussian_filter1d(rng.normal(size=s.grid[1]), 4)
    shadow = np.exp(0.25 * shadow / shadow.std())[None, :, None]
    sheet = np.exp(-(((y / s.size[1]) - 0.5) ** 2) / 0.6)
    light = s.image((1.5, 0.4), haze=0.25, haze_um=(10, 5), background=0.1, patchy=0.04, field=shadow * sheet)
    return s, *record(s, light, 120, 2, gain=2.2, offset=100, columns=1.5)


@kind
def ovule(rng, i):
    """Arabidopsis ovule: round nuclei with a large dark nucleolus in cell layers, confocal (TO-PRO-3)."""
    s = Scene(rng, (40, 180, 180), (0.3, 0.2, 0.2), (1, 1, 1))
    where = ball(s.size / 2 + [0, 0, -4], (10, 12, 22))
    for _ in range(5000):
        c = rng.uniform(0, s.size)
        if not where(c) or s.count > 75:
            continue
        d = spread(rng, 4.2, 0.15)
        # Walls keep nuclei apart.
        if not s.is_clear(c, 0.6 * d):
            continue
        s.add(
            c, np.full(3, d / 2) * np.clip(1 + 0.07 * rng.normal(size=3), 0.8, 1.2), bright=spread(rng, 1, 0.2), rim=0.2
        )
        found = s.body(c, np.full(3, d * 0.26), np.eye(3), 0)
        s.light[found[0]][found[1]] *= 0.3
    s.light *= chromatin(s, 0.3, 0.3)
    light = s.image((0.4, 0.12), cytoplasm=0.15, background=0.04, field=np.exp(-s.coordinates()[0] / 15))
    return s, *record(s, light, 60, 1, gain=3, offset=0, bits=8)


@kind
def blastocyst(rng, i):
    """Mouse blastocyst: flat trophectoderm on a sphere around a cavity, a compact inner cell mass; slices of 2 um."""
    s = Scene(rng, (44, 190, 190), (2.0, 0.5, 0.5), (4, 1, 1))
    middle, r = s.size / 2, 38.0
    for _ in range(2000):
        out = rng.normal(size=3)
        out /= np.linalg.norm(out)
        if s.count < 38 and out[2] < 0.75:
            s.add(
                middle + out * r,
                (3.2, 6.0, 6.5),
                rotation(rng, out, 0.1),
                spread(rng, 0.9, 0.2),
                nucleoli=2,
                overlap=0.0,
            )
    s.scatter(
        28,
        sizes(rng, 9.5, 0.08),
        ball(middle + [0, 0, 24], (17, 17, 10)),
        bright=lambda: spread(rng, 1.2, 0.15),
        nucleoli=2,
        overlap=0.04,
    )
    s.add_debris(3, (1.0, 1.6), (2, 4))
    s.light *= chromatin(s, 0.6, 0.25)
    light = s.image(
        (1.2, 0.25), haze=0.06, cytoplasm=0.08, background=0.04, field=np.exp(-s.coordinates()[0] / (60 if i else 120))
    )
    return s, *record(s, light, 90, 2, gain=8, offset=20, bits=12)


@kind
def worm_larva(rng, i):
    """Platynereis-like larva in a light sheet: small nuclei of several sizes beside few large ones of yolk cells."""
    s = Scene(rng, (40, 170, 170), (1.6, 0.55, 0.55), (3, 1, 1))
    where = ball(s.size / 2, (34, 46, 46))
    s.scatter(5, sizes(rng, 13), ball(s.size / 2 + [8, 0, 0], (16, 25, 25)), nucleoli=1, bright=0.8)
    s.scatter(
        330, sizes(rng, 5.8, 0.2, 0.12), where, bright=lambda: spread(rng, 1, 0.3), texture=chromatin(s, 0.6, 0.15)
    )
    light = s.image((1.0, 0.4), haze=0.25, haze_um=(7, 4), background=0.1, field=np.exp(-s.coordinates()[0] / 70))
    return s, *record(s, light, 180, 2, gain=2.2, offset=100)


# Tissue


@kind
def cleared_brain(rng, i):
    """Cleared mouse brain at low magnification.

    Labeled nuclei of four to six voxels, a patchy background, slices 2.5 times as thick as pixels are wide.
    """
    s = Scene(rng, (30, 128, 128), (4.0, 1.6, 1.6), (4, 2, 2))
    s.scatter(140, sizes(rng, 8.5, 0.12), bright=lambda: spread(rng, 1, 0.45, 0.4), overlap=0.0)
    light = s.image((2.6, 0.9), haze=0.04, background=0.15, patchy=0.12, field=np.exp(0.3 * s.noise(80)))
    return s, *record(s, light, 200, 3, gain=4, offset=300)


@kind
def dense_brain(rng, i):
    """Brain with all nuclei stained (NucMM): dense nuclei of five to seven voxels in coarse isotropic voxels."""
    voxel = 0.8 if i else 1.0
    s = Scene(rng, (40, 80, 80), (voxel,) * 3, (3, 3, 3))
    s.scatter(900, sizes(rng, 5.2, 0.1), attempts=12, bright=lambda: spread(rng, 1, 0.2), overlap=0.03)
    light = s.image((0.7, 0.5), haze=0.08, background=0.1)
    return s, *record(s, light, 150, 2, gain=3, offset=100)


@kind
def retina(rng, i):
    """Retina: columns of touching small nuclei in a layer, sparse larger ones beside a plexiform gap."""
    s = Scene(rng, (36, 150, 150), (0.8, 0.35, 0.35), (2, 1, 1))
    s.scatter(
        600,
        lambda: np.array([2.2, 2.2, 2.7]) * spread(rng, 1, 0.06),
        lambda p: 3 < p[2] < 30,
        turn=lambda: rotation(rng, (0, 0, 1), 0.15)[:, [1, 2, 0]],
        attempts=8,
        bright=lambda: spread(rng, 1, 0.15),
        overlap=0.03,
    )
    s.scatter(40, sizes(rng, 7), lambda p: p[2] > 39, nucleoli=1, bright=lambda: spread(rng, 0.7, 0.15), overlap=0.02)
    s.light *= chromatin(s, 0.4, 0.2)
    light = s.image((0.6, 0.17), haze=0.06, background=0.05, field=np.exp(-s.coordinates()[0] / 40))
    return s, *record(s, light, 100, 2, gain=5, offset=50, bits=12)


@kind
def liver(rng, i):
    """Liver: round nuclei of 2n, 4n and 8n, a quarter of them in pairs, and thin nuclei of the sinusoids."""
    s = Scene(rng, (40, 190, 190), (1.0, 0.4, 0.4), (2, 1, 1))
    for _ in range(2500):
        d = rng.choice([6.2, 7.8, 9.8], p=[0.45, 0.42, 0.13])
        c = rng.uniform(0, s.size)
        if s.count > 70 or not s.is_clear(c, d / 2 + 3.5):
            continue
        s.add(c, np.full(3, d / 2), bumps=0.04, bright=spread(rng, 0.8, 0.12), nucleoli=2)
        if rng.random() < 0.25:
            side = rng.normal(size=3)
            s.add(
                c + side / np.linalg.norm(side) * d * 1.02,
                np.full(3, d / 2),
                bumps=0.04,
                bright=spread(rng, 0.8, 0.12),
                nucleoli=2,
            )
    s.scatter(
        45,
        lambda: np.array([5.0, 1.5, 1.8]) * spread(rng, 1, 0.1),
        bright=lambda: spread(rng, 1.4, 0.2),
        overlap=0.02,
        bumps=0.12,
    )
    s.light *= chromatin(s, 0.4, 0.25)
    light = s.image((0.8, 0.2), haze=0.05, background=0.1, patchy=0.05, field=np.exp(-s.coordinates()[0] / 35))
    return s, *record(s, light, 80, 2, gain=8, offset=40, bits=12)


@kind
def epithelium(rng, i):
    """Pseudostratified epithelium: long parallel nuclei side by side at two heights."""
    s = Scene(rng, (44, 180, 180), (0.8, 0.3, 0.3), (2, 1, 1))
    s.scatter(
        260,
        lambda: np.array([6.0, 2.5, 2.5]) * spread(rng, 1, 0.08),
        lambda p: abs(p[1] - 27 - 5 * np.sin(p[2] / 9)) < 9,
        attempts=30,
        turn=lambda: rotation(rng, (0, 1, 0), 0.12),
        bright=lambda: spread(rng, 1, 0.2),
        overlap=0.04,
    )
    s.light *= chromatin(s, 0.4, 0.2)
    light = s.image((0.7, 0.17), haze=0.06, background=0.05)
    return s, *record(s, light, 90, 2, gain=2, offset=0, bits=8)


@kind
def spindles(rng, i):
    """Muscle or endothelium: nuclei of 18 by 4 by 3 um along one direction."""
    s = Scene(rng, (32, 190, 190), (1.0, 0.5, 0.5), (2, 1, 1))
    s.scatter(
        60,
        lambda: np.array([9.0, 2.1, 1.7]) * spread(rng, 1, 0.12),
        turn=lambda: rotation(rng, (0.1, 0.2, 1), 0.15),
        bright=lambda: spread(rng, 1, 0.25),
        overlap=0.02,
        nucleoli=1,
    )
    s.light *= chromatin(s, 0.5, 0.25)
    light = s.image((0.8, 0.22), haze=0.05, background=0.06, patchy=0.05)
    return s, *record(s, light, 80, 2, gain=3, offset=100)


# Cultures


def cells_on_glass(s, number, diameter, thick, dividing):
    """Flat nuclei side by side, and some metaphase plates and anaphase pairs, which are thicker and brighter."""
    rng, done = s.rng, 0
    for _ in range(2000):
        c = np.array([s.size[0] * 0.45, *rng.uniform(0, s.size[1:])])
        d = spread(rng, diameter, 0.12)
        if done < dividing:
            angle = rng.uniform(0, np.pi)
            axis = np.array([0, np.cos(angle), np.sin(angle)])
            turn = rotation(rng, axis, 0.05)
            if done % 2:
                pair = [
                    s.add(c + side * axis * d * 0.33, (d * 0.1, d * 0.28, d * 0.28), turn, 2.6, 0.12)
                    for side in (-1, 1)
                ]
                done += all(pair)
            else:
                done += s.add(c, (d * 0.12, d * 0.38, d * 0.38), turn, 2.6, 0.15)
        elif s.count < number:
            a = rng.uniform(0, np.pi)
            flat = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
            s.add(
                c,
                (thick / 2, d / 2 * rng.uniform(0.75, 0.95), d / 2 * rng.uniform(1.0, 1.25)),
                flat,
                spread(rng, 1, 0.2),
                0.06,
                0.01,
                nucleoli=3,
            )


@kind
def monolayer(rng, i):
    """HeLa or U2OS on glass, confocal: flat nuclei with nucleoli, mitotic figures, fragments of dying cells."""
    s = Scene(rng, (28, 190, 190), (0.6, 0.45, 0.45), (1, 1, 1))
    cells_on_glass(s, 18, 15 if i else 18, 6.5, 3)
    s.add_debris(5, (0.6, 1.1), (2, 3))
    s.light *= chromatin(s, 0.5, 0.2)
    light = s.image((0.6, 0.17), haze=0.03, background=0.03)
    return s, *record(s, light, 120, 2, gain=7, offset=30, bits=12)


@kind
def few_slices(rng, i):
    """CHO cells with a replication marker (Fluo-N3DH-CHO): five or seven slices, foci, differently bright nuclei."""
    s = Scene(rng, (5 + 2 * i, 180, 180), (1.0, 0.22, 0.22), (4, 1, 1))
    cells_on_glass(s, 9, 11, 4.5, 0)
    foci = s.noise(0.35)
    s.light *= 0.6 + 1.5 * (foci > 1.4)
    levels = np.r_[0, np.clip(rng.lognormal(0, 0.5, s.count), 0.35, 2.5)]
    s.light *= levels[s.labels].astype(np.float32)
    light = s.image((0.5, 0.14), haze=0.03, background=0.05)
    return s, *record(s, light, 40, 2, gain=1.4, offset=5, bits=8)


@kind
def chromocenters(rng, i):
    """Mouse cells at high magnification: nuclei 60 to 90 voxels wide with chromocenters, some cut by the border."""
    s = Scene(rng, (44, 190, 190), (0.3, 0.12 + 0.06 * i, 0.12 + 0.06 * i), (1, 1, 1))
    s.scatter(
        12,
        lambda: np.array([3.4, 4.8, 5.2]) * spread(rng, 1, 0.06),
        turn=np.eye(3),
        nucleoli=2,
        overlap=0.0,
        texture=chromatin(s, 0.25, 0.3),
    )
    spots = ndimage.gaussian_filter((rng.random(s.grid) < 0.06 * s.step.prod()).astype(np.float32), 0.4 / s.step) * (
        s.labels > 0
    )
    s.light += 2.5 * np.minimum(spots / max(np.percentile(spots[spots > 0], 95), 1e-6), 1.5) * (s.labels > 0)
    light = s.image((0.3, 0.1), background=0.03)
    return s, *record(s, light, 50, 2, gain=4, offset=100)


@kind
def spheroid(rng, i):
    """Spheroid with a necrotic core: a rim of living nuclei, dim fragments inside, light lost with depth."""
    s = Scene(rng, (44, 190, 190), (1.5, 0.6, 0.6), (3, 1, 1))
    middle = s.size / 2 + [30, 0, 0]
    s.scatter(
        230,
        sizes(rng, 9, 0.12, 0.14),
        shell(middle, (58, 55, 55), 27),
        texture=chromatin(s, 0.6, 0.2),
        bright=lambda: spread(rng, 1, 0.2),
        nucleoli=1,
    )
    core = ball(middle, (28, 26, 26))
    s.scatter(120, lambda: np.full(3, rng.uniform(0.6, 1.5)), core, bright=lambda: rng.uniform(0.2, 0.6), label=False)
    light = s.image(
        (1.3, 0.35), haze=0.15, background=0.05, cytoplasm=0.08, field=np.exp(-s.coordinates()[0] / (40 if i else 70))
    )
    return s, *record(s, light, 200, 3, gain=5, offset=200)


@kind
def dying_organoid(rng, i):
    """Organoid with a lumen of fragments: a single layer of nuclei, mitoses, bright apoptotic bodies."""
    s = Scene(rng, (40, 170, 170), (1.0, 0.4, 0.4), (2, 1, 1))
    where = shell(s.size / 2, (28, 30, 30), 11)
    s.scatter(5, lambda: np.array([1.2, 3.6, 3.6]), where, bright=2.5, bumps=0.15)
    s.scatter(
        120,
        sizes(rng, 8, 0.08, 0.12),
        where,
        texture=chromatin(s, 0.5, 0.2),
        bright=lambda: spread(rng, 1, 0.2),
        nucleoli=1,
    )
    s.scatter(
        45,
        lambda: np.full(3, rng.uniform(0.4, 1.1)),
        ball(s.size / 2, (15, 18, 18)),
        bright=lambda: rng.uniform(1.5, 4),
        label=False,
    )
    light = s.image((0.8, 0.2), haze=0.06, cytoplasm=0.06, background=0.04)
    return s, *record(s, light, 100, 2, gain=3, offset=100)


@kind
def polytene(rng, i):
    """Salivary gland of Drosophila: nuclei of 26 um with bands and dark gaps.

    The second stack also has small nuclei of the fat body.
    """
    s = Scene(rng, (36, 180, 180), (2.0, 0.7, 0.7), (2, 1, 1))
    s.scatter(
        14,
        sizes(rng, 26, 0.06, 0.06),
        lambda p: 5 < p[0] < 67,
        texture=np.exp(0.9 * np.sin(3 * s.noise(2.2))).astype(np.float32),
        overlap=0.0,
        bumps=0.04,
        nucleoli=1,
    )
    if i:
        s.scatter(8, sizes(rng, 9), bright=1.2, overlap=0.0)
    light = s.image((1.3, 0.35), haze=0.04, background=0.04)
    return s, *record(s, light, 120, 2, gain=6, offset=80, bits=12)


@kind
def cut_by_borders(rng, i):
    """A small crop: nuclei of 14 um of which most are cut by the borders of the stack."""
    s = Scene(rng, (20, 96, 96), (0.8, 0.3, 0.3), (1, 1, 1))
    s.scatter(
        14,
        sizes(rng, 13, 0.1),
        texture=chromatin(s, 0.5, 0.25),
        nucleoli=2,
        bright=lambda: spread(rng, 1, 0.15),
        overlap=0.03,
    )
    light = s.image((0.7, 0.18), haze=0.05, background=0.05)
    return s, *record(s, light, 100, 2, gain=4, offset=100)


# Recordings


def tissue(rng, shape=(36, 160, 160), voxel=(1.0, 0.4, 0.4), diameter=7.5, number=130):
    """Nuclei at random, some touching: the specimen of the kinds that examine how an image was recorded."""
    s = Scene(rng, shape, voxel, (2, 1, 1))
    s.scatter(
        number,
        sizes(rng, diameter, 0.1, 0.14),
        texture=chromatin(s, 0.5, 0.2),
        nucleoli=1,
        bright=lambda: spread(rng, 1, 0.2),
    )
    return s


@kind
def debris(rng, i):
    """Autofluorescent debris ten to thirty times brighter than nuclei."""
    s = tissue(rng)
    s.add_debris(8, (0.8, 2.5), (10, 30))
    light = s.image((0.8, 0.2), haze=0.05, background=0.08)
    return s, *record(s, light, 60, 2, gain=8, offset=100)


@kind
def depth(rng, i):
    """Light falls to a tenth over the depth of the stack, and blur grows."""
    s = tissue(rng, (44, 150, 150), (1.5, 0.4, 0.4), 8.0, 200)
    sharp = s.image((0.8, 0.2), haze=0.05, background=0.05)
    soft = s.image((1.5, 0.6), haze=0.3, haze_um=(6, 4), background=0.05)
    w = np.linspace(0, 1, len(sharp))[:, None, None]
    light = ((1 - w) * sharp + w * soft) * np.exp(-2.3 * w)
    return s, *record(s, light.astype(np.float32), 250, 2, gain=3, offset=100)


@kind
def stripes(rng, i):
    """Columns of fixed pattern of an sCMOS camera, and stripes of shadow along the light sheet."""
    s = tissue(rng)
    lines = ndimage.gaussian_filter1d(rng.normal(size=s.grid[1]), 1.5)
    light = s.image((0.9, 0.25), haze=0.1, background=0.1, field=np.exp(0.3 * lines / lines.std())[None, :, None])
    return s, *record(s, light, 60, 2, gain=2.2, offset=100, columns=5)


@kind
def saturated(rng, i):
    """8 bits with the brightest third of the nuclei clipped, nuclei of very different brightness."""
    s = Scene(rng, (36, 160, 160), (0.9, 0.35, 0.35), (2, 1, 1))
    s.scatter(110, sizes(rng, 7, 0.1, 0.14), bright=lambda: spread(rng, 1, 0.6, 0.3, 5), texture=chromatin(s, 0.5, 0.2))
    light = s.image((0.8, 0.2), haze=0.05, background=0.05)
    return s, *record(s, light, 60, 2, gain=3 if i else 4.5, offset=4, bits=8)


@kind
def faint_offset(rng, i):
    """16 bits with signals of 25 counts on an offset of 400 or 32768."""
    s = tissue(rng, number=90)
    light = s.image((0.8, 0.2), haze=0.05, background=0.1)
    return s, *record(s, light, 25, 2, gain=1, offset=32768 if i else 400)


@kind
def deconvolved(rng, i):
    """Deconvolved by an inverse filter: ringing, grains of noise, negative values clipped to 0; floats."""
    s = tissue(rng)
    light = s.image((1.0, 0.28), haze=0.08, background=0.08)
    counts, truth = record(s, light, 150, 2, offset=0)
    image = counts.astype(np.float32)
    for amount, sigma in [(2.0, 1.0), (1.0, 2.0)]:
        image += amount * (image - ndimage.gaussian_filter(image, (sigma / 2, sigma, sigma)))
    image = ndimage.gaussian_filter(image - 0.16 * 150, 0.6)
    return s, np.maximum(image, 0).astype(np.float32), truth


@kind
def unit_floats(rng, i):
    """Floats of 0 to 1, scaled to the range of the stack, smooth after denoising."""
    s = tissue(rng)
    s.add_debris(1, (0.6, 0.9), (4, 6))
    light = s.image((0.8, 0.22), haze=0.08, background=0.08)
    counts, truth = record(s, light, 60, 2, offset=100)
    image = ndimage.gaussian_filter(counts.astype(np.float32), (0.6, 1, 1))
    return s, ((image - image.min()) / np.ptp(image)).astype(np.float32), truth


@kind
def downsampled(rng, i):
    """Reduced to isotropic voxels of 1 um by averaging: nuclei of eight voxels, hardly any noise."""
    s = Scene(rng, (44, 96, 96), (1.0, 1.0, 1.0), (2, 2, 2))
    s.scatter(
        550,
        sizes(rng, 8, 0.12, 0.14),
        texture=chromatin(s, 0.6, 0.2),
        attempts=15,
        bright=lambda: spread(rng, 1, 0.25),
        overlap=0.04,
    )
    light = s.image((0.8, 0.3), haze=0.1, background=0.06)
    return s, *record(s, light, 1500, 2, gain=1.5, offset=150)


@kind
def vignette(rng, i):
    """Illumination falls to a fifth toward one corner (light and background alike)."""
    s = tissue(rng)
    _, y, x = s.coordinates()
    field = np.exp(-((y / s.size[1]) ** 2 + (x / s.size[2]) ** 2) * 0.8)
    light = s.image((0.8, 0.2), haze=0.08, background=0.12, field=field)
    return s, *record(s, light, 200, 2, gain=4, offset=100)


@kind
def two_photon(rng, i):
    """Two photons deep in tissue: a photon or none per voxel, nuclei of 9 um, voxels of 0.5 um."""
    s = tissue(rng, (36, 150, 150), (1.5, 0.5, 0.5), 9.0, 120)
    light = s.image((1.2, 0.3), haze=0.05, background=0.1)
    return s, *record(s, light, 5, 0.5, gain=40, offset=0, bits=12)


# Stacks without nuclei


@empty
def camera_noise(rng, i):
    s = Scene(rng, (24, 128, 128), (1, 0.4, 0.4))
    return s, camera(rng, np.full(s.shape, 0.1), 60, 2, offset=100, columns=2), s.truth()


@empty
def tissue_without_stain(rng, i):
    """Autofluorescence: smooth differences and granules of lipofuscin."""
    s = Scene(rng, (24, 128, 128), (1, 0.4, 0.4))
    s.add_debris(60, (0.3, 0.8), (0.5, 2))
    light = s.image((0.8, 0.2), haze=0.1, background=0.1, patchy=0.3)
    return s, camera(rng, light, 60, 2, gain=3), s.truth()


@empty
def fibers(rng, i):
    """Vessels or fibers without nuclei."""
    s = Scene(rng, (24, 140, 140), (1, 0.5, 0.5))
    for _ in range(25):
        at, way = rng.uniform(0, s.size), rng.normal(size=3) * [0.3, 1, 1]
        for _ in range(120):
            way = way / np.linalg.norm(way) + 0.08 * rng.normal(size=3)
            at = at + 0.5 * way / np.linalg.norm(way)
            s.add(at, (0.9, 0.9, 0.9), np.eye(3), bumps=0, overlap=1, label=False)
    s.light = np.minimum(s.light, 1)
    return s, camera(rng, s.image((0.8, 0.25), haze=0.1), 60, 2, gain=4), s.truth()


@empty
def cytoplasm(rng, i):
    """Cells of which only the cytoplasm shines: dark round nuclei in a bright network."""
    s = Scene(rng, (28, 140, 140), (1, 0.4, 0.4))
    s.scatter(110, sizes(rng, 8), overlap=0.0)
    inside = s.labels > 0
    s.light = (~inside * np.exp(0.4 * s.noise(1.0))).astype(np.float32)
    s.labels[:] = 0
    return s, camera(rng, s.image((0.8, 0.25), haze=0.1), 60, 2, gain=4), s.truth()
