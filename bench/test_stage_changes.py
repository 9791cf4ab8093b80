"""Tests of bench/stage_changes.py with made-up reports in place of the program: python bench/test_stage_changes.py"""

import contextlib
import functools
import io
import json
import pathlib
import unittest
import unittest.mock

import stage_changes


def report(words, calls, **_):
    """What the program prints for a command, and its CPU time: stages whose times depend on the arguments. Stacks are simulated
    as empty files."""
    words = [str(word) for word in words][1:]
    calls.append(" ".join(words))
    stages = {"write": 0.1}
    if words[0] == "simulate":
        out = pathlib.Path(words[words.index("--out") + 1])
        out.mkdir()
        for number in range(int(words[words.index("--count") + 1])):
            for part in ("raw", "labels"):
                (out / f"nuclei_{number}_{part}.tif").touch()
    elif words[0] == "predict":
        stages["read"] = 0.3 if any("deflate" in word for word in words) else 0.1
        stages["write"] = 0.4 if "maps,labels" in words else 0.1
        if "maps,labels" in words:
            stages["objects"] = 0.2
    elif words[0] == "train":
        stages["data_wait"] = 0.5 if "workers=1" in words else 0.25
    return json.dumps({"run": {"stages": [{"stage": name, "seconds": secs} for name, secs in stages.items()]}}), 0.1


class StageChanges(unittest.TestCase):
    def setUp(self):
        self.calls = []
        # Processes take longer to start than to print.
        program = unittest.mock.patch("stage_changes.output", functools.partial(report, calls=self.calls))
        program.start()
        self.addCleanup(program.stop)

    def run_main(self, *words):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            stage_changes.main([*words, "--program", "cytoscope"])
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
        # Without the change, each stack has its own command.
        predictions = [call for call in self.calls if call.startswith("predict ")]
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

    def test_at_least_one_pair_is_measured(self):
        for words in (["--pairs", "0"], ["--steps", "0"]):
            with self.assertRaises(SystemExit):
                self.run_main(*words)
        self.assertEqual(self.calls, [])


if __name__ == "__main__":
    unittest.main()
