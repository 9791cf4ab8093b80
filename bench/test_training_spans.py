"""Tests of bench/training_spans.py with programs that print figures at once: python bench/test_training_spans.py"""

import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest

import paired
import training_spans

# Prints the report of a run in which a trace costs 10 ms a step, and writes down its arguments.
PROGRAM = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
with open(pathlib.Path(__file__).with_name("calls.txt"), "a") as calls:
    calls.write(" ".join(words) + "\\n")
if "fail" in str(words):
    sys.exit("it does not train")
millis = 100 if "--trace" not in words else 102 if "--stages-only" in words else 110
print(json.dumps({{"step_secs": (millis + 5) / 1000, "stalled_secs": 0.005}}))
"""
ENGINE = """#!{python}
import sys
for step in range(3):
    print(f"step {{step}}: loss 0.5, {{100 if 'off' in sys.argv else 100.5:.2f}} ms, 10 ms CPU time")
print("best: 100 ms wall time, 10 ms CPU time")
"""


@unittest.skipIf(os.name == "nt", "the programs of these tests are scripts")
class TrainingSpans(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        for name, text in (("program", PROGRAM), ("engine", ENGINE)):
            (self.folder / name).write_text(text.format(python=sys.executable))
            (self.folder / name).chmod(0o755)

    def run_main(self, *words, engine="engine"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            training_spans.main([*words, "--program", str(self.folder / "program"), "--engine", str(self.folder / engine)])
        return printed.getvalue()

    def test_rows_are_compared_with_the_default_in_pairs(self):
        text = self.run_main("--pairs", "5")
        self.assertRegex(text, r"default +100\.0 ms a step: 1\.0000 \(1\.0000 to 1\.0000\).* 5 pairs: noise")
        self.assertRegex(text, r"trace, --stages-only +102\.0 ms a step: 1\.0200 .*: costs less than 3 %")
        self.assertRegex(text, r"trace +110\.0 ms a step: 1\.1000 .*: costs more than 3 %")
        self.assertRegex(text, r"totals by stage +100\.5 ms a step: 1\.0050 .*: costs less than 1 %")
        calls = (self.folder / "calls.txt").read_text().splitlines()
        runs = [call for call in calls if call.startswith("train ")]
        # Five pairs of three rows: the default is in each pair, and twice in its own.
        self.assertEqual((len(calls), len(runs)), (31, 30))
        self.assertEqual(sum("--trace" in call for call in runs), 10)
        self.assertEqual(sum("--stages-only" in call for call in runs), 5)

    def test_few_pairs_give_no_verdict_and_a_missing_example_leaves_its_row_out(self):
        text = self.run_main("--pairs", "2", "--data", "stacks", engine="none")
        self.assertIn("fewer than 5 pairs say nothing", text)
        self.assertNotIn("costs", text)
        self.assertIn('the row "totals by stage" is left out', text)
        self.assertNotIn("simulate", (self.folder / "calls.txt").read_text(), "the data are given")

    def test_a_run_that_fails_ends_the_measurement_with_its_message(self):
        with self.assertRaises(SystemExit) as end:
            self.run_main("--pairs", "1", "--data", "fail")
        self.assertIn("it does not train", str(end.exception))

    def test_an_interval_around_the_limit_is_undecided(self):
        self.assertIn("undecided", training_spans.verdict(1.02, 1.04, 1.03))
        middle, low, high = paired.median_interval([1.0, 1.01, 1.02, 1.03, 5.0])
        self.assertTrue(low <= middle == 1.02 <= high, (low, middle, high))


if __name__ == "__main__":
    unittest.main()
