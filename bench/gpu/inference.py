"""One network on a GPU: ours in f32, tf32, f16 and bf16 compared with PyTorch (eager f32, autocast bf16, and compiled in
bf16 with channels last and max-autotune), interleaved.

    python bench/gpu/inference.py [--rounds 5] [--repeat 20] [--engine cuda] [--network M1=FILE.onnx] [--only M1]
        [--torch 'eager f32'] [--torch none] [--precision f32]

Each time is the median of `--repeat` runs after warming up, in a process of its own, with the copies of the input to the
GPU and of the output back. Errors are relative L2 errors against PyTorch in f32 (without it, against ours in f32).
`--engine cpu` or `wgpu` runs our rows elsewhere. Needs numpy and target/release/cytoscope; PyTorch's rows need torch with
CUDA, monai and onnx.
"""
import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from common import (
    FILTERS, NETWORK, add_torch_option, child, device_name, has_torch, measured, networks, ours,
    reference_row, table, torch_rows,
)

SHAPES = [[1, 1, 64, 64, 64], [8, 1, 64, 64, 64], [1, 1, 32, 256, 256]]
PRECISIONS = {"cuda": ["f32", "tf32", "f16", "bf16"], "wgpu": ["f32"], "cpu": ["f32"]}
RIVAL = NETWORK + """
filters, dtype, compile_, file, out, repeat = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3] == "True", *sys.argv[4:7]
dtype = None if dtype == "None" else dtype
net = compiled(network(filters).eval().cuda(), compile_)
host = torch.from_numpy(np.load(file)).pin_memory()
times = []
with torch.inference_mode(), autocast(dtype):
    for i in range(int(repeat) + 5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        y = net(layout(host.to("cuda", non_blocking=True), compile_)).float().cpu()
        torch.cuda.synchronize()
        if i >= 5:
            times.append(1e3 * (time.perf_counter() - start))
np.save(out, y.contiguous().numpy())
print(json.dumps({"ms": float(np.median(times)), "peak_mib": torch.cuda.max_memory_allocated() / 2**20}))
"""


def error(got, want):
    return float(np.linalg.norm(got.astype(np.float64) - want) / max(np.linalg.norm(want.astype(np.float64)), 1e-30))


def one_round(name, model, x, folder, options):
    """Returns the time of each row in ms, and its output."""
    times, outputs = {}, {}
    file = f"{folder}/x.npy"
    np.save(file, x)
    for precision in options.precision or PRECISIONS[options.engine]:
        out = f"{folder}/ours.npy"
        made = ours("run", model, "--input", file, "--output", out, "--force", "--engine", options.engine, "--precision",
                    precision, "--repeat", options.repeat, "--json")
        if made:
            row = f"ours {precision}"
            measured(times, row, made["wall_ms"]["median"])
            outputs[row] = np.load(out)
    for row, (dtype, compile_) in torch_rows(options.torch) if name in FILTERS else []:
        out = f"{folder}/torch.npy"
        made = child(RIVAL, json.dumps(FILTERS[name]), dtype, compile_, file, out, options.repeat)
        if made:
            measured(times, row, made["ms"])
            outputs[row] = np.load(out)
    return times, outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--engine", choices=list(PRECISIONS), default="cuda")
    parser.add_argument("--network", action="append", default=[], metavar="NAME=FILE.onnx")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--shape", action="append", default=[], metavar="N,Z,Y,X")
    parser.add_argument("--precision", action="append", default=[], help="precision of ours, can be repeated; all by default")
    add_torch_option(parser)
    options = parser.parse_args()
    print(f"device: {device_name()}; PyTorch: {'yes' if has_torch() else 'not installed, its rows are left out'}")
    given = [[int(n) for n in text.split(",")] for text in options.shape]
    shapes = [[n, 1, *zyx] for n, *zyx in given] or SHAPES
    with tempfile.TemporaryDirectory() as folder:
        for name, model in networks(folder, options.network).items():
            if options.only and name not in options.only:
                continue
            for shape in shapes:
                x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
                rounds, outputs = [], {}
                for _ in range(options.rounds):
                    times, outputs = one_round(name, model, x, folder, options)
                    rounds.append(times)
                title = f"{name} ({Path(model).name}) on {shape[0]} x {'x'.join(map(str, shape[2:]))}"
                table(title, rounds, reference_row(rounds))
                exact = outputs.get("eager f32", outputs.get("ours f32"))
                if exact is not None:
                    errors = [f"{row} {error(y, exact):.1e}" for row, y in outputs.items()]
                    print(f"  relative L2 error: {', '.join(errors)}")


if __name__ == "__main__":
    main()
