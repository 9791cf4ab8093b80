"""Tests of bench/specimen_stacks.py on small stacks (numpy, scipy and tifffile): python bench/test_specimen_stacks.py"""

import contextlib
import dataclasses
import io
import json
import pathlib
import tempfile
import unittest
import unittest.mock

import numpy as np
import tifffile

import specimen_nuclei
import specimen_stacks


def small(name, /, shape=(8, 72, 72), **changes):
    """The stack of a name with fewer voxels."""
    (stack,) = [stack for stack in specimen_stacks.STACKS if stack.name == name]
    return dataclasses.replace(stack, shape=shape, **changes)


class SpecimenStacks(unittest.TestCase):
    def test_every_stack_has_its_own_name_and_a_kind(self):
        names = [stack.name for stack in specimen_stacks.STACKS]
        self.assertEqual(len(set(names)), 91)
        self.assertEqual({name.split("_")[0] for name in names}, set(specimen_stacks.KINDS))

    def test_each_kind_yields_integers_of_its_bits_and_labels_of_the_same_shape(self):
        for kind in specimen_stacks.KINDS:
            stack = small(f"{kind}_2")
            raw, labels = specimen_stacks.simulate(stack)
            self.assertEqual((raw.shape, labels.shape), (stack.shape, stack.shape), kind)
            self.assertEqual(raw.dtype, np.uint8 if stack.bits == 8 else np.uint16, kind)
            self.assertLess(int(raw.max()), 2**stack.bits, kind)

    def test_a_stack_depends_on_its_name_only(self):
        first, again = (specimen_stacks.simulate(small("tissue_1")) for _ in range(2))
        for one, other in zip(first, again):
            self.assertTrue((one == other).all())
        other = specimen_stacks.simulate(small("tissue_1", name="tissue_9"))
        self.assertFalse((first[1] == other[1]).all())

    def test_axes_form_a_rotation_whose_last_row_is_the_direction(self):
        axes = specimen_nuclei.axes_along(np.random.default_rng(1), [0, 3, 4])
        np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-7)
        np.testing.assert_allclose(axes[2], [0, 0.6, 0.8], atol=1e-7)
        self.assertAlmostEqual(np.linalg.det(axes), 1)

    def test_nuclei_are_brighter_than_the_background(self):
        raw, labels = specimen_stacks.simulate(small("elongated_1"))
        self.assertGreater(labels.max(), 3)
        self.assertGreater(raw[labels > 0].mean(), 2 * raw[labels == 0].mean())

    def test_debris_has_no_label(self):
        raw, labels = specimen_stacks.simulate(small("empty_2"))
        self.assertFalse(labels.any())
        self.assertGreater(raw.max(), 2 * np.median(raw))

    def test_names_are_matched_and_an_unstated_voxel_size_is_written_beside_the_stack(self):
        stacks = [small("nometa_0"), small("empty_0"), small("hollow_1")]
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            words = ["specimen_stacks.py", folder, "--match", "^(nometa|empty)"]
            with unittest.mock.patch("specimen_stacks.STACKS", stacks), unittest.mock.patch("sys.argv", words):
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    specimen_stacks.main()
            files = [f"{name}_{part}.tif" for name in ("empty_0", "nometa_0") for part in ("labels", "raw")]
            self.assertEqual(sorted(path.name for path in out.iterdir()), sorted([*files, "nometa_0.json"]))
            self.assertEqual(json.loads((out / "nometa_0.json").read_text()), {"voxel_um": [1.0, 0.4, 0.4]})
            with tifffile.TiffFile(out / "empty_0_raw.tif") as tiff:
                self.assertIn('PhysicalSizeX="0.4"', tiff.ome_metadata)
        self.assertIn("empty_0: 0 nuclei", printed.getvalue())


if __name__ == "__main__":
    unittest.main()
