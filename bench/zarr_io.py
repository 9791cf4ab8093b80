"""OME-Zarr, CZI and ND2 compared with Python's zarr, ome-zarr, czifile and nd2, alternately, in one run; prints times and
their ratio, theirs to ours (above 1: ours takes less): the median of the rounds, the lowest and the highest.

    cargo build --release && cargo build --release -p cytoscope-formats --example read_bench
    python bench/zarr_io.py [open read predict write] [--rounds 5] [--folder DIR] [--keep] [--mib 256] [--model nuclei-dog]

open     opening a 10 GB OME-Zarr (shards that repeat), CZI and ND2 (sparse) and reading a slice, in a new process each; and
         the same with zarr-python, czifile and nd2, without their imports
read     a stack of --mib MiB in chunks of 8 x 256 x 256, with Zstd, Blosc (LZ4 and Zstd) and in shards, on one core
predict  `cytoscope predict` from and to OME-Zarr, and from and to TIFF: wall time, CPU time, memory; the maps are compared
write    `cytoscope convert` of a stack of 1 GiB to OME-Zarr with its levels, and ome-zarr-py's write_image with local means
         and chunks of the same shape, on all cores

`first_slice` shows the files of `open` in the window: cargo run --release --example first_slice DIR/ten_gigabytes.zarr
(with --keep). Needs numpy, zarr, numcodecs, ome-zarr, tifffile, Linux (one core is chosen by its affinity) and 6 GB of disk;
czifile and nd2 are left out if they are missing. A part that fails is reported, and the others run; the exit code is then 1.
The last lines list all ratios beside the expected ones.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
PROGRAM, READER = TARGET / "cytoscope", TARGET / "examples" / "read_bench"
# Slices, rows, columns of 16-bit voxels: 10.07 GB.
LARGE = (1200, 2048, 2048)
CHUNKS = (8, 256, 256)


def camera(shape, seed=1):
    """Camera-like uint16 data: smooth structures with photon noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: shape[1], : shape[2]].astype("f4")
    stack = np.empty(shape, "u2")
    for z in range(shape[0]):
        stack[z] = rng.poisson(200 + 800 * (np.sin(x / 37 + z / 9) * np.sin(y / 41) + 1))
    return stack


def describe(group, paths):
    """Adds the metadata of an OME-Zarr 0.5 image; each level has half the rows and columns of the one before."""
    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    scale = lambda level: [1.2, 0.6 * 2**level, 0.6 * 2**level]
    datasets = [
        {"path": path, "coordinateTransformations": [{"type": "scale", "scale": scale(level)}]}
        for level, path in enumerate(paths)
    ]
    group.update_attributes({"ome": {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}})


