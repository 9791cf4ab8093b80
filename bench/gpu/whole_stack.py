"""A whole stack on a GPU, TIFF in and labels out: `cytoscope predict` compared with MONAI's sliding window under
torch.compile in bf16 (64³ windows, overlap 0.25, Gaussian, batches of 8) with SciPy's labeling, interleaved.

    python bench/gpu/whole_stack.py [--shape 128,1024,1024] [--rounds 3] [--device cuda] [--precision auto] [--model nuclei]

Ours is the wall time of the job (`seconds` of the report); PyTorch's is that of reading, predicting, labeling and writing,
without imports and after compiling and a warm-up window. Our kernels are tuned in the first run on a new GPU, which is
therefore discarded. The stack is one of `cytoscope simulate`. Needs scipy, tifffile and target/release/cytoscope; PyTorch's
row needs torch with CUDA and monai.
"""
import argparse
import json
import tempfile

from common import FILTERS, NETWORK, child, device_name, has_torch, measured, ours, table

RIVAL = NETWORK + """
import tifffile
from monai.inferers import sliding_window_inference
from scipy import ndimage
filters, stack, out = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
net = compiled(network(filters).eval().cuda(), True)
run = lambda x: net(layout(x, True))
with torch.inference_mode(), autocast("bfloat16"):
    for _ in range(3):
        run(torch.zeros(8, 1, 64, 64, 64, device="cuda"))
    torch.cuda.synchronize()
    start = time.perf_counter()
    x = torch.from_numpy(tifffile.imread(stack).astype(np.float32))[None, None]
    x = ((x - x.mean()) / x.std()).cuda()
    y = sliding_window_inference(x, (64, 64, 64), 8, run, overlap=0.25, mode="gaussian")
    inside = (torch.sigmoid(y.float()) > 0.5)[0, 0].cpu().numpy()
labels, count = ndimage.label(inside)
tifffile.imwrite(out, labels.astype(np.uint32))
print(json.dumps({"s": time.perf_counter() - start, "peak_mib": torch.cuda.max_memory_allocated() / 2**20}))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="128,1024,1024")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--model", default="nuclei")
    options = parser.parse_args()
    print(f"device: {device_name()}; PyTorch: {'yes' if has_torch() else 'not installed, its row is left out'}")
    with tempfile.TemporaryDirectory() as folder:
        made = ours("simulate", "--kind", "nuclei", "--count", 1, "--shape", options.shape, "--out", folder, "--json")
        if made is None:
            return
        stack = f"{folder}/nuclei_0_raw.tif"
        # Voxels of the model's own grid, and its nominal diameter: nothing is resampled.
        job = ["predict", stack, "--model", options.model, "--device", options.device, "--precision", options.precision,
               "--voxel-size", "1.2,0.6,0.6", "--diameter", "12", "--outputs", "labels", "--json"]
        rounds = []
        for number in range(options.rounds + 1):
            times = {}
            made = ours(*job, "--out", f"{folder}/out{number}")
            if made:
                report = made["inputs"][0]
                measured(times, "ours", report["seconds"], "s")
                if number == 0:
                    about = report["device"]
                    print(f"ours: {about['id']} {report['precision']}, tile {report['plan']['tile']}: {about['why']}")
            if number == 0:
                continue
            if has_torch():
                rival = child(RIVAL, json.dumps(FILTERS["M1"]), stack, f"{folder}/labels.tif")
                if rival:
                    measured(times, "MONAI compiled", rival["s"], "s")
            rounds.append(times)
        table(f"{options.shape} voxels, TIFF to labels", rounds, "MONAI compiled" if has_torch() else "ours", "s")


if __name__ == "__main__":
    main()
