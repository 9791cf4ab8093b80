"""Writes a 3-D U-Net with the operators that exporters of other frameworks use, with random weights.

    python bench/foreign_unet.py OUT.onnx [--filters 32,64,128] [--shape 32,64,64] [--transposed]
    python bench/engine.py OUT.onnx --shape 32,64,64 --precision f32

Each level has two convolutions of 3 × 3 × 3 with ReLU. On the way up, a nearest-neighbor Resize is followed by two Pads
before each concatenation: one adds a voxel at the end of each axis, the other removes it (negative amounts), as exported
from code that fits odd sizes to the skip connection. With --transposed, a transposed convolution of kernel 3 and stride 2 takes
their place, as in MONAI's UNet. Needs numpy and onnx.
"""
import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Network:
    """Nodes and initializers of a graph."""

    def __init__(self):
        self.nodes, self.initializers, self.rng = [], [], np.random.default_rng(7)

    def constant(self, values):
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(values, name))
        return name

    def add(self, op, inputs, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def conv(self, x, from_channels, to_channels, edge=3):
        """A convolution whose outputs have about the variance of its inputs."""
        spread = np.sqrt(2.0 / (from_channels * edge**3))
        weights = (self.rng.standard_normal((to_channels, from_channels, edge, edge, edge)) * spread).astype(np.float32)
        bias = np.zeros(to_channels, np.float32)
        inputs = [x, self.constant(weights), self.constant(bias)]
        return self.add("Conv", inputs, kernel_shape=[edge] * 3, pads=[edge // 2] * 6)

    def transposed(self, x, channels, edge=3):
        """A transposed convolution that doubles the lengths."""
        spread = np.sqrt(8.0 / (channels * edge**3))
        weights = (self.rng.standard_normal((channels, channels, edge, edge, edge)) * spread).astype(np.float32)
        lengths = {"kernel_shape": [edge] * 3, "strides": [2] * 3, "pads": [1] * 6, "output_padding": [1] * 3}
        return self.add("ConvTranspose", [x, self.constant(weights)], **lengths)

    def block(self, x, from_channels, to_channels):
        x = self.add("Relu", [self.conv(x, from_channels, to_channels)])
        return self.add("Relu", [self.conv(x, to_channels, to_channels)])

    def pad(self, x, at_end):
        amounts = np.array([0] * 5 + [0, 0] + [at_end] * 3, np.int64)
        return self.add("Pad", [x, self.constant(amounts), self.constant(np.array(0, np.float32))])


def build(filters, shape, transposed):
    net = Network()
    x, skips, channels = "x", [], 1
    for level, count in enumerate(filters):
        if level:
            x = net.add("MaxPool", [x], kernel_shape=[2] * 3, strides=[2] * 3)
        x, channels = net.block(x, channels, count), count
        skips.append(x)
    scales = net.constant(np.array([1, 1, 2, 2, 2], np.float32))
    for count, skip in reversed(list(zip(filters[:-1], skips[:-1]))):
        modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        if transposed:
            x = net.transposed(x, channels)
        else:
            x = net.add("Resize", [x, "", scales], **modes)
            x = net.pad(net.pad(x, 1), -1)
        x = net.block(net.add("Concat", [skip, x], axis=1), count + channels, count)
        channels = count
    y = net.add("Sigmoid", [net.conv(x, channels, 1, 1)])
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, *shape])
    graph = helper.make_graph(net.nodes, "foreign_unet", [value("x")], [value(y)], net.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--filters", default="32,64,128")
    parser.add_argument("--shape", default="32,64,64")
    parser.add_argument("--transposed", action="store_true")
    options = parser.parse_args()
    filters, shape = ([int(n) for n in numbers.split(",")] for numbers in (options.filters, options.shape))
    onnx.save(build(filters, shape, options.transposed), options.out)


if __name__ == "__main__":
    main()
