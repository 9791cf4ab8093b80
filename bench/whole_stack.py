"""A whole stack of 64 x 512 x 512: `cytoscope predict` with default options compared with MONAI's sliding window (64³
windows, overlap 0.25, Gaussian) with OpenVINO int8 and with eager PyTorch, interleaved; CPU time, peak memory, seams.

    python bench/whole_stack.py M1.onnx OURS_INT8.onnx OPENVINO_INT8.xml [--rounds 3] [--slices 64] [--torch]

Needs numpy, scipy, tifffile, openvino, torch, monai and target/release/cytoscope. For PyTorch, MONAI builds a network with
the architecture of M1.onnx and random weights (their values do not affect the time).
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
RIVAL = """
import json, resource, sys, time
import numpy as np, tifffile, torch
from monai.inferers import sliding_window_inference
kind, model, stack, out, threads = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
torch.set_num_threads(threads)
if kind == "openvino":
    import openvino as ov
    core, requests = ov.Core(), {}
    def net(p):
        shape = tuple(p.shape)
        if shape not in requests:
            g = core.read_model(model)
            g.reshape({g.inputs[0]: list(shape)})
            requests[shape] = core.compile_model(g, "CPU", {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
                "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}).create_infer_request()
        requests[shape].infer({0: ov.Tensor(np.ascontiguousarray(p.numpy()), shared_memory=True)})
        return torch.from_numpy(requests[shape].get_output_tensor(0).data.copy())
else:
    from monai.networks.nets import DynUNet
    network = DynUNet(spatial_dims=3, in_channels=1, out_channels=1, kernel_size=[3] * 3, strides=[1, 2, 2],
                      upsample_kernel_size=[2] * 2, filters=[16, 32, 64], dropout=0.0, res_block=True).eval()
    net = lambda p: network(p)
start = time.process_time()
x = torch.from_numpy(tifffile.imread(stack).astype(np.float32))[None, None]
x = (x - x.mean()) / x.std()
with torch.inference_mode():
    y = sliding_window_inference(x, (64, 64, 64), 4, net, overlap=0.25, mode="gaussian")
np.save(out, y.numpy()[0, 0])
print(json.dumps({"cpu_s": time.process_time() - start, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def seams(y, tile, overlap):
    """Ratio of the mean step across window borders to that of neighboring columns, minus 1."""
    if tile >= y.shape[2]:
        return 0.0
    interval = int(tile * (1 - overlap))
    starts = [min(i * interval, y.shape[2] - tile) for i in range(-(-(y.shape[2] - tile) // interval) + 1)]
    at = [b for s in starts[1:] for b in (s, s + tile) if b < y.shape[2]] + [s + tile for s in starts[:1]]
    step = np.abs(np.diff(y, axis=2)).mean((0, 1))
    across = np.mean([step[b - 1] for b in at])
    beside = np.mean([step[b + d - 1] for b in at for d in (-3, 3)])
    return max(across / beside - 1, 0)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("ours")
    p.add_argument("rival")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--slices", type=int, default=64)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--torch", action="store_true")
    p.add_argument("--no-rivals", action="store_true")
    a = p.parse_args()
    print(f"CPU: {cpu_name()}", flush=True)
    import tifffile
    from scipy.ndimage import gaussian_filter

    with tempfile.TemporaryDirectory() as tmp:
        stack = f"{tmp}/stack.tif"
        rng = np.random.default_rng(7)
        with tifffile.TiffWriter(stack) as tif:
            for first in range(0, a.slices, 64):
                n = min(64, a.slices - first)
                v = np.clip(gaussian_filter(rng.standard_normal((n, 512, 512)).astype(np.float32), 4) * 40, 0, None)
                v = (v + 0.3 * rng.standard_normal(v.shape)) * 200 + 1000
                for z in v:
                    tif.write(np.clip(z, 0, 65535).astype(np.uint16), contiguous=True)
        kinds = [] if a.no_rivals else ["openvino"] + (["torch"] if a.torch else [])
        ours, rivals = [], {k: [] for k in kinds}
        for i in range(a.rounds):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run = subprocess.run([PROGRAM, "predict", stack, "--model", a.ours, "--device", "cpu", "--outputs", "maps",
                                  "--out", f"{tmp}/out{i}", "--threads", str(a.threads), "--json"],
                                 check=True, capture_output=True, text=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            one = json.loads(run.stdout)["inputs"][0]
            y = tifffile.imread(one["outputs"][0])
            tile = one["plan"]["tile"]
            ours.append(cpu)
            print(f"round {i + 1}: ours {cpu:.2f} CPU s, tile {tile}, {one['precision']}, seam energy "
                  f"{seams(y, tile[2], one['plan']['overlap']):.4f}, peak {one['actual_peak_bytes'] / 2**20:.0f} MiB", flush=True)
            for kind in kinds:
                model = a.rival if kind == "openvino" else a.model
                run = subprocess.run([sys.executable, "-c", RIVAL, kind, model, stack, f"{tmp}/{kind}.npy", str(a.threads)],
                                     check=True, capture_output=True, text=True)
                r = json.loads(run.stdout.splitlines()[-1])
                rivals[kind].append(r["cpu_s"])
                print(f"         MONAI + {kind} {r['cpu_s']:.2f} CPU s, peak {r['peak_mib']:.0f} MiB, "
                      f"seam energy {seams(np.load(f'{tmp}/{kind}.npy'), 64, 0.25):.4f}, "
                      f"ratio {r['cpu_s'] / cpu:.2f}", flush=True)
        for kind in kinds:
            print(f"median ratio to MONAI + {kind}: {statistics.median(r / o for r, o in zip(rivals[kind], ours)):.2f}")


if __name__ == "__main__":
    main()
