"""One pass over a stack compared with cropped and with blended tiles: `cytoscope predict` with default options, with
`--blend crop` and with `--blend gaussian`, alternately, on one and on two threads; wall time, CPU time and peak memory of
the whole program.

    python bench/pass.py [--model nuclei] [--shape 64,512,512] [--rounds 3] [--threads 1,2] [--outputs maps|labels|all]
                         [--long 1024] [--wide 2048] [--wide-slices 32] [--rival MODEL.onnx|MODEL.xml]
                         [--windows 64,96,128] [--no-tiles]

Prints each run, then medians with ratios to the pass and their range: of cropped and of blended tiles, of one thread over
two, and of the wall time over the longest stage; the largest difference between the maps of the pass and of cropped tiles;
and how much of the time the network waited for reading and writing (stage `stall`).

--long N     a stack of N slices over one of the shape above: time per slice and memory (0 leaves it out, which takes some
             minutes and 3 GB of disk)
--wide N     a stack of N × N voxels per slice, whose planes are passed in bands of rows: work, time per voxel and memory,
             compared with cropped tiles (0 leaves it out)
--rival M    the same stack through MONAI's sliding window on OpenVINO int8, overlap 0.25, Gaussian blending, for each of
             --windows, in the same rounds: the float network (ONNX) is quantized by NNCF (mixed preset, 8 volumes), or
             give a quantized one (XML). Use the float network of the model: models/nuclei/model.onnx
--no-tiles   leaves cropped and blended tiles out

Needs numpy, scipy, tifffile and target/release/cytoscope; --rival also openvino, torch, monai and, for ONNX, nncf.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "cytoscope"
# Voxels of the model's own grid, and its nominal diameter: nothing is resampled.
GRID = ["--voxel-size", "1.2,0.6,0.6", "--diameter", "12"]
WAYS = {"pass": [], "crop": ["--blend", "crop"], "gaussian": ["--blend", "gaussian"]}
# Reads, scales as the package does, and writes the maps, as our program does; a process of its own, so that its peak is its own.
RIVAL = """
import json, resource, sys, time
start, cpu = time.perf_counter(), time.process_time()
import numpy as np, openvino as ov, tifffile, torch
from monai.inferers import sliding_window_inference
model, stack, out, threads, window = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
torch.set_num_threads(threads)
core = ov.Core()
graph = core.read_model(model)
graph.reshape({graph.inputs[0]: [1, 1] + [window] * 3})
options = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
request = core.compile_model(graph, "CPU", options).create_infer_request()
def net(p):
    request.infer({0: ov.Tensor(np.ascontiguousarray(p.numpy()), shared_memory=True)})
    return torch.from_numpy(request.get_output_tensor(0).data.copy())
x = tifffile.imread(stack).astype(np.float32)
low, high = np.percentile(x, (1.0, 99.8)).astype(np.float32)
x = torch.from_numpy((x - low) / (high - low + 1e-6))[None, None]
with torch.inference_mode():
    y = sliding_window_inference(x, (window,) * 3, 1, net, overlap=0.25, mode="gaussian")
