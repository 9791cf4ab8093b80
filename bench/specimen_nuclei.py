"""Nuclei for bench/specimen_stacks.py: their shapes, how they are arranged, and their labels and light.

Stacks and scenes are those of that script. Coordinates and shapes are Z, Y, X."""
import numpy as np
from scipy import ndimage
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

TEXTURE, FAR = 0.2, 9


class Nucleus:
    """An ellipsoid whose surface is disturbed by cosines, or a bent one, or a chain of spheres.

    The rows of `axes` are the directions of the radii; at random if there are none."""

    def __init__(self, rng, center_um, radii_um, axes=None, deformation=0.06, kind="plain", brightness=1.0):
        self.center_um, self.radii_um = np.asarray(center_um, float), np.asarray(radii_um, float)
        self.mean_radius_um = float(np.prod(self.radii_um) ** (1 / 3))
        self.kind, self.brightness = kind, brightness
        if axes is None:
            seed = int(rng.integers(1 << 30))
            axes = Rotation.from_quat(np.random.RandomState(seed).normal(size=4)).as_matrix()
        self.axes = axes
        self.waves, self.phases = rng.normal(0, 1.6, (4, 3)), rng.uniform(0, 6.28, 4)
        self.amplitudes = deformation * rng.normal(0, 0.7, 4)
        self.bend = rng.uniform(-0.55, 0.55) if kind == "bean" else 0.0
        self.texture_seed = int(rng.integers(1 << 30))
        self.lobes = lobes(rng) if kind == "lobed" else None

    def distance(self, relative):
        """Distances from the center relative to the surface, of points relative to the radii (…, 3)."""
        if self.bend:
            relative = relative.copy()
            relative[..., 1] += self.bend * (relative[..., 2] ** 2 - 0.4)
        if self.lobes:
            near = sum(np.exp(-6 * (np.linalg.norm(relative - p, axis=-1) / r - 1)) for p, r in zip(*self.lobes))
            return (1 - np.log(near + 1e-30) / 6 * 0.5).astype(np.float32)
        length = np.sqrt((relative * relative).sum(-1)) + 1e-6
        directions = relative / length[..., None]
        waves = zip(self.amplitudes, self.waves, self.phases)
        surface = sum(size * np.cos(directions @ wave + phase) for size, wave, phase in waves)
        return (length / (1 + surface)).astype(np.float32)


def lobes(rng):
    """Centers and radii of a chain of two to four overlapping spheres, relative to the radii of a nucleus."""
    count = int(rng.integers(2, 5))
    center, centers = np.zeros(3), []
    direction = rng.normal(size=3)
    direction /= np.linalg.norm(direction)
    for _ in range(count):
        centers.append(center)
        direction = direction + 0.7 * rng.normal(size=3)
        direction /= np.linalg.norm(direction)
        center = center + 0.62 * direction
    return np.array(centers) - np.mean(centers, 0), rng.uniform(0.42, 0.55, count)


def axes_along(rng, direction):
    """Three perpendicular directions as rows; the last one is the given direction."""
    direction = np.asarray(direction, float)
    direction = direction / (np.linalg.norm(direction) + 1e-9)
    second = np.cross(direction, rng.normal(size=3))
    second /= np.linalg.norm(second)
    return np.array([np.cross(second, direction), second, direction])


def draw_brightness(rng, spread):
    return float(np.clip(np.exp(rng.normal(0, spread)), 0.4, 2.2))


def draw_radii(rng, radius_um, count, spread):
    return radius_um * np.clip(np.exp(rng.normal(0, spread, count)), 0.6, 1.6)


