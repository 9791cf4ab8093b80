"""CPU time of one network: our CPU engine compared with ONNX Runtime, interleaved in one run.

    python bench/onnx_cpu.py MODEL.onnx [--shape 64,64,64] [--rounds 5] [--threads 1]

Needs numpy and onnxruntime, and target/release/cytoscope.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
RIVAL = """
import json, sys, time
import numpy as np, onnxruntime as ort
model, x, out, threads, repeat = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
options = ort.SessionOptions()
options.intra_op_num_threads = threads
options.add_session_config_entry('session.intra_op.allow_spinning', '0')
session = ort.InferenceSession(model, options, providers=['CPUExecutionProvider'])
feed = {session.get_inputs()[0].name: np.load(x)}
y = session.run(None, feed)[0]
cpu = []
for _ in range(repeat):
    t = time.process_time()
    y = session.run(None, feed)[0]
    cpu.append((time.process_time() - t) * 1e3)
np.save(out, y)
print(json.dumps(cpu))
"""


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--shape", default="64,64,64")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--threads", type=int, default=1)
    a = p.parse_args()
    print(f"CPU: {cpu_name()}", flush=True)
    program = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "cytoscope"
    shape = [1, 1, *map(int, a.shape.split(","))]
    with tempfile.TemporaryDirectory() as tmp:
        x = Path(tmp) / "x.npy"
        np.save(x, np.random.default_rng(0).standard_normal(shape).astype(np.float32))
        ours, rival, ratios = [], [], []
        for i in range(a.rounds):
            run = subprocess.run(
                [program, "run", a.model, "--force", "--input", x, "--output", f"{tmp}/a.npy", "--engine", "cpu", "--threads",
                 str(a.threads), "--repeat", str(a.repeat), "--json"], check=True, capture_output=True, text=True)
            mine = json.loads(run.stdout)["cpu_ms"]["median"]
            run = subprocess.run([sys.executable, "-c", RIVAL, a.model, str(x), f"{tmp}/b.npy", str(a.threads),
                                  str(a.repeat)], check=True, capture_output=True, text=True)
            theirs = statistics.median(json.loads(run.stdout.splitlines()[-1]))
            ours.append(mine)
            rival.append(theirs)
            ratios.append(theirs / mine)
            print(f"round {i + 1}: ours {mine:8.1f} ms  ONNX Runtime {theirs:8.1f} ms  ratio {theirs / mine:.2f}")
        d = np.load(f"{tmp}/a.npy") - np.load(f"{tmp}/b.npy")
        error = np.linalg.norm(d) / np.linalg.norm(np.load(f"{tmp}/b.npy"))
        print(f"median: ours {statistics.median(ours):.1f} ms, ONNX Runtime {statistics.median(rival):.1f} ms, "
              f"ratio {statistics.median(ratios):.2f}; relative L2 difference {error:.1e}")


if __name__ == "__main__":
    main()
