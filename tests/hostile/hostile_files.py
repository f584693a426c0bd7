"""Foreign, damaged and malicious files, all in one place: models, manifests, images, lists, archives and pipes."""

import json
import os
import pickle
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from cases import Case
from commands import TRAINED
from PIL import Image

# a file that appears if code in another file was run
CANARY = "canary"
_NUMBERS = (0, -1, 1, 2, 3, 7, 8, 1e9, 10**9, 10**19, -0.5, 1.5, float("nan"), float("inf"), 1e308, 2**63)
_HOSTILE_OPTIONS: dict[str, object] = {
    "checkpoint_path": "weights.pth",
    "pretrained_cfg": {"file": "weights.pth"},
    "pretrained": True,
    "cache_dir": "weights.pth",
    "scriptable": True,
    "block_fn": "os.system",
    "act_layer": "print",
    "norm_layer": "eval",
    "depth": 10**9,
    "embed_dim": 10**9,
    "img_size": -8,
    "drop_rate": "x",
}


class _Harm:
    """Unpickled, this makes the canary."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (CANARY, "w")


# --------------------------------------------------------------------- models


def changed_header(case: Case) -> list[str]:
    """A checkpoint whose description of itself was changed."""
    content = _trained_file(case).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    about = json.loads(header["__metadata__"]["vitadel.model"])
    text = case.random.choice((_with_option, _changed_text, _changed_text, _bracketed))(about, case.random)
    header["__metadata__"]["vitadel.model"] = text
    if case.random.random() < 0.3:
        header = changed_tree(header, case.random)
    return _with_header(case, json.dumps(header).encode(), content[8 + length :])


def broken_container(case: Case) -> list[str]:
    """A checkpoint whose header is not a header any more."""
    content = _trained_file(case).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = content[8 : 8 + length]
    made = case.random.choice((b"", b"{}", b"[" * 100_000, b"null", b'{"a":' * 50_000, header[:-1], header + b" " * 7))
    return _with_header(case, made, content[8 + length :], case.random.choice((None, None, 0, 2**63, 10**8)))


def pickled(case: Case) -> list[str]:
    """Weights in a pickle, which may hold anything."""
    contents: list[object] = [
        *(_Harm(), {"state_dict": _Harm()}, {"model": {"a": torch.zeros(3)}}, [1, 2], "text", None, {}, {"a": 1}),
        *(
            {"state_dict": {1: torch.zeros(2)}},
            {"a": torch.zeros(0)},
            {"head.weight": torch.zeros(3, 2, dtype=torch.int64)},
        ),
        *(
            {"a": torch.zeros(2).to_sparse()},
            torch.zeros(3),
            {"x": {"x": {"x": {}}}},
            {"norm.weight": torch.tensor([float("nan")])},
        ),
    ]
    if case.random.random() < 0.1:
        with zipfile.ZipFile(case.folder / "weights.pth", "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr("archive/data/0", bytes(10**8))
    elif case.random.random() < 0.5:
        torch.save(case.random.choice(contents), case.folder / "weights.pth")
    else:
        (case.folder / "weights.pth").write_bytes(
            case.random.choice((pickle.dumps(_Harm()), b"", b"PK\x03\x04", b"\x80\x04.", b"not weights", bytes(1000)))
        )
    return _with_model(case, "timm:test_vit@weights.pth")


def changed_manifest(case: Case) -> list[str]:
    """A run folder whose manifest, log or numbers were changed by hand."""
    source = case.folder.parent / "shared" / Path(TRAINED).name
    shutil.copytree(source, case.folder / "given")
    name = case.random.choice(("manifest.json", "manifest.json", "log.jsonl"))
    file = case.folder / "given" / name
    lines = file.read_text().splitlines() if name == "log.jsonl" else [file.read_text()]
    at = case.random.randrange(len(lines))
    lines[at] = case.random.choice((_changed_text, _changed_text, _bracketed))(json.loads(lines[at]), case.random)
    junk = case.random.choice(
        (b"", b"", b"\xff\xfe\n", b"\0\n", b"{}\n", b'{"event": "step", "step": [1]}\n', b"null\n")
    )
    file.write_bytes("\n".join(lines).encode(errors="surrogatepass") + b"\n" + junk)
    return case.random.choice(
        (
            _with_model(case, "given"),
            ["report", "given", "--out=page.html"],
            ["train", "digits-standard", "--data=digits[:900]", "--set=plan.epochs=3", "--run=given", "--json"],
        )
    )


def _trained_file(case: Case) -> Path:
    return case.folder.parent / "shared" / Path(TRAINED).name / "checkpoints" / "best.safetensors"


def _with_header(case: Case, header: bytes, tensors: bytes, length: int | None = None) -> list[str]:
    size = struct.pack("<Q", len(header) if length is None else length)
    (case.folder / "given.safetensors").write_bytes(size + header + tensors)
    torch.save({"state_dict": _Harm()}, case.folder / "weights.pth")
    return _with_model(case, "given.safetensors")


def _with_model(case: Case, model: str) -> list[str]:
    """One of the commands that read a model."""
    run = "--run=run"
    return case.random.choice(
        (
            ["models", model],
            ["evaluate", model, "--data=digits[:4]", "--suite=clean", run],
            ["attack", model, "--data=digits[:4]", "--attack=fgsm", run, "--json"],
            ["analyze", "lesion:draws=1", model, "--data=digits[:4]", run, "--json"],
            ["train", "digits-tora", f"--set=model.start={model}", "--set=plan.epochs=1", "--data=digits[:40]", run],
            ["evaluate", f"{TRAINED}+{model}", "--data=digits[:4]", "--suite=clean", run],
        )
    )


# ----------------------------------------------------------------- JSON trees


def _with_option(about: dict[str, Any], random: Random) -> str:
    name = random.choice(sorted(_HOSTILE_OPTIONS))
    return json.dumps({**about, "options": {**about["options"], name: _HOSTILE_OPTIONS[name]}})


def _changed_text(tree: object, random: Random) -> str:
    return json.dumps(changed_tree(tree, random))


def _bracketed(tree: object, random: Random) -> str:
    """The tree with very deep nesting in one place."""
    deep = random.choice(("[" * 100_000 + "]" * 100_000, '{"a":' * 50_000 + "1" + "}" * 50_000, "[" * 100_000))
    return json.dumps(changed_tree(tree, random, "@deep@")).replace('"@deep@"', deep)


def changed_tree(tree: Any, random: Random, value: object = None) -> Any:
    """The tree with one value in it replaced, dropped or added."""
    if isinstance(tree, dict) and tree and random.random() < 0.9:
        key = random.choice(sorted(tree))
        if value is None and random.random() < 0.1:
            return {name: inner for name, inner in tree.items() if name != key}
        if value is None and random.random() < 0.05:
            return {**tree, "unheard-of": 1}
        return {**tree, key: changed_tree(tree[key], random, value)}
    if isinstance(tree, list) and tree and random.random() < 0.8:
        at = random.randrange(len(tree))
        return [*tree[:at], changed_tree(tree[at], random, value), *tree[at + 1 :]]
    return value if value is not None else _json_value(random)


def _json_value(random: Random) -> object:
    texts = (
        "",
        "x",
        "a" * 20_000,
        "[/b]",
        "\ud800",
        "../../x",
        "timm:test_vit",
        "vitadel:masked_gradient_net",
        "\n",
        "\x1b[31m",
    )
    others: tuple[object, ...] = (None, True, False, [], {}, [1, 2], {"a": 1}, [[]], ["x"] * 1000)
    return random.choice((random.choice(_NUMBERS), random.choice(texts), random.choice(others)))


# --------------------------------------------------------------------- images


def image_folder(case: Case) -> list[str]:
    """Class folders with something in them that is not an ordinary image."""
    root = case.folder / "pictures"
    names = [
        "a",
        case.random.choice(("b", "b c", "[bold]", "b\nc", "\u0130", "\u732b", "-x", "%s", os.fsdecode(b"\xff"))),
    ]
    for name in names:
        for split in ("train", "test"):
            (root / split / name).mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (9, 9), (number, 90, 30)).save(root / split / name / f"{number}.png")
    place = root / case.random.choice(("train", "test")) / case.random.choice(names)
    case.random.choice(_ODD_FILES)(place, case.random)
    spec = f"folder:pictures{case.random.choice(('', '', '[:3]'))}"
    return case.random.choice(
        (
            ["data", "check", spec, "--json"],
            ["data", "describe", spec],
            ["data", "show", spec, "--copies=1", "--augmentation=mixup", "--images=4", "--out=shown.png"],
            ["evaluate", "timm:test_vit", "--classes=2", f"--data={spec}", "--suite=clean", "--run=run"],
            ["evaluate", "timm:test_vit", "--classes=2", f"--data={spec}", "--suite=fgsm,clean", "--run=run"],
            [
                "evaluate",
                "timm:test_vit",
                "--classes=2",
                f"--data={spec}",
                "--suite=clean",
                "--run=run",
                "--skip-unreadable",
            ],
            [
                "train",
                "digits-standard",
                f"--data={spec}",
                "--set=plan.epochs=1",
                "--set=plan.warmup_epochs=0",
                "--run=run",
            ],
        )
    )


def _fifo(place: Path, random: Random) -> None:
    os.mkfifo(place / "2.png")


def _odd_content(place: Path, random: Random) -> None:
    whole = (place / "0.png").read_bytes()
    contents = (
        b"",
        b"no picture",
        whole[:40],
        whole[:-20],
        whole + b"junk",
        b"\x89PNG\r\n\x1a\n" + bytes(50),
        b"GIF89a",
    )
    (place / f"2.{random.choice(('png', 'jpg', 'jpeg', 'PNG', 'webp', 'bmp'))}").write_bytes(random.choice(contents))


def _odd_name(place: Path, random: Random) -> None:
    name = random.choice(
        (b"\xff.png", b"[bold].png", b"a\nb.png", b" .png", b"-.png", b"%s.png", b"\xed\xa0\x80.png", b"#.png")
    )
    shutil.copy(place / "0.png", os.fsdecode(os.fsencode(place) + b"/" + name))


def _odd_mode(place: Path, random: Random) -> None:
    mode = random.choice(("L", "P", "1", "RGBA", "CMYK", "I", "F", "I;16", "LA"))
    suffix = {"CMYK": "TIFF", "F": "TIFF", "I": "TIFF"}.get(mode, "PNG")
    size = random.choice(((9, 9), (1, 1), (1, 400), (3000, 2)))
    Image.new(mode, size).save(place / "2.png", format=suffix)


def _odd_place(place: Path, random: Random) -> None:
    makers: tuple[Callable[[], object], ...] = (
        lambda: (place / "2.png").mkdir(),
        lambda: (place / "2.png").symlink_to("2.png"),
        lambda: (place / "deep").symlink_to("."),
        lambda: (place / "2.png").symlink_to("/dev/zero"),
        lambda: (place / "2.png").symlink_to("nowhere"),
        lambda: shutil.rmtree(place),
        lambda: shutil.rmtree(place.parent),
    )
    random.choice(makers)()


def _bomb(place: Path, random: Random) -> None:
    """An image of a few kilobytes with a hundred million pixels."""
    side = random.choice((9000, 10_000, 14_000))
    for name in ("0.png", "1.png"):
        Image.new("1", (side, side)).save(place / name)


def _huge(place: Path, random: Random) -> None:
    """An image whose header claims a far larger size."""
    width = random.choice((20_000, 100_000, 2**31 - 1))
    content = b"IHDR" + struct.pack(">IIBBBBB", width, width, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + content + struct.pack(">I", zlib.crc32(content))
    (place / "2.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT")


_ODD_FILES = (_fifo, _odd_content, _odd_content, _odd_name, _odd_mode, _odd_place, _huge, _bomb)


# --------------------------------------------------------- lists and archives


def listed(case: Case) -> list[str]:
    """A list of classes or images that is none."""
    lines = (
        b"a\n",
        b"0\n",
        b"",
        b"\n\n",
        b"a/0.png\n",
        b"\xff\xfe\n",
        b"a\0b\n",
        b"../x.png\n",
        b"x" * 10**6,
        b"0\n0\n",
        b"#\n",
    )
    (case.folder / "list.txt").write_bytes(case.random.choice(lines) + case.random.choice(lines))
    return ["evaluate", TRAINED, "--data=digits@list.txt[:4]", "--suite=clean", "--run=run"]


def archive(case: Case) -> list[str]:
    """An archive of generated images that cannot be one."""
    images = np.zeros((6, 8, 8, 3), np.uint8)
    kinds: tuple[Any, ...] = (
        *(images, images[0], images[:0], images.astype(float), images[..., :1], images[:, :5], np.array([_Harm()])),
        *(np.asfortranarray(images), np.zeros((6, 0, 0, 3), np.uint8), images.astype(">u2"), np.zeros(())),
    )
    labels: tuple[Any, ...] = (
        *(np.arange(6), np.arange(6) - 3, np.arange(5), np.arange(6.0), np.arange(6) * 10**12, np.array(["a"] * 6)),
        *(np.zeros((6, 2), int), np.array([np.nan] * 6), np.arange(6, dtype=np.uint64) + 2**63, np.zeros(6, bool)),
    )
    chosen = {"image": case.random.choice(kinds[:1] * 6 + kinds), "label": case.random.choice(labels[:1] * 6 + labels)}
    path = case.folder / "given.npz"
    np.savez(path, allow_pickle=True, **chosen) if case.random.random() < 0.5 else np.savez_compressed(path, **chosen)
    content = bytearray(path.read_bytes())
    if case.random.random() < 0.4:
        content[case.random.randrange(len(content))] ^= 1 << case.random.randrange(8)
    path.write_bytes(content[: case.random.randrange(len(content))] if case.random.random() < 0.1 else content)
    more = [
        f"--{name}={case.random.choice(('0', '1', '10', '-1', '99999999999'))}" for name in ("classes", "shard-images")
    ]
    return [
        "data",
        "convert",
        "given.npz",
        "--out=shards",
        *(one for one in more if case.random.random() < 0.3),
        "--json",
    ]


def cifar(case: Case) -> list[str]:
    """CIFAR's pickles, with something else in them."""
    folder = case.folder / "cifar-10-batches-py"
    folder.mkdir()
    batch: dict[bytes, Any] = {b"data": np.zeros((4, 3072), np.uint8), b"labels": [0, 1, 2, 3]}
    names: dict[bytes, Any] = {b"label_names": [b"c%d" % number for number in range(10)]}
    odd: tuple[object, ...] = (
        _Harm(),
        None,
        [],
        {},
        "x",
        {b"data": None, b"labels": None},
        {**batch, b"labels": [0, 1, 2, 99]},
    )
    odd += (
        {**batch, b"labels": [-1, 0, 1, 2]},
        {**batch, b"data": np.zeros((4, 3), np.uint8)},
        {**batch, b"data": _Harm()},
    )
    odd += ({**batch, b"data": np.zeros((4, 3072), float)}, {**batch, b"labels": ["a"] * 4}, {b"label_names": [1] * 10})
    odd += ({b"label_names": [b"\xff"] * 10}, {b"label_names": [b"a"] * 3})
    files = {**{f"data_batch_{number}": batch for number in range(1, 6)}, "test_batch": batch, "batches.meta": names}
    changed = case.random.choice(sorted(files))
    for name, content in files.items():
        written: Any = case.random.choice(odd) if name == changed else content
        (folder / name).write_bytes(pickle.dumps(written, protocol=case.random.choice((0, 2, 4))))
    if case.random.random() < 0.3:
        path = folder / changed
        nested = b"\x80\x02" + b"]" * 10**7 + b"a" * (10**7 - 1) + b"."
        path.write_bytes(case.random.choice((b"", path.read_bytes()[:-7], b"\x80\x04" + bytes(20), nested)))
    return case.random.choice(
        (
            ["data", "check", "cifar10:.", "--json"],
            ["evaluate", TRAINED, "--data=cifar10:.", "--suite=clean", "--run=run"],
        )
    )


