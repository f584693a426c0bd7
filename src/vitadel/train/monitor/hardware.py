"""Time, energy, memory and utilization of the hardware during training, and FLOPs."""

import ctypes
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from vitadel.models import Model, cost

# dense matrix products in bf16 with float32 sums, per second, as NVIDIA's data sheets give them (V100 has only fp16).
# The names must match exactly: PCIe, NVL, Laptop and MIG variants have other peaks.
PEAK_FLOPS: dict[str, float] = {
    r"NVIDIA H200": 989e12,
    r"NVIDIA H100 80GB HBM3": 989e12,
    r"NVIDIA A100(-SXM4-\d+GB|-PCIE-\d+GB| 80GB PCIe)": 312e12,
    r"NVIDIA GeForce RTX 4090": 165e12,
    r"NVIDIA L4": 121e12,
    r"Tesla V100-SXM[23]-\d+GB.*": 125e12,
}


class _Rates(ctypes.Structure):
    """Percent of the last sampling interval in which a kernel ran, and in which memory was read or written."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


@dataclass(slots=True)
class Nvml:
    """One GPU in NVIDIA's management library; a quantity that the card does not report is None."""

    library: ctypes.CDLL
    handle: ctypes.c_void_p
    clock: Callable[[], float] = time.monotonic
    _summed: float = field(default=0.0, repr=False)
    _last: tuple[float, float] | None = field(default=None, repr=False)

    @classmethod
    def open(cls, device: torch.device) -> "Nvml | None":
        """The GPU of a torch device; None where it cannot be determined."""
        if device.type != "cuda":
            return None
        try:
            index = torch.cuda.current_device() if device.index is None else device.index
            # torch counts only the cards in CUDA_VISIBLE_DEVICES, NVML all of them: the UUID identifies it
            uuid = str(torch.cuda.get_device_properties(index).uuid)
            return cls.of(ctypes.CDLL("libnvidia-ml.so.1"), uuid)
        except (OSError, AttributeError, RuntimeError, AssertionError):
            return None

    @classmethod
    def of(cls, library: ctypes.CDLL, uuid: str) -> "Nvml | None":
        """The card with this UUID, with or without its `GPU-` in front; None if the library does not know it."""
        handle = ctypes.c_void_p()
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        try:
            # not shut down, because other code in the process may use it
            if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)):
                return None
        except AttributeError:  # an older library without these names
            return None
        return cls(library, handle)

    def utilization(self) -> float | None:
        """Percent of the last sampling interval (a sixth of a second to a second) in which a kernel ran."""
        rates = _Rates()
        return float(rates.gpu) if self._query("nvmlDeviceGetUtilizationRates", rates) else None

    def power(self) -> float | None:
        """Watts."""
        milliwatts = ctypes.c_uint()
        return milliwatts.value / 1e3 if self._query("nvmlDeviceGetPowerUsage", milliwatts) else None

    def energy(self) -> float | None:
        """Joules since an arbitrary time: only differences are meaningful.

        Where the card does not count them (before Volta), power is summed over the time between calls.
        """
        millijoules = ctypes.c_ulonglong()
        if self._query("nvmlDeviceGetTotalEnergyConsumption", millijoules):
            return millijoules.value / 1e3
        watts, now = self.power(), self.clock()
        if watts is None:
            return None
        if self._last is not None:
            before, then = self._last
            self._summed += (before + watts) / 2 * (now - then)
        self._last = (watts, now)
        return self._summed

    def _query(self, function: str, value: "ctypes.Structure | ctypes._SimpleCData[int]") -> bool:
        call = getattr(self.library, function, None)
        return call is not None and call(self.handle, ctypes.byref(value)) == 0


class Meter:
    """Time, energy and memory since the last reading.

    `world_size` counts the processes, one device each. Time is taken as the same for all; energy, utilization and
    memory are this process's.
    """

    def __init__(
        self,
        device: torch.device,
        world_size: int = 1,
        *,
        nvml: Nvml | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._device, self._world_size, self._clock = device, world_size, clock
        self._nvml = nvml or Nvml.open(device)
        self.start()

    def start(self) -> None:
        """Reset the counters."""
        self._seconds, self._processor = self._clock(), time.process_time()
        self._energy = self._nvml.energy() if self._nvml else None
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def read(self) -> dict[str, float]:
        """The numbers since the last reading or start; unknown ones are left out.

        seconds         by the clock
        gpu_hours       of all processes together; 0 without a GPU
        cpu_hours       only without a GPU: processor time of this process, times the number of processes
        energy_joules   of this process's GPU, everything on it included
        utilization     percent, of the last sampling interval only
        memory_mib      peak memory that torch allocated on the GPU since the last reading, CUDA graphs included;
                        without a GPU, peak memory of the process
        """
        seconds, processor = self._clock() - self._seconds, time.process_time() - self._processor
        on_gpu = self._device.type == "cuda"
        hours = {"gpu_hours": seconds * self._world_size / 3600 if on_gpu else 0.0}
        if not on_gpu:
            hours["cpu_hours"] = processor * self._world_size / 3600
        read = {
            "energy_joules": self._spent_energy(),
            "utilization": self._nvml.utilization() if self._nvml else None,
            "memory_mib": _peak_on(self._device) if on_gpu else _peak_resident(),
        }
        self.start()
        return {"seconds": seconds, **hours, **{name: value for name, value in read.items() if value is not None}}

    def _spent_energy(self) -> float | None:
        now = self._nvml.energy() if self._nvml else None
        return None if now is None or self._energy is None else now - self._energy


def forward_flops(model: Model) -> float:
    """FLOPs of one image's forward pass, products inside attention counted; two per multiply-accumulate."""
    assert model.spec is not None
    return 2.0 * cost(model, model.spec.image_size).macs


def achieved_flops(images_per_second: float, forward_flops_per_image: float, passes: float) -> float:
    """FLOPs per second of the model itself.

    `passes` is the work per image in forward passes: a backward pass to the weights counts 2, one to the pixels alone
    1. Standard training is 3, adversarial training with k steps 2k + 3, TRADES 2k + 7. Recomputed activations are not
    counted.
    """
    return images_per_second * forward_flops_per_image * passes


def peak_flops(name: str) -> float | None:
    """Peak FLOPs per second of a GPU, named as by `torch.cuda.get_device_name`; None if unknown."""
    return next((peak for card, peak in PEAK_FLOPS.items() if re.fullmatch(card, name)), None)


def _peak_on(device: torch.device) -> float:
    """Peak memory in MiB. Torch's counter lacks tensors of CUDA graphs, so their whole segments are added."""
    segments = torch.cuda.memory_snapshot()
    graphs = [one for one in segments if one.get("segment_pool_id", (0, 0)) != (0, 0)]
    unseen = sum(one["total_size"] - one["allocated_size"] for one in graphs)
    return float(torch.cuda.max_memory_allocated(device) + unseen) / 2**20


def _peak_resident() -> float | None:
    """Peak memory of this process in MiB."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
