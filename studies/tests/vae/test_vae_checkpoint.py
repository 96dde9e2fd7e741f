"""Checkpoints come back to the bit, and damage never goes unnoticed."""

import errno
import io
import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import pytest
import safetensors.torch
import torch
from checkpoint_cases import at_step, damage, names, safetensors_of, same, step_of
from hypothesis import given, settings

from tailsum_studies.vae import checkpoint as module
from tailsum_studies.vae.checkpoint import Checkpoint, read, write

DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.safetensors"


# There and back.


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = math.prod(shape) * dtype.itemsize
    content = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype == torch.bool:
        content = bytearray(byte & 1 for byte in content)
    tensor = torch.frombuffer(content, dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    change = draw(st.sampled_from(["none", "transposed", "every other", "expanded"]))
    if change == "transposed":
        return tensor.movedim(0, -1) if shape else tensor
    if change == "every other":
        return tensor[..., ::2] if shape else tensor
    return tensor.expand(2, *shape) if change == "expanded" else tensor


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FACTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200)
@given(st.dictionaries(NAMES, tensors(), max_size=4), st.dictionaries(st.text(max_size=5), FACTS, max_size=4))
def test_comes_back_to_the_bit(tmp_path_factory, tensors, facts):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    checkpoint = Checkpoint(tensors, facts)
    write(path, checkpoint)
    same(read(path), checkpoint)
    assert set(safetensors.torch.load_file(path)) == set(tensors)


def test_parameters_and_shared_memory(path):
    weight = torch.nn.Parameter(torch.randn(4, 3))
    tensors = {"weight": weight, "tied": weight, "turned": weight.mT, "part": weight[1:3], "negative": _negative()}
    assert tensors["negative"].is_neg()
    write(path, Checkpoint(tensors, {}))
    found = read(path).tensors
    same(Checkpoint(found, {}), Checkpoint({**tensors, "negative": tensors["negative"].resolve_neg()}, {}))
    found["tied"].zero_()
    assert torch.equal(found["weight"], weight)
    assert not any(tensor.requires_grad for tensor in found.values())


def _negative():
    """A view whose memory holds the negatives of its elements."""
    return torch.randn(3, dtype=torch.complex64).conj().imag


def test_a_generator_goes_on_where_it_was(path, generator):
    torch.rand(5, generator=generator)
    write(path, Checkpoint({"generator": generator.get_state()}, {}))
    wanted = torch.rand(5, generator=generator)
    again = torch.Generator()
    again.set_state(read(path).tensors["generator"])
    assert torch.equal(torch.rand(5, generator=again), wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_on_a_gpu(path):
    weight = torch.randn(4, 3, device="cuda")
    tensors = {"weight": weight, "turned": weight.mT, "half": weight.bfloat16(), "none": weight[:0]}
    write(path, Checkpoint(tensors, {}))
    same(read(path), Checkpoint(tensors, {}))


def test_reads_to_the_cpu_whatever_the_default(path):
    checkpoint = Checkpoint({"some": torch.ones(2), "none": torch.ones(0, 2)}, {})
    with torch.device("meta"):
        write(path, checkpoint)
        same(read(path), checkpoint)


def test_facts_that_try_to_look_like_the_digest(path):
    zeros = "0" * 64
    looks = f'"digest":"{zeros}"'
    checkpoint = Checkpoint({looks: torch.ones(1), "digest": torch.ones(2)}, {"digest": zeros, looks: looks, "x": "\\"})
    write(path, checkpoint)
    same(read(path), checkpoint)


def test_facts_without_bound(path):
    write(path, Checkpoint({}, {"best": math.inf, "worst": -math.inf, "none": math.nan, "rates": (0.5, 0.25)}))
    facts = read(path).facts
    assert math.isnan(facts.pop("none"))
    assert facts == {"best": math.inf, "worst": -math.inf, "rates": [0.5, 0.25]}


@pytest.mark.parametrize(
    ("tensors", "facts", "text"),
    [
        ({}, {"a": torch.ones(2)}, "facts must be what JSON can hold: .*Tensor"),
        ({"__metadata__": torch.ones(2)}, {}, "tensors must not have the name '__metadata__'"),
        ({"a": torch.eye(2).to_sparse()}, {}, r"tensors\['a'\] must be dense and hold values: got torch.sparse_coo"),
        ({"a": torch.ones(2, device="meta")}, {}, r"tensors\['a'\] must be dense and hold values: .*meta"),
        ({"a": torch.ones(2, dtype=torch.complex128)}, {}, "what a safetensors file can hold: got torch.complex128"),
    ],
)
def test_what_cannot_be_kept(path, tensors, facts, text):
    with pytest.raises(ValueError, match=text):
        write(path, Checkpoint(tensors, facts))
    assert not names(path.parent)


# Damage.


@pytest.fixture
def content(path):
    """A small file, in whose header there is padding."""
    write(path, Checkpoint({"w": torch.randn(5), "n": torch.arange(3)}, {"step": 12, "name": "é\n"}))
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert content[7 + length : 8 + length] == b" "
    return content


@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80, 0xFF])
def test_every_flipped_byte_is_found(path, content, mask):
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= mask
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="must be a checkpoint: "):
            read(path)


