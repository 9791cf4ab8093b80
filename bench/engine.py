"""CPU time of one network: our CPU engine compared with OpenVINO, interleaved in one run.

    python bench/engine.py MODEL.onnx --shape 64,64,64 [--precision int8|bf16|f32] [--rounds 5] [--repeat 5] [--threads 1]
                           [--quantized OURS.onnx] [--isa NAME] [--hint f32|bf16] [--accuracy]

int8: OpenVINO's model is quantized by NNCF (mixed preset, 8 volumes), ours by `cytoscope quantize` with the same volumes,
unless one is given. --accuracy compares both with f32 on a held-out volume instead of timing them. --isa limits the
instruction set of both (avx512-vnni: no matrix unit). --hint is the precision in which OpenVINO computes layers in
floats: by default bf16 for bf16 and f32 otherwise; on CPUs with bf16, our int8 networks compute theirs in bf16. Needs
numpy, scipy, openvino, nncf and target/release/cytoscope.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "cytoscope"
LIMITS = {"avx512-vnni": "AVX512_CORE_VNNI", "avx2": "AVX2", "avx2-vnni": "AVX2_VNNI", "avx512": "AVX512_CORE"}
RIVAL = """
import json, sys, time
import numpy as np, openvino as ov
model, x, out, threads, repeat, hint = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6]
x = np.load(x)
core = ov.Core()
graph = core.read_model(model)
graph.reshape({graph.inputs[0]: list(x.shape)})
compiled = core.compile_model(graph, "CPU", {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
                              "INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "LATENCY"})
request = compiled.create_infer_request()
tensor = ov.Tensor(x, shared_memory=True)
request.infer({0: tensor})
cpu = []
for _ in range(repeat):
    t = time.process_time()
    request.infer({0: tensor})
    cpu.append((time.process_time() - t) * 1e3)
np.save(out, request.get_output_tensor(0).data)
print(json.dumps(cpu))
"""


def nuclei(shape, rng):
    """A z-scored volume of textured ellipsoids with camera noise."""
    from scipy.ndimage import gaussian_filter

    inside = np.zeros(shape, np.float32)
    grid = np.indices(shape).astype(np.float32)
    for _ in range(max(1, int(np.prod(shape) / 9000))):
        center = [rng.uniform(0, s) for s in shape]
        radii = [rng.uniform(5, 11) for _ in shape]
        inside[sum(((grid[i] - center[i]) / radii[i]) ** 2 for i in range(len(shape))) <= 1] = 1
    texture = gaussian_filter(rng.standard_normal(shape).astype(np.float32), 1.5)
    volume = gaussian_filter(inside * (1 + 3 * texture), 1.2) + 0.25 * rng.standard_normal(shape).astype(np.float32)
    return ((volume - volume.mean()) / volume.std()).astype(np.float32)[None, None]


def quantize(model, volumes, folder, ours, budget):
    """Returns both quantized models: NNCF's as OpenVINO IR, ours as ONNX."""
    import nncf
    import openvino as ov

    rival = folder / "rival.xml"
    data = nncf.Dataset(volumes, lambda v: {0: v})
    q = nncf.quantize(ov.convert_model(model), data, preset=nncf.QuantizationPreset.MIXED, subset_size=len(volumes))
    ov.save_model(q, rival, compress_to_fp16=False)
    if ours is None:
        calibration = folder / "calibration"
        calibration.mkdir()
        for i, v in enumerate(volumes):
            np.save(calibration / f"{i}.npy", v[0, 0])
        package = folder / "ours.zip"
        subprocess.run([PROGRAM, "quantize", model, "--mode", "static", "--calibrate", calibration, "--out", package,
                        "--accuracy-budget", str(budget)],
                       check=True, capture_output=True)
        ours = folder / "ours.onnx"
        subprocess.run([PROGRAM, "export", package, "--format", "onnx", "--out", ours], check=True, capture_output=True)
    return rival, ours


def run_ours(model, x, out, a, precision):
    env = dict(os.environ, **({"CYTOSCOPE_ISA": a.isa} if a.isa else {}))
    run = subprocess.run([PROGRAM, "run", model, "--force", "--input", x, "--output", out, "--engine", "cpu",
                          "--precision", precision, "--threads", str(a.threads), "--repeat", str(a.repeat), "--json"],
                         check=True, capture_output=True, text=True, env=env)
    return json.loads(run.stdout)


def run_rival(model, x, out, a):
    env = dict(os.environ, **({"ONEDNN_MAX_CPU_ISA": LIMITS[a.isa]} if a.isa else {}))
    run = subprocess.run([sys.executable, "-c", RIVAL, model, x, out, str(a.threads), str(a.repeat), a.hint],
                         check=True, capture_output=True, text=True, env=env)
    return json.loads(run.stdout.splitlines()[-1])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--shape", default="64,64,64")
    p.add_argument("--precision", default="int8", choices=["int8", "bf16", "f32"])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--quantized")
    budget_help = "accuracy budget of our quantization (random weights need a large one)"
    p.add_argument("--budget", type=float, default=0.05, help=budget_help)
    p.add_argument("--isa")
    p.add_argument("--hint", choices=["f32", "bf16"])
    p.add_argument("--accuracy", action="store_true")
    a = p.parse_args()
    a.hint = a.hint or ("bf16" if a.precision == "bf16" else "f32")
    print(f"CPU: {cpu_name()}", flush=True)
    shape = tuple(map(int, a.shape.split(",")))
    with tempfile.TemporaryDirectory() as tmp:
        tmp = Path(tmp)
        rng = np.random.default_rng(99)
        # Networks of fixed lengths take no other volumes.
        sample = shape if np.prod(shape) <= 2 * 64**3 else (64, 64, 64)
        volumes = [nuclei(sample, rng) for _ in range(8 if a.precision == "int8" else 0)]
        x = nuclei(shape, rng)
        np.save(tmp / "x.npy", x)
        theirs, mine = a.model, a.model
        if a.precision == "int8":
            theirs, mine = quantize(a.model, volumes, tmp, a.quantized, a.budget)
        if a.accuracy:
            run_rival(a.model, str(tmp / "x.npy"), str(tmp / "f32.npy"), a)
            run_rival(str(theirs), str(tmp / "x.npy"), str(tmp / "theirs.npy"), a)
            run_ours(mine, tmp / "x.npy", tmp / "ours.npy", a, "int8")
            f32 = np.load(tmp / "f32.npy")
            for name in ("ours", "theirs"):
                y = np.load(tmp / f"{name}.npy")
                both = ((y > 0) & (f32 > 0)).sum()
                dice = 2 * both / ((y > 0).sum() + (f32 > 0).sum())
                far = np.linalg.norm(y - f32) / np.linalg.norm(f32)
                print(f"{name:7} int8 against f32: relative L2 {far:.4f}, Dice {dice:.4f}")
            return
        ours, rival, ratios = [], [], []
        for i in range(a.rounds):
            m = run_ours(mine, tmp / "x.npy", tmp / "a.npy", a, a.precision)
            r = statistics.median(run_rival(str(theirs), str(tmp / "x.npy"), str(tmp / "b.npy"), a))
            ours.append(m["cpu_ms"]["median"])
            rival.append(r)
            ratios.append(r / ours[-1])
            print(f"round {i + 1}: ours ({m['backend']}) {ours[-1]:8.1f} ms  OpenVINO {r:8.1f} ms  ratio {ratios[-1]:.2f}",
                  flush=True)
        rate = 2 * m["macs"] / statistics.median(ours) / 1e6
        print(f"median: ours {statistics.median(ours):.1f} ms ({rate:.0f} GOP/s), OpenVINO {statistics.median(rival):.1f} ms, "
              f"ratio {statistics.median(ratios):.2f}; compiled in {m['compile_ms']:.0f} ms")


if __name__ == "__main__":
    main()
