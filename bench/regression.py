"""Runs the criterion suites of two built checkouts in turns, and prints the ratios of their times.

    (in each checkout) cargo bench --no-run --bench bench_kernels --bench bench_tiling --bench bench_codecs --bench bench_objects
    python bench/regression.py OLD NEW [--rounds 5] [--filter kernels]

OLD and NEW are folders of checkouts, or their target folders. A ratio is the time in NEW divided by that in OLD in the same
round, so that a slowdown of the machine affects both; the range over the rounds shows the noise. The exit code is 1 if the
whole range of a benchmark is above --limit. To keep times for later, see bench/baseline.py. python bench/test_baseline.py tests
both.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from machine import cpu_name

SUITES = ["bench_kernels", "bench_tiling", "bench_codecs", "bench_objects"]


def program(checkout, suite):
    """The newest built program of a suite."""
    folders = [pathlib.Path(checkout) / "target" / "release" / "deps", pathlib.Path(checkout) / "release" / "deps"]
    found = [p for folder in folders for p in folder.glob(f"{suite}-*") if p.suffix in ("", ".exe") and p.is_file()]
    if not found:
        sys.exit(f"{folders[0]}: no program of the suite {suite}; run cargo bench --no-run --bench {suite} in {checkout}")
    return max(found, key=lambda p: p.stat().st_mtime)


def measure(path, pattern, seconds):
    """Median seconds of each benchmark of a suite."""
    with tempfile.TemporaryDirectory() as home:
        words = [str(path.resolve()), "--bench", "--noplot", "--warm-up-time", "0.3", "--measurement-time", str(seconds)]
        words += [pattern] if pattern else []
        environment = {**os.environ, "CRITERION_HOME": home, "RAYON_NUM_THREADS": "1"}
        output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
        done = subprocess.run(words, env=environment, **output)
        if done.returncode:
            sys.exit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        times = {}
        for file in pathlib.Path(home).rglob("new/estimates.json"):
            name = json.loads((file.parent / "benchmark.json").read_text())["full_id"]
            times[name] = json.loads(file.read_text())["median"]["point_estimate"] / 1e9
        return times


def at_least_two(text):
    """A number of rounds: one would have no spread."""
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{value}: expected at least 2 rounds, because a single one has no spread")
    return value


def positive(text):
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
    return value


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("old")
    arguments.add_argument("new")
    arguments.add_argument("--rounds", type=at_least_two, default=5)
    arguments.add_argument("--seconds", type=positive, default=1.0, help="measurement time of each benchmark")
    arguments.add_argument("--filter", default="", help="only benchmarks whose name matches this")
    arguments.add_argument("--limit", type=positive, default=1.1, help="ratio that counts as a regression")
    asked = arguments.parse_args()
    print(f"CPU: {cpu_name()}", flush=True)
    programs = {suite: [program(asked.old, suite), program(asked.new, suite)] for suite in SUITES}
    times = {}
    for number in range(asked.rounds):
        print(f"round {number + 1} of {asked.rounds}", file=sys.stderr, flush=True)
        for pair in programs.values():
            # The order alternates, so that neither side always runs on a warmer machine.
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                for name, seconds in measure(pair[side], asked.filter, asked.seconds).items():
                    times.setdefault(name, ([], []))[side].append(seconds)
    if not times:
        sys.exit(f"no benchmark has a name that matches {asked.filter!r}")
    slower = []
    print(f"{'benchmark':40} {'old':>12} {'new':>12}  new/old (range)")
    for name, (old, new) in sorted(times.items()):
        if not old or not new:
            print(f"{name:40} only in {'NEW' if new else 'OLD'}")
            continue
        ratios = [b / a for a, b in zip(old, new)]
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        mark = "  SLOWER" if low > asked.limit else ""
        slower += [name] if mark else []
        left, right = (f"{1e6 * statistics.median(side):.2f} µs" for side in (old, new))
        print(f"{name:40} {left:>12} {right:>12}  {middle:.3f} ({low:.3f} to {high:.3f}){mark}")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
