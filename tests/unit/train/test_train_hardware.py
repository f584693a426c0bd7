"""Meters: readings of a library with known values, and no errors where there is none."""

import ctypes
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from vitadel import models
from vitadel.train.monitor.hardware import Meter, Nvml, achieved_flops, forward_flops, peak_flops

UUID = "8a6e9b1c-0000-1111-2222-333344445555"
NOT_SUPPORTED = 3


class Card:
    """A management library with one card, whose readings a test sets."""

    def __init__(self, *, counts_energy: bool = True) -> None:
        self.uuids: list[bytes] = []
        self.millijoules, self.milliwatts, self.counts_energy = 5_000, 300_000, counts_energy

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: object) -> int:
        self.uuids.append(uuid)
        handle._obj.value = 42  # type: ignore[attr-defined]
        return 0 if uuid == f"GPU-{UUID}".encode() else NOT_SUPPORTED

    def nvmlDeviceGetUtilizationRates(self, handle: ctypes.c_void_p, rates: object) -> int:
        assert handle.value == 42
        rates._obj.gpu, rates._obj.memory = 87, 12  # type: ignore[attr-defined]
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: ctypes.c_void_p, power: object) -> int:
        power._obj.value = self.milliwatts  # type: ignore[attr-defined]
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: ctypes.c_void_p, energy: object) -> int:
        energy._obj.value = self.millijoules  # type: ignore[attr-defined]
        return 0 if self.counts_energy else NOT_SUPPORTED


def of(library: object, uuid: str = UUID) -> Nvml | None:
    return Nvml.of(cast(ctypes.CDLL, library), uuid)


def opened(card: Card, clock: Callable[[], float] = lambda: 0.0) -> Nvml:
    nvml = of(card)
    assert nvml is not None
    nvml.clock = clock
    return nvml


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_readings_are_in_common_units() -> None:
    nvml = opened(Card())
    assert (nvml.utilization(), nvml.power(), nvml.energy()) == (87.0, 300.0, 5.0)


def test_the_gpu_is_found_by_its_uuid_with_or_without_prefix() -> None:
    card = Card()
    assert of(card) is not None
    assert of(card, f"GPU-{UUID}") is not None
    assert card.uuids == [f"GPU-{UUID}".encode()] * 2
    assert of(card, "another") is None


def test_a_failing_nvml_is_no_error() -> None:
    assert of(SimpleNamespace()) is None
    broken = Card()
    broken.nvmlInit_v2 = lambda: 9  # type: ignore[method-assign]
    assert of(broken) is None
    bare = SimpleNamespace(nvmlInit_v2=lambda: 0, nvmlDeviceGetHandleByUUID=lambda uuid, handle: 0)
    silent = of(bare)
    assert silent is not None
    assert (silent.utilization(), silent.power(), silent.energy()) == (None,) * 3


def test_the_gpu_is_selected_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    card, loaded = Card(), list[str]()

    def load(name: str) -> Card:
        loaded.append(name)
        return card

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    seen = list[int]()

    def properties(index: int) -> SimpleNamespace:
        seen.append(index)
        return SimpleNamespace(uuid=UUID)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    assert Nvml.open(torch.device("cpu")) is None
    assert loaded == []
    assert Nvml.open(torch.device("cuda", 3)) is not None
    assert Nvml.open(torch.device("cuda")) is not None
    assert (seen, loaded) == ([3, 1], ["libnvidia-ml.so.1"] * 2)

    def missing(name: str) -> Card:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert Nvml.open(torch.device("cuda", 0)) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
def test_a_missing_gpu_is_no_error() -> None:
    assert Nvml.open(torch.device("cuda", 0)) is None


def test_energy_is_integrated_from_power_without_a_counter() -> None:
    card, clock = Card(counts_energy=False), Clock()
    nvml = opened(card, clock)
    assert nvml.energy() == 0.0
    clock.now, card.milliwatts = 102.0, 500_000
    assert nvml.energy() == (300 + 500) / 2 * 2
    clock.now = 103.0
    assert nvml.energy() == 800 + 500


def test_a_meter_reads_the_use_since_the_last_reading() -> None:
    card, clock = Card(), Clock()
    meter = Meter(torch.device("cpu"), 4, nvml=opened(card), clock=clock)
    clock.now, card.millijoules = 136.0, 12_500
    read = meter.read()
    assert (read["seconds"], read["energy_joules"], read["utilization"]) == (36.0, 7.5, 87.0)
    clock.now = 137.0
    read = meter.read()
    assert (read["seconds"], read["energy_joules"]) == (1.0, 0.0)
    clock.now, card.millijoules = 200.0, 99_000
    meter.start()  # the validation on the hold-out does not count as training
    clock.now = 201.0
    assert meter.read()["seconds"] == 1.0


def test_hours_are_summed_over_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    resets = list[torch.device]()
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7 * 2**20)
    segments = [
        {"segment_pool_id": (0, 0), "total_size": 64 * 2**20, "allocated_size": 2**20},  # torch's own: counted above
        {"segment_pool_id": (0, 3), "total_size": 8 * 2**20, "allocated_size": 3 * 2**20},  # of a recording
        {"segment_pool_id": (1, 0), "total_size": 2 * 2**20, "allocated_size": 2**20},  # of another one
        {"total_size": 32 * 2**20, "allocated_size": 2**20},  # of a pool unknown to torch
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    clock, gpu = Clock(), torch.device("cuda", 0)
    meter = Meter(gpu, 8, nvml=opened(Card()), clock=clock)
    clock.now += 3600
    read = meter.read()
    assert (read["gpu_hours"], read["memory_mib"]) == (8.0, 13.0)
    assert "cpu_hours" not in read
    assert resets == [gpu, gpu]  # the peak is that of the time since the last reading


def test_without_a_gpu_time_and_memory_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = Clock()
    monkeypatch.setattr(time, "process_time", processor)
    meter = Meter(torch.device("cpu"), 2)
    processor.now += 1800
    read = meter.read()
    assert set(read) == {"seconds", "gpu_hours", "cpu_hours", "memory_mib"}
    assert (read["gpu_hours"], read["cpu_hours"]) == (0.0, 1.0)
    assert 50 < read["memory_mib"] < 100_000  # torch alone is more than the one


def test_flops_match_the_costs_of_the_model() -> None:
    options = {"depth": 1, "embed_dim": 32, "num_heads": 2}
    model = models.load("timm:test_vit", num_classes=10, image_size=8, patch_size=2, options=options)
    flops = forward_flops(model)
    assert flops == 1e9 * models.cost(model, 8).gflops
    assert achieved_flops(100.0, flops, 7) == 700 * flops


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", None),
        ("Tesla V100-SXM2-16GB", 125e12),
        ("Tesla V100-PCIE-16GB", None),
    ],
)
def test_peaks_are_known_for_exact_names_only(name: str, peak: float | None) -> None:
    assert peak_flops(name) == peak


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_gpu_is_read() -> None:
    device = torch.device("cuda", 0)
    nvml = Nvml.open(device)
    assert nvml is not None
    meter = Meter(device)
    x = torch.randn(4096, 4096, device=device)
    for _ in range(200):
        x = (x @ x).clamp(-1, 1)
    torch.cuda.synchronize()
    watts = nvml.power()
    read = meter.read()
    assert watts is not None
    assert 10 < watts < 2000
    assert read["energy_joules"] >= 0
    assert read["memory_mib"] >= 64
    assert 0 <= read["utilization"] <= 100
