"""The machine that a benchmark runs on, as `machine.json` has it."""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from tailsum_studies.files import whole

PACKAGES = ("tailsum", "torch", "triton", "torch-struct", "pytorch-crf", "hmmlearn", "supar")
SAME = ("device", "threads", "torch", "triton")  # rows of one file were measured with the same


def device_from(name: str | None) -> torch.device:
    """The device of this name, or a GPU if there is one; a ValueError if it is not here."""
    try:
        found = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ValueError(f"--device must be cpu, cuda or cuda:1: got {name!r}") from None
    if found.type not in {"cpu", "cuda"}:
        raise ValueError(f"--device must be cpu, cuda or cuda:1: got {name!r}")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no GPU here")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {name}: torch finds {torch.cuda.device_count()} GPUs here")
    return found


def machine(device: torch.device) -> dict[str, str]:
    """Processor, memory and versions; what is not installed is left out."""
    memory = total_bytes(device) / 2**30
    facts = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "kind": device.type,
        "memory": f"{memory:.0f} GiB",
        "threads": str(torch.get_num_threads()),
        "precision": "float32",
        "Python": platform.python_version(),
    }
    found = {name: text for name in PACKAGES if (text := _version(name))}
    return facts | found | {"torch": torch.__version__}


def total_bytes(device: torch.device) -> int:
    """All memory of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_bytes(device: torch.device) -> int:
    """The memory that may be used now."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    lines = Path("/proc/meminfo")
    if lines.exists():
        found = dict(line.split(":") for line in lines.read_text().splitlines())
        return int(found["MemAvailable"].split()[0]) << 10
    return total_bytes(device) // 2


def claim(folder: Path, facts: dict[str, str]) -> None:
    """Write `machine.json`, or check that what is there is the same machine: times of two are not compared."""
    path = folder / "machine.json"
    if path.exists():
        before = read_machine(folder)
        for name in SAME:
            if before.get(name) != facts.get(name):
                raise ValueError(
                    f"{folder} has results of another machine ({name}: {before.get(name)}, here {facts.get(name)}): "
                    "name another --output, or add --fresh"
                )
    with whole(path) as file:
        file.write(json.dumps(facts, indent=2) + "\n")


def read_machine(folder: Path) -> dict[str, str]:
    """What `machine.json` says; a ValueError if it is missing or damaged."""
    try:
        return {str(name): str(value) for name, value in json.loads((folder / "machine.json").read_text()).items()}
    except FileNotFoundError:
        raise ValueError(f"{folder} has no results: machine.json is missing") from None
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{folder / 'machine.json'} cannot be read ({error}): run again with --fresh") from None


def _processor() -> str:
    lines = Path("/proc/cpuinfo")
    if lines.exists():
        for line in lines.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
