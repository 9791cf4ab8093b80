"""Writes the reference data of crates/preprocess/tests/reference.rs with SciPy and scikit-image.

Usage: python make.py (in this folder; needs numpy, scipy and scikit-image). Every file holds 32-bit floats, little
endian, axes Z, Y, X; the shape of all but deskew.f32 and clahe.f32 is SHAPE.
"""

import numpy as np
from scipy import ndimage
from skimage import exposure, morphology, restoration

SHAPE = (3, 17, 19)


def save(name, array):
    np.ascontiguousarray(array, dtype="<f4").tofile(f"{name}.f32")
    print(name, array.shape)


def slices(function, stack):
    return np.stack([function(one) for one in stack])


rng = np.random.default_rng(7)
z, y, x = np.meshgrid(*[np.arange(n) for n in SHAPE], indexing="ij")
stack = 40 + 3.0 * x + 1.5 * y + 10 * z
for cz, cy, cx, r in [(1, 6, 7, 3), (2, 11, 13, 4), (0, 13, 4, 3)]:
    stack += 90 * (((z - cz) * 2) ** 2 + (y - cy) ** 2 + (x - cx) ** 2 <= r * r)
stack = np.round(stack + rng.normal(0, 6, SHAPE)).clip(0).astype(np.float32)
save("input", stack)

save("gaussian", ndimage.gaussian_filter(stack.astype(np.float64), [0.6, 1.5, 1.5], mode="nearest"))
save("median", ndimage.median_filter(stack, size=[3, 5, 5], mode="nearest"))
disk = morphology.disk(5)
save("tophat", slices(lambda s: morphology.white_tophat(s, disk, mode="ignore"), stack))
save("rolling_ball", slices(lambda s: s - restoration.rolling_ball(s, radius=6), stack))
ball = restoration.ellipsoid_kernel((13, 13), 80)
save("rolling_ball_height", slices(lambda s: s - restoration.rolling_ball(s, kernel=ball), stack))


# One larger slice of a formula that the test repeats. Tiles of many voxels, because scikit-image adds more counts to the
# histograms of small tiles than it has clipped off.
row, column = np.meshgrid(np.arange(50), np.arange(61), indexing="ij")
waves = (column * column * 7 + row * row * 13 + column * row * 5) % 61
plane = 3.0 * column + 2 * row + waves + 80 * ((column // 9 + row // 7) % 3 == 0)
scaled = (plane - plane.min()) / (plane.max() - plane.min())
save("clahe", exposure.equalize_adapthist(scaled, kernel_size=[50 // 3, 61 // 3], clip_limit=0.03))

low, high = np.percentile(stack, [2, 99])
save("stretch", exposure.rescale_intensity(stack.astype(np.float64), in_range=(low, high), out_range=(0, 1)))


def normalized(one):
    low, high = np.percentile(one, [2, 99])
    return (one.astype(np.float64) - low) / (high - low)


save("normalize_slices", slices(normalized, stack))

# The stage moves 0.7 µm per slice along Y at 35° to the sheet; voxels are 0.4 µm.
angle, step, voxel = np.radians(35), 0.7, 0.4
shift = step * np.cos(angle) / voxel
rows = SHAPE[1] + int(np.ceil(shift * (SHAPE[0] - 1)))
matrix = np.array([[1, 0, 0], [-shift, 1, 0], [0, 0, 1]])
shape = (SHAPE[0], rows, SHAPE[2])
save("deskew", ndimage.affine_transform(stack.astype(np.float64), matrix, output_shape=shape, order=1, mode="constant"))
matrix = np.array([[0.9, 0.02, 0], [0.01, 0.95, 0.1], [0, -0.1, 0.97]])
offset = [0.2, -0.6, 1.7]
save("affine", ndimage.affine_transform(stack.astype(np.float64), matrix, offset, order=1, mode="constant"))