def smooth_noise(rng, shape, sigma):
    """Gaussian noise of standard deviation 1, smooth over `sigma` voxels; made on a coarser grid if that is enough."""
    sigma = np.asarray(sigma, float)
    step = np.maximum(1, np.floor(sigma / 2))
    coarse = np.maximum(2, np.ceil(np.array(shape) / step).astype(int) + 1)
    noise = ndimage.gaussian_filter(rng.standard_normal(coarse).astype(np.float32), sigma / step, mode="wrap")
    noise /= noise.std() + 1e-9
    if (step > 1).any():
        noise = ndimage.zoom(noise, step, order=1)
    return noise[: shape[0], : shape[1], : shape[2]]


def pack(rng, low, high, radii, stretch=(1, 1, 1), region=None):
    """Random centers between two corners, pushed apart until spheres of these radii hardly overlap.

    Distances are those after division by `stretch`. If there is a region, its points stay inside of it."""
    low, high, stretch = np.array(low, float), np.array(high, float), np.array(stretch, float)
    is_inside = region or (lambda points: np.ones(len(points), bool))
    count, points = len(radii), np.zeros((0, 3))
    for _ in range(400):
        candidates = rng.uniform(low, high, (max(4 * count, 100), 3))
        points = np.vstack([points, candidates[is_inside(candidates)]])
        if len(points) >= count:
            break
    points = points[:count]
    radii = radii[: len(points)]
    for _ in range(35):
        scaled = points / stretch
        pairs = cKDTree(scaled).query_pairs(2 * radii.max(), output_type="ndarray")
        if not len(pairs):
            break
        between = scaled[pairs[:, 1]] - scaled[pairs[:, 0]]
        apart = np.linalg.norm(between, axis=1) + 1e-6
        overlap = radii[pairs].sum(1) - apart
        close = overlap > 0
        if not close.any():
            break
        push = between[close] / apart[close, None] * overlap[close, None] * 0.25
        np.add.at(scaled, pairs[close, 0], -push)
        np.add.at(scaled, pairs[close, 1], push)
        moved = scaled * stretch
        allowed = is_inside(moved) & (moved > low).all(1) & (moved < high).all(1)
        points[allowed] = moved[allowed]
    return points


def ball(rng, center_um, ball_um, radius_um, count, kinds, *, size_spread=0.12, brightness_spread=0.2, crowding=0.95,
         elongation=1.25, lumen_um=0.0, radial=None):
    """Nuclei in a ball of radius `ball_um`, or in its wall around a lumen.

    They are elongated at random, or `radial` times as long toward the center as wide."""
    radii = draw_radii(rng, radius_um, count, size_spread)
    depth = rng.uniform(0.8, 1.15)  # of the ball along Z, relative to its width

    def region(points):
        distance = np.linalg.norm((points - center_um) / [depth, 1, 1], axis=1)
        return (distance < ball_um) & (distance > lumen_um)

    points = pack(rng, center_um - 1.2 * ball_um, center_um + 1.2 * ball_um, radii * crowding, region=region)
    nuclei = []
    for point, radius in zip(points, radii):
        longer = radial * rng.uniform(0.9, 1.1) if radial else max(1.0, rng.normal(elongation, 0.1))
        relative = np.array([rng.uniform(0.92, 1.08), 1, 1]) * longer ** (-1 / 3)
        relative[2] *= longer
        axes = axes_along(rng, point - center_um) if radial else None
        kind, brightness = str(rng.choice(kinds)), draw_brightness(rng, brightness_spread)
        nuclei.append(Nucleus(rng, point, radius * relative, axes, 0.06, kind, brightness))
    return nuclei


def layer(rng, stack, radius_um, thickness_um, count, kinds, crowding=1.0):
    """Flat nuclei in the middle of the stack."""
    extent, beyond = stack.extent_um, radius_um * 0.5
    radii = draw_radii(rng, radius_um, count, 0.15)
    points = pack(rng, [0, -beyond, -beyond], [1e-3, extent[1] + beyond, extent[2] + beyond], radii * crowding)
    nuclei = []
    for point, radius in zip(points, radii):
        stretch = rng.uniform(1, 1.6) ** 0.5
        angle = rng.uniform(0, 6.28)
        turn = np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])
        tilt = Rotation.from_rotvec(rng.normal(0, 0.06, 3)).as_matrix()
        center = [extent[0] / 2 + rng.normal(0, thickness_um * 0.08), point[1], point[2]]
        radii_um = [thickness_um / 2 * rng.uniform(0.85, 1.15), radius / stretch, radius * stretch]
        kind, brightness = str(rng.choice(kinds)), draw_brightness(rng, 0.25)
        nuclei.append(Nucleus(rng, center, radii_um, turn @ tilt, 0.07, kind, brightness))
    return nuclei