def large_zarr(path):
    """Writes the first slab of each level; the shards of the other slabs are links to its shards."""
    import zarr

    group = zarr.create_group(str(path), zarr_format=3)
    depth = 32
    levels = ["0", "1", "2", "3"]
    for level, name in enumerate(levels):
        shape = (LARGE[0], LARGE[1] >> level, LARGE[2] >> level)
        shard = (depth, min(1024, shape[1]), min(1024, shape[2]))
        array = group.create_array(name, shape=shape, dtype="u2", chunks=CHUNKS, shards=shard)
        array[:depth] = camera((depth, *shape[1:]), level)
        first = path / name / "c" / "0"
        for slab in range(1, -(-shape[0] // depth)):
            shutil.copytree(first, path / name / "c" / str(slab), copy_function=os.link)
    describe(group, levels)


def large_czi(path):
    """A sparse CZI of uncompressed planes."""
    depth, height, width = LARGE
    segment = lambda name, used: name.ljust(16, b"\0") + struct.pack("<qq", used, used)
    dimension = lambda name, start, size: name.ljust(4, b"\0") + struct.pack("<iifi", start, size, float(start), size)
    pixels = height * width * 2
    step = 32 + 256 + pixels
    entries = []
    with open(path, "wb") as file:
        for z in range(depth):
            at = 544 + z * step
            head = b"DV" + struct.pack("<iqiiBxii", 1, at, 0, 0, 0, 0, 4)
            entry = head + dimension(b"X", 0, width) + dimension(b"Y", 0, height) + dimension(b"C", 0, 1)
            entries.append(entry + dimension(b"Z", z, 1))
            file.seek(at)
            file.write(segment(b"ZISRAWSUBBLOCK", 256 + pixels) + struct.pack("<iiq", 0, 0, pixels) + entries[-1])
        directory = 544 + depth * step
        data = struct.pack("<i", depth).ljust(128, b"\0") + b"".join(entries)
        file.seek(directory)
        file.write(segment(b"ZISRAWDIRECTORY", len(data)) + data)
        guid = bytes(range(16))
        header = struct.pack("<iiii", 1, 0, 0, 0) + guid + guid + struct.pack("<iqqiq", 0, directory, 0, 0, 0)
        file.seek(0)
        file.write(segment(b"ZISRAWFILE", 512) + header.ljust(512, b"\0"))


def nd2_entry(name, value):
    """An entry of an ND2 metadata tree (LiteVariant): a mapping, an empty list, a text, or a number."""
    units = name.encode("utf-16-le") + b"\0\0" if name else b""
    head = lambda kind: struct.pack("<BB", kind, len(units) // 2) + units
    if isinstance(value, (dict, list)):
        value = dict(value)
        members = [nd2_entry(key, member) for key, member in value.items()]
        start = head(11)
        offsets, at = b"", len(start) + 12
        for member in members:
            offsets += struct.pack("<Q", at)
            at += len(member)
        return start + struct.pack("<IQ", len(members), at) + b"".join(members) + offsets
    if isinstance(value, bool):
        return head(1) + struct.pack("<B", value)
    if isinstance(value, int):
        return head(3) + struct.pack("<I", value)
    if isinstance(value, float):
        return head(6) + struct.pack("<d", value)
    return head(8) + value.encode("utf-16-le") + b"\0\0"


def large_nd2(path):
    """A sparse ND2 (version 3) of uncompressed slices; its structure is that of crates/formats/tests/data/nd2/make_nd2.py."""
    depth, height, width = LARGE
    magic, name_bytes, pixels = 0x0ABECEDA, 4096 - 16 - 8, height * width * 2
    chunks = []
    with open(path, "wb") as file:

        def chunk(name, data, length, name_bytes):
            chunks.append((name, file.tell(), length))
            file.write(struct.pack("<IIQ", magic, name_bytes, length) + name.ljust(name_bytes, b"\0") + data)

        file.write(struct.pack("<IIQ", magic, 32, 64) + b"ND2 FILE SIGNATURE CHUNK NAME01!" + b"Ver3.0".ljust(64, b"\0"))
        for z in range(depth):
            chunk(b"ImageDataSeq|%d!" % z, struct.pack("<d", float(z)), 8 + pixels, name_bytes)
            file.seek(pixels, os.SEEK_CUR)
        attributes = {
            "uiWidth": width, "uiWidthBytes": width * 2, "uiHeight": height, "uiComp": 1, "uiBpcInMemory": 16,
            "uiBpcSignificant": 16, "uiSequenceCount": depth, "uiTileWidth": width, "uiTileHeight": height,
            "eCompression": 2, "dCompressionParam": 0.0,
        }
        plane = {
            "uiCompCount": 1, "uiSampleIndex": 0, "sDescription": "GFP", "uiColor": 0x00FF00,
            "pFluorescentProbe": {"m_sName": "GFP"}, "pFilterPath": {"m_pFilter": {"a": {"m_sName": "none"}}},
        }
        picture = {
            "bCalibrated": True, "dCalibration": 0.25, "dXPos": 0.0,
            "sPicturePlanes": {"uiCount": 1, "sPlaneNew": {"a0": plane}},
        }
        slices = {"uiCount": depth, "dZLow": 0.0, "dZHigh": 0.75 * (depth - 1), "dZStep": 0.75}
        experiment = {"eType": 4, "uLoopPars": slices, "ppNextLevelEx": []}
        for name, root, content in [
            (b"ImageAttributesLV!", "SLxImageAttributes", attributes),
            (b"ImageMetadataSeqLV|0!", "SLxPictureMetadata", picture),
            (b"ImageMetadataLV!", "SLxExperiment", experiment),
        ]:
            data = nd2_entry(root, content)
            chunk(name, data, len(data), len(name) + 8)
        at = file.tell()
        table = b"".join(name + struct.pack("<QQ", offset, size) for name, offset, size in chunks)
        table += b"ND2 CHUNK MAP SIGNATURE 0000001!" + struct.pack("<Q", at)
        name = b"ND2 FILEMAP SIGNATURE NAME 0001!"
        file.write(struct.pack("<IIQ", magic, len(name), len(table)) + name + table)


def reader(*arguments):
    """Runs our reader in a process of its own and returns what it measured last."""
    out = subprocess.run([READER, *map(str, arguments)], check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


PYTHON_SLICE = """
import sys, time
{imports}
path = sys.argv[1]
began = time.perf_counter()
{read}
print(time.perf_counter() - began)
"""

# Reading of slice 600 of a file in Python, and the modules that this needs.
PYTHON_READERS = {
    "OME-Zarr": ("import zarr", "slice = zarr.open_group(path, mode='r')['0'][600]"),
    "CZI": (
        "import czifile",
        "file = czifile.CziFile(path)\nentry = file.filtered_subblock_directory[600]\nslice = entry.data_segment().data()",
    ),
    "ND2": ("import nd2", "file = nd2.ND2File(path)\nslice = file.read_frame(600)"),
}

# Names, medians, lowest and highest of all ratios, for the list at the end.
RESULTS = []
# Expected results: the beginning of a name, and the minimum ratio.
EXPECTED = {"read": 1.5, "write": 2.0, "predict, wall": 0.9}
# Opening a file and reading its first slice takes at most this long, in seconds.
OPENED_SECS = 0.3


def spread(values):
    return statistics.median(values), min(values), max(values)


def summary(name, theirs, ours, unit="s"):
    ratios = spread([a / b for a, b in zip(theirs, ours)])
    expected = next((least for part, least in EXPECTED.items() if name.startswith(part)), None)
    RESULTS.append((name, *ratios, expected))
    print(
        f"{name:38} theirs {statistics.median(theirs):8.3f} {unit}  ours {statistics.median(ours):8.3f} {unit}  "
        f"ratio {ratios[0]:6.2f} ({ratios[1]:.2f} to {ratios[2]:.2f})",
        flush=True,
    )


def python_slice(kind, path):
    """Seconds that Python takes for a slice, without imports; None if the module is missing or cannot read the file."""
    imports, read = PYTHON_READERS[kind]
    script = PYTHON_SLICE.format(imports=imports, read=read)
    ran = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    if ran.returncode == 0:
        return float(ran.stdout)
    reason = (ran.stderr.strip().splitlines() or ["no message"])[-1]
    print(f"{kind}: without Python ({reason})", flush=True)
    return None


def bench_open(args):
    makers = {"OME-Zarr": (large_zarr, ".zarr"), "CZI": (large_czi, ".czi"), "ND2": (large_nd2, ".nd2")}
    for kind, (make, ending) in makers.items():
        path = args.folder / f"ten_gigabytes{ending}"
        if not path.exists():
            make(path)
        ours, theirs = [], []
        # The first round fills the page cache, as far as the file has data.
        for number in range(args.rounds + 1):
            measured = reader(path, 1, "slice", 600)
            assert measured["bytes"] == LARGE[1] * LARGE[2] * 2, measured
            python = python_slice(kind, path) if number == 0 or theirs is not None else None
            if python is None:
                theirs = None
            if number:
                ours.append(measured["wall_s"])
                if theirs is not None:
                    theirs.append(python)
        middle, low, high = spread(ours)
        state = "reached" if middle < OPENED_SECS else f"NOT below {OPENED_SECS} s"
        print(f"{f'open, slice 600 of {kind}':38} ours {middle:8.3f} s ({low:.3f} to {high:.3f}): {state}", flush=True)
        if theirs:
            summary(f"open, slice 600 of {kind}", theirs, ours)


def bench_read(args):
    import numcodecs
    import zarr

    numcodecs.blosc.use_threads = False
    zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1})
    depth = max(CHUNKS[0], args.mib // 2)
    data = camera((depth, 1024, 1024))
    kinds = {
        "zstd": {"compressors": zarr.codecs.ZstdCodec(level=3)},
        "blosc_lz4": {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle", typesize=2)},
        "blosc_zstd": {"compressors": zarr.codecs.BloscCodec(cname="zstd", shuffle="bitshuffle", typesize=2)},
        "zstd_sharded": {"compressors": zarr.codecs.ZstdCodec(level=3), "shards": (32, 1024, 1024)},
    }
    cores = os.sched_getaffinity(0)
    try:
        # Processes started from here on run on the same core.
        os.sched_setaffinity(0, {min(cores)})
        for name, options in kinds.items():
            path = args.folder / f"read_{name}.zarr"
            if not path.exists():
                group = zarr.create_group(str(path), zarr_format=3)
                group.create_array("0", data=data, chunks=CHUNKS, **options)
                describe(group, ["0"])
            theirs, ours = [], []
            # The first round fills the page cache.
            for number in range(args.rounds + 1):
                # Who begins alternates, so that neither always finds a warmer machine.
                if number % 2:
                    measured = reader(path, 1)
                began = time.process_time()
                array = zarr.open_group(str(path), mode="r")["0"][...]
                spent = time.process_time() - began
                if number % 2 == 0:
                    measured = reader(path, 1)
                assert array.nbytes == measured["bytes"] == data.nbytes
                if number:
                    theirs.append(spent)
                    ours.append(measured["cpu_s"])
            summary(f"read {name} ({data.nbytes >> 20} MiB)", theirs, ours, "CPU s")
    finally:
        os.sched_setaffinity(0, cores)


def predict(stack, out, args, more):
    shutil.rmtree(out, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [PROGRAM, "predict", stack, "--model", args.model, "--device", "cpu", "--outputs", "maps,labels",
               "--out", out, "--json", *more]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["inputs"][0]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return report["seconds"], cpu, report["actual_peak_bytes"] / 2**20


def bench_predict(args):
    import tifffile
    import zarr

    tiff, ome_zarr = args.folder / "stack.tif", args.folder / "stack.zarr"
    if not ome_zarr.exists():
        tiff.unlink(missing_ok=True)
        tifffile.imwrite(
            tiff, camera((64, 512, 512)), imagej=True, metadata={"axes": "ZYX", "spacing": 1.2, "unit": "um"},
            resolution=(1 / 0.6, 1 / 0.6),
        )
        subprocess.run([PROGRAM, "convert", tiff, ome_zarr], check=True, capture_output=True)
    of_tiff, of_zarr = [], []
    for _ in range(args.rounds):
        of_tiff.append(predict(tiff, args.folder / "out_tiff", args, []))
        of_zarr.append(predict(ome_zarr, args.folder / "out_zarr", args, ["--format", "ome-zarr"]))
    for i, (what, unit) in enumerate([("wall", "s"), ("CPU", "s"), ("peak", "MiB")]):
        # "Theirs" is TIFF here, and "ours" OME-Zarr: 0.9 is about 10 % more for OME-Zarr.
        summary(f"predict, {what}: TIFF to OME-Zarr", [r[i] for r in of_tiff], [r[i] for r in of_zarr], unit)
    maps = next((args.folder / "out_tiff").glob("*_pr*.tif"))
    group = zarr.open_group(str(next((args.folder / "out_zarr").glob("*_pr*.zarr"))), mode="r")
    a, b = np.squeeze(tifffile.imread(maps)), np.squeeze(group["0"][...])
    # ImageJ TIFF has the channels after the slices, OME-Zarr before them.
    b = np.moveaxis(b, 0, 1) if b.ndim == 4 else b
    print(f"largest difference of the maps: {np.abs(a - b).max()}")


def bench_write(args):
    import zarr
    from ome_zarr.scale import Methods
    from ome_zarr.writer import write_image

    stack = args.folder / "one_gibibyte.npy"
    if not stack.exists():
        # It gets its name when it is complete.
        partial = args.folder / "partial.npy"
        data = np.lib.format.open_memmap(partial, mode="w+", dtype="u2", shape=(256, 2048, 1024))
        for z in range(0, 256, 64):
            data[z : z + 64] = camera((64, 2048, 1024), z)
        data.flush()
        del data
        partial.rename(stack)
    theirs, ours = [], []
    for _ in range(args.rounds):
        for path in ["theirs.zarr", "ours.zarr"]:
            shutil.rmtree(args.folder / path, ignore_errors=True)
        began = time.perf_counter()
        group = zarr.create_group(str(args.folder / "theirs.zarr"), zarr_format=3)
        write_image(np.load(stack, mmap_mode="r"), group, scale_factors=(2, 4, 8), axes="zyx", method=Methods.LOCAL_MEAN,
                    storage_options={"chunks": CHUNKS})
        theirs.append(time.perf_counter() - began)
        began = time.perf_counter()
        command = [PROGRAM, "convert", stack, args.folder / "ours.zarr", "--axes", "ZYX"]
        subprocess.run(command, check=True, capture_output=True)
        ours.append(time.perf_counter() - began)
    summary("write 1 GiB with 4 levels", theirs, ours)
    size = lambda path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) >> 20
    print(f"on disk: theirs {size(args.folder / 'theirs.zarr')} MiB, ours {size(args.folder / 'ours.zarr')} MiB")


PARTS = {"open": bench_open, "read": bench_read, "predict": bench_predict, "write": bench_write}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help="open, read, predict, write; by default all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "cytoscope_bench_zarr")
    parser.add_argument("--keep", action="store_true", help="keep the files, for the next run")
    parser.add_argument("--mib", type=int, default=256, help="size of the stacks of `read`")
    parser.add_argument("--model", default="nuclei-dog", help="model of `predict`")
    args = parser.parse_args()
    unknown = [part for part in args.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]}: expected {', '.join(PARTS)}")
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    missing = [path for path in [PROGRAM, READER] if not path.exists()]
    if missing:
        parser.error(f"{missing[0]} does not exist; build it with the commands above")
    print(f"CPU: {cpu_name()}", flush=True)
    args.folder.mkdir(parents=True, exist_ok=True)
    failed = []
    try:
        for part in args.parts:
            try:
                PARTS[part](args)
            except Exception as error:
                failed.append(part)
                traceback.print_exc()
                if isinstance(error, subprocess.CalledProcessError):
                    print(error.stderr, file=sys.stderr)
    finally:
        if not args.keep:
            shutil.rmtree(args.folder, ignore_errors=True)
    print(f"\n{'ratio, theirs to ours':38} median   lowest  highest  expected")
    for name, middle, low, high, expected in RESULTS:
        verdict = "" if expected is None else f"{expected:8.2f}  {'reached' if middle >= expected else 'NOT reached'}"
        print(f"{name:38} {middle:6.2f} {low:8.2f} {high:8.2f}  {verdict}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