tifffile.imwrite(out, y.numpy()[0].swapaxes(0, 1))
print(json.dumps({"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu,
                  "actual_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


def volume(rng, shape):
    """Blurred noise as 16-bit voxels."""
    from scipy.ndimage import gaussian_filter

    v = np.clip(gaussian_filter(rng.standard_normal(shape).astype(np.float32), 4) * 40, 0, None)
    v = (v + 0.3 * rng.standard_normal(v.shape)) * 200 + 1000
    return np.clip(v, 0, 65535).astype(np.uint16)


def write_stack(path, shape):
    """Writes blurred noise as 16-bit TIFF, some slices at a time."""
    import tifffile

    rng = np.random.default_rng(7)
    depth, height, width = shape
    step = max(8, min(64, 2**24 // (height * width)))
    with tifffile.TiffWriter(path, bigtiff=depth * height * width * 2 > 2**31) as tif:
        for first in range(0, depth, step):
            for z in volume(rng, (min(step, depth - first), height, width)):
                tif.write(z, contiguous=True)


def run(stack, out, a, threads, more):
    """Runs the program; returns the report of the stack with `cpu`, CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    outputs = [] if a.outputs == "all" else ["--outputs", a.outputs]
    command = [PROGRAM, "predict", stack, "--model", a.model, "--device", "cpu", *outputs,
               "--threads", str(threads), "--out", out, "--json", *GRID, *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the program failed:\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(done.stdout)["inputs"][0]
    report["cpu"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return report


def run_rival(stack, out, model, threads, window):
    command = [sys.executable, "-c", RIVAL, str(model), stack, out, str(threads), str(window)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"the reference program failed with a window of {window}: see above")
    return json.loads(done.stdout.splitlines()[-1])


def quantize_rival(model, folder):
    """Quantizes a float network with NNCF, on scaled volumes like the stack's; returns the file."""
    import nncf
    import openvino as ov

    rng = np.random.default_rng(11)
    volumes = []
    for _ in range(8):
        v = volume(rng, (64, 64, 64)).astype(np.float32)
        low, high = np.percentile(v, (1.0, 99.8)).astype(np.float32)
        volumes.append(((v - low) / (high - low + 1e-6))[None, None])
    data = nncf.Dataset(volumes, lambda v: {0: v})
    q = nncf.quantize(ov.convert_model(model), data, preset=nncf.QuantizationPreset.MIXED, subset_size=len(volumes))
    ov.save_model(q, f"{folder}/rival.xml", compress_to_fp16=False)
    return f"{folder}/rival.xml"


def stage(report, name, key="seconds"):
    return next((s[key] for s in report["stages"] if s["stage"] == name), 0)


def line(name, report):
    mib = report["actual_peak_bytes"] / 2**20
    if "plan" not in report:
        return f"{name}: {report['seconds']:.2f} s, {report['cpu']:.2f} CPU s, peak {mib:.0f} MiB"
    planned = report["plan"]["stated_peak_bytes"] / 2**20
    gmac = stage(report, "compute", "macs") / 1e9
    longest = max(report["stages"], key=lambda s: s["seconds"])
    plan = report["plan"].get("pass")
    slabs = f", slabs of {plan['slab_slices']}, {plan['bands']} bands, work {plan['work']:.3f}" if plan else ""
    return (f"{name}: {report['seconds']:.2f} s, {report['cpu']:.2f} CPU s, {gmac:.0f} GMAC, peak {mib:.0f} MiB "
            f"(planned {planned:.0f}), stall {stage(report, 'stall'):.2f} s, longest stage {longest['stage']} "
            f"{longest['seconds']:.2f} s{slabs}")


def ratios(name, above, below, key="seconds"):
    """Prints the ratios of two lists of reports, round by round."""
    each = [x[key] / y[key] for x, y in zip(above, below)]
    print(f"{name}, {key}: median {statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})", flush=True)


def maps_of(report):
    """Returns the file of the maps: the only TIFF of floats."""
    return next(o for o in report["outputs"] if o.endswith((".tif", ".tiff")) and "_labels" not in o)


def must_pass(report):
    if not report["plan"].get("pass"):
        raise SystemExit(f"the stack was not passed: {report['plan']}")
    return report


def compare_ways(a, tmp, stack, rival):
    import tifffile

    ways = {"pass": []} if a.no_tiles else WAYS
    names = list(ways) + [f"MONAI {w}" for w in (a.windows if rival else [])]
    reports = {(threads, name): [] for threads in a.threads for name in names}
    for i in range(a.rounds):
        for threads in a.threads:
            for name in names:
                if name in ways:
                    report = run(stack, f"{tmp}/{name}", a, threads, ways[name])
                else:
                    report = run_rival(stack, f"{tmp}/rival.tif", rival, threads, int(name.split()[1]))
                if name == "pass":
                    must_pass(report)
                reports[threads, name].append(report)
                print(line(f"round {i + 1}, {threads} threads, {name}", report), flush=True)
    for threads in a.threads:
        passes = reports[threads, "pass"]
        for name in names[1:]:
            for key in ("seconds", "cpu", "actual_peak_bytes"):
                ratios(f"{threads} threads, {name} / pass", reports[threads, name], passes, key)
        rivals = [reports[threads, name] for name in names if name not in ways]
        if rivals:
            best = min(rivals, key=lambda r: statistics.median(x["seconds"] for x in r))
            ratios(f"{threads} threads, best window of MONAI / pass", best, passes)
        longest = [{"seconds": max(s["seconds"] for s in p["stages"])} for p in passes]
        ratios(f"{threads} threads, pass / its longest stage", passes, longest)
        if not a.no_tiles and a.outputs == "maps":
            maps = [tifffile.imread(maps_of(reports[threads, way][0])) for way in ("pass", "crop")]
            print(f"{threads} threads: largest difference of pass and crop {np.abs(maps[0] - maps[1]).max():.2e}", flush=True)
    if {1, 2} <= set(a.threads):
        ratios("pass, one thread / two threads", reports[1, "pass"], reports[2, "pass"])


def compare_lengths(a, tmp, stack):
    long = f"{tmp}/long.tif"
    write_stack(long, [a.long, *a.shape[1:]])
    threads = max(a.threads)
    shorts, longs = [], []
    for i in range(a.rounds):
        for name, path, reports in ((a.shape[0], stack, shorts), (a.long, long, longs)):
            report = must_pass(run(path, f"{tmp}/length", a, threads, []))
            report["seconds per slice"] = report["seconds"] / name
            reports.append(report)
            print(line(f"round {i + 1}, {threads} threads, {name} slices", report), flush=True)
    for key in ("seconds per slice", "actual_peak_bytes"):
        ratios(f"{a.long} slices / {a.shape[0]}", longs, shorts, key)
    os.remove(long)


def compare_widths(a, tmp, stack):
    """Planes that do not fit are passed in bands, which overlap by the receptive field."""
    wide = f"{tmp}/wide.tif"
    write_stack(wide, [a.wide_slices, a.wide, a.wide])
    threads = max(a.threads)
    reports = {"narrow": [], "wide": [], "wide crop": []}
    for i in range(a.rounds):
        for name in reports:
            path, voxels = (stack, np.prod(a.shape)) if name == "narrow" else (wide, a.wide_slices * a.wide**2)
            report = run(path, f"{tmp}/width", a, threads, WAYS["crop"] if name == "wide crop" else [])
            report["seconds per voxel"] = report["seconds"] / voxels
            reports[name].append(report)
            print(line(f"round {i + 1}, {threads} threads, {name}", report), flush=True)
    ratios(f"{a.wide}² pass / {a.shape[1]}² pass", reports["wide"], reports["narrow"], "seconds per voxel")
    for key in ("seconds", "actual_peak_bytes"):
        ratios(f"{a.wide}², crop / default", reports["wide crop"], reports["wide"], key)
    os.remove(wide)


def main():
    numbers = lambda text: [int(n) for n in text.split(",")]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="nuclei")
    p.add_argument("--shape", type=numbers, default=[64, 512, 512])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=numbers, default=[1, 2])
    p.add_argument("--outputs", choices=["maps", "labels", "all"], default="maps")
    p.add_argument("--long", type=int, default=1024)
    p.add_argument("--wide", type=int, default=0)
    p.add_argument("--wide-slices", type=int, default=32)
    p.add_argument("--rival")
    p.add_argument("--windows", type=numbers, default=[64, 96, 128])
    p.add_argument("--no-tiles", action="store_true")
    a = p.parse_args()
    print(f"CPU: {cpu_name()}", flush=True)
    with tempfile.TemporaryDirectory() as tmp:
        stack = f"{tmp}/stack.tif"
        write_stack(stack, a.shape)
        rival = quantize_rival(a.rival, tmp) if a.rival and a.rival.endswith(".onnx") else a.rival
        compare_ways(a, tmp, stack, rival)
        if a.wide:
            compare_widths(a, tmp, stack)
        if a.long:
            compare_lengths(a, tmp, stack)


if __name__ == "__main__":
    main()
