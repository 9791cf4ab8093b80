"""CPU time and memory of a training step: ours compared with PyTorch, interleaved in one run.

    python bench/training.py [--shape 2,64,64,64] [--rounds 3] [--steps 5]

CytoDL's network (MONAI DynUNet 16, 32, 64, residual encoder, instance norm, 342 k parameters), AdamW, two threads, float32.
Ours is the example `step_rate` of the CPU engine (loss: Dice and cross entropy). PyTorch runs eagerly, and compiled with channels
last and an allocator that keeps its memory (loss: cross entropy). Needs torch, monai and
`cargo build --release -p cytoscope-engine-cpu --example step_rate`. Figures are the minimum CPU time of a step in each
round, and the peak memory of the process.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "examples" / "step_rate"
RIVAL = """
import json, resource, sys, time
shape, steps, compiled = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "compiled"
import torch
from monai.networks.nets import DynUNet
torch.set_num_threads(2)
torch.manual_seed(0)
net = DynUNet(3, 1, 1, [3, 3, 3], [1, 2, 2], [2, 2], filters=[16, 32, 64], norm_name=("INSTANCE", {"affine": True}),
              act_name=("leakyrelu", {"inplace": True, "negative_slope": 0.01}), res_block=True).train()
x = torch.randn(shape)
y = (torch.randn(shape) > 1).float()
if compiled:
    net = net.to(memory_format=torch.channels_last_3d)
    x = x.to(memory_format=torch.channels_last_3d)
run = torch.compile(net, dynamic=False) if compiled else net
opt = torch.optim.AdamW(net.parameters(), 1e-3)
times = []
for i in range(steps + 2):
    cpu, wall = time.process_time(), time.perf_counter()
    opt.zero_grad(set_to_none=True)
    torch.nn.functional.binary_cross_entropy_with_logits(run(x), y).backward()
    opt.step()
    if i >= 2:
        times.append((1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)))
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"cpu_ms": min(t[0] for t in times), "wall_ms": min(t[1] for t in times), "peak_mib": rss,
                  "parameters": sum(p.numel() for p in net.parameters())}))
"""


def ours(shape, steps):
    arguments = [str(EXAMPLE), *[str(n) for n in (shape[0], *shape[2:])], str(steps + 1)]
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    text = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(text)
    wall, cpu = re.search(r"best: (\d+) ms wall time, (\d+) ms", text).groups()
    return {"cpu_ms": float(cpu), "wall_ms": float(wall), "peak_mib": usage.ru_maxrss / 1024}


def rival(shape, steps, kind):
    env = dict(os.environ, OMP_NUM_THREADS="2", OMP_WAIT_POLICY="PASSIVE")
    if kind == "compiled":
        env.update(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="68719476736", MALLOC_TOP_PAD_="268435456")
    done = subprocess.run([sys.executable, "-c", RIVAL, json.dumps(shape), str(steps), kind], capture_output=True,
                          text=True, env=env)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="2,64,64,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    # The example computes with all cores of its process; PyTorch is limited to two threads.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    print(f"CPU: {cpu_name()}", flush=True)
    n, *space = [int(v) for v in options.shape.split(",")]
    shape = [n, 1, *space]
    rows = {"ours": [], "eager": [], "compiled": []}
    for round_ in range(options.rounds):
        rows["ours"].append(ours(shape, options.steps))
        for kind in ("eager", "compiled"):
            rows[kind].append(rival(shape, options.steps, kind))
        now = {k: v[-1] for k, v in rows.items()}
        text = ", ".join(
            f"{k} {v['cpu_ms']:.0f} ms ({v['wall_ms']:.0f} on the clock, {v['peak_mib']:.0f} MiB)" for k, v in now.items()
        )
        ratios = ", ".join(f"{now[k]['cpu_ms'] / now['ours']['cpu_ms']:.2f}x {k}" for k in ("eager", "compiled"))
        print(f"round {round_ + 1}: {text}: {ratios}", flush=True)
    for kind in ("eager", "compiled"):
        each = [theirs["cpu_ms"] / mine["cpu_ms"] for theirs, mine in zip(rows[kind], rows["ours"])]
        print(f"median ratio to {kind}: {statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})")


if __name__ == "__main__":
    main()
