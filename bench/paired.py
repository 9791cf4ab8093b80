"""Pairs of runs of programs that are compared: both are in the same state of a machine that other programs share."""
import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
RESAMPLES = 2000
# Fewer pairs say nothing about the spread.
MIN_PAIRS = 5


def median_interval(ratios, resamples=RESAMPLES):
    """The median of ratios, and the 95 % interval that covers it, by the bootstrap."""
    numbers = random.Random(len(ratios))
    medians = sorted(statistics.median(numbers.choices(ratios, k=len(ratios))) for _ in range(resamples))
    return statistics.median(ratios), medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


def output(words, **options):
    """Runs a program and returns what it prints, and its CPU time in seconds."""
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=errors, text=True, **options)
        with child.stdout:
            text = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            errors.seek(0)
            sys.exit(f"{' '.join(map(str, words))}: {errors.read().decode(errors='replace')[-2000:]}")
        return text, usage.ru_utime + usage.ru_stime


def measure(pairs, rows, numbers):
    """Measures each row, a function for itself and one for what it is compared with, in pairs, and returns them by row."""
    found = {name: [] for name in rows}
    for done in range(pairs):
        order = list(rows)
        numbers.shuffle(order)
        for name in order:
            own, other = rows[name]
            if numbers.random() < 0.5:
                first = own()
                found[name].append((first, other()))
            else:
                first = other()
                found[name].append((own(), first))
        print(f"[{done + 1} of {pairs} pairs of each]", file=sys.stderr, flush=True)
    return found


def parsed(words, description, options, pairs, steps):
    """The options of a script that measures pairs: its own ones, by name with the arguments of `add_argument`, and those that
    all have; `pairs` and `steps` are defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=pairs)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--program", type=Path, default=RELEASE / "cytoscope")
    for name, arguments in options.items():
        parser.add_argument(name, **arguments)
    asked = parser.parse_args(words)
    if asked.pairs < 1 or asked.steps < 1:
        parser.error("--pairs and --steps must be at least 1")
    return asked
