"""Commands as SECURITY.md describes them: they open no connection and start no program but git."""

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
from torch import nn

Command = Callable[..., tuple[int, str, str]]


def test_commands_open_no_connection_and_start_git_alone(
    vitadel: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    started: list[str] = []
    create, start = timm.create_model, subprocess.Popen.__init__

    def connect(*args: object) -> None:
        opened.append(args)
        raise OSError("the network was used")

    def recorded(self: object, words: list[str], *args: object, **kwargs: object) -> None:
        started.append(words[0])
        start(self, words, *args, **kwargs)  # type: ignore[call-overload]

    def unpublished(name: str, **options: object) -> nn.Module:
        assert options["pretrained"] is False
        return create(name, **options)

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "connect_ex", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    monkeypatch.setattr(subprocess.Popen, "__init__", recorded)
    monkeypatch.setattr(timm, "create_model", unpublished)
    short = ("--set", "plan.epochs=1", "--set", "plan.warmup_epochs=0", "--data", "digits[:32]")
    judge = ("--data", "digits[:8]", "--run")
    for words in (
        ("train", "digits-standard", *short, "--run", tmp_path / "t"),
        ("evaluate", trained, "--suite", "clean", *judge, tmp_path / "e"),
        ("analyze", "correlation", trained, *judge, tmp_path / "a"),
        ("report", trained, tmp_path / "e", "--out", tmp_path / "page.html"),
        ("models", "timm:test_vit"),
    ):
        code, _, err = vitadel(*words)
        assert code == 0, err
    assert opened == []
    assert set(started) <= {"git"}
    assert started
