"""Scenes of bench/microscope_stacks.py: bodies in a volume, and how a microscope and a camera record them.

The code shares nothing with the other generators or with the simulated training stacks. Needs numpy and scipy.
"""

import numpy as np
from scipy import ndimage

# Directions from the center of a body to where no other one may lie, relative to its radii.
CORE = np.array([[z, y, x] for z in (-1, 0, 1) for y in (-1, 0, 1) for x in (-1, 0, 1)], float)
CORE *= 0.75 / np.maximum(np.linalg.norm(CORE, axis=1, keepdims=True), 1)


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

    def add(
        self,
        center,
        radii,
        turn=None,
        bright=1.0,
        bumps=0.08,
        overlap=0.06,
        texture=None,
        nucleoli=0,
        rim=0.0,
        label=True,
    ):
        """Paints a body unless more than the fraction `overlap` of it lies in others; returns whether it did.

        `texture` is a field that multiplies the light, `nucleoli` the number of dark spheres, and `rim` the gain at the
        surface.
        """
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

    def is_clear(self, center, radius):
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
        """Adds bodies at random positions; `radii` and options that are functions are called for each one."""
        for _ in range(number * attempts):
            center = self.rng.uniform(-0.05 * self.size, 1.05 * self.size)
            if where is not None and not where(center):
                continue
            size = radii()
            number -= self.add(center, size, **{k: v() if callable(v) else v for k, v in options.items()})
            if number <= 0:
                return

    def add_debris(self, number, radius, bright):
        """Adds bright specks that are no nuclei; they may overlap bodies."""
        for _ in range(number):
            found = self.body(
                self.rng.uniform(0, self.size),
                self.rng.uniform(*radius) * self.rng.uniform(0.6, 1.4, 3),
                np.eye(3),
                0.2,
            )
            if found is not None:
                box, inside, _ = found
                self.light[box][inside] += self.rng.uniform(*bright)
                self.labels[box][inside] = 0

    def image(self, psf, haze=0.0, haze_um=(8, 5), cytoplasm=0.0, background=0.05, patchy=0.0, field=1.0):
        """Expected light of the voxels, relative to that of a nucleus.

        `psf` has the standard deviations along Z and in the plane in um, and `field` scales all light.
        """
        light = self.light
        if cytoplasm:
            near = blur((self.labels > 0).astype(np.float32), 2 / self.step)
            light = light + cytoplasm * near * (self.labels == 0)
        out = ndimage.gaussian_filter(light, np.array(psf)[[0, 1, 1]] / self.step, mode="nearest", truncate=3)
        if haze:
            out = out + haze * blur(light, np.array(haze_um)[[0, 1, 1]] / self.step)
        if patchy:
            out = out + patchy * np.exp(0.8 * self.noise(12))
        return self.average_to_voxels((out + background) * field)

    def average_to_voxels(self, values):
        """Mean of the fine voxels of each voxel; `values` may be broadcast to the fine grid."""
        z, y, x = self.shape
        a, b, c = self.fine
        return np.broadcast_to(values, self.grid).reshape(z, a, y, b, x, c).mean((1, 3, 5), dtype=np.float32)

    def truth(self):
        """Labels of the voxels: those of the fine voxels at their centers."""
        return self.labels[tuple(slice(f // 2, None, f) for f in self.fine)].copy()


def visible(labels, light, photons, read):
    """Labels without bodies that a person would not see.

    These are bodies whose contrast with their surroundings is below 0.15 or, summed over their largest section, below
    five standard deviations of the noise. `light` is relative to a nucleus, `photons` are those of a nucleus in a
    voxel, and `read` is the read noise in electrons.
    """
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
    """Counts of a camera.

    `photons` are those of a nucleus in a voxel, `read` is the read noise in electrons, `gain` the counts per electron,
    and `columns` the standard deviation of a fixed pattern of the columns in electrons.
    """
    electrons = rng.poisson(np.maximum(light * photons, 0)) + read * rng.normal(size=light.shape)
    electrons += columns * rng.normal(size=(1, 1, light.shape[2]))
    counts = np.clip(np.round(electrons * gain + offset), 0, 2**bits - 1)
    return counts.astype(np.uint8 if bits == 8 else np.uint16)


def record(scene, light, photons, read=2.0, **options):
    """The counts of a camera, and the labels of the bodies that are visible in them."""
    return camera(scene.rng, light, photons, read, **options), visible(scene.truth(), light, photons, read)


def spread(rng, median, sigma=0.15, low=0.5, high=2.0):
    """A log-normal random number around `median`, between `low` and `high` times as much."""
    return median * np.clip(rng.lognormal(0, sigma), low, high)


def sizes(rng, mean, sigma=0.08, flat=0.12):
    """A function that draws the three radii of a body with the mean diameter given."""
    return lambda: spread(rng, mean / 2, sigma) * np.clip(1 + flat * rng.normal(size=3), 0.6, 1.5)


def chromatin(scene, scale, contrast):
    """Factors of the light: clumps of the size `scale` in um, as in chromatin."""
    return np.exp(contrast * scene.noise(scale)).astype(np.float32)


def ball(center, radii):
    """A function that says whether a position lies in an ellipsoid along the axes."""
    center, radii = np.asarray(center, float), np.asarray(radii, float)
    return lambda p: (((p - center) / radii) ** 2).sum() < 1


def shell(center, radii, thickness):
    """A function that says whether a position lies in the outermost part of an ellipsoid."""
    outer, inner = ball(center, radii), ball(center, np.asarray(radii) - thickness)
    return lambda p: outer(p) and not inner(p)
