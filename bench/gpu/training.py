"""A training step on a GPU: ours in f32, tf32, f16 and bf16 compared with PyTorch (eager f32, autocast bf16, and compiled in
bf16 with channels last and max-autotune), interleaved.

    python bench/gpu/training.py [--rounds 3] [--steps 800] [--device cuda] [--batch 2] [--filters 16,32,64]
        [--torch 'eager f32'] [--torch none] [--precision f32]

Ours is `cytoscope train` from scratch on simulated stacks: the mean time of a step without the time that it waited for
patches (`step_secs` - `stalled_secs` of the report), over the last 100 points of the loss curve: with fewer than 400 steps,
kernels are still being compiled in some of them. Its network is Cytoscope's own U-Net with these filters, PyTorch's is
MONAI's DynUNet with the same filters, so that the ratio compares programs and not kernels: the report prints the number of
parameters of both. Needs target/release/cytoscope; PyTorch's rows need torch with CUDA and monai.
"""
import argparse
import json
import tempfile
from pathlib import Path

from common import NETWORK, add_torch_option, child, device_name, has_torch, measured, ours, reference_row, table, torch_rows

PRECISIONS = {"cuda": ["f32", "tf32", "f16", "bf16"], "wgpu": ["f32", "f16"], "cpu": ["f32"]}
RIVAL = NETWORK + """
filters, dtype, compile_, batch, steps = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3] == "True", *map(int, sys.argv[4:6])
dtype = None if dtype == "None" else dtype
net = network(filters).train().cuda()
parameters = sum(p.numel() for p in net.parameters())
run = compiled(net, compile_)
x = layout(torch.randn(batch, 1, 64, 64, 64, device="cuda"), compile_)
y = (torch.randn(batch, 1, 64, 64, 64, device="cuda") > 1).float()
optimizer = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)
times = []
for i in range(steps + 10):
    torch.cuda.synchronize()
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    with autocast(dtype):
        logits = run(x)
    torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), y).backward()
    optimizer.step()
    torch.cuda.synchronize()
    if i >= 10:
        times.append(1e3 * (time.perf_counter() - start))
print(json.dumps({"ms": float(np.median(times)), "parameters": parameters,
                  "peak_mib": torch.cuda.max_memory_allocated() / 2**20}))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--device", choices=list(PRECISIONS), default="cuda")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--filters", default="16,32,64")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--precision", action="append", default=[], help="precision of ours, can be repeated; all by default")
    add_torch_option(parser)
    options = parser.parse_args()
    filters = [int(n) for n in options.filters.split(",")]
    print(f"device: {device_name()}; PyTorch: {'yes' if has_torch() else 'not installed, its rows are left out'}")
    with tempfile.TemporaryDirectory() as folder:
        data, settings = f"{folder}/data", f"{folder}/settings.toml"
        if ours("simulate", "--kind", "nuclei", "--count", 3, "--shape", "80,128,128", "--out", data, "--json") is None:
            return
        text = f"patch_zyx = [64, 64, 64]\nbatch = {options.batch}\nworkers = {options.workers}\n"
        Path(settings).write_text(text + f"[network]\nfilters = {filters}\n[validation]\ntimes = 1\n")
        rounds, parameters = [], {}
        for number in range(options.rounds):
            times = {}
            for precision in options.precision or PRECISIONS[options.device]:
                made = ours("train", "--task", "segmentation", "--data", data, "--from", "scratch", "--config", settings,
                            "--device", options.device, "--precision", precision, "--steps", options.steps, "--without-int8",
                            "--out", f"{folder}/{precision}{number}", "--json")
                if made:
                    measured(times, f"ours {precision}", 1e3 * (made["step_secs"] - made["stalled_secs"]))
                    parameters["ours"] = made["parameters"]
            for row, (dtype, compile_) in torch_rows(options.torch):
                made = child(RIVAL, json.dumps(filters), dtype, compile_, options.batch, min(options.steps, 200))
                if made:
                    measured(times, row, made["ms"])
                    parameters["PyTorch"] = made["parameters"]
            rounds.append(times)
        counted = ", ".join(f"{n:,} parameters ({name})" for name, n in parameters.items())
        title = f"a training step on {options.batch} x 64x64x64: {counted}"
        table(title, rounds, reference_row(rounds))


if __name__ == "__main__":
    main()