# ------------------------------------------------------------ pipes as arguments


def pipe(case: Case) -> list[str]:
    """A pipe where a command reads or writes: who opens one without care waits forever, or replaces a device."""
    path = case.folder / case.random.choice(("pipe", "given/pipe"))
    path.parent.mkdir(exist_ok=True)
    names = ("", ".pth", ".safetensors", ".npz", ".txt", ".png", ".html")
    for name in names:
        os.mkfifo(f"{path}{name}")
    np.savez(case.folder / "given.npz", image=np.zeros((6, 8, 8, 3), np.uint8), label=np.arange(6))
    given = path.relative_to(case.folder)
    train = ["train", "digits-standard", "--data=digits[:40]", "--set=plan.epochs=1"]
    return case.random.choice(
        (
            *(["models", f"{given}.safetensors"], ["models", f"timm:test_vit@{given}.pth"], ["models", f"{given}"]),
            *(
                ["report", f"{given}"],
                ["report", TRAINED, f"--out={given}.html"],
                ["report", TRAINED, f"--out={given}"],
            ),
            *(["report", TRAINED, f"--tables={given}"], ["report", TRAINED, f"--out={given}/page.html"]),
            ["evaluate", TRAINED, f"--data=digits@{given}.txt[:4]", "--suite=clean", "--run=run"],
            ["evaluate", TRAINED, "--data=digits[:4]", "--suite=clean", f"--run={given}"],
            *([*train, f"--run={given}"], [*train, f"--run={given}/run"], ["demo", f"--out={given}"]),
            *(["data", "convert", f"{given}.npz", "--out=run"], ["data", "convert", "given.npz", f"--out={given}"]),
            *(["data", "describe", f"shards:{given}"], ["data", "check", f"folder:{given}"]),
            ["data", "show", "digits", "--copies=1", "--augmentation=mixup", f"--out={given}.png"],
        )
    )


FILES: tuple[Callable[[Case], list[str]], ...] = (
    *(changed_header, changed_header, changed_header, broken_container, pickled, changed_manifest, changed_manifest),
    *(image_folder, image_folder, listed, archive, cifar, pipe, pipe),
)
