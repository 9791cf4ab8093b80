"""What recording costs a training step: training runs with and without a trace, in pairs.

    python bench/training_spans.py [--pairs 12] [--steps 60] [--patch 24,64,64] [--filters 16,32,64] [--data FOLDER]

`cytoscope train` runs on the CPU with totals by stage only (the default), with `--trace --stages-only`, and with `--trace`,
which also times every operator and samples the memory. Each run is paired with one of the default, right before or after it in
random order, so that both are in the same state of the machine; the rows take turns in random order. Two figures of a pair
are compared: the mean time of a step without the time that it waited for patches (`step_secs` - `stalled_secs` of the report,
the last 100 points of the loss curve), and the CPU time of the whole process, which includes writing the trace. A ratio is the
median over the pairs with its 95 % interval (bootstrap). The row `default` compares the default with itself: the width of its
interval is noise. A verdict is given only if the whole interval is on one side of the limit (3 %).

If the example `step_rate` is built (`cargo build --release -p cytoscope-engine-cpu --example step_rate`), the row `totals by
stage` compares its steps (its own network, patches of 2 x 32x32x32) with those of `step_rate off`, which records nothing at all;
the limit is 1 %.

Needs target/release/cytoscope. Without --data, three stacks are simulated. Use steps of less than a second: many short runs
give narrower intervals than few long ones.
"""
import json
import os
import random
import re
import statistics
import sys
import tempfile
from pathlib import Path

from machine import cpu_name
from paired import MIN_PAIRS, RELEASE, measure, median_interval, output, parsed

# Options of a run in each row, and the ratio to the default that it should stay below.
ROWS = {"default": ([], None), "trace, --stages-only": (["--stages-only"], 1.03), "trace": ([], 1.03)}
OFF = "totals by stage"
OFF_LIMIT = 1.01


def verdict(low, high, limit):
    """What an interval says about a limit."""
    if limit is None:
        return "noise"
    percent = f"{100 * (limit - 1):.0f} %"
    if high <= limit:
        return f"costs less than {percent}"
    return f"costs more than {percent}" if low > limit else f"undecided whether it costs less than {percent}: measure more pairs"


def line(name, pairs, limit):
    """The line of a row: the ratios of step time and CPU time, each with its interval."""
    steps = median_interval([own["step_ms"] / other["step_ms"] for own, other in pairs])
    cpu = median_interval([own["cpu_secs"] / other["cpu_secs"] for own, other in pairs])
    step_ms = statistics.median(own["step_ms"] for own, _ in pairs)
    says = verdict(steps[1], steps[2], limit) if len(pairs) >= MIN_PAIRS else f"fewer than {MIN_PAIRS} pairs say nothing"
    return (f"{name:22} {step_ms:8.1f} ms a step: {steps[0]:.4f} ({steps[1]:.4f} to {steps[2]:.4f}), CPU time {cpu[0]:.4f} "
            f"({cpu[1]:.4f} to {cpu[2]:.4f}), {len(pairs)} pairs: {says}")


def train(asked, data, row, folder):
    """The figures of a training run in one of the rows."""
    words = [asked.program, "train", "--task", "segmentation", "--data", data, "--from", "scratch", "--config",
             f"{folder}/settings.toml", "--device", "cpu", "--threads", asked.threads, "--steps", asked.steps, "--seed", 1,
             "--performance", "off", "--without-int8", "--json", "--force"]
    with tempfile.TemporaryDirectory(dir=folder) as out:
        options = ROWS[row][0]
        traced = ["--trace", f"{out}/trace.json", *options] if row != "default" else options
        text, cpu_secs = output([*words, "--out", f"{out}/model", *traced])
    report = json.loads(text)
    return {"step_ms": 1e3 * (report["step_secs"] - report["stalled_secs"]), "cpu_secs": cpu_secs}


def engine_steps(asked, words):
    """The figures of the example `step_rate`."""
    environment = {**os.environ, "RAYON_NUM_THREADS": str(asked.threads)} if asked.threads else None
    text, cpu_secs = output([asked.engine, 2, 32, 32, 32, asked.steps, *words], env=environment)
    steps = [float(ms) for ms in re.findall(r"^step \d+: loss \S+, ([\d.]+) ms,", text, re.MULTILINE)]
    if not steps:
        sys.exit(f"{asked.engine}: no time of a step in\n{text[-2000:]}")
    return {"step_ms": statistics.median(steps), "cpu_secs": cpu_secs}


def options():
    """The options that other scripts do not have."""
    return {
        "--patch": {"default": "24,64,64"},
        "--filters": {"default": "16,32,64"},
        "--batch": {"type": int, "default": 1},
        "--data": {"help": "training data; by default, stacks are simulated"},
        "--engine": {"type": Path, "default": RELEASE / "examples" / "step_rate"},
    }


def main(words=None):
    asked = parsed(words, __doc__, options(), pairs=12, steps=60)
    print(f"CPU: {cpu_name()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        data = asked.data or f"{folder}/data"
        if not asked.data:
            output([asked.program, "simulate", "--kind", "nuclei", "--count", 3, "--shape", "32,96,96", "--out", data, "--json"])
        text = (f"patch_zyx = [{asked.patch}]\nbatch = {asked.batch}\n[network]\nfilters = [{asked.filters}]\n"
                "[validation]\ntimes = 1\n")
        Path(f"{folder}/settings.toml").write_text(text)
        limits = {name: limit for name, (_, limit) in ROWS.items()}
        rows = {name: (lambda name=name: train(asked, data, name, folder), lambda: train(asked, data, "default", folder))
                for name in ROWS}
        if asked.engine.is_file():
            rows[OFF] = (lambda: engine_steps(asked, []), lambda: engine_steps(asked, ["off"]))
            limits[OFF] = OFF_LIMIT
        else:
            print(f"{asked.engine} is not built: the row \"{OFF}\" is left out", flush=True)
        found = measure(asked.pairs, rows, random.Random(1))
    for name, pairs in found.items():
        print(line(name, pairs, limits[name]))


if __name__ == "__main__":
    main()
