"""Stacks larger than memory in one pass: `cytoscope predict` on OME-Zarr stacks of 4, 16 and 64 GB, of 64 and 1,024 slices,
and of slices of 2,048², on one and on two threads. Comparisons with tiles and with other programs are in pass.py.

    python bench/large_stacks.py [sizes] [lengths] [bands] [--gigabytes 4,16,64] [--plane 1024] [--threads 1,2]
                                 [--rounds 1] [--budget 2G] [--model nuclei] [--folder DIR] [--max-hours 24] [--out T.json]

sizes    stacks of --gigabytes GB (16-bit voxels, slices of --plane²): time per voxel, peak memory and bytes read, relative
         to the smallest stack; the time is linear and the memory flat if all ratios are 1
lengths  1,024 over 64 slices of 512²: time per slice and peak memory
bands    32 slices of 2,048² over 64 of 512²: time per voxel and additional work, with the bands of rows that were chosen

Without a part, all are run. A stack consists of 64 slices of blurred noise on disk, which repeat as hard links, so that
64 GB take some tens of MB; the maps are written in full. All stacks of a part have the same memory budget. A part whose
results do not fit the disk, whose budget does not fit the memory, or that would take longer than --max-hours with the speed
measured before, is skipped with a message. Stacks and results are removed, also after Ctrl-C.

Needs numpy, scipy, zarr 3, Linux, a file system with hard links, and target/release/cytoscope.
"""
import argparse
import importlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
# A statement cannot import a module with the name of a keyword.
PASS = importlib.import_module("pass")

# Slices that are on disk, and repeat.
DEPTH = 64
CHUNKS = (8, 256, 256)
# Bytes of results per voxel until a run has been measured: two maps in 32 bits, not compressed.
RESULT_BYTES = 8
# Results may be larger than those measured before.
MARGIN = 1.2
# Bytes of the disk that are left free.
SPARE = 2 * 10**9
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


class Skipped(Exception):
    """A stack that cannot be measured here, with the reason."""


