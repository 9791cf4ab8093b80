"""Time of a prediction that estimates the object diameter, compared with one that is given the same diameter; interleaved.

    python bench/diameter_cost.py FILE... [--model nuclei] [--rounds 4] [--binary target/release/cytoscope]

Each timed run follows an untimed one with the same options, because memory that a virtual machine has not touched lately is
slow. The fastest of the rounds counts. Needs `cargo build --release`.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent


def predict(options, file, diameter):
    """Returns the seconds of one prediction and the diameter that was used."""
    with tempfile.TemporaryDirectory() as out:
        command = [str(options.binary), "predict", file, "--model", options.model, "--device", "cpu", "--outputs", "labels"]
        command += ["--diameter", str(diameter), "--out", out, "--json"]
        began = time.perf_counter()
        env = dict(os.environ, CYTOSCOPE_MODELS=str(ROOT / "models"))
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        secs = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(done.stderr)
        return secs, json.loads(done.stdout)["inputs"][0]["diameter"]["diameter"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--model", default="nuclei")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/cytoscope")
    options = parser.parse_args()
    print(f"CPU: {cpu_name()}", flush=True)
    totals, ratios = [0.0, 0.0], []
    for file in options.files:
        estimated = predict(options, file, "auto")[1]
        fastest = []
        for diameter in ("auto", estimated):
            fastest.append((diameter, []))
        for _ in range(options.rounds):
            for diameter, secs in fastest:
                predict(options, file, diameter)
                secs.append(predict(options, file, diameter)[0])
        auto, given = (min(secs) for _, secs in fastest)
        totals = [totals[0] + auto, totals[1] + given]
        ratios.append(auto / given)
        times = f"estimated {auto:.2f} s, given {given:.2f} s, ratio {auto / given:.2f}"
        print(f"{Path(file).name}: {estimated:.2f}, {times}", flush=True)
    ratio = f"{totals[0]:.2f} s / {totals[1]:.2f} s = {totals[0] / totals[1]:.2f}"
    print(f"all: {ratio}; median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