def block(rng, stack, radius_um=None, fill=None, kinds=("plain",), *, elongation=(1.0, 1.5), axis=None,
          axis_spread=0.3, brightness_spread=0.25, crowding=0.95):
    """Nuclei everywhere in the stack, also beyond its sides; elongated at random or along an axis."""
    extent, radius_um, fill = stack.extent_um, radius_um or stack.radius_um, fill or stack.fill
    count = max(3, int(fill * np.prod(extent + radius_um) / (4.19 * radius_um**3)))
    radii = draw_radii(rng, radius_um, count, 0.12)
    stretch, spacing = np.ones(3), radii * crowding
    if axis is not None:
        middle = np.mean(elongation)
        stretch = 1 + (middle ** (2 / 3) - 1) * np.abs(axis)
        spacing = spacing * (middle ** (-1 / 3) * 1.05)
    points = pack(rng, -np.ones(3) * radius_um * 0.5, extent + radius_um * 0.5, spacing, stretch)
    nuclei = []
    for point, radius in zip(points, radii):
        longer = rng.uniform(*elongation)
        relative = np.array([longer ** (-1 / 3)] * 2 + [longer ** (2 / 3)])
        axes = None if axis is None else axes_along(rng, axis + rng.normal(0, axis_spread, 3))
        kind, brightness = str(rng.choice(kinds)), draw_brightness(rng, brightness_spread)
        nuclei.append(Nucleus(rng, point, radius * relative, axes, 0.06, kind, brightness))
    return nuclei


def divide(rng, nuclei):
    """The nuclei with a random one replaced by a metaphase plate or by two anaphase plates."""
    index = int(rng.integers(len(nuclei)))
    nucleus = nuclei[index]
    radius, center, brightness = nucleus.mean_radius_um, nucleus.center_um, nucleus.brightness * 2.2
    axes = axes_along(rng, rng.normal(size=3))
    if rng.uniform() < 0.5:
        radii = [radius, radius * 0.9, radius * 0.36]
        plates = [Nucleus(rng, center, radii, axes, 0.12, "plain", brightness)]
        return nuclei[:index] + plates + nuclei[index + 1 :]
    plates = []
    for side in (-1, 1):
        radii = [radius * 0.85, radius * 0.75, radius * 0.32]
        plates.append(Nucleus(rng, center + side * axes[2] * radius * 0.85, radii, axes, 0.1, "plain", brightness))
    return nuclei[:index] + plates + nuclei[index + 1 :]


def box_around(center_um, reach_um, shape, voxel_um):
    """The voxels around a point as slices, and their coordinates along each axis; None outside of the stack."""
    low = np.maximum(np.floor((center_um - reach_um) / voxel_um).astype(int), 0)
    high = np.minimum(np.ceil((center_um + reach_um) / voxel_um).astype(int) + 1, shape)
    if (high <= low).any():
        return None, None
    offsets = [np.arange(a, b) * v - c for a, b, v, c in zip(low, high, voxel_um, center_um)]
    return tuple(slice(a, b) for a, b in zip(low, high)), offsets


