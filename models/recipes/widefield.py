"""Simulates nuclei as widefield microscopes show them, with the bodies before blurring as ground truth, for training.

    python3 models/recipes/widefield.py PROGRAM OUT [--count 200] [--seed 30000]

Two thirds of the stacks are widefield images without deconvolution, in which light from out of focus remains as haze; a third
have the moderate optical sectioning of a spinning disk with crosstalk between its pinholes. `PROGRAM simulate` draws bodies
without blur and noise in a volume that is larger than the stack, so that nuclei above, below and beside it contribute haze.
They are blurred with a point-spread function computed from the numerical aperture, wavelength, refractive indices and depth
(scalar Debye integral with the spherical aberration of a mismatch of indices), then cropped and exposed.

The truth is the bodies in the crop that a person could see (`is_visible`). The settings of each stack are saved beside it. A
stack takes one to ten seconds. Needs numpy, scipy and tifffile. The same seed gives the same stack on the same machine.
"""
import argparse
import json
import math
import os
import random
import subprocess
import tempfile
from pathlib import Path

# One thread adds numbers in the same order each time, so that a seed gives the same stack.
os.environ |= dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")

import numpy as np
import tifffile
from scipy import fft, ndimage, special

SHAPE = [48, 128, 128]
BESIDE = 24  # Voxels that are simulated beside the stack on each side along Y and X.
# Layers of cells, round and flat; tissue; balls of cells; single nuclei. In tissue, nuclei are above and below the stack, too.
SPECIMENS = ["layer", "layer", "flat", "flat", "tissue", "tissue", "balls", "sparse"]
# Magnification, numerical aperture, refractive index of the immersion.
OBJECTIVES = [
    (10, 0.4, 1.0), (16, 0.5, 1.0), (20, 0.5, 1.0), (20, 0.75, 1.0), (20, 0.8, 1.0), (25, 0.8, 1.33), (25, 1.05, 1.33),
    (40, 0.75, 1.0), (40, 0.95, 1.0), (40, 1.15, 1.33), (40, 1.3, 1.515), (60, 1.2, 1.33), (63, 1.4, 1.515), (100, 1.4, 1.515),
]
CAMERA_PIXEL_UM = (3.4, 27.0)  # Pixels of 3.45 to 6.5 µm, up to four of them binned along each axis.
PINHOLE_UM = 25.0  # Radius of the pinholes of a spinning disk.


def log_uniform(draw, low, high):
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def drawn_optics(draw, diameter, thickness, sectioned):
    """Voxel size and optics: an objective that suits the voxels and separates the upper and lower end of a nucleus.

    Its depth of field is at most 0.35 of the thickness (0.5 with pinholes), and the cone of light that leaves the middle of a
    nucleus has its diameter within 0.6 to 1.3 thicknesses (1.8 with pinholes). Otherwise, even people do not see how long it is.
    """
    finest, steepest = (0.5, 1.8) if sectioned else (0.35, draw.uniform(0.6, 1.3))
    for _ in range(10000):
        magnification, na, immersion = draw.choice(OBJECTIVES)
        xy = diameter / log_uniform(draw, 9, 30)
        emission = draw.uniform(0.46, 0.7)
        specimen = draw.uniform(1.33, 1.45)
        z = log_uniform(draw, 0.3, 2.0)
        depth_of_field = 0.89 * emission / (specimen - math.sqrt(specimen**2 - min(na, 0.96 * specimen) ** 2))
        aperture = min(na, 0.96 * specimen) / specimen
        slope = aperture / math.sqrt(1 - aperture**2)
        fits = 0.5 * diameter / slope <= steepest * thickness
        fits &= CAMERA_PIXEL_UM[0] <= xy * magnification <= CAMERA_PIXEL_UM[1]
        # The stack is at least two and a half diameters high, so that haze above or below a nucleus is seen.
        fits &= SHAPE[0] * z >= 2.5 * diameter
        if fits and 0.8 * xy <= z <= min(5 * xy, thickness / 3) and depth_of_field <= finest * thickness:
            return [z, xy, xy], {
                "magnification": magnification,
                # Light at larger angles does not leave the specimen.
                "na": min(na, 0.96 * specimen),
                "immersion_index": immersion,
                "specimen_index": specimen,
                "emission_um": emission,
                "excitation_um": emission - draw.uniform(0.025, 0.06),
            }
    raise ValueError(f"no objective suits nuclei of {diameter} µm")


