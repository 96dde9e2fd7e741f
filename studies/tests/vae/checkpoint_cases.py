"""Checkpoints of a step all of whose parts tell the step."""

import safetensors.torch
import torch

from tailsum_studies.vae.checkpoint import Checkpoint


def at_step(step):
    return Checkpoint({"weight": torch.full((3,), float(step)), "step": torch.tensor(step)}, {"step": step})


def step_of(checkpoint):
    """The step of a checkpoint all of whose parts agree on it."""
    step = checkpoint.facts["step"]
    same(checkpoint, at_step(step))
    return step


def bits(tensor):
    plain = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def kind(tensor):
    return tensor.dtype, tensor.shape, bits(tensor)


def same(found, wanted):
    assert found.facts == wanted.facts
    assert {name: kind(t) for name, t in found.tensors.items()} == {name: kind(t) for name, t in wanted.tensors.items()}
    assert all(tensor.device.type == "cpu" for tensor in found.tensors.values())


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def refuse(*steps):
    def accept(checkpoint):
        if checkpoint.facts["step"] in steps:
            raise ValueError(f"step {checkpoint.facts['step']} is not wanted")

    return accept


def never(text):
    raise AssertionError(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def safetensors_of(metadata):
    return safetensors.torch.save({"w": torch.ones(2)}, metadata)