def draw_labels(scene, shape, voxel_um):
    """Labels, relative distances from the nearest center, and of each nucleus its box and the coordinates in it.

    Nuclei that overlap earlier ones are left out; voxels about as close to two nuclei are background."""
    labels = np.zeros(shape, np.uint16)
    nearest, second = np.full(shape, FAR, np.float32), np.full(shape, FAR, np.float32)
    drawn = []
    for nucleus in scene.nuclei:
        reach = nucleus.radii_um.max() * (1.5 if nucleus.kind in ("lobed", "bean") else 1.3)
        box, offsets = box_around(nucleus.center_um, reach, shape, voxel_um)
        if box is None:
            continue
        offsets = np.stack(np.meshgrid(*[axis.astype(np.float32) for axis in offsets], indexing="ij"), -1)
        relative = (offsets @ nucleus.axes.T.astype(np.float32)) / nucleus.radii_um.astype(np.float32)
        distance = nucleus.distance(relative)
        inside = distance < 1
        if not inside.any() or (inside & (labels[box] > 0)).sum() > scene.max_overlap * inside.sum():
            continue
        drawn.append((nucleus, box, relative))
        distance = np.where(distance < 1 + scene.gap_um / nucleus.radii_um.min() + 0.02, distance, FAR)
        is_nearest = distance < nearest[box]
        second[box] = np.where(is_nearest, nearest[box], np.minimum(second[box], distance))
        nearest[box] = np.where(is_nearest, distance, nearest[box])
        labels[box][is_nearest & inside] = len(drawn)
    radii_um = np.array([0] + [nucleus.mean_radius_um for nucleus, _, _ in drawn], np.float32)
    labels[((second - nearest) * radii_um[labels] < scene.gap_um) & (second < FAR)] = 0
    return labels, nearest, drawn


def chromatin(nucleus, relative, distance, light):
    """Light of a nucleus with its bright rim, dark nucleoli or bright chromocenters, by the light of its texture."""
    rng = np.random.default_rng(nucleus.texture_seed)
    radius_um = nucleus.mean_radius_um

    def spots(count, spot_um, change, farthest=0.65):
        for _ in range(count):
            center = rng.normal(size=3)
            center *= farthest * rng.uniform() ** (1 / 3) / np.linalg.norm(center)
            away_um = np.linalg.norm((relative - center) * nucleus.radii_um, axis=-1)
            edge = np.clip((away_um - rng.uniform(0.8, 1.2) * spot_um) / 0.12, -30, 30)
            light[...] *= 1 + change / (1 + np.exp(edge))

    if nucleus.kind == "hollow":
        light *= 0.28 + 1.1 * np.exp(-(((distance - 0.93) * radius_um / 0.6) ** 2))
    elif nucleus.kind == "nucleoli":
        spots(int(rng.integers(1, 4)), 0.28 * radius_um, -0.75)
    elif nucleus.kind == "chromocenters":
        light *= 0.55
        spots(int(rng.integers(6, 14)), max(0.45, 0.11 * radius_um), rng.uniform(2.5, 4.5), 0.8)
    return light


def nuclear_light(rng, labels, nearest, drawn, voxel_um):
    light = np.zeros(labels.shape, np.float32)
    texture = smooth_noise(rng, labels.shape, 0.5 / voxel_um) * 0.6
    texture = texture + smooth_noise(rng, labels.shape, 1.3 / voxel_um) * 0.8
    texture = np.exp(np.clip(TEXTURE * texture, -1.2, 1.0))
    for label, (nucleus, box, relative) in enumerate(drawn, 1):
        mask = labels[box] == label
        if mask.any():
            base = np.full(mask.shape, nucleus.brightness, np.float32) * texture[box]
            light[box] += chromatin(nucleus, relative, nearest[box], base) * mask
    return light


def draw_debris(scene, labels, light, voxel_um):
    """Bright spheres where there is no nucleus."""
    for center_um, radius_um, brightness in scene.debris:
        box, offsets = box_around(center_um, radius_um, labels.shape, voxel_um)
        if box is not None:
            squared = sum(axis * axis for axis in np.meshgrid(*offsets, indexing="ij"))
            light[box][(squared < radius_um * radius_um) & (labels[box] == 0)] = brightness