def settings(seed):
    """Settings of a stack, and of `simulate` for its bodies."""
    draw = random.Random(seed)
    specimen = draw.choice(SPECIMENS)
    sectioned = seed % 3 == 2
    diameter = log_uniform(draw, 4, 30)
    flatness = draw.uniform(0.45, 0.8) if specimen == "flat" else log_uniform(draw, 0.85, 1.2)
    thickness = diameter * min(1.0, flatness ** (2 / 3))
    voxel, optics = drawn_optics(draw, diameter, thickness, sectioned)
    optics |= {
        "pinhole_share": log_uniform(draw, 0.02, 0.08) if sectioned else None,
        # Depth at which an index mismatch acts: the correction collar compensates for most of it.
        "aberration_depth_um": draw.choice([0.0, draw.uniform(0.0, 15.0)]),
        "unevenness": draw.uniform(0.0, 0.3),
        "bleaching": draw.uniform(-0.2, 0.2),
    }
    deep = {"layer": 8, "flat": 8, "tissue": draw.randint(16, 36), "balls": 24, "sparse": 24}[specimen]
    shape = [SHAPE[0] + 2 * deep, SHAPE[1] + 2 * BESIDE, SHAPE[2] + 2 * BESIDE]
    slab = None
    if specimen in ("layer", "flat"):
        half = 0.5 * thickness * draw.uniform(0.6, 1.2) if specimen == "flat" else 0.5 * thickness * draw.uniform(0.7, 2.0)
        slab = {
            "middle_um": voxel[0] * (deep + SHAPE[0] * draw.uniform(0.25, 0.75)),
            "half_um": half,
            "slope": [draw.uniform(-0.08, 0.08), draw.uniform(-0.08, 0.08)],
        }
    fill = {
        "layer": draw.uniform(0.1, 0.3), "flat": draw.uniform(0.1, 0.3),
        "tissue": log_uniform(draw, 0.03, 0.2 if sectioned else 0.08),
        "balls": draw.uniform(0.1, 0.4 if sectioned else 0.2), "sparse": log_uniform(draw, 0.01, 0.04),
    }[specimen]
    # At least six nuclei in the stack, if they fit.
    shown = SHAPE[1] * SHAPE[2] * voxel[1] ** 2 * (2 * slab["half_um"] if slab else SHAPE[0] * voxel[0])
    fill = max(fill, min(0.35, 6 * diameter**3 * math.pi / 6 / shown))
    wide = log_uniform(draw, 0.85, 1.18)
    placement = "field"
    if specimen == "balls":
        radius = diameter * draw.uniform(1.5, 3.0)
        field = math.prod(n * v for n, v in zip(shape, voxel))
        count = round(draw.uniform(0.3, 0.8) * field / (2.5 * radius) ** 3)
        clusters = {"count": max(1, min(count, 60)), "radius_um": radius, "hollow": draw.choice([0.0, draw.uniform(0.4, 0.8)])}
        placement = {"clusters": clusters}
    photons = log_uniform(draw, 30, 1500)
    return {
        "specimen": specimen,
        "voxel_um": voxel,
        "deep": deep,
        "slab": slab,
        "optics": optics,
        "camera": {
            "photons": photons,
            "background_photons": photons * log_uniform(draw, 0.01, 0.3),
            "read_noise_photons": draw.choice([draw.uniform(1.0, 2.5), draw.uniform(1.0, 2.5), draw.uniform(4.0, 9.0)]),
            "gain_counts_per_photon": log_uniform(draw, 0.5, 4.0),
            "offset_counts": draw.uniform(80, 200),
        },
        "bodies": {
            "kind": "nuclei",
            "shape_zyx": shape,
            "voxel_size_um": dict(zip("zyx", voxel)),
            "seed": seed,
            "objects": {
                "count": None,
                "fill": fill,
                "touching": draw.uniform(0.0, 0.8),
                "diameter_um": diameter,
                "diameter_spread": draw.uniform(0.05, 0.3),
                "brightness_spread": draw.uniform(0.1, 0.5),
                "texture": draw.uniform(0.1, 0.8),
                "membrane_um": 0.6,
                "stretch": {"zyx": [flatness, wide, 1 / wide], "spread": draw.uniform(0.0, 0.12), "flat": 0.0},
                "placement": placement,
                "mitotic": draw.choice([0.0, 0.0, draw.uniform(0.01, 0.06)]),
                "bumps": draw.uniform(0.5, 2.0),
                "hollow": draw.choice([0.0, 0.0, 0.0, draw.uniform(0.1, 0.6)]),
            },
            # Neither blur nor haze, and hardly any noise: 3,000 counts in an average body.
            "optics": {
                "psf_sigma_um": [0.0, 0.0, 0.0],
                "unevenness": 0.0,
                "haze": 0.0,
                "attenuation_per_um": 0.0,
                "condenser_na": 0.5,
                "defocus_range_um": 6.0,
            },
            "camera": {
                "photons": 1e6,
                "background_photons": 0.0,
                "read_noise_photons": 0.0,
                "gain_counts_per_photon": 0.003,
                "offset_counts": 0.0,
            },
            "truth": {"outline": "body", "least_brightness": 0.0},
        },
    }