def write_stack(path, shape):
    """Writes an OME-Zarr stack Z, Y, X; the shards of all slices after the first DEPTH are links."""
    import zarr
    from zarr_io import describe

    depth, height, width = shape
    step = min(DEPTH, depth)
    group = zarr.create_group(str(path), zarr_format=3)
    array = group.create_array("0", shape=tuple(shape), dtype="u2", chunks=CHUNKS, shards=(step, height, width))
    array[:step] = PASS.volume(np.random.default_rng(7), (step, height, width))
    first = path / "0" / "c" / "0"
    try:
        for slab in range(1, -(-depth // step)):
            shutil.copytree(first, path / "0" / "c" / str(slab), copy_function=os.link)
    except OSError as error:
        raise Skipped(f"{path.parent} has no hard links ({error}): choose another --folder") from error
    describe(group, ["0"])


def bytes_of(text):
    factor = UNITS.get(text[-1:].upper())
    return int(float(text[:-1]) * factor) if factor else int(text)


def available_memory():
    with open("/proc/meminfo") as file:
        kib = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    return kib * 1024


def size_on_disk(folder):
    return sum(f.lstat().st_blocks * 512 for f in folder.rglob("*") if f.is_file())


def short_error(error):
    lines = (error.stderr or "").strip().splitlines()
    return lines[-1] if lines else f"exit status {error.returncode}"


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.result_bytes, self.voxel_secs = RESULT_BYTES, {}
        self.rows = []

    def check(self, shape, threads):
        """Raises Skipped if the stack does not fit the disk, the memory or the time."""
        voxels = int(np.prod(shape, dtype=np.int64))
        need = voxels * self.result_bytes * MARGIN + SPARE
        free = shutil.disk_usage(self.folder).free
        if need > free:
            raise Skipped(f"its results take {need / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free in {self.folder}")
        if (memory := available_memory()) < self.args.budget_bytes:
            raise Skipped(f"the memory budget is {self.args.budget}, and {memory / 2**30:.1f} GiB are free")
        hours = voxels * self.voxel_secs.get(threads, 0) * self.args.rounds / 3600
        if hours > self.args.max_hours:
            raise Skipped(f"it would take {hours:.1f} hours, more than --max-hours {self.args.max_hours:g}")

    def predict(self, stack, shape, threads):
        """Returns the report of one prediction, whose results are removed."""
        out = self.folder / "results"
        more = ["--memory-budget", self.args.budget]
        try:
            report = PASS.must_pass(PASS.run(stack, out, self.args, threads, more))
            voxels = int(np.prod(shape, dtype=np.int64))
            self.result_bytes = max(size_on_disk(out) / voxels, 1)
            self.voxel_secs[threads] = report["seconds"] / voxels
        except subprocess.CalledProcessError as error:
            raise Skipped(f"predict failed: {short_error(error)}") from error
        except SystemExit as error:
            raise Skipped(str(error)) from error
        finally:
            shutil.rmtree(out, ignore_errors=True)
        return report

    def measure(self, part, name, shape, threads):
        """Measures a stack on each number of threads; returns the median of each quantity by the number of threads."""
        stack = self.folder / "stack.zarr"
        measured = {}
        try:
            for count in threads:
                self.check(shape, count)
                if not stack.exists():
                    write_stack(stack, shape)
                reports = [self.predict(stack, shape, count) for _ in range(self.args.rounds)]
                measured[count] = self.row(part, name, shape, count, reports)
        except Skipped as reason:
            print(f"SKIPPED {part}, {name}: {reason}", flush=True)
        finally:
            shutil.rmtree(stack, ignore_errors=True)
        return measured

    def row(self, part, name, shape, threads, reports):
        median = lambda value: statistics.median(value(report) for report in reports)
        voxels = int(np.prod(shape, dtype=np.int64))
        plan = reports[0]["plan"]["pass"]
        row = {
            "part": part, "stack": name, "threads": threads, "shape": list(shape),
            "seconds": median(lambda r: r["seconds"]),
            "ns_per_voxel": median(lambda r: r["seconds"]) / voxels * 1e9,
            "peak_mib": median(lambda r: (r["actual_peak_bytes"] or 0) / 2**20),
            "planned_mib": median(lambda r: r["plan"]["stated_peak_bytes"] / 2**20),
            "read_per_voxel": median(lambda r: PASS.stage(r, "read", "bytes")) / voxels,
            "stall_seconds": median(lambda r: PASS.stage(r, "stall")),
            "slab": plan["slab_slices"], "bands": plan["bands"], "work": plan["work"],
        }
        self.rows.append(row)
        print(f"{part}, {name}, {threads} threads: {row['seconds']:.1f} s, {row['ns_per_voxel']:.1f} ns per voxel, "
              f"peak {row['peak_mib']:.0f} MiB (planned {row['planned_mib']:.0f}), read {row['read_per_voxel']:.2f} bytes per "
              f"voxel, stall {row['stall_seconds']:.1f} s, slabs of {row['slab']}, {row['bands']} bands, "
              f"work {row['work']:.3f}", flush=True)
        return row

    def compare(self, part, stacks):
        """Measures stacks by name and shape, and prints a table with ratios to the first one that was measured."""
        measured = {name: self.measure(part, name, shape, self.args.threads) for name, shape in stacks}
        keys = ["ns_per_voxel", "peak_mib", "read_per_voxel", "work"]
        lines = []
        for threads in self.args.threads:
            rows = [(name, rows[threads]) for name, rows in measured.items() if threads in rows]
            for name, row in rows:
                ratios = [f"{row[k] / rows[0][1][k]:16.3f}" if rows[0][1][k] else f"{'-':>16}" for k in keys]
                lines.append(f"{name:>16}{threads:>9}{row['seconds']:>11.1f}" + "".join(ratios))
        both = [(name, rows[1]["seconds"] / rows[2]["seconds"]) for name, rows in measured.items() if {1, 2} <= set(rows)]
        if lines:
            print(f"\n{part}: ratios to the first stack\n{'stack':>16}{'threads':>9}{'seconds':>11}"
                  + "".join(f"{key:>16}" for key in keys))
            print("\n".join(lines))
            for name, ratio in both:
                print(f"{name:>16}: one thread / two threads {ratio:.2f}")
            print(flush=True)


def stacks_of(part, a):
    if part == "lengths":
        return [(f"{depth} slices", (depth, 512, 512)) for depth in (64, 1024)]
    if part == "bands":
        return [("64 × 512²", (64, 512, 512)), ("32 × 2048²", (32, 2048, 2048))]
    slices = lambda gigabytes: max(1, round(gigabytes * 1e9 / (2 * a.plane**2 * DEPTH))) * DEPTH
    return [(f"{gigabytes:g} GB", (slices(gigabytes), a.plane, a.plane)) for gigabytes in sorted(a.gigabytes)]


def main():
    parts = ["sizes", "lengths", "bands"]
    numbers = lambda kind: lambda text: [kind(n) for n in text.split(",")]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts)}; by default all")
    p.add_argument("--gigabytes", type=numbers(float), default=[4, 16, 64])
    p.add_argument("--plane", type=int, default=1024, help="rows and columns of a slice of `sizes`, a multiple of 256")
    p.add_argument("--threads", type=numbers(int), default=[1, 2])
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--budget", default="2G", help="memory budget of a prediction")
    p.add_argument("--model", default="nuclei")
    p.add_argument("--folder", type=Path, help="where stacks and results are written; by default a temporary folder")
    p.add_argument("--max-hours", type=float, default=24, help="longest run of a stack")
    p.add_argument("--out", type=Path, help="JSON file for all rows")
    a = p.parse_args()
    a.outputs = "maps"
    try:
        a.budget_bytes = bytes_of(a.budget)
    except ValueError:
        p.error(f"invalid --budget {a.budget!r}: expected a number with K, M or G, such as 2G")
    unknown = [part for part in a.parts if part not in parts]
    if unknown:
        p.error(f"unknown part {unknown[0]!r}: expected {', '.join(parts)}")
    if a.rounds < 1 or min(a.threads) < 1 or a.plane < 256 or a.plane % 256:
        p.error("--rounds and --threads start at 1, and --plane is a multiple of 256")
    if not PASS.PROGRAM.exists():
        raise SystemExit(f"{PASS.PROGRAM} does not exist: build it with cargo build --release")
    # So that the folder is also removed if the run is ended from outside.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"CPU: {PASS.cpu_name()}", flush=True)
    with tempfile.TemporaryDirectory(dir=a.folder, prefix="large_stacks_") as folder:
        bench = Bench(a, Path(folder))
        for part in a.parts or parts:
            bench.compare(part, stacks_of(part, a))
    if a.out:
        a.out.write_text(json.dumps(bench.rows, indent=1))


if __name__ == "__main__":
    main()
