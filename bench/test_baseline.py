"""Tests of bench/baseline.py and bench/regression.py with programs that write criterion's files at once:

    python bench/test_baseline.py
"""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import baseline
import regression

# Writes what a suite would, with one benchmark of the suite's name, whose time is read from a file beside it.
PROGRAM = """#!{python}
import json, os, pathlib, sys
here = pathlib.Path(__file__)
name = here.name.split("-")[0] + "/case"
words = [word for word in sys.argv[1:] if not word.startswith("--")]
if len(words) < 3 or words[2] in name:
    folder = pathlib.Path(os.environ["CRITERION_HOME"]) / here.name / "new"
    folder.mkdir(parents=True)
    nanoseconds = float(here.with_name("time.txt").read_text())
    (folder / "estimates.json").write_text(json.dumps({{"median": {{"point_estimate": nanoseconds}}}}))
    (folder / "benchmark.json").write_text(json.dumps({{"full_id": name}}))
"""


def built(checkout):
    """Writes the programs of the suites of a checkout, and returns their folder."""
    programs = checkout / "target" / "release" / "deps"
    programs.mkdir(parents=True)
    for suite in baseline.SUITES:
        path = programs / f"{suite}-0123"
        path.write_text(PROGRAM.format(python=sys.executable))
        path.chmod(0o755)
    (programs / "time.txt").write_text("2000")
    return programs


def run_main(module, *words):
    """The exit code of a script (or its message), and what it prints."""
    printed = io.StringIO()
    with mock.patch.object(sys, "argv", [module.__name__, *map(str, words)]), contextlib.redirect_stdout(printed):
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                module.main()
            except SystemExit as end:
                return end.code, printed.getvalue()
    return 0, printed.getvalue()


