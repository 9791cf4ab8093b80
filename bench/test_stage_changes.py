"""Tests of bench/stage_changes.py with a program that prints reports at once: python bench/test_stage_changes.py"""

import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest

import stage_changes

# Simulates stacks, and reports stages whose times depend on the arguments.
PROGRAM = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
out = pathlib.Path(words[words.index("--out") + 1]) if "--out" in words else None
with open(pathlib.Path(__file__).with_name("calls.txt"), "a") as calls:
    calls.write(" ".join(words) + "\\n")
stages = {{"write": 0.1}}
if words[0] == "simulate":
    out.mkdir()
    for number in range(int(words[words.index("--count") + 1])):
        for part in ("raw", "labels"):
            (out / f"nuclei_{{number}}_{{part}}.tif").touch()
elif words[0] == "predict":
    stages["read"] = 0.3 if any("deflate" in word for word in words) else 0.1
    stages["write"] = 0.4 if "maps,labels" in words else 0.1
    stages.update({{"objects": 0.2}} if "maps,labels" in words else {{}})
elif words[0] == "train":
    stages["data_wait"] = 0.5 if "workers=1" in words else 0.25
print(json.dumps({{"run": {{"stages": [{{"stage": name, "seconds": secs}} for name, secs in stages.items()]}}}}))
"""


@unittest.skipIf(os.name == "nt", "the program of these tests is a script")
class StageChanges(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.program = pathlib.Path(temporary.name) / "program"
        self.program.write_text(PROGRAM.format(python=sys.executable))
        self.program.chmod(0o755)

    def run_main(self, *words):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            stage_changes.main([*words, "--program", str(self.program)])
        return printed.getvalue()

    def test_each_change_is_compared_with_the_same_commands_without_it(self):
        text = self.run_main("--pairs", "1")
        for name, stage in [
            ("read: uncompressed instead of Deflate", r"3\.00x \(3\.00 to 3\.00\)"),
            ("objects: maps without labels", "no longer there"),
            ("write: labels without maps", r"4\.00x"),
            ("data wait: two data workers instead of one", r"2\.00x"),
            ("validate: two validations instead of eight", "not measured"),
        ]:
            self.assertRegex(text, f"{name} .*, fewer than 5 pairs; stage {stage}")
        calls = self.program.with_name("calls.txt").read_text().splitlines()
        # Without the change, each stack has a command of its own.
        predictions = [call for call in calls if call.startswith("predict ")]
        self.assertEqual(len(predictions), 2 * 4 + 1 + 4)
        self.assertEqual(sum(call.count("_raw.tif") == 4 for call in predictions), 1)
        # Neither a stored profile nor another device changes what is measured.
        self.assertTrue(all("--device cpu" in call and "--performance off" in call for call in predictions))

    def test_changes_are_chosen_by_name_and_others_are_not_measured(self):
        text = self.run_main("--pairs", "5", "--only", "Zstd")
        self.assertRegex(text, r"read: Zstd instead of Deflate .*; stage 3\.00x")
        self.assertNotIn("fewer than", text)
        self.assertNotIn("objects", text)
        with self.assertRaises(SystemExit) as end:
            self.run_main("--only", "unknown")
        self.assertIn("write: labels without maps", str(end.exception))


if __name__ == "__main__":
    unittest.main()
