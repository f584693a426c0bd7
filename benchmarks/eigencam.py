"""EigenCAM maps from features: us against pytorch-grad-cam, in one run, and how alike the maps are.

    python benchmarks/eigencam.py --data folder:DIR --vit timm:vit_tiny_patch16_224@FILE --resnet timm:resnet18@FILE \
        -n 32 [--out benchmarks/results/FILE.jsonl]

Both get the same features, float32 on one core: those that a ViT's last attention sees, without its class token, and
those of the last stage of a ResNet. The peer's maps are centered, so ours are too; both are timed from features to
maps, which is all that differs. `pass_ms` is the forward pass that both need besides. Times are milliseconds per
image, the best of --repeats. `apart` is the largest difference of two maps relative to the largest value of the
peer's, with its sign set right.
"""

import argparse
import importlib.util
from collections.abc import Callable
from pathlib import Path

import torch
from record import clock, hardware, versions, write_record
from torch import Tensor

from vitadel import data, models
from vitadel.analyze.eigencam import eigencam
from vitadel.analyze.saliency_maps import Method, SaliencyMaps

CPU = torch.device("cpu")


def peer_projection() -> Callable[..., object]:
    """The peer's decomposition alone: its package imports what has nothing to do with it."""
    package = importlib.util.find_spec("pytorch_grad_cam")
    assert package is not None, "grad-cam is not installed: pip install grad-cam"
    assert package.origin is not None
    file = Path(package.origin).parent / "utils" / "svd_on_activations.py"
    spec = importlib.util.spec_from_file_location("svd_on_activations", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    project: Callable[..., object] = module.get_2d_projection
    return project


def best(run: Callable[[], object], repeats: int) -> float:
    run()
    seconds = []
    for _ in range(repeats):
        started = clock(CPU)
        run()
        seconds.append(clock(CPU) - started)
    return min(seconds)


def features_of(model: models.Model, x: Tensor) -> tuple[Tensor, str, tuple[int, int]]:
    """[B, N, C] at the layer that a study would choose, its name, and rows and columns of cells."""
    maps_of = SaliencyMaps.of(model, (Method.EIGENCAM,), None, True, x)
    height, width = maps_of(x[:1], 0)[0][Method.EIGENCAM].shape[1:]
    kept: list[Tensor] = []
    handle = model.net.get_submodule(maps_of.layer).register_forward_hook(lambda module, args, out: kept.append(out))
    with torch.no_grad():
        model(x)
    handle.remove()
    tokens = kept[0][:, -height * width :] if kept[0].ndim == 3 else kept[0].flatten(2).mT
    return tokens.contiguous(), maps_of.layer, (height, width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--vit", required=True)
    parser.add_argument("--resnet", required=True)
    parser.add_argument("-n", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    project, table = peer_projection(), {}
    for name in (args.vit, args.resnet):
        model = models.load(name)
        assert model.spec is not None
        size = model.spec.image_size
        split = data.load(args.data, preprocess=data.parse_preprocess(f"crop:{size}:{size * 8 // 7}")).split("test")
        x = split.images(torch.arange(min(args.n, len(split))))
        features_BNC, layer, (height, width) = features_of(model, x)
        activations = features_BNC.mT.unflatten(2, (height, width)).contiguous().numpy()
        ours = best(lambda f=features_BNC: eigencam(f, center=True), args.repeats)  # type: ignore[misc]
        theirs = best(lambda a=activations: project(a), max(1, args.repeats // 3))  # type: ignore[misc]
        with torch.no_grad():
            passing = best(lambda m=model, x=x: m(x), 1)  # type: ignore[misc]
        peer_BN = torch.as_tensor(project(activations)).flatten(1)
        found_BN = eigencam(features_BNC, center=True)
        peer_BN = peer_BN * (peer_BN * found_BN).sum(1, keepdim=True).sign()
        apart_B = (peer_BN - found_BN).abs().amax(1) / peer_BN.abs().amax(1)
        table[name.rpartition("@")[0] or name] = {
            "layer": layer,
            "cells": height * width,
            "channels": features_BNC.shape[2],
            "ours_ms": round(ours / len(x) * 1e3, 4),
            "peer_ms": round(theirs / len(x) * 1e3, 3),
            "times": round(theirs / ours, 1),
            "pass_ms": round(passing / len(x) * 1e3, 1),
            "apart": float(f"{float(apart_B.max()):.2g}"),
        }
    write_record(
        {
            "benchmark": "eigencam",
            "data": args.data.rpartition("/")[2],
            "images": args.n,
            **hardware(CPU),
            "versions": versions("grad-cam", "numpy", "timm"),
            "maps": table,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