@unittest.skipIf(os.name == "nt", "the programs of these tests are scripts")
class Baselines(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        self.checkout = self.root / "checkout"
        self.programs = built(self.checkout)
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        for words in (["init", "-q"], ["add", "target/release/deps/bench_kernels-0123"], ["commit", "-q", "-m", "first"]):
            subprocess.run(git + words, cwd=self.checkout, check=True)
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=self.checkout, check=True, capture_output=True, text=True)
        self.commit = head.stdout.strip()

    def takes(self, nanoseconds):
        (self.programs / "time.txt").write_text(str(nanoseconds))

    def run_words(self, *words):
        return run_main(baseline, *words, "--checkout", self.checkout, "--built")

    def stored(self):
        code, printed = self.run_words("store", self.root / "stored", "--rounds", 2)
        self.assertEqual(code, 0, printed)
        (path,) = (self.root / "stored").iterdir()
        self.assertIn(f"wrote {path}", printed)
        return path

    def test_a_baseline_states_where_its_times_are_from(self):
        path = self.stored()
        found = json.loads(path.read_text())
        self.assertTrue(path.name.endswith(f"-{self.commit[:10]}.json"))
        self.assertEqual(found["commit"], self.commit)
        self.assertEqual(found["cpu"], baseline.cpu_name())
        self.assertRegex(found["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")
        self.assertIs(found["has_local_changes"], False)
        self.assertEqual(sorted(found["round_secs"]), sorted(f"{suite}/case" for suite in baseline.SUITES))
        for secs in found["round_secs"].values():
            self.assertEqual(len(secs), 2)
            self.assertAlmostEqual(secs[0], 2e-6)

    def test_a_change_of_the_code_is_stated(self):
        with (self.programs / "bench_kernels-0123").open("a") as file:
            file.write("# changed\n")
        self.assertIs(json.loads(self.stored().read_text())["has_local_changes"], True)

    def test_a_slower_build_fails_and_a_faster_one_does_not(self):
        path = self.stored()
        before = path.read_bytes()
        code, printed = self.run_words("compare", path)
        self.assertEqual(code, 0, printed)
        self.assertNotIn("SLOWER", printed)
        self.takes(3000)
        code, printed = self.run_words("compare", path)
        self.assertEqual(code, 1, printed)
        self.assertIn("1.500 (1.500 to 1.500)  SLOWER", printed)
        self.assertEqual(self.run_words("compare", path, "--limit", 1.6)[0], 0)
        self.takes(1000)
        code, printed = self.run_words("compare", path)
        self.assertEqual(code, 0, printed)
        self.assertIn("0.500 (0.500 to 0.500)  faster", printed)
        self.assertEqual(path.read_bytes(), before)

    def test_a_filter_leaves_benchmarks_out_of_the_comparison(self):
        path = self.stored()
        code, printed = self.run_words("compare", path, "--filter", "tiling")
        self.assertEqual(code, 0, printed)
        self.assertIn("bench_tiling/case", printed)
        self.assertNotIn("bench_kernels", printed)
        self.assertIn("matches 'nothing'", str(self.run_words("compare", path, "--filter", "nothing")[0]))

    def test_baselines_of_other_cpus_and_damaged_files_are_refused(self):
        path = self.stored()
        found = json.loads(path.read_text())
        for change, message in (
            ({"cpu": "another CPU, 4 cores"}, "another CPU, 4 cores"),
            ({"format": 99}, "not a baseline"),
            ({"round_secs": {"a": [0.0]}}, "damaged"),
            ({"round_secs": {"a": ["1"]}}, "damaged"),
            ({"round_secs": {}}, "damaged"),
        ):
            path.write_text(json.dumps({**found, **change}))
            self.assertIn(message, str(self.run_words("compare", path)[0]))
        path.write_text("{")
        self.assertIn(str(path), str(self.run_words("compare", path)[0]))
        self.assertIn("no-such", str(self.run_words("compare", self.root / "no-such.json")[0]))

    def test_a_single_round_is_refused(self):
        self.assertEqual(self.run_words("store", self.root / "stored", "--rounds", 1)[0], 2)
        self.assertFalse((self.root / "stored").exists())


@unittest.skipIf(os.name == "nt", "the programs of these tests are scripts")
class Regressions(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.old, self.new = (pathlib.Path(temporary.name) / name for name in ("old", "new"))
        self.programs = [built(checkout) for checkout in (self.old, self.new)]

    def run_words(self, *words):
        return run_main(regression, self.old, self.new, "--rounds", 2, *words)

    def test_a_slower_build_fails(self):
        code, printed = self.run_words()
        self.assertEqual(code, 0, printed)
        self.assertIn("1.000 (1.000 to 1.000)", printed)
        (self.programs[1] / "time.txt").write_text("3000")
        code, printed = self.run_words()
        self.assertEqual(code, 1, printed)
        self.assertIn("1.500 (1.500 to 1.500)  SLOWER", printed)
        self.assertEqual(self.run_words("--limit", 1.6)[0], 0)

    def test_a_comparison_of_nothing_fails(self):
        code, printed = self.run_words("--filter", "tiling")
        self.assertEqual(code, 0, printed)
        self.assertNotIn("bench_kernels", printed)
        self.assertIn("matches 'nothing'", str(self.run_words("--filter", "nothing")[0]))
        for options in (("--rounds", 0), ("--rounds", 1), ("--seconds", 0), ("--limit", "nan")):
            self.assertEqual(self.run_words(*options)[0], 2, options)

    def test_a_suite_that_fails_says_why(self):
        (self.programs[1] / "time.txt").unlink()
        message = str(self.run_words()[0])
        self.assertIn("bench_kernels-0123", message)
        self.assertIn("FileNotFoundError", message)


class Comparisons(unittest.TestCase):
    def test_only_a_whole_range_above_the_limit_is_slower(self):
        lines, slower = baseline.table({"a": [1.0, 1.2]}, {"a": [1.25, 1.5]}, 1.1)
        self.assertEqual(slower, [])
        self.assertIn("1.250 (1.042 to 1.500)", lines[1])
        self.assertEqual(baseline.table({"a": [1.0, 1.2]}, {"a": [1.4, 1.5]}, 1.1)[1], ["a"])

    def test_times_of_less_than_a_microsecond_keep_their_digits(self):
        self.assertEqual(baseline.time_text(3.61e-8), "36.1 ns")
        self.assertEqual(baseline.time_text(5.2753e-4), "527.53 µs")

    def test_benchmarks_of_one_side_are_named(self):
        lines, slower = baseline.table({"old": [1.0]}, {"new": [1.0]}, 1.1)
        self.assertEqual(slower, [])
        self.assertTrue(lines[1].startswith("new") and lines[1].endswith("only now"))
        self.assertTrue(lines[2].startswith("old") and lines[2].endswith("only in the baseline"))

    def test_the_programs_are_those_that_cargo_names(self):
        def message(name, executable, reason="compiler-artifact"):
            return json.dumps({"reason": reason, "target": {"name": name}, "executable": executable})

        lines = [message(suite, f"/t/{suite}-1") for suite in baseline.SUITES]
        others = [message("cytoscope_kernels", None), message("other", "/t/other-1"), '{"reason":"build-finished"}', "text"]
        found = baseline.executables("\n".join(others + lines))
        self.assertEqual(found, {suite: pathlib.Path(f"/t/{suite}-1") for suite in baseline.SUITES})
        with self.assertRaises(SystemExit) as end:
            baseline.executables("\n".join(lines[1:]))
        self.assertIn(baseline.SUITES[0], str(end.exception.code))


if __name__ == "__main__":
    unittest.main()