def bodies(program, stack):
    """Light (1 for an average body) and labels of the larger volume; bodies outside of a layer are removed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.json"
        file.write_text(json.dumps(stack["bodies"]))
        command = [program, "simulate", "--kind", "nuclei", "--settings", file, "--out", folder, "--force"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        light = tifffile.imread(next(Path(folder).glob("*_raw.tif"))).astype(np.float32) / 3000
        labels = tifffile.imread(next(Path(folder).glob("*_labels.tif")))
    light[labels == 0] = 0
    if slab := stack["slab"]:
        ids = np.arange(1, int(labels.max()) + 1)
        centers = np.array(ndimage.center_of_mass(labels > 0, labels, ids)).reshape(-1, 3) * stack["voxel_um"]
        extent = np.array(labels.shape[1:]) * stack["voxel_um"][1:]
        middle = slab["middle_um"] + (centers[:, 1:] - extent / 2) @ np.array(slab["slope"])
        kept = np.concatenate([[False], np.abs(centers[:, 0] - middle) <= slab["half_um"]])
        labels = np.where(kept[labels], labels, 0)
        light[labels == 0] = 0
    return light, labels


def defocused(optics, wavelength, radii, heights):
    """Intensity of a point at `radii` from the axis (rows) and at `heights` from focus (columns), in µm.

    Scalar Debye integral over the pupil with the apodization of an aplanatic objective. A point at the depth d below the
    cover glass has the additional phase k·d·(√(n_specimen² - s²) - √(n_immersion² - s²)), where s is the sine of the
    angle times the index, without its part that is linear in the phase of defocus: the microscope is focused again.
    """
    wave = 2 * math.pi / wavelength
    steepest = optics["specimen_index"] - math.sqrt(optics["specimen_index"] ** 2 - optics["na"] ** 2)
    cycles = (optics["na"] * radii[-1] + steepest * np.abs(heights).max()) / wavelength
    samples = int(200 + 3 * cycles)
    share = (np.arange(samples) + 0.5) / samples
    sine = optics["na"] * share
    axial = np.sqrt(optics["specimen_index"] ** 2 - sine**2)
    mismatch = axial - np.sqrt(np.maximum(optics["immersion_index"] ** 2 - sine**2, 0))
    fit = np.polynomial.Polynomial.fit(axial, mismatch, 1, w=np.sqrt(share))
    aberration = optics["aberration_depth_um"] * (mismatch - fit(axial))
    # No more than one wavelength from the best plane: beyond, collars are adjusted or samples are cleared.
    aberration *= min(1.0, wavelength / max(np.ptp(aberration), 1e-9))
    pupil = np.sqrt(axial / optics["specimen_index"]) * share / axial
    phase = wave * (np.outer(axial, heights) + aberration[:, None])
    kernel = special.j0(np.outer((wave * radii).astype(np.float32), sine.astype(np.float32)))
    wave_real = kernel @ (pupil[:, None] * np.cos(phase)).astype(np.float32)
    wave_imag = kernel @ (pupil[:, None] * np.sin(phase)).astype(np.float32)
    return wave_real**2 + wave_imag**2


def transfer(optics, voxel, planes):
    """Optical transfer function of each distance -planes..planes, for frequencies 0 to those of the voxel grid.

    Returns the frequencies in 1/µm, an array of distances × frequencies, and the light of a point in each plane, which is 1
    in focus and, without pinholes, in every plane. Light that leaves the simulated volume is part of this light, but not of
    the array: far from focus, it is even.
    """
    reach = (planes + 0.5) * voxel[0]
    steps = 1 if voxel[0] < 0.5 else 2
    offsets = ((np.arange(steps) + 0.5) / steps - 0.5) * voxel[0]
    heights = (np.arange(-planes, planes + 1)[:, None] * voxel[0] + offsets).ravel()
    slope = math.tan(math.asin(optics["na"] / optics["specimen_index"]))
    widest = min(1.15 * reach * slope + 5 * optics["emission_um"] / optics["na"], 0.6 * voxel[1] * (SHAPE[1] + 2 * BESIDE))
    step = optics["emission_um"] / optics["na"] / 6
    radii = (np.arange(int(widest / step)) + 0.5) * step
    area = (2 * math.pi * radii * step).astype(np.float32)
    # The microscope is focused where a point is brightest, so that bodies and their images are at the same height.
    near = np.linspace(-3, 3, 241)
    best = near[defocused(optics, optics["emission_um"], radii[:1], near)[0].argmax()]
    intensity = defocused(optics, optics["emission_um"], radii, heights + best)
    # The same light passes through every plane; in focus, all of it is near the axis.
    intensity /= area @ intensity[:, len(heights) // 2]
    total = np.maximum(1.0, area @ intensity)
    if share := optics["pinhole_share"]:
        inner = area @ intensity
        own, other = pinholes(optics, share, radii, area, heights + best)
        intensity *= own + other
        total = area @ intensity + np.maximum(total - inner, 0) * other
    frequencies = np.linspace(0, 0.71 / voxel[1], 512)
    kernel = special.j0(np.outer((2 * math.pi * frequencies).astype(np.float32), radii.astype(np.float32)))
    values = (kernel * area) @ intensity
    values = values.reshape(len(frequencies), -1, steps).mean(2).T
    total = total.reshape(-1, steps).mean(1)
    return frequencies, values / total[planes], total / total[planes]


def pinholes(optics, share, radii, area, heights):
    """Excitation that reaches a position through the pinhole that also detects it, and through the others (even)."""
    excitation = defocused(optics, optics["excitation_um"], radii, heights)
    excitation /= area @ excitation[:, len(heights) // 2]
    pinhole = PINHOLE_UM / optics["magnification"]
    highest = 2 * optics["na"] / optics["excitation_um"]
    frequencies = np.linspace(0, highest, 600)
    kernel = special.j0(np.outer((2 * math.pi * frequencies).astype(np.float32), radii.astype(np.float32)))
    spectrum = (kernel * area) @ excitation
    # A pinhole in the path of excitation and the same in that of emission.
    argument = np.maximum(2 * math.pi * frequencies * pinhole, 1e-6)
    disk = (2 * special.j1(argument) / argument) ** 2
    ring = (2 * math.pi * frequencies * (frequencies[1] - frequencies[0]) * disk).astype(np.float32)
    own = np.maximum((kernel.T * ring) @ spectrum, 0)
    return own, share / (math.pi * pinhole**2)


def blurred(light, stack):
    """Light in the crop along Z; along Y and X, the volume repeats, so that its surroundings contribute haze, too."""
    voxel, deep = stack["voxel_um"], stack["deep"]
    planes = SHAPE[0] - 1 + deep
    frequencies, values, total = transfer(stack["optics"], voxel, planes)
    fy = np.fft.fftfreq(light.shape[1], voxel[1])
    fx = np.fft.rfftfreq(light.shape[2], voxel[2])
    # A pixel of the camera integrates over its area.
    pixel = np.outer(np.sinc(fy * voxel[1]), np.sinc(fx * voxel[2])).astype(np.float32)
    at = np.hypot(fy[:, None], fx[None]) / frequencies[1]
    low = np.minimum(at.astype(int), len(frequencies) - 2)
    weight = (at - low).astype(np.float32)
    length = fft.next_fast_len(max(2 * planes + 1, len(light)))
    system = np.zeros((length, *pixel.shape), np.complex64)
    for distance, row, even in zip(range(-planes, planes + 1), values.astype(np.float32), total):
        system[distance % length] = (row[low] * (1 - weight) + row[low + 1] * weight) * pixel
        system[distance % length, 0, 0] = even
    spectrum = np.zeros_like(system)
    spectrum[: len(light)] = fft.rfft2(light, axes=(1, 2))
    spectrum = fft.ifft(fft.fft(spectrum, axis=0) * fft.fft(system, axis=0), axis=0)[deep : deep + SHAPE[0]]
    image = fft.irfft2(spectrum, s=light.shape[1:], axes=(1, 2))
    return np.maximum(image[:, BESIDE:-BESIDE, BESIDE:-BESIDE], 0).astype(np.float32)


def contrasts(photons, labels, count, voxel, diameter):
    """For each label: light of the body above that of its surroundings, light of the surroundings, and voxels.

    Both are means over the slices in which the body has at least half of its largest section. The surroundings are voxels
    without bodies that are a tenth to four tenths of a diameter beside the section (at least one to four voxels).
    """
    near, far = max(1.0, 0.1 * diameter / voxel[1]), max(4.0, 0.4 * diameter / voxel[1])
    rows = []
    for index, box in enumerate(ndimage.find_objects(labels, count), 1):
        if box is None:
            rows.append((0.0, 1.0, 0))
            continue
        pad = int(far) + 1
        wide = tuple([box[0]] + [slice(max(0, s.start - pad), s.stop + pad) for s in box[1:]])
        body, empty, light = labels[wide] == index, labels[wide] == 0, photons[wide]
        areas = body.sum((1, 2))
        body[areas < 0.5 * areas.max()] = False
        around = np.zeros_like(body)
        for z in np.flatnonzero(body.any((1, 2))):
            distance = ndimage.distance_transform_edt(~body[z])
            around[z] = empty[z] & (distance > near) & (distance <= far)
        inside = float(light[body].mean())
        # Where bodies surround it on all sides, the darkest tenth of the part is the best that an eye can compare with.
        outside = float(light[around].mean()) if around.sum() >= 10 else float(np.percentile(light, 10))
        rows.append((inside - outside, outside, int(areas.max())))
    return np.array(rows).reshape(-1, 3)


def is_visible(contrast, surroundings, voxels, typical, read_noise):
    """Whether a person could see a body, and not only its haze: it stays in the ground truth.

    In the slices where it is largest, it has to be brighter than its surroundings by 10 % of them (what an eye sees in
    smooth light), by a tenth of the contrast of a typical body (dimmer ones vanish at the same display range), and by five
    standard deviations of the noise of its largest section's mean (the criterion of Rose).
    """
    noise = math.sqrt((surroundings + read_noise**2) / max(voxels, 1))
    return contrast >= max(0.1 * surroundings, 0.1 * typical, 5 * noise)


def exposed(image, labels, stack, noise):
    """Counts of the camera and the labels of visible bodies, numbered from 1."""
    optics, camera, voxel = stack["optics"], stack["camera"], stack["voxel_um"]
    grid = [np.linspace(-1, 1, n) for n in SHAPE]
    dark = 1 - optics["unevenness"] * 0.5 * (grid[1][:, None] ** 2 + grid[2][None] ** 2)
    image = image * (1 + optics["bleaching"] * 0.5 * grid[0])[:, None, None] * dark
    count = int(labels.max())
    diameter = stack["bodies"]["objects"]["diameter_um"]
    contrast = contrasts(image, labels, count, voxel, diameter)[:, 0]
    typical = float(np.percentile(contrast[contrast > 0], 75)) if (contrast > 0).any() else 1.0
    scale = camera["photons"] / typical
    photons = image * scale + camera["background_photons"] * dark
    found = contrasts(photons, labels, count, voxel, diameter)
    typical = scale * typical
    visible = [is_visible(*row, typical, camera["read_noise_photons"]) for row in found]
    numbers = np.concatenate([[0], np.where(visible, np.cumsum(visible), 0)]).astype(np.uint16)
    electrons = noise.poisson(photons) + noise.normal(0, camera["read_noise_photons"], photons.shape)
    counts = camera["offset_counts"] + camera["gain_counts_per_photon"] * electrons
    return np.clip(np.rint(counts), 0, 65535).astype(np.uint16), numbers[labels]


def write(path, values, voxel):
    metadata = {"axes": "ZYX", "unit": "micron", "spacing": voxel[0]}
    tifffile.imwrite(path, values, imagej=True, resolution=(1 / voxel[2], 1 / voxel[1]), metadata=metadata)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=30000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seed, options.seed + options.count):
        stack = settings(seed)
        light, labels = bodies(options.program, stack)
        deep = stack["deep"]
        shown = labels[deep : deep + SHAPE[0], BESIDE:-BESIDE, BESIDE:-BESIDE]
        raw, truth = exposed(blurred(light, stack), shown, stack, np.random.default_rng(seed))
        name = options.out / f"widefield_{seed}"
        write(f"{name}_raw.tif", raw, stack["voxel_um"])
        write(f"{name}_labels.tif", truth, stack["voxel_um"])
        Path(f"{name}.json").write_text(json.dumps(stack, indent=2))


if __name__ == "__main__":
    main()
