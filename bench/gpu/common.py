"""Code that the GPU benchmarks share: networks, running programs, and tables of ratios."""
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from machine import cpu_name  # noqa: E402 (the folder is not the script's own)

PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "cytoscope"
# MONAI DynUNet with residual encoder and instance norms, as in docs/performance.md.
FILTERS = {"M1": [16, 32, 64], "M2": [32, 64, 128, 256]}
# Ways to compute in PyTorch: autocast type, compiled with channels last.
TORCH = {"eager f32": (None, False), "autocast bf16": ("bfloat16", False), "compiled bf16": ("bfloat16", True)}

# Run in a child process: builds a network, seeded, so that every process has the same weights.
NETWORK = """
import contextlib, json, sys, time
import numpy as np, torch
from monai.networks.nets import DynUNet

torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def network(filters):
    torch.manual_seed(0)
    levels = len(filters)
    return DynUNet(spatial_dims=3, in_channels=1, out_channels=1, kernel_size=[3] * levels,
                   strides=[1] + [2] * (levels - 1), upsample_kernel_size=[2] * (levels - 1), filters=filters,
                   norm_name=("INSTANCE", {"affine": True}), dropout=0.0, res_block=True)


def autocast(dtype):
    return torch.autocast("cuda", getattr(torch, dtype)) if dtype else contextlib.nullcontext()


def compiled(net, compile_):
    if not compile_:
        return net
    return torch.compile(net.to(memory_format=torch.channels_last_3d), mode="max-autotune", dynamic=False)


def layout(x, compile_):
    return x.to(memory_format=torch.channels_last_3d) if compile_ else x
"""

EXPORT = NETWORK + """
path, filters = sys.argv[1], json.loads(sys.argv[2])
x = torch.zeros(1, 1, 32, 32, 32)
axes = {0: "n", 2: "z", 3: "y", 4: "x"}
torch.onnx.export(network(filters).eval(), x, path, input_names=["x"], output_names=["y"], opset_version=17,
                  dynamic_axes={"x": axes, "y": axes}, dynamo=False)
"""


def has_torch():
    """Whether PyTorch and MONAI are installed; without them, only our own rows are measured."""
    return all(importlib.util.find_spec(name) for name in ("torch", "monai"))


def add_torch_option(parser):
    """Adds the option that chooses PyTorch's rows."""
    parser.add_argument("--torch", action="append", choices=[*TORCH, "none"],
                        help="row of PyTorch, can be repeated; all by default; compiled ones take minutes to compile")


def torch_rows(chosen):
    """Returns the chosen rows of PyTorch (all if `chosen` is None): pairs of name and (type, compiled)."""
    if not has_torch():
        return []
    return [(name, how) for name, how in TORCH.items() if chosen is None or name in chosen]


def reference_row(rounds):
    """Returns the row that the others are compared with: the fastest of PyTorch that was measured, or else ours in f32."""
    measured = {row for times in rounds for row in times}
    return next((row for row in reversed(TORCH) if row in measured), "ours f32")


def device_name():
    """The GPU and its driver, as nvidia-smi prints them, and the CPU."""
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        gpus = "; ".join(subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines())
    except (OSError, subprocess.CalledProcessError):
        gpus = "no NVIDIA GPU (nvidia-smi failed)"
    return f"{gpus}; CPU {cpu_name()}"


def child(script, *arguments):
    """Runs a Python script in a process of its own and returns the JSON of its last line; None, with a message, if it fails."""
    run = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True)
    return result("python", run)


def ours(*arguments):
    """Runs the program and returns the JSON that it prints; None, with a message, if it fails."""
    return result("cytoscope", subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True))


def result(name, run):
    if run.returncode:
        lines = run.stderr.strip().splitlines()
        print(f"  {name} failed: {lines[-1] if lines else run.returncode}", flush=True)
        return None
    text = run.stdout.strip()
    return json.loads(text if text.startswith("{") else text.splitlines()[-1])


def networks(folder, given):
    """Returns the ONNX files of the networks: the given ones (NAME=FILE), or else those that PyTorch exports."""
    files = dict(pair.split("=", 1) for pair in given)
    for name, filters in FILTERS.items():
        if name not in files and has_torch():
            path = Path(folder) / f"{name}.onnx"
            subprocess.run([sys.executable, "-c", EXPORT, path, json.dumps(filters)], check=True, capture_output=True)
            files[name] = str(path)
    return files


def measured(rows, row, value, unit="ms"):
    """Keeps the measured time of a row, and prints it at once, so that a run that is cut off leaves figures."""
    rows[row] = value
    print(f"  measured: {row} {value:.2f} {unit}", flush=True)


def table(title, rounds, reference, unit="ms"):
    """Prints medians with their range, and how many times as fast as `reference` each row is: the median of the ratios
    within a round, with their range. `rounds` are dictionaries of row and time; rows that failed are missing."""
    print(f"\n{title}")
    rows = list(dict.fromkeys(row for times in rounds for row in times))
    for row in rows:
        times = [t[row] for t in rounds if row in t]
        ratios = [t[reference] / t[row] for t in rounds if row in t and reference in t]
        speed = ""
        if ratios:
            middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
            speed = f"   {middle:.2f}x {reference} ({low:.2f} to {high:.2f})"
        print(f"  {row:16} {statistics.median(times):10.2f} {unit} ({min(times):.2f} to {max(times):.2f}){speed}", flush=True)
