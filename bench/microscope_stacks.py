"""Simulated stacks of fluorescent nuclei, modelled on data sets that microscopists publish, with ground truth.

    python bench/microscope_stacks.py OUT [--seed 2031] [--match liver] [--montage FOLDER]

Writes NAME_raw.tif and NAME_labels.tif of two stacks of each kind, with voxel sizes (one as ImageJ TIFF, one as OME-TIFF), and
stacks without nuclei, whose names start with empty. Nuclei have diameters of 3 to 30 um, and voxels 0.1 to 5 um with slices up to
six times farther apart. Bodies are painted on a grid finer than the voxels, blurred by a point-spread function and haze, dimmed
by depth and illumination, summed to voxels, and recorded by a camera with shot noise, read noise, gain and offset.

Bodies that a person would not see are left out of the ground truth: those whose contrast with their surroundings is below 0.15
or, summed over their largest section, below five standard deviations of the noise. `--montage` writes a PNG of each stack: its
middle slice, a slice along Z and the true outlines. The code shares nothing with the other generators or with the simulated
training stacks. Needs numpy, scipy and tifffile.
"""
import argparse
import re
from pathlib import Path

import numpy as np
import tifffile
from scipy import ndimage

# Directions from the center of a body to where no other one may lie, relative to its radii.
CORE = np.array([[z, y, x] for z in (-1, 0, 1) for y in (-1, 0, 1) for x in (-1, 0, 1)], float)
CORE *= 0.75 / np.maximum(np.linalg.norm(CORE, axis=1, keepdims=True), 1)

KINDS = {}
EMPTY = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


def empty(function):
    EMPTY[f"empty_{function.__name__}"] = function
    return function


def rotation(rng, axis=None, spread=0.0):
    """Columns are the directions of a body's axes in ZYX; the first is near `axis` if one is given, or else random."""
    first = rng.normal(size=3) if axis is None else np.asarray(axis, float) + spread * rng.normal(size=3)
    q, r = np.linalg.qr(np.column_stack([first, rng.normal(size=(3, 2))]))
    return q * np.sign(np.diag(r))


def blur(values, sigma):
    """Gaussian filter; wide ones are computed at a lower resolution."""
    factor = np.clip(np.floor(np.asarray(sigma) / 2).astype(int), 1, 16)
    if (factor == 1).all():
        return ndimage.gaussian_filter(values, sigma, mode="nearest", truncate=3)
    padded = np.pad(values, [(0, -n % f) for n, f in zip(values.shape, factor)], mode="edge")
    (a, b, c), (d, e, f) = np.array(padded.shape) // factor, factor
    small = padded.reshape(a, d, b, e, c, f).mean((1, 3, 5), dtype=np.float32)
    small = ndimage.gaussian_filter(small, sigma / factor, mode="nearest", truncate=3)
    wide = ndimage.zoom(small, factor, order=1, mode="nearest", grid_mode=True)
    return wide[tuple(slice(0, n) for n in values.shape)]


