"""Writes checkpoints as nnU-Net and pytorch_fnet do, an input, and the outputs of the networks. The networks are built from their
published descriptions, with the names that the layers have in the checkpoints."""

import json
import os
import sys

import numpy
import torch
from torch import nn

class Block(nn.Module):
    """A convolution with its norm and activation; nnU-Net lists the layers a second time."""
    def __init__(self, inputs, outputs, kernel, stride, active=True, bias=True):
        super().__init__()
        self.conv = nn.Conv3d(inputs, outputs, kernel, stride, [(k - 1) // 2 for k in kernel], bias=bias)
        self.norm = nn.InstanceNorm3d(outputs, eps=1e-5, affine=True)
        layers = [self.conv, self.norm]
        if active:
            self.nonlin = nn.LeakyReLU(0.01)
            layers.append(self.nonlin)
        self.all_modules = nn.Sequential(*layers)
    def forward(self, x):
        return self.all_modules(x)

class Stack(nn.Module):
    def __init__(self, count, inputs, outputs, kernel, stride):
        super().__init__()
        ones = [1, 1, 1]
        self.convs = nn.Sequential(*[Block(outputs if i else inputs, outputs, kernel, ones if i else stride) for i in range(count)])
    def forward(self, x):
        return self.convs(x)

class Residual(nn.Module):
    def __init__(self, inputs, outputs, kernel, stride):
        super().__init__()
        self.conv1 = Block(inputs, outputs, kernel, stride)
        self.conv2 = Block(outputs, outputs, kernel, [1, 1, 1], active=False)
        self.nonlin2 = nn.LeakyReLU(0.01)
        layers = []
        if max(stride) > 1:
            layers.append(nn.AvgPool3d(stride, stride))
        if inputs != outputs:
            layers.append(Block(inputs, outputs, [1, 1, 1], [1, 1, 1], active=False, bias=False))
        self.skip = nn.Sequential(*layers) if layers else None
    def forward(self, x):
        y = self.conv2(self.conv1(x))
        return self.nonlin2(y + (self.skip(x) if self.skip is not None else x))

class ResidualStage(nn.Module):
    def __init__(self, count, inputs, outputs, kernel, stride):
        super().__init__()
        self.blocks = nn.Sequential(*[Residual(outputs if i else inputs, outputs, kernel, [1, 1, 1] if i else stride) for i in range(count)])
    def forward(self, x):
        return self.blocks(x)

class Encoder(nn.Module):
    def __init__(self, inputs, features, kernels, strides, residual):
        super().__init__()
        stages, before = [], inputs
        if residual:
            self.stem = Stack(1, inputs, features[0], kernels[0], [1, 1, 1])
            before = features[0]
        for width, kernel, stride in zip(features, kernels, strides):
            stages.append(ResidualStage(2, before, width, kernel, stride) if residual else nn.Sequential(Stack(2, before, width, kernel, stride)))
            before = width
        self.stages = nn.Sequential(*stages)
    def forward(self, x):
        if hasattr(self, "stem"):
            x = self.stem(x)
        skips = []
        for stage in self.stages:
            x = stage(x)
            skips.append(x)
        return skips

class Decoder(nn.Module):
    def __init__(self, encoder, features, kernels, strides, classes, count):
        super().__init__()
        self.encoder = encoder
        transpconvs, stages, heads = [], [], []
        for s in range(1, len(features)):
            below, skip, stride = features[-s], features[-s - 1], strides[-s]
            transpconvs.append(nn.ConvTranspose3d(below, skip, stride, stride))
            stages.append(Stack(count, 2 * skip, skip, kernels[-s - 1], [1, 1, 1]))
            heads.append(nn.Conv3d(skip, classes, 1))
        self.transpconvs, self.stages, self.seg_layers = map(nn.ModuleList, (transpconvs, stages, heads))
    def forward(self, skips):
        x = skips[-1]
        for s, (up, stage) in enumerate(zip(self.transpconvs, self.stages)):
            x = stage(torch.cat((up(x), skips[-s - 2]), 1))
        return self.seg_layers[-1](x)

class UNet(nn.Module):
    def __init__(self, features, kernels, strides, classes, residual):
        super().__init__()
        self.encoder = Encoder(1, features, kernels, strides, residual)
        self.decoder = Decoder(self.encoder, features, kernels, strides, classes, 1 if residual else 2)
    def forward(self, x):
        return self.decoder(self.encoder(x))

class Double(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1, self.bn1, self.relu1 = nn.Conv3d(inputs, outputs, 3, padding=1), nn.BatchNorm3d(outputs), nn.ReLU()
        self.conv2, self.bn2, self.relu2 = nn.Conv3d(outputs, outputs, 3, padding=1), nn.BatchNorm3d(outputs), nn.ReLU()
    def forward(self, x):
        return self.relu2(self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x))))))