def test_safetensors_alone_would_not_find_it(path, content):
    damage(path)
    assert len(safetensors.torch.load_file(path)) == 2
    with pytest.raises(ValueError, match=r"a.safetensors must be a checkpoint: it is damaged: bytes are missing or"):
        read(path)


def test_changes_that_mean_the_same_are_found(path, content):
    length = int.from_bytes(content[:8], "little")
    path.write_bytes(content[: 7 + length] + b"\n" + content[8 + length :])
    assert len(safetensors.torch.load_file(path)) == 2
    with pytest.raises(ValueError, match="damaged"):
        read(path)


def test_every_truncation_is_found(path, content):
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="it is cut short" if length < 9 else "bytes are missing"):
            read(path)


def test_bytes_behind_the_end_are_found(path, content):
    path.write_bytes(content + b"\0")
    with pytest.raises(ValueError, match="damaged"):
        read(path)


def _header(text):
    return len(text).to_bytes(8, "little") + text


def _torch_save():
    file = io.BytesIO()
    torch.save({"w": torch.ones(2)}, file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "cut short, or something else: it has 0 bytes"),
        (b"short", "cut short, or something else: it has 5 bytes"),
        (b"The text of a file.", "not a safetensors file"),
        (_torch_save(), "not a safetensors file"),
        (safetensors_of(None), "of something else .its format must be 'tailsum-vae', and is None"),
        (safetensors_of({"format": "pt"}), "of something else .its format must be 'tailsum-vae', and is 'pt'"),
        (_header(b'{"__metadata__":3}'), "of something else"),
        (_header(b'{"a":' * 100_000), "damaged"),
        (_header(b'{"a":"\xff"}'), "damaged"),
    ],
    ids=["empty", "short", "text", "torch", "no metadata", "another format", "odd metadata", "nested", "not UTF-8"],
)
def test_files_of_others(path, content, text):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"a.safetensors must be a checkpoint: it .*{text}"):
        read(path)


def test_a_pickle_is_not_run(path, tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="not a safetensors file"):
        read(path)
    assert not (tmp_path / "sprung").exists()


def test_a_newer_version(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "VERSION", 2)
        write(path, at_step(1))
        assert step_of(read(path)) == 1
    with pytest.raises(ValueError, match="version 2 of the format, and this tailsum reads version 1: a newer tailsum"):
        read(path)


def test_tensors_of_a_newer_safetensors(path):
    write(path, at_step(1))
    sealed = path.read_bytes().replace(b'"F32"', b'"F99"')
    digest = sealed.split(b'"digest":"')[1][:64].decode()
    content = module._with_digest(sealed, digest, "0" * 64)
    path.write_bytes(module._with_digest(content, "0" * 64, module._digest(content)))
    with pytest.raises(ValueError, match=r"tensors that this version of safetensors can read: .*F99"):
        read(path)


def test_files_that_cannot_be_read(path, monkeypatch):
    with pytest.raises(ValueError, match=r"a.safetensors must be a checkpoint: it does not exist"):
        read(path)
    path.mkdir()
    with pytest.raises(ValueError, match=r"a.safetensors must be a checkpoint: it cannot be read \(Is a directory\)"):
        read(path)

    def denied(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(
        ValueError, match=r"a.safetensors must be a checkpoint: it cannot be read \(Permission denied\)"
    ):
        read(path)


# Without safetensors.


def test_safetensors_is_loaded_when_it_is_needed():
    code = "import sys, tailsum_studies.vae.checkpoint; sys.exit('safetensors' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_facts_are_there_for_other_programs(path):
    write(path, Checkpoint({"w": torch.ones(2)}, {"step": 3}))
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "tailsum-vae"
    assert json.loads(metadata["facts"]) == {"step": 3}