class Scene:
    """Bodies on a grid that is `fine` times finer than the voxels; positions and lengths are in um, ZYX."""

    def __init__(self, rng, shape, voxel, fine=(2, 1, 1)):
        self.rng, self.shape, self.voxel, self.fine = rng, np.array(shape), np.array(voxel, float), np.array(fine)
        self.step = self.voxel / self.fine
        self.grid = self.shape * self.fine
        self.size = self.shape * self.voxel
        self.labels = np.zeros(self.grid, np.uint16)
        self.light = np.zeros(self.grid, np.float32)
        self.count = 0
        self.places = []

    def noise(self, scale):
        """A smooth random field with mean 0 and standard deviation 1; `scale` is the sigma of its Gaussian in um."""
        sigma = scale / self.step
        factor = np.clip(np.floor(sigma / 2).astype(int), 1, self.grid)
        small = self.rng.standard_normal(-(-self.grid // factor), dtype=np.float32)
        small = ndimage.gaussian_filter(small, sigma / factor, mode="wrap", truncate=3)
        small = (small - small.mean()) / small.std()
        if (factor > 1).any():
            small = ndimage.zoom(small, factor, order=1, mode="nearest", grid_mode=True)
        return small[tuple(slice(0, n) for n in self.grid)]

    def points(self):
        """Coordinates of the fine voxels, for regions and illumination; broadcast along the other axes."""
        return np.ogrid[tuple(slice(0, n) for n in self.grid)]

    def coordinates(self):
        return [(p + 0.5) * s for p, s in zip(self.points(), self.step)]

    def box(self, center, reach):
        low = np.clip(np.floor((center - reach) / self.step).astype(int), 0, self.grid)
        high = np.clip(np.ceil((center + reach) / self.step).astype(int) + 1, 0, self.grid)
        return tuple(slice(a, b) for a, b in zip(low, high)) if (high > low).all() else None

    def body(self, center, radii, turn, bumps):
        """The box of a body, whether voxels are inside, and the distance from its center relative to the surface."""
        box = self.box(center, 1.3 * np.max(radii))
        if box is None:
            return None
        axes = [((np.arange(b.start, b.stop) + 0.5) * s).astype(np.float32) for b, s in zip(box, self.step)]
        at = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
        local = (at - np.float32(center)) @ np.float32(turn / np.asarray(radii))
        far = np.linalg.norm(local, axis=-1)
        direction = local / np.maximum(far, 1e-6)[..., None]
        surface = np.ones_like(far)
        for _ in range(4 if bumps else 0):
            wave = self.rng.normal(size=3).astype(np.float32) * 2
            surface += bumps / 2 * np.cos(direction @ wave + self.rng.uniform(0, 2 * np.pi))
        return box, far < surface, far / surface

    def add(self, center, radii, turn=None, bright=1.0, bumps=0.08, overlap=0.06, texture=None, nucleoli=0, rim=0.0, label=True):
        """Paints a body unless more than the fraction `overlap` of it lies in others; returns whether it did.

        `texture` multiplies the light (a field), `nucleoli` is the number of dark spheres, `rim` the gain at the surface."""
        turn = rotation(self.rng) if turn is None else turn
        # Most positions in dense tissue are refused here, before the body is computed.
        if overlap < 1 and self.is_taken(center + CORE * radii @ turn.T):
            return False
        found = self.body(np.asarray(center, float), radii, turn, bumps)
        if found is None:
            return False
        box, inside, far = found
        free = inside & (self.labels[box] == 0)
        if not free.any() or free.sum() < (1 - overlap) * inside.sum():
            return False
        value = bright * (1 + rim * far**4)
        if texture is not None:
            value = value * texture[box]
        for _ in range(nucleoli):
            value = value * self.hole(box, center, radii, turn)
        if label:
            self.count += 1
            self.labels[box][free] = self.count
            self.places.append((*center, np.max(radii)))
        self.light[box][free] += np.broadcast_to(value, free.shape)[free]
        return True

    def is_taken(self, points):
        """Whether a body lies at any of the positions that are inside the stack."""
        at = np.floor(points / self.step).astype(int)
        at = at[((at >= 0) & (at < self.grid)).all(1)]
        return bool(self.labels[tuple(at.T)].any())

    def clear(self, center, radius):
        """Whether a sphere keeps off the spheres around all bodies."""
        places = np.reshape(self.places, (-1, 4))
        return bool((np.linalg.norm(places[:, :3] - center, axis=1) > places[:, 3] + radius).all())

    def hole(self, box, center, radii, turn):
        """Factors of a dark sphere somewhere inside a body."""
        small = np.min(radii)
        at = center + turn @ (np.asarray(radii) * self.rng.uniform(-0.45, 0.45, 3))
        axes = np.ogrid[box]
        square = sum(((a + 0.5) * s - c) ** 2 for a, s, c in zip(axes, self.step, at))
        return np.where(square < (small * self.rng.uniform(0.25, 0.4)) ** 2, 0.35, 1.0)

    def scatter(self, number, radii, where=None, attempts=40, **options):
        """Throws bodies at random positions; `radii` and options that are functions are called for each one."""
        for _ in range(number * attempts):
            center = self.rng.uniform(-0.05 * self.size, 1.05 * self.size)
            if (where is not None and not where(center)):
                continue
            size = radii()
            number -= self.add(center, size, **{k: v() if callable(v) else v for k, v in options.items()})
            if number <= 0:
                return

    def dirt(self, number, radius, bright):
        """Bright specks that are no nuclei; they may overlap bodies."""
        for _ in range(number):
            found = self.body(self.rng.uniform(0, self.size), self.rng.uniform(*radius) * self.rng.uniform(0.6, 1.4, 3), np.eye(3), 0.2)
            if found is not None:
                box, inside, _ = found
                self.light[box][inside] += self.rng.uniform(*bright)
                self.labels[box][inside] = 0

    def image(self, psf, haze=0.0, haze_um=(8, 5), cytoplasm=0.0, background=0.05, patchy=0.0, field=1.0):
        """Expected light of the voxels, relative to that of a nucleus. `psf` is sigma ZX in um; `field` scales all light."""
        light = self.light
        if cytoplasm:
            near = blur((self.labels > 0).astype(np.float32), 2 / self.step)
            light = light + cytoplasm * near * (self.labels == 0)
        out = ndimage.gaussian_filter(light, np.array(psf)[[0, 1, 1]] / self.step, mode="nearest", truncate=3)
        if haze:
            out = out + haze * blur(light, np.array(haze_um)[[0, 1, 1]] / self.step)
        if patchy:
            out = out + patchy * np.exp(0.8 * self.noise(12))
        return self.coarse((out + background) * field)

    def coarse(self, values):
        z, y, x = self.shape
        a, b, c = self.fine
        return np.broadcast_to(values, self.grid).reshape(z, a, y, b, x, c).mean((1, 3, 5), dtype=np.float32)

    def truth(self):
        """Labels of the voxels: those of the fine voxels at their centers."""
        return self.labels[tuple(slice(f // 2, None, f) for f in self.fine)].copy()


def visible(labels, light, photons, read):
    """Labels without bodies that a person would not see (see the top of the file)."""
    labels = labels.copy()
    for i, box in enumerate(ndimage.find_objects(labels), 1):
        if box is None:
            continue
        wide = tuple(slice(max(b.start - 3, 0), b.stop + 3) for b in box)
        mine, free = labels[wide] == i, labels[wide] == 0
        around = np.percentile(light[wide][free], 25) if free.sum() > 20 else np.percentile(light, 5)
        excess = light[wide][mine].mean() - around
        section = mine.sum((1, 2)).max()
        sigma = np.sqrt(photons * light[wide][mine].mean() + read**2) / photons
        if excess < 0.15 * around or excess * np.sqrt(section) < 5 * sigma:
            labels[labels == i] = 0
    return labels


def camera(rng, light, photons, read=2.0, gain=1.0, offset=100.0, bits=16, columns=0.0):
    """Counts of a camera: `photons` in a nucleus, read noise in electrons, gain counts per electron; `columns` of fixed pattern."""
    electrons = rng.poisson(np.maximum(light * photons, 0)) + read * rng.normal(size=light.shape)
    electrons += columns * rng.normal(size=(1, 1, light.shape[2]))
    counts = np.clip(np.round(electrons * gain + offset), 0, 2**bits - 1)
    return counts.astype(np.uint8 if bits == 8 else np.uint16)


def shot(scene, light, photons, read=2.0, **options):
    return camera(scene.rng, light, photons, read, **options), visible(scene.truth(), light, photons, read)


def spread(rng, mean, sigma=0.15, low=0.5, high=2.0):
    return mean * np.clip(rng.lognormal(0, sigma), low, high)


def sizes(rng, mean, sigma=0.08, flat=0.12):
    """A function that draws the three radii of a body with the mean diameter given."""
    return lambda: spread(rng, mean / 2, sigma) * np.clip(1 + flat * rng.normal(size=3), 0.6, 1.5)


def chromatin(scene, scale, contrast):
    return np.exp(contrast * scene.noise(scale)).astype(np.float32)


def ball(center, radii):
    center, radii = np.asarray(center, float), np.asarray(radii, float)
    return lambda p: (((p - center) / radii) ** 2).sum() < 1


def shell(center, radii, thickness):
    outer, inner = ball(center, radii), ball(center, np.asarray(radii) - thickness)
    return lambda p: outer(p) and not inner(p)


# Embryos


@kind
def worm_embryo(rng, i):
    """C. elegans, histone-GFP, spinning disk with slices five times coarser, few photons (Fluo-N3DH-CE)."""
    s = Scene(rng, (30, 160, 190), (1.0, 0.2, 0.2), (4, 1, 1))
    where = ball(s.size / 2, (13, 15, 24))
    early = i == 0
    s.scatter(10 if early else 90, sizes(rng, 6.5 if early else 3.4), where, texture=chromatin(s, 0.4, 0.2), nucleoli=int(early),
              bright=lambda: spread(rng, 1, 0.3), overlap=0.02)
    z = s.coordinates()[0]
    light = s.image((0.55, 0.14), haze=0.05, background=0.12, patchy=0.03, field=np.exp(-z / 45))
    return s, *shot(s, light, 35, 3, gain=1.5, offset=10, bits=8)


@kind
def fly_blastoderm(rng, i):
    """Drosophila syncytial blastoderm: one curved layer of closely spaced nuclei, light sheet."""
    s = Scene(rng, (32, 180, 180), (1.5, 0.4, 0.4), (3, 1, 1))
    middle, radius, spacing = s.size / 2 + [70, 0, 0], 80.0, 6.6 if i else 8.5
    for a in np.arange(-0.6, 0.6, spacing / radius):
        for b in np.arange(-0.6, 0.6, spacing / radius * 0.87):
            t, u = a + (round(b / spacing * radius / 0.87) % 2) * spacing / radius / 2 + 0.006 * rng.normal(), b + 0.006 * rng.normal()
            out = np.array([-np.cos(t) * np.cos(u), np.sin(t), np.sin(u)])
            r = spacing * np.array([0.55 if i else 0.42, 0.4, 0.4]) * spread(rng, 1, 0.05)
            s.add(middle + out * (radius + 0.4 * rng.normal()), r, rotation(rng, out, 0.08), spread(rng, 1, 0.12), texture=None, rim=0.2)
    s.light *= chromatin(s, 0.6, 0.15)
    light = s.image((1.1, 0.35), haze=0.12, haze_um=(10, 4), background=0.1, patchy=0.06)
    return s, *shot(s, light, 250, 2, gain=2, offset=110)


@kind
def zebrafish_sheet(rng, i):
    """Zebrafish gastrula in a light sheet: several layers of a shell, stripes of shadow, haze; some nuclei divide."""
    s = Scene(rng, (36, 180, 180), (2.0, 0.5, 0.5), (4, 1, 1))
    where = shell(s.size / 2 + [90, 0, 0], (115, 115, 115), 32)
    s.scatter(14, lambda: np.array([1.6, 4.2, 4.2]) * spread(rng, 1, 0.1), where, bright=lambda: spread(rng, 2.2, 0.1), bumps=0.15)
    s.scatter(240, sizes(rng, 8.5, 0.12, 0.15), where, texture=chromatin(s, 0.7, 0.2), bright=lambda: spread(rng, 1, 0.25))
    y = s.coordinates()[1]
    shadow = ndimage.gaussian_filter1d(rng.normal(size=s.grid[1]), 4)
    shadow = np.exp(0.25 * shadow / shadow.std())[None, :, None]
    sheet = np.exp(-(((y / s.size[1]) - 0.5) ** 2) / 0.6)
    light = s.image((1.5, 0.4), haze=0.25, haze_um=(10, 5), background=0.1, patchy=0.04, field=shadow * sheet)
    return s, *shot(s, light, 120, 2, gain=2.2, offset=100, columns=1.5)


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
        if not s.clear(c, 0.6 * d):
            continue
        s.add(c, np.full(3, d / 2) * np.clip(1 + 0.07 * rng.normal(size=3), 0.8, 1.2), bright=spread(rng, 1, 0.2), rim=0.2)
        found = s.body(c, np.full(3, d * 0.26), np.eye(3), 0)
        s.light[found[0]][found[1]] *= 0.3
    s.light *= chromatin(s, 0.3, 0.3)
    light = s.image((0.4, 0.12), cytoplasm=0.15, background=0.04, field=np.exp(-s.coordinates()[0] / 15))
    return s, *shot(s, light, 60, 1, gain=3, offset=0, bits=8)


@kind
def blastocyst(rng, i):
    """Mouse blastocyst: flat trophectoderm on a sphere around a cavity, and a compact inner cell mass; slices of 2 um."""
    s = Scene(rng, (44, 190, 190), (2.0, 0.5, 0.5), (4, 1, 1))
    middle, r = s.size / 2, 38.0
    for _ in range(2000):
        out = rng.normal(size=3)
        out /= np.linalg.norm(out)
        if s.count < 38 and out[2] < 0.75:
            s.add(middle + out * r, (3.2, 6.0, 6.5), rotation(rng, out, 0.1), spread(rng, 0.9, 0.2), nucleoli=2, overlap=0.0)
    s.scatter(28, sizes(rng, 9.5, 0.08), ball(middle + [0, 0, 24], (17, 17, 10)), bright=lambda: spread(rng, 1.2, 0.15), nucleoli=2, overlap=0.04)
    s.dirt(3, (1.0, 1.6), (2, 4))
    s.light *= chromatin(s, 0.6, 0.25)
    light = s.image((1.2, 0.25), haze=0.06, cytoplasm=0.08, background=0.04, field=np.exp(-s.coordinates()[0] / (60 if i else 120)))
    return s, *shot(s, light, 90, 2, gain=8, offset=20, bits=12)


@kind
def worm_larva(rng, i):
    """Platynereis-like larva in a light sheet: small nuclei of several sizes beside few large ones of yolk cells."""
    s = Scene(rng, (40, 170, 170), (1.6, 0.55, 0.55), (3, 1, 1))
    where = ball(s.size / 2, (34, 46, 46))
    s.scatter(5, sizes(rng, 13), ball(s.size / 2 + [8, 0, 0], (16, 25, 25)), nucleoli=1, bright=0.8)
    s.scatter(330, sizes(rng, 5.8, 0.2, 0.12), where, bright=lambda: spread(rng, 1, 0.3), texture=chromatin(s, 0.6, 0.15))
    light = s.image((1.0, 0.4), haze=0.25, haze_um=(7, 4), background=0.1, field=np.exp(-s.coordinates()[0] / 70))
    return s, *shot(s, light, 180, 2, gain=2.2, offset=100)


# Tissue


@kind
def cleared_brain(rng, i):
    """Cleared mouse brain at low magnification: labeled nuclei of four to six voxels, patchy background, slices 2.5 times coarser."""
    s = Scene(rng, (30, 128, 128), (4.0, 1.6, 1.6), (4, 2, 2))
    s.scatter(140, sizes(rng, 8.5, 0.12), bright=lambda: spread(rng, 1, 0.45, 0.4), overlap=0.0)
    light = s.image((2.6, 0.9), haze=0.04, background=0.15, patchy=0.12, field=np.exp(0.3 * s.noise(80)))
    return s, *shot(s, light, 200, 3, gain=4, offset=300)


@kind
def dense_brain(rng, i):
    """Brain with all nuclei stained (NucMM): dense nuclei of five to seven voxels in coarse isotropic voxels."""
    voxel = 0.8 if i else 1.0
    s = Scene(rng, (40, 80, 80), (voxel,) * 3, (3, 3, 3))
    s.scatter(900, sizes(rng, 5.2, 0.1), attempts=12, bright=lambda: spread(rng, 1, 0.2), overlap=0.03)
    light = s.image((0.7, 0.5), haze=0.08, background=0.1)
    return s, *shot(s, light, 150, 2, gain=3, offset=100)


@kind
def retina(rng, i):
    """Retina: columns of touching small nuclei in a layer, sparse larger ones beside a plexiform gap."""
    s = Scene(rng, (36, 150, 150), (0.8, 0.35, 0.35), (2, 1, 1))
    s.scatter(600, lambda: np.array([2.2, 2.2, 2.7]) * spread(rng, 1, 0.06), lambda p: 3 < p[2] < 30, turn=lambda: rotation(rng, (0, 0, 1), 0.15)[:, [1, 2, 0]],
              attempts=8, bright=lambda: spread(rng, 1, 0.15), overlap=0.03)
    s.scatter(40, sizes(rng, 7), lambda p: p[2] > 39, nucleoli=1, bright=lambda: spread(rng, 0.7, 0.15), overlap=0.02)
    s.light *= chromatin(s, 0.4, 0.2)
    light = s.image((0.6, 0.17), haze=0.06, background=0.05, field=np.exp(-s.coordinates()[0] / 40))
    return s, *shot(s, light, 100, 2, gain=5, offset=50, bits=12)


@kind
def liver(rng, i):
    """Liver: round nuclei of 2n, 4n and 8n, a quarter of them in pairs, and thin nuclei of the sinusoids."""
    s = Scene(rng, (40, 190, 190), (1.0, 0.4, 0.4), (2, 1, 1))
    for _ in range(2500):
        d = rng.choice([6.2, 7.8, 9.8], p=[0.45, 0.42, 0.13])
        c = rng.uniform(0, s.size)
        if s.count > 70 or not s.clear(c, d / 2 + 3.5):
            continue
        s.add(c, np.full(3, d / 2), bumps=0.04, bright=spread(rng, 0.8, 0.12), nucleoli=2)
        if rng.random() < 0.25:
            side = rng.normal(size=3)
            s.add(c + side / np.linalg.norm(side) * d * 1.02, np.full(3, d / 2), bumps=0.04, bright=spread(rng, 0.8, 0.12), nucleoli=2)
    s.scatter(45, lambda: np.array([5.0, 1.5, 1.8]) * spread(rng, 1, 0.1), bright=lambda: spread(rng, 1.4, 0.2), overlap=0.02, bumps=0.12)
    s.light *= chromatin(s, 0.4, 0.25)
    light = s.image((0.8, 0.2), haze=0.05, background=0.1, patchy=0.05, field=np.exp(-s.coordinates()[0] / 35))
    return s, *shot(s, light, 80, 2, gain=8, offset=40, bits=12)


@kind
def epithelium(rng, i):
    """Pseudostratified epithelium: long parallel nuclei side by side at two heights."""
    s = Scene(rng, (44, 180, 180), (0.8, 0.3, 0.3), (2, 1, 1))
    s.scatter(260, lambda: np.array([6.0, 2.5, 2.5]) * spread(rng, 1, 0.08), lambda p: abs(p[1] - 27 - 5 * np.sin(p[2] / 9)) < 9, attempts=30,
              turn=lambda: rotation(rng, (0, 1, 0), 0.12), bright=lambda: spread(rng, 1, 0.2), overlap=0.04)
    s.light *= chromatin(s, 0.4, 0.2)
    light = s.image((0.7, 0.17), haze=0.06, background=0.05)
    return s, *shot(s, light, 90, 2, gain=2, offset=0, bits=8)


@kind
def spindles(rng, i):
    """Muscle or endothelium: nuclei of 18 by 4 by 3 um along one direction."""
    s = Scene(rng, (32, 190, 190), (1.0, 0.5, 0.5), (2, 1, 1))
    s.scatter(60, lambda: np.array([9.0, 2.1, 1.7]) * spread(rng, 1, 0.12), turn=lambda: rotation(rng, (0.1, 0.2, 1), 0.15),
              bright=lambda: spread(rng, 1, 0.25), overlap=0.02, nucleoli=1)
    s.light *= chromatin(s, 0.5, 0.25)
    light = s.image((0.8, 0.22), haze=0.05, background=0.06, patchy=0.05)
    return s, *shot(s, light, 80, 2, gain=3, offset=100)


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
                pair = [s.add(c + side * axis * d * 0.33, (d * 0.1, d * 0.28, d * 0.28), turn, 2.6, 0.12) for side in (-1, 1)]
                done += all(pair)
            else:
                done += s.add(c, (d * 0.12, d * 0.38, d * 0.38), turn, 2.6, 0.15)
        elif s.count < number:
            a = rng.uniform(0, np.pi)
            flat = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
            s.add(c, (thick / 2, d / 2 * rng.uniform(0.75, 0.95), d / 2 * rng.uniform(1.0, 1.25)), flat, spread(rng, 1, 0.2), 0.06, 0.01, nucleoli=3)


@kind
def monolayer(rng, i):
    """HeLa or U2OS on glass, confocal: flat nuclei with nucleoli, mitotic figures, fragments of dying cells."""
    s = Scene(rng, (28, 190, 190), (0.6, 0.45, 0.45), (1, 1, 1))
    cells_on_glass(s, 18, 15 if i else 18, 6.5, 3)
    s.dirt(5, (0.6, 1.1), (2, 3))
    s.light *= chromatin(s, 0.5, 0.2)
    light = s.image((0.6, 0.17), haze=0.03, background=0.03)
    return s, *shot(s, light, 120, 2, gain=7, offset=30, bits=12)


@kind
def few_slices(rng, i):
    """CHO cells with a replication marker (Fluo-N3DH-CHO): five to seven slices, foci, strong differences between nuclei."""
    s = Scene(rng, (5 + 2 * i, 180, 180), (1.0, 0.22, 0.22), (4, 1, 1))
    cells_on_glass(s, 9, 11, 4.5, 0)
    foci = s.noise(0.35)
    s.light *= 0.6 + 1.5 * (foci > 1.4)
    levels = np.r_[0, np.clip(rng.lognormal(0, 0.5, s.count), 0.35, 2.5)]
    s.light *= levels[s.labels].astype(np.float32)
    light = s.image((0.5, 0.14), haze=0.03, background=0.05)
    return s, *shot(s, light, 40, 2, gain=1.4, offset=5, bits=8)


@kind
def chromocenters(rng, i):
    """Mouse cells at high magnification: nuclei of 60 to 90 voxels with bright chromocenters, some cut by the border."""
    s = Scene(rng, (44, 190, 190), (0.3, 0.12 + 0.06 * i, 0.12 + 0.06 * i), (1, 1, 1))
    s.scatter(12, lambda: np.array([3.4, 4.8, 5.2]) * spread(rng, 1, 0.06), turn=np.eye(3), nucleoli=2, overlap=0.0, texture=chromatin(s, 0.25, 0.3))
    spots = ndimage.gaussian_filter((rng.random(s.grid) < 0.06 * s.step.prod()).astype(np.float32), 0.4 / s.step) * (s.labels > 0)
    s.light += 2.5 * np.minimum(spots / max(np.percentile(spots[spots > 0], 95), 1e-6), 1.5) * (s.labels > 0)
    light = s.image((0.3, 0.1), background=0.03)
    return s, *shot(s, light, 50, 2, gain=4, offset=100)


@kind
def spheroid(rng, i):
    """Spheroid with a necrotic core: a rim of living nuclei, dim fragments inside, light lost with depth."""
    s = Scene(rng, (44, 190, 190), (1.5, 0.6, 0.6), (3, 1, 1))
    middle = s.size / 2 + [30, 0, 0]
    s.scatter(230, sizes(rng, 9, 0.12, 0.14), shell(middle, (58, 55, 55), 27), texture=chromatin(s, 0.6, 0.2), bright=lambda: spread(rng, 1, 0.2), nucleoli=1)
    core = ball(middle, (28, 26, 26))
    s.scatter(120, lambda: np.full(3, rng.uniform(0.6, 1.5)), core, bright=lambda: rng.uniform(0.2, 0.6), label=False)
    light = s.image((1.3, 0.35), haze=0.15, background=0.05, cytoplasm=0.08, field=np.exp(-s.coordinates()[0] / (40 if i else 70)))
    return s, *shot(s, light, 200, 3, gain=5, offset=200)


@kind
def dying_organoid(rng, i):
    """Organoid with a lumen of fragments: a single layer of nuclei, mitoses, bright apoptotic bodies."""
    s = Scene(rng, (40, 170, 170), (1.0, 0.4, 0.4), (2, 1, 1))
    where = shell(s.size / 2, (28, 30, 30), 11)
    s.scatter(5, lambda: np.array([1.2, 3.6, 3.6]), where, bright=2.5, bumps=0.15)
    s.scatter(120, sizes(rng, 8, 0.08, 0.12), where, texture=chromatin(s, 0.5, 0.2), bright=lambda: spread(rng, 1, 0.2), nucleoli=1)
    s.scatter(45, lambda: np.full(3, rng.uniform(0.4, 1.1)), ball(s.size / 2, (15, 18, 18)), bright=lambda: rng.uniform(1.5, 4), label=False)
    light = s.image((0.8, 0.2), haze=0.06, cytoplasm=0.06, background=0.04)
    return s, *shot(s, light, 100, 2, gain=3, offset=100)


@kind
def polytene(rng, i):
    """Salivary gland of Drosophila: nuclei of 26 um with bands and dark space, among small nuclei of the fat body (second stack)."""
    s = Scene(rng, (36, 180, 180), (2.0, 0.7, 0.7), (2, 1, 1))
    s.scatter(14, sizes(rng, 26, 0.06, 0.06), lambda p: 5 < p[0] < 67, texture=np.exp(0.9 * np.sin(3 * s.noise(2.2))).astype(np.float32), overlap=0.0, bumps=0.04, nucleoli=1)
    if i:
        s.scatter(8, sizes(rng, 9), bright=1.2, overlap=0.0)
    light = s.image((1.3, 0.35), haze=0.04, background=0.04)
    return s, *shot(s, light, 120, 2, gain=6, offset=80, bits=12)


@kind
def cut_by_borders(rng, i):
    """A small crop: nuclei of 14 um of which most are cut by the borders of the stack."""
    s = Scene(rng, (20, 96, 96), (0.8, 0.3, 0.3), (1, 1, 1))
    s.scatter(14, sizes(rng, 13, 0.1), texture=chromatin(s, 0.5, 0.25), nucleoli=2, bright=lambda: spread(rng, 1, 0.15), overlap=0.03)
    light = s.image((0.7, 0.18), haze=0.05, background=0.05)
    return s, *shot(s, light, 100, 2, gain=4, offset=100)


# Recordings


def tissue(rng, shape=(36, 160, 160), voxel=(1.0, 0.4, 0.4), diameter=7.5, number=130):
    """Nuclei at random, some touching: the specimen of the kinds that examine how an image was recorded."""
    s = Scene(rng, shape, voxel, (2, 1, 1))
    s.scatter(number, sizes(rng, diameter, 0.1, 0.14), texture=chromatin(s, 0.5, 0.2), nucleoli=1, bright=lambda: spread(rng, 1, 0.2))
    return s


@kind
def debris(rng, i):
    """Autofluorescent debris ten to thirty times brighter than nuclei."""
    s = tissue(rng)
    s.dirt(8, (0.8, 2.5), (10, 30))
    light = s.image((0.8, 0.2), haze=0.05, background=0.08)
    return s, *shot(s, light, 60, 2, gain=8, offset=100)


@kind
def depth(rng, i):
    """Light falls to a tenth over the depth of the stack, and blur grows."""
    s = tissue(rng, (44, 150, 150), (1.5, 0.4, 0.4), 8.0, 200)
    sharp = s.image((0.8, 0.2), haze=0.05, background=0.05)
    soft = s.image((1.5, 0.6), haze=0.3, haze_um=(6, 4), background=0.05)
    w = np.linspace(0, 1, len(sharp))[:, None, None]
    light = ((1 - w) * sharp + w * soft) * np.exp(-2.3 * w)
    return s, *shot(s, light.astype(np.float32), 250, 2, gain=3, offset=100)


@kind
def stripes(rng, i):
    """Columns of fixed pattern of an sCMOS camera, and stripes of shadow along the light sheet."""
    s = tissue(rng)
    lines = ndimage.gaussian_filter1d(rng.normal(size=s.grid[1]), 1.5)
    light = s.image((0.9, 0.25), haze=0.1, background=0.1, field=np.exp(0.3 * lines / lines.std())[None, :, None])
    return s, *shot(s, light, 60, 2, gain=2.2, offset=100, columns=5)


@kind
def saturated(rng, i):
    """8 bits with the brightest third of the nuclei clipped, nuclei of very different brightness."""
    s = Scene(rng, (36, 160, 160), (0.9, 0.35, 0.35), (2, 1, 1))
    s.scatter(110, sizes(rng, 7, 0.1, 0.14), bright=lambda: spread(rng, 1, 0.6, 0.3, 5), texture=chromatin(s, 0.5, 0.2))
    light = s.image((0.8, 0.2), haze=0.05, background=0.05)
    return s, *shot(s, light, 60, 2, gain=3 if i else 4.5, offset=4, bits=8)


@kind
def faint_offset(rng, i):
    """16 bits with signals of 25 counts on an offset of 400 or 32768."""
    s = tissue(rng, number=90)
    light = s.image((0.8, 0.2), haze=0.05, background=0.1)
    return s, *shot(s, light, 25, 2, gain=1, offset=32768 if i else 400)


@kind
def deconvolved(rng, i):
    """Deconvolved by an inverse filter: ringing, grains of noise, negative values clipped to 0; floats."""
    s = tissue(rng)
    light = s.image((1.0, 0.28), haze=0.08, background=0.08)
    counts, truth = shot(s, light, 150, 2, offset=0)
    image = counts.astype(np.float32)
    for amount, sigma in [(2.0, 1.0), (1.0, 2.0)]:
        image += amount * (image - ndimage.gaussian_filter(image, (sigma / 2, sigma, sigma)))
    image = ndimage.gaussian_filter(image - 0.16 * 150, 0.6)
    return s, np.maximum(image, 0).astype(np.float32), truth


@kind
def unit_floats(rng, i):
    """Floats of 0 to 1, scaled to the range of the stack, smooth after denoising."""
    s = tissue(rng)
    s.dirt(1, (0.6, 0.9), (4, 6))
    light = s.image((0.8, 0.22), haze=0.08, background=0.08)
    counts, truth = shot(s, light, 60, 2, offset=100)
    image = ndimage.gaussian_filter(counts.astype(np.float32), (0.6, 1, 1))
    return s, ((image - image.min()) / np.ptp(image)).astype(np.float32), truth


@kind
def downsampled(rng, i):
    """Reduced to isotropic voxels of 1 um by averaging: nuclei of eight voxels, hardly any noise."""
    s = Scene(rng, (44, 96, 96), (1.0, 1.0, 1.0), (2, 2, 2))
    s.scatter(550, sizes(rng, 8, 0.12, 0.14), texture=chromatin(s, 0.6, 0.2), attempts=15, bright=lambda: spread(rng, 1, 0.25), overlap=0.04)
    light = s.image((0.8, 0.3), haze=0.1, background=0.06)
    return s, *shot(s, light, 1500, 2, gain=1.5, offset=150)


@kind
def vignette(rng, i):
    """Illumination falls to a fifth toward one corner (light and background alike)."""
    s = tissue(rng)
    _, y, x = s.coordinates()
    field = np.exp(-((y / s.size[1]) ** 2 + (x / s.size[2]) ** 2) * 0.8)
    light = s.image((0.8, 0.2), haze=0.08, background=0.12, field=field)
    return s, *shot(s, light, 200, 2, gain=4, offset=100)


@kind
def two_photon(rng, i):
    """Two photons deep in tissue: a photon or none per voxel, nuclei of 9 um, voxels of 0.5 um."""
    s = tissue(rng, (36, 150, 150), (1.5, 0.5, 0.5), 9.0, 120)
    light = s.image((1.2, 0.3), haze=0.05, background=0.1)
    return s, *shot(s, light, 5, 0.5, gain=40, offset=0, bits=12)


# Stacks without nuclei


@empty
def camera_noise(rng, i):
    s = Scene(rng, (24, 128, 128), (1, 0.4, 0.4))
    return s, camera(rng, np.full(s.shape, 0.1), 60, 2, offset=100, columns=2), s.truth()


@empty
def tissue_without_stain(rng, i):
    """Autofluorescence: smooth differences and granules of lipofuscin."""
    s = Scene(rng, (24, 128, 128), (1, 0.4, 0.4))
    s.dirt(60, (0.3, 0.8), (0.5, 2))
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
    grey = np.clip((image - low) / max(high - low, 1e-6), 0, 1)
    tiles = []
    for cut, zoom in [((len(image) // 2,), (1, 1)), ((slice(None), image.shape[1] // 2), (voxel[0] / voxel[2], 1))]:
        flat = labels[cut]
        edge = (ndimage.maximum_filter(flat, 3) != ndimage.minimum_filter(flat, 3)) & (flat > 0)
        plain = np.repeat(ndimage.zoom(grey[cut], zoom, order=0)[..., None], 3, -1)
        marked = plain.copy()
        marked[ndimage.zoom(edge.astype(np.uint8), zoom, order=0) > 0] = [1, 0.2, 0.2]
        tiles.append(np.concatenate([plain, marked], 1))
    write_png(path, (255 * np.concatenate(tiles)).astype(np.uint8))


def write_png(path, rgb):
    """Writes a PNG with the standard library alone."""
    import struct
    import zlib

    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    rows = b"".join(b"\0" + row.tobytes() for row in rgb)
    head = struct.pack(">IIBBBBB", rgb.shape[1], rgb.shape[0], 8, 2, 0, 0, 0)
    Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


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
            there = np.bincount(labels.ravel())[1:]
            there = there[there > 0]
            size = np.median((6 / np.pi * there * scene.voxel.prod()) ** (1 / 3)) if len(there) else 0
            print(f"{name}{i}: {image.shape} {image.dtype} {len(there)} of {scene.count} nuclei, {size:.1f} um, {size / scene.voxel[2]:.1f} voxels along X")


if __name__ == "__main__":
    main()
