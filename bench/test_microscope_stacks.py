"""Tests of bench/microscope_stacks.py on small stacks (numpy, scipy and tifffile): python bench/test_microscope_stacks.py"""

import contextlib
import io
import pathlib
import tempfile
import unittest
import unittest.mock

import numpy as np
import tifffile
from scipy import ndimage

import microscope_scene
import microscope_stacks
from microscope_scene import Scene


def scene(seed=1, fine=(2, 1, 1)):
    """An empty scene of 12 x 40 x 40 voxels of 1 x 0.5 x 0.5 um."""
    return Scene(np.random.default_rng(seed), (12, 40, 40), (1.0, 0.5, 0.5), fine)


def one_nucleus(rng, _):
    """A kind of a single nucleus, in place of those that take longer."""
    stack = Scene(rng, (12, 40, 40), (1.0, 0.5, 0.5))
    stack.add(stack.size / 2, (4, 4, 4), np.eye(3), bumps=0)
    return stack, *microscope_scene.record(stack, stack.image((0.5, 0.3)), 200)


class MicroscopeStacks(unittest.TestCase):
    def test_there_are_two_stacks_of_each_kind_and_four_without_nuclei(self):
        self.assertEqual(2 * len(microscope_stacks.KINDS) + len(microscope_stacks.EMPTY), 62)
        self.assertTrue(all(name.startswith("empty_") for name in microscope_stacks.EMPTY))
        self.assertFalse(any(name.startswith("empty") for name in microscope_stacks.KINDS))

    def test_a_kind_yields_the_same_stack_for_the_same_random_numbers(self):
        simulate = microscope_stacks.KINDS["cut_by_borders"]
        (_, image, labels), (_, same, _), (_, other, _) = (simulate(np.random.default_rng(n), 0) for n in (1, 1, 2))
        self.assertEqual((image.shape, labels.shape, image.dtype), ((20, 96, 96), (20, 96, 96), np.uint16))
        self.assertTrue((image == same).all())
        self.assertFalse((image == other).all())
        self.assertGreater(image[labels > 0].mean() - 100, 2 * (image[labels == 0].mean() - 100))

    def test_stacks_without_nuclei_have_no_labels(self):
        simulated, image, labels = microscope_stacks.EMPTY["empty_camera_noise"](np.random.default_rng(1), 0)
        self.assertEqual((image.shape, labels.any()), (tuple(simulated.shape), False))

    def test_axes_form_a_rotation_whose_first_column_is_the_axis(self):
        axes = microscope_scene.rotation(np.random.default_rng(1), [0, 3, 4])
        np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-7)
        np.testing.assert_allclose(axes[:, 0], [0, 0.6, 0.8], atol=1e-7)

    def test_a_body_has_its_radii_in_micrometers_and_refuses_others_at_its_place(self):
        s = scene()
        self.assertTrue(s.add(s.size / 2, (3, 4, 5), np.eye(3), bumps=0))
        self.assertFalse(s.add(s.size / 2 + 1, (3, 3, 3), np.eye(3)))
        self.assertEqual((s.count, s.truth().shape), (1, (12, 40, 40)))
        (box,) = ndimage.find_objects(s.truth())
        extents = [(b.stop - b.start) * size for b, size in zip(box, s.voxel)]
        np.testing.assert_allclose(extents, [6, 8, 10], atol=1)
        self.assertFalse(s.is_clear(s.size / 2 + [0, 5, 0], 1))
        self.assertTrue(s.is_clear(s.size / 2 + [0, 7, 0], 1))

    def test_debris_is_bright_and_has_no_label(self):
        s = scene()
        s.add_debris(5, (1, 1.5), (4, 6))
        self.assertGreaterEqual(s.light.max(), 4)
        self.assertFalse(s.truth().any())

    def test_a_wide_blur_is_that_of_the_whole_resolution(self):
        values = np.zeros((24, 48, 48), np.float32)
        values[8:16, 16:32, 16:32] = 1
        whole = ndimage.gaussian_filter(values, (4, 6, 6), mode="nearest", truncate=3)
        np.testing.assert_allclose(microscope_scene.blur(values, (4, 6, 6)), whole, atol=0.05)

    def test_the_camera_scales_light_and_clips_at_its_bits(self):
        light = np.full((4, 50, 50), 0.5)
        counts = microscope_scene.camera(np.random.default_rng(1), light, 200, read=0, gain=2, offset=30)
        self.assertEqual(counts.dtype, np.uint16)
        self.assertAlmostEqual(counts.mean(), 230, delta=2)
        self.assertAlmostEqual(counts.std(), 20, delta=1)
        clipped = microscope_scene.camera(np.random.default_rng(1), light, 2000, offset=30, bits=8)
        self.assertEqual((clipped.dtype, clipped.min()), (np.uint8, 255))

    def test_bodies_that_a_person_would_not_see_are_not_in_the_ground_truth(self):
        labels = np.zeros((8, 40, 40), np.uint16)
        light = np.full(labels.shape, 0.5)
        for label, (x, excess) in enumerate([(4, 0.5), (24, 0.05)], 1):
            labels[2:6, 10:20, x : x + 10] = label
            light[labels == label] += excess
        kept = microscope_scene.visible(labels, light, 200, 2)
        self.assertEqual(set(np.unique(kept)), {0, 1})
        self.assertEqual(set(np.unique(microscope_scene.visible(labels, light, 0.05, 2))), {0})

    def test_names_are_matched_and_files_state_the_voxel_size(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "stacks"
            words = ["microscope_stacks.py", str(out), "--match", "^round", "--montage", str(out / "png")]
            kinds = {"round": one_nucleus, "other": one_nucleus}
            with unittest.mock.patch("microscope_stacks.KINDS", kinds), unittest.mock.patch("sys.argv", words):
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    microscope_stacks.main()
            files = [f"round{i}_{part}.tif" for i in (0, 1) for part in ("labels", "raw")]
            self.assertEqual(sorted(path.name for path in out.glob("*.tif")), files)
            self.assertEqual(sorted(path.name for path in (out / "png").iterdir()), ["round0.png", "round1.png"])
            self.assertEqual((out / "png/round0.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
            with tifffile.TiffFile(out / "round0_raw.tif") as tiff:
                self.assertEqual((tiff.imagej_metadata["spacing"], tiff.asarray().shape), (1.0, (12, 40, 40)))
            with tifffile.TiffFile(out / "round1_raw.tif") as tiff:
                self.assertIn('PhysicalSizeX="0.5"', tiff.ome_metadata)
        self.assertRegex(printed.getvalue(), r"round0: .* 1 of 1 nuclei, (7\.[5-9]|8\.[0-5]) um")


if __name__ == "__main__":
    unittest.main()
