"""Writes a package whose networks average their output over mirrored copies of the stack (test-time augmentation).

    python bench/mirrored.py models/nuclei OUT --copies none y x yx [z zy zx zyx]

A network with mirrored kernels returns the mirrored output of the original network on the mirrored stack, if the lengths
of the axes are multiples of the strides. Supports convolutions (kernels of length 3 where strides are 2), transposed
convolutions and element-wise operators. Needs numpy and onnx.
"""
import argparse
import hashlib
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

AXES = {"z": 2, "y": 3, "x": 4}


def mirror_pads(node, axes):
    """Moves the padding of a convolution to where its mirrored kernel needs it."""
    lists = {a.name: list(a.ints) for a in node.attribute if a.ints}
    pads, strides = lists.get("pads"), lists.get("strides")
    if node.op_type not in ("Conv", "ConvTranspose") or pads is None:
        return
    half = len(pads) // 2
    for axis in (a - 2 for a in axes):
        before, after = pads[axis], pads[axis + half]
        if node.op_type == "Conv" and strides and strides[axis] == 2 and before == after == 1:
            # Windows of three voxels begin at even positions instead of one voxel before.
            before, after = 1, 0
        pads[axis], pads[axis + half] = after, before
    for attribute in node.attribute:
        if attribute.name == "pads":
            attribute.ints[:] = pads


def average(path, copies):
    """Replaces a network by the mean of its mirrored copies."""
    model = onnx.load(path)
    graph = model.graph
    given, outputs = graph.input[0].name, [o.name for o in graph.output]
    nodes, weights = [], []
    for copy in copies:
        axes = [AXES[c] for c in copy]
        rename = lambda name, copy=copy: name if name in ("", given) else f"{name}_mirrored_{copy or 'none'}"
        for weight in graph.initializer:
            values = numpy_helper.to_array(weight)
            if values.ndim == 5 and axes:
                values = np.ascontiguousarray(np.flip(values, axes))
            weights.append(numpy_helper.from_array(values, rename(weight.name)))
        for node in graph.node:
            mirrored = onnx.NodeProto()
            mirrored.CopyFrom(node)
            mirrored.name = rename(node.name)
            mirrored.input[:] = [rename(name) for name in node.input]
            mirrored.output[:] = [rename(name) for name in node.output]
            mirror_pads(mirrored, axes)
            nodes.append(mirrored)
    weights.append(numpy_helper.from_array(np.array(1 / len(copies), np.float32), "share"))
    for output in outputs:
        total = f"{output}_mirrored_{copies[0] or 'none'}"
        for index, copy in enumerate(copies[1:]):
            nodes.append(helper.make_node("Add", [total, f"{output}_mirrored_{copy or 'none'}"], [f"{output}_sum_{index}"]))
            total = f"{output}_sum_{index}"
        nodes.append(helper.make_node("Mul", [total, "share"], [output]))
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(weights)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("out", type=Path, help="folder of the new package")
    parser.add_argument("--copies", nargs="+", default=["none", "y", "x", "yx"], help="mirrored axes of each copy")
    options = parser.parse_args()
    shutil.copytree(options.package, options.out)
    description = (options.out / "rdf.yaml").read_text()
    for network in sorted(options.out.glob("*.onnx")):
        before = hashlib.sha256(network.read_bytes()).hexdigest()
        average(network, ["" if c == "none" else c for c in options.copies])
        description = description.replace(before, hashlib.sha256(network.read_bytes()).hexdigest())
    (options.out / "rdf.yaml").write_text(description)


if __name__ == "__main__":
    main()
