"""What the changes in docs/performance.md ("Which optimization helps when") bring on this machine: each run is paired with one
without the change, right before or after it in random order.

    python bench/stage_changes.py [--pairs 5] [--shape 64,256,256] [--only 'read'] [--program target/release/cytoscope]

Prints, for each change, the median ratio of the wall times of the commands (time without the change divided by time with it, so
that 2 means twice as fast) with its 95 % interval (bootstrap), and the same for the stage that the change concerns. Rows of GPUs
are in bench/gpu. Needs target/release/cytoscope; the stacks are simulated.
"""
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from machine import cpu_name
from paired import MIN_PAIRS, ROOT, measure, median_interval, output, parsed

STACKS = 4
# A network and patches so small that preparing patches takes longer than a step.
WAITING = "patch_zyx = [8, 32, 32]\nbatch = 2\ncache_bytes = 0\n[network]\nfilters = [8, 16]\n"
TRAINING = "patch_zyx = [16, 64, 64]\nbatch = 1\n[network]\nfilters = [8, 16]\n"


class Changes:
    """The commands of each change, on simulated stacks in a folder."""

    def __init__(self, asked, folder):
        self.asked, self.folder = asked, Path(folder)
        # Models are those of this checkout, and runs do not depend on machine profiles.
        self.environment = {"CYTOSCOPE_MODELS": str(ROOT / "models"), **os.environ}
        self.run("simulate", "--kind", "nuclei", "--count", STACKS, "--shape", asked.shape, "--out", self.folder / "stacks")
        self.stacks = sorted((self.folder / "stacks").glob("*_raw.tif"))
        for compression in ("none", "deflate", "zstd"):
            self.run("convert", self.stacks[0], self.stack(compression), "--compression", compression)
        for name, text in (("waiting", WAITING), ("training", TRAINING)):
            (self.folder / f"{name}.toml").write_text(text)
        pairs = self.folder / "pairs"
        pairs.mkdir()
        for stack in self.stacks:
            labels = stack.with_name(stack.name.replace("_raw", "_labels"))
            self.run("convert", stack, pairs / stack.name.replace(".tif", ".ome.tif"), "--compression", "deflate")
            self.run("convert", labels, pairs / labels.name.replace(".tif", ".ome.tif"), "--compression", "deflate")

    def stack(self, compression):
        return self.folder / f"{compression}.ome.tif"

    def run(self, command, *words):
        """Runs the program, and returns its report."""
        text, _ = output([self.asked.program, command, *words, "--json"], env=self.environment)
        return json.loads(text)

    def timed(self, stages, *commands):
        """Runs commands, and returns the seconds of all, and those of the stages in their reports."""
        with tempfile.TemporaryDirectory(dir=self.folder) as out:
            began, staged = time.perf_counter(), 0.0
            for number, words in enumerate(commands):
                report = self.run(*words, "--out", f"{out}/{number}")
                staged += sum(total["seconds"] for total in report["run"]["stages"] if total["stage"] in stages)
            return {"secs": time.perf_counter() - began, "stage_secs": staged}

    def predict(self, *words):
        return ["predict", "--device", "cpu", "--diameter", "9", "--performance", "off", "--threads", self.asked.threads, *words]

    def train(self, settings, *words):
        return ["train", "--task", "segmentation", "--data", self.folder / "pairs", "--from", "scratch", "--device", "cpu",
                "--config", self.folder / f"{settings}.toml", "--steps", self.asked.steps, "--seed", 1, "--without-int8",
                "--performance", "off", "--threads", self.asked.threads, *words]

    def rows(self):
        """For each change, the stages that it concerns (as reports name them), and the commands with it and without it."""
        maps, one = ["--outputs", "maps"], self.stacks[0]
        return {
            "read: uncompressed instead of Deflate": (
                ["read"], [self.predict(self.stack("none"), *maps)], [self.predict(self.stack("deflate"), *maps)]),
            "read: Zstd instead of Deflate": (
                ["read"], [self.predict(self.stack("zstd"), *maps)], [self.predict(self.stack("deflate"), *maps)]),
            f"compile, verify, load: {STACKS} stacks in one command": (
                ["compile", "verify", "load"], [self.predict(*self.stacks, *maps)],
                [self.predict(stack, *maps) for stack in self.stacks]),
            "objects: maps without labels": (
                ["objects"], [self.predict(one, *maps)], [self.predict(one, "--outputs", "maps,labels")]),
            "write: labels without maps": (
                ["write"], [self.predict(one, "--outputs", "labels")], [self.predict(one, "--outputs", "maps,labels")]),
            "data wait: two data workers instead of one": (
                ["data_wait"], [self.train("waiting", "--set", "workers=2")], [self.train("waiting", "--set", "workers=1")]),
            "data wait: a cache for compressed stacks": (
                ["data_wait"], [self.train("waiting", "--set", "workers=1", "--set", "cache_bytes=1073741824")],
                [self.train("waiting", "--set", "workers=1")]),
            "validate: two validations instead of eight": (
                ["validate"], [self.train("training", "--set", "validation.times=2")],
                [self.train("training", "--set", "validation.times=8")]),
        }


def line(name, pairs):
    """The line of a change: how many times as fast it makes the commands, and the stages that it concerns."""
    def text(key):
        known = [(own[key], other[key]) for own, other in pairs if own[key] > 0.0 and other[key] > 0.0]
        if len(known) < len(pairs):
            is_gone = all(own[key] == 0.0 < other[key] for own, other in pairs)
            return "no longer there" if is_gone else "not measured"
        median, low, high = median_interval([other / own for own, other in known])
        return f"{median:.2f}x ({low:.2f} to {high:.2f})"

    secs = [statistics.median(side["secs"] for side in sides) for sides in zip(*pairs)]
    few = f", fewer than {MIN_PAIRS} pairs" if len(pairs) < MIN_PAIRS else ""
    return f"{name:48} {text('secs')}: {secs[0]:.2f} s instead of {secs[1]:.2f} s{few}; stage {text('stage_secs')}"


def main(words=None):
    options = {"--shape": {"default": "64,256,256"}, "--only": {"default": "", "help": "only changes whose name contains this"}}
    asked = parsed(words, __doc__, options, pairs=5, steps=40)
    print(f"CPU: {cpu_name()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        changes = Changes(asked, folder)
        rows = {name: row for name, row in changes.rows().items() if asked.only in name}
        if not rows:
            raise SystemExit(f"no change has \"{asked.only}\" in its name: {', '.join(changes.rows())}")
        timed = {name: (lambda stages=stages, own=own: changes.timed(stages, *own),
                        lambda stages=stages, other=other: changes.timed(stages, *other))
                 for name, (stages, own, other) in rows.items()}
        found = measure(asked.pairs, timed, random.Random(1))
    for name, pairs in found.items():
        print(line(name, pairs))


if __name__ == "__main__":
    main()
