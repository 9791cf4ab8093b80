"""Tests of bench/training_spans.py with made-up figures in place of the programs: python bench/test_training_spans.py"""

import contextlib
import functools
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

import paired
import training_spans

# Prints the report of a run, or fails.
PROGRAM = """#!{python} -IS
import sys
if "fail" in str(sys.argv):
    sys.exit("it does not train")
print('{{"step_secs": 0.105, "stalled_secs": 0.005}}')
"""


def figures(words, calls, **_):
    """What the programs print for a command, and their CPU time: a trace costs 10 ms a step, and totals by stage half of one."""
    words = [str(word) for word in words]
    calls.append(" ".join(words))
    if words[0].endswith("engine"):
        millis = 100 if "off" in words else 100.5
        return "".join(f"step {step}: loss 0.5, {millis:.2f} ms, 10 ms CPU time\n" for step in range(3)), 0.03
    millis = 100 if "--trace" not in words else 102 if "--stages-only" in words else 110
    return json.dumps({"step_secs": (millis + 5) / 1000, "stalled_secs": 0.005}), 1.0


class TrainingSpans(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.calls = []

    def run_main(self, *words, engine="engine"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            training_spans.main([*words, "--program", str(self.folder / "program"), "--engine", str(self.folder / engine)])
        return printed.getvalue()

    def run_without_processes(self, *words, **options):
        """Processes take longer to start than to print."""
        with unittest.mock.patch("training_spans.output", functools.partial(figures, calls=self.calls)):
            return self.run_main(*words, **options)

    def test_rows_are_compared_with_the_default_in_pairs(self):
        (self.folder / "engine").touch()
        text = self.run_without_processes("--pairs", "5")
        self.assertRegex(text, r"default +100\.0 ms a step: 1\.0000 \(1\.0000 to 1\.0000\).* 5 pairs: noise")
        self.assertRegex(text, r"trace, --stages-only +102\.0 ms a step: 1\.0200 .*: costs less than 3 %")
        self.assertRegex(text, r"trace +110\.0 ms a step: 1\.1000 .*: costs more than 3 %")
        self.assertRegex(text, r"totals by stage +100\.5 ms a step: 1\.0050 .*: costs less than 1 %")
        runs = [call for call in self.calls if "/program train " in call.replace(os.sep, "/")]
        # Five pairs of three rows: the default is in each pair, and twice in its own. The other row runs the example.
        self.assertEqual((len(self.calls), len(runs)), (41, 30))
        self.assertEqual(sum("--trace" in call for call in runs), 10)
        self.assertEqual(sum("--stages-only" in call for call in runs), 5)

    def test_few_pairs_give_no_verdict_and_a_missing_example_leaves_its_row_out(self):
        text = self.run_without_processes("--pairs", "2", "--data", "stacks", engine="none")
        self.assertIn("fewer than 5 pairs say nothing", text)
        self.assertNotIn("costs", text)
        self.assertIn('the row "totals by stage" is left out', text)
        self.assertFalse(any("simulate" in call for call in self.calls), "the data are given")

    @unittest.skipIf(os.name == "nt", "the program of this test is a script")
    def test_a_run_that_fails_ends_the_measurement_with_its_message(self):
        (self.folder / "program").write_text(PROGRAM.format(python=sys.executable))
        (self.folder / "program").chmod(0o755)
        self.assertIn("trace, --stages-only", self.run_main("--pairs", "1", "--data", "stacks", engine="none"))
        with self.assertRaises(SystemExit) as end:
            self.run_main("--pairs", "1", "--data", "fail")
        self.assertIn("it does not train", str(end.exception))

    def test_an_interval_around_the_limit_is_undecided(self):
        self.assertIn("undecided", training_spans.verdict(1.02, 1.04, 1.03))
        middle, low, high = paired.median_interval([1.0, 1.01, 1.02, 1.03, 5.0])
        self.assertTrue(low <= middle == 1.02 <= high, (low, middle, high))


if __name__ == "__main__":
    unittest.main()
