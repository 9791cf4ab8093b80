"""Simulates stacks whose ground truth is the bodies of nuclei before blurring, for training.

    python3 models/recipes/true_bodies.py PROGRAM OUT [--count 400] [--seed 20000]

In the stacks of `simulate --varied`, the true outlines are the visible ones, which are wider because of blur. Here, two
fifths of the stacks show flat nuclei, a quarter show nuclei that are blurred by a tenth to three tenths of their diameter
along Z, a fifth are overexposed, and the rest are sharp. PROGRAM is the built program; the settings of each stack are saved
beside it.
"""
import argparse
import json
import math
import random
import subprocess
from pathlib import Path

SHAPE = [48, 128, 128]
CONDITIONS = ["flat"] * 8 + ["blurred"] * 5 + ["saturated"] * 4 + ["sharp"] * 3


def log_uniform(draw, low, high):
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def settings(seed):
    """Settings of `simulate` for a stack: lengths are relative to the diameter, as in `--varied`."""
    draw = random.Random(seed)
    condition = CONDITIONS[seed % len(CONDITIONS)]
    flat = condition == "flat"
    diameter = log_uniform(draw, 4, 30)
    xy = diameter / log_uniform(draw, 9, 30)
    thinnest = diameter * (0.5 if flat else 1)
    z = max(xy, min(xy * log_uniform(draw, 1, 4), thinnest / 3))
    blur_xy = log_uniform(draw, 0.015, 0.07) if condition != "blurred" else log_uniform(draw, 0.05, 0.13)
    ranges = {"flat": (0.02, 0.14), "blurred": (0.1, 0.3), "saturated": (0.03, 0.15), "sharp": (0.02, 0.12)}
    blur_z = log_uniform(draw, *ranges[condition])
    photons = log_uniform(draw, 25, 400)
    counting = draw.random() < 0.3
    gain = log_uniform(draw, 0.5, 8)
    if condition == "saturated":
        # White is at 0.35 to 0.9 of an average nucleus.
        gain = 65535 / (photons * draw.uniform(0.35, 0.9))
    form = [(0.25, 0.6), (0.85, 1.5)] if flat else [(0.8, 1.2), (0.9, 1.1)]
    stretch = [log_uniform(draw, *form[0]), log_uniform(draw, *form[1]), 1.0]
    tail = draw.random() < 0.2
    return {
        "kind": "nuclei",
        "shape_zyx": SHAPE,
        "voxel_size_um": {"z": z, "y": xy, "x": xy},
        "seed": seed,
        "objects": {
            "count": None,
            "fill": draw.uniform(0.04, 0.25) if flat else log_uniform(draw, 0.03, 0.3),
            "touching": draw.uniform(0.0, 0.8),
            "diameter_um": diameter,
            "diameter_spread": draw.uniform(0.05, 0.3),
            "brightness_spread": draw.uniform(0.1, 0.45),
            "texture": draw.uniform(0.0, 0.8),
            "membrane_um": 0.6,
            "stretch": {
                "zyx": stretch,
                "spread": draw.uniform(0.0, 0.12),
                "flat": 0.0 if flat else draw.choice([0.0, 0.2]),
            },
            "bumps": draw.uniform(0.5, 2.0),
            "hollow": draw.choice([0.0, 0.0, 0.0, draw.uniform(0.1, 0.6)]),
        },
        "optics": {
            "psf_sigma_um": [blur_z * diameter, blur_xy * diameter, blur_xy * diameter],
            "unevenness": draw.uniform(0.0, 0.3),
            "tail_share": draw.uniform(0.1, 0.3) if tail else 0.0,
            "tail_sigma_um": [0.3 * diameter, 0.1 * diameter, 0.1 * diameter],
            "haze": draw.uniform(0.0, 0.2),
            "haze_per_um": 0.0,
            "haze_sigma_um": [0.5 * diameter, 0.4 * diameter, 0.4 * diameter],
            "bias": draw.choice([0.0, 0.0, draw.uniform(0.1, 0.6)]),
            "attenuation_per_um": draw.uniform(0.0, 0.05) / diameter,
            "condenser_na": 0.5,
            "defocus_range_um": 6.0,
        },
        "camera": {
            "photons": photons * (0.1 if counting else 1),
            "background_photons": photons * (0.1 if counting else 1) * draw.uniform(0.01, 0.15),
            "read_noise_photons": draw.uniform(0.1, 0.5) if counting else draw.uniform(0.5, 3.0),
            "gain_counts_per_photon": min(gain * (10 if counting else 1), 1000),
            "offset_counts": draw.uniform(80, 200),
            "smoothing_voxels": draw.choice([0.0, 0.0, 0.0, draw.uniform(0.4, 1.0)]),
        },
        "truth": {"outline": "body", "least_brightness": 0.0},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=20000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seed, options.seed + options.count):
        file = options.out / f"settings-{seed}.json"
        file.write_text(json.dumps(settings(seed)))
        command = [options.program, "simulate", "--kind", "nuclei", "--settings", file, "--out", options.out, "--force"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


main()
