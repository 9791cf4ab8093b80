"""How much each option of PyTorch speeds up a training step on a GPU, one added after the other: eager
f32, + precision (autocast bf16), + layout (channels last), + fusion (torch.compile, max-autotune), + optimizer (fused AdamW).

    python bench/gpu/options.py [--rounds 3] [--steps 100] [--batch 2] [--filters 16,32,64]

Rows of one round run alternately, each in a process of its own. Needs torch with CUDA and monai; without them there is
nothing to measure. Our steps are measured by training.py.
"""
import argparse
import json
import sys

from common import NETWORK, child, device_name, has_torch, table

# Each row has the options of the one before, and one more.
ROWS = ["baseline", "+ precision", "+ layout", "+ fusion", "+ optimizer"]
SCRIPT = NETWORK + """
filters, level, batch, steps = json.loads(sys.argv[1]), *map(int, sys.argv[2:5])
last = dict(memory_format=torch.channels_last_3d) if level >= 2 else {}
net = network(filters).train().cuda().to(**last) if last else network(filters).train().cuda()
x = torch.randn(batch, 1, 64, 64, 64, device="cuda")
x = x.to(**last) if last else x
y = (torch.randn(batch, 1, 64, 64, 64, device="cuda") > 1).float()
run = torch.compile(net, mode="max-autotune", dynamic=False) if level >= 3 else net
optimizer = torch.optim.AdamW(net.parameters(), 1e-3, fused=level >= 4, foreach=False if level < 4 else None)
times = []
for i in range(steps + 10):
    torch.cuda.synchronize()
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    with autocast("bfloat16" if level >= 1 else None):
        logits = run(x)
    torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), y).backward()
    optimizer.step()
    torch.cuda.synchronize()
    if i >= 10:
        times.append(1e3 * (time.perf_counter() - start))
print(json.dumps({"ms": float(np.median(times))}))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--filters", default="16,32,64")
    options = parser.parse_args()
    print(f"device: {device_name()}")
    if not has_torch():
        sys.exit("PyTorch or MONAI is not installed: pip install torch monai")
    filters = json.dumps([int(n) for n in options.filters.split(",")])
    rounds = []
    for _ in range(options.rounds):
        made = {row: child(SCRIPT, filters, level, options.batch, options.steps) for level, row in enumerate(ROWS)}
        rounds.append({row: found["ms"] for row, found in made.items() if found})
    table(f"a training step on {options.batch} x 64x64x64, filters {filters}", rounds, "baseline")


if __name__ == "__main__":
    main()