class Level(nn.Module):
    def __init__(self, inputs, factor, depth):
        super().__init__()
        width = inputs * factor
        self.depth = depth
        self.sub_2conv_more = Double(inputs, width)
        if depth > 0:
            self.sub_2conv_less = Double(2 * width, width)
            self.conv_down, self.bn0, self.relu0 = nn.Conv3d(width, width, 2, stride=2), nn.BatchNorm3d(width), nn.ReLU()
            self.convt, self.bn1, self.relu1 = nn.ConvTranspose3d(2 * width, width, 2, stride=2), nn.BatchNorm3d(width), nn.ReLU()
            self.sub_u = Level(width, 2, depth - 1)
    def forward(self, x):
        more = self.sub_2conv_more(x)
        if self.depth == 0:
            return more
        below = self.sub_u(self.relu0(self.bn0(self.conv_down(more))))
        return self.sub_2conv_less(torch.cat((more, self.relu1(self.bn1(self.convt(below)))), 1))

class Fnet(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.net_recurse = Level(1, width, depth)
        self.conv_out = nn.Conv3d(width, 1, 3, padding=1)
    def forward(self, x):
        return self.conv_out(self.net_recurse(x))

torch.manual_seed(5)
out = sys.argv[1]
kernels, strides = [[1, 3, 3], [3, 3, 3], [3, 3, 3]], [[1, 1, 1], [1, 2, 2], [2, 2, 2]]
x = torch.randn(1, 1, 8, 16, 24)
numpy.save(f"{out}/x.npy", x.numpy())
def randomize(net):
    for module in net.modules():
        if isinstance(module, (nn.InstanceNorm3d, nn.BatchNorm3d)):
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.2)
        if isinstance(module, nn.BatchNorm3d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 2)
    return net.eval()
def save_output(net, name):
    with torch.no_grad():
        numpy.save(f"{out}/{name}.npy", net(x).numpy())
for name, residual in (("plain", False), ("residual", True)):
    net = randomize(UNet([4, 6, 8], kernels, strides, 3, residual))
    folder = f"{out}/{name}/fold_0"
    os.makedirs(folder)
    plans = {"dataset_name": "Dataset001", "plans_name": "nnUNetPlans", "transpose_forward": [0, 1, 2], "transpose_backward": [0, 1, 2],
        "configurations": {"3d_fullres": {"data_identifier": "nnUNetPlans_3d_fullres", "preprocessor_name": "DefaultPreprocessor", "batch_size": 2,
            "patch_size": [8, 16, 24], "spacing": [2.0, 0.5, 0.5], "normalization_schemes": ["ZScoreNormalization"], "use_mask_for_norm": [False]}}}
    json.dump(plans, open(f"{out}/{name}/plans.json", "w"))
    dataset = {"channel_names": {"0": "nuclei"}, "labels": {"background": 0, "nucleus": 1, "membrane": 2}, "file_ending": ".tif"}
    json.dump(dataset, open(f"{out}/{name}/dataset.json", "w"))
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.99, nesterov=True)
    torch.save({"network_weights": net.state_dict(), "optimizer_state": optimizer.state_dict(), "grad_scaler_state": None,
        "logging": {"mean_fg_dice": [0.5], "epoch_start_timestamps": [1.0]}, "_best_ema": 0.5, "current_epoch": 1000,
        "init_args": {"plans": plans, "configuration": "3d_fullres", "fold": 0, "dataset_json": dataset, "unpack_dataset": True},
        "trainer_name": "nnUNetTrainer", "inference_allowed_mirroring_axes": (0, 1, 2)}, f"{folder}/checkpoint_final.pth")
    save_output(net, name)
net = randomize(Fnet(3, 3))
torch.save({"fnet_model_class": "fnet.fnet_model.Model", "fnet_model_kwargs": {"nn_class": "fnet.nn_modules.fnet_nn_3d.Net", "lr": 0.001},
    "nn_class": "fnet.nn_modules.fnet_nn_3d", "nn_state": net.state_dict(),
    "optimizer_state": torch.optim.Adam(net.parameters(), lr=0.001, betas=(0.5, 0.999)).state_dict(), "count_iter": 50000}, f"{out}/model.p")
save_output(net, "fnet")
