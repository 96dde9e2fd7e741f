"""Checkpoints come back to the bit, damage never goes unnoticed, and a crash at any moment leaves a whole one."""

import errno
import io
import itertools
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
from hypothesis import given, settings

from tailsum.apps.vae import checkpoint as module
from tailsum.apps.vae.checkpoint import BEST, LAST, PREVIOUS, Checkpoint, Keeper, read, write

DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
]
STATES = ("nothing", "one", "two", "only previous", "damaged last", "refused last")


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


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.safetensors"


@pytest.fixture
def keeper(tmp_path):
    return Keeper(tmp_path / "run")


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


def _safetensors(metadata):
    return safetensors.torch.save({"w": torch.ones(2)}, metadata)


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
        (_safetensors(None), "of something else .its format must be 'tailsum-vae', and is None"),
        (_safetensors({"format": "pt"}), "of something else .its format must be 'tailsum-vae', and is 'pt'"),
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


# The last, the one before it, and the best.


def test_none_at_first(keeper):
    assert keeper.latest(never) is None
    with pytest.raises(ValueError, match=r"best.safetensors must be a checkpoint: it does not exist. Train first"):
        keeper.best(never)
    assert not keeper.folder.exists()


def test_last_and_previous(keeper):
    for step in (1, 2, 3):
        keeper.save(at_step(step))
        assert step_of(keeper.latest(never)) == step
    assert names(keeper.folder) == [LAST, PREVIOUS]
    assert step_of(read(keeper.folder / PREVIOUS)) == 2


def test_best(keeper):
    for step in (5, 4):
        keeper.save_best(at_step(step))
        assert step_of(keeper.best(never)) == step
    assert keeper.latest(never) is None
    damage(keeper.folder / BEST)
    with pytest.raises(ValueError, match=r"best.safetensors must be a checkpoint: it is damaged"):
        keeper.best(never)


@pytest.mark.parametrize("how", ["missing", "damaged", "refused"])
def test_the_last_in_place_of_the_best(keeper, how):
    keeper.save_best(at_step(1))
    keeper.save(at_step(2))

    def accept(checkpoint):
        if how == "refused" and step_of(checkpoint) == 1:
            raise ValueError("not this one")

    if how == "missing":
        (keeper.folder / BEST).unlink()
    elif how == "damaged":
        damage(keeper.folder / BEST)
    said = []
    assert step_of(keeper.best(said.append, accept)) == 2
    assert len(said) == 1
    assert str(keeper.folder / BEST) in said[0]
    assert said[0].endswith("The last one takes its place")


def test_the_previous_one_without_a_last(keeper):
    keeper.save(at_step(1))
    (keeper.folder / LAST).rename(keeper.folder / PREVIOUS)
    assert step_of(keeper.latest(never)) == 1
    keeper.save(at_step(2))
    assert [step_of(read(keeper.folder / name)) for name in (LAST, PREVIOUS)] == [2, 1]


def test_a_leftover_draft_is_ignored(keeper):
    keeper.folder.mkdir()
    draft = keeper.folder / f"{LAST}.part"
    draft.write_bytes(b"x" * 10_000)
    assert keeper.latest(never) is None
    keeper.save(at_step(1))
    assert step_of(keeper.latest(never)) == 1
    assert not draft.exists()


@pytest.mark.parametrize("ask", [True, False])
@pytest.mark.parametrize("spoil", [damage, lambda path: path.write_bytes(_safetensors({"format": "pt"}))])
def test_a_damaged_last_one(keeper, spoil, ask):
    keeper.save(at_step(1))
    keeper.save(at_step(2))
    spoil(keeper.folder / LAST)
    if ask:
        complaints = []
        assert step_of(keeper.latest(complaints.append)) == 1
        (complaint,) = complaints
        assert "last.safetensors must be a checkpoint: it is " in complaint
    keeper.save(at_step(3))
    assert [step_of(read(keeper.folder / name)) for name in (LAST, PREVIOUS)] == [3, 1]
    keeper.save(at_step(4))
    assert [step_of(read(keeper.folder / name)) for name in (LAST, PREVIOUS)] == [4, 3]


def test_a_refused_last_one(keeper):
    keeper.save(at_step(1))
    keeper.save(at_step(2))
    complaints = []
    assert step_of(keeper.latest(complaints.append, refuse(2))) == 1
    assert [complaint.split("run/")[1] for complaint in complaints] == [
        "last.safetensors cannot be used here: step 2 is not wanted"
    ]
    keeper.save(at_step(3))
    assert [step_of(read(keeper.folder / name)) for name in (LAST, PREVIOUS)] == [3, 1]
    keeper.save(at_step(4))
    assert [step_of(read(keeper.folder / name)) for name in (LAST, PREVIOUS)] == [4, 3]


def test_a_last_one_accepted_later(keeper):
    keeper.save(at_step(1))
    keeper.save(at_step(2))
    keeper.latest(lambda _: None, refuse(2))
    assert step_of(keeper.latest(never)) == 2
    keeper.save(at_step(3))
    assert [step_of(read(keeper.folder / name)) for name in (LAST, PREVIOUS)] == [3, 2]


def test_none_that_can_be_used(keeper):
    keeper.save(at_step(1))
    with pytest.raises(ValueError, match=r"step 1 is not wanted$"):
        keeper.latest(lambda _: None, refuse(1))
    keeper.save(at_step(2))
    keeper.save(at_step(3))
    damage(keeper.folder / LAST)
    complaints = []
    with pytest.raises(ValueError, match="run must hold a checkpoint that can be used, or none") as error:
        keeper.latest(complaints.append, refuse(2))
    assert len(complaints) == 2
    assert str(error.value).endswith("; ".join(complaints))
    assert "last.safetensors must be a checkpoint: it is damaged" in complaints[0]
    assert "previous.safetensors cannot be used here: step 2" in complaints[1]


def test_other_errors_of_accept_pass(keeper):
    keeper.save(at_step(1))
    with pytest.raises(KeyError, match="absent"):
        keeper.latest(never, lambda checkpoint: checkpoint.facts["absent"])


# Crashes and full disks.


class Crash(BaseException):
    """The end of the process: nothing it would have done afterwards happens."""


class Failure:
    """Raises an error at some call that does something to a file, counted from 0; a crash at every later one, too."""

    def __init__(self, monkeypatch, moment, error):
        self.count, self.moment, self.error = 0, moment, error
        for name in ("fsync", "open", "replace", "unlink"):
            monkeypatch.setattr(os, name, self.counted(getattr(os, name)))
        monkeypatch.setattr(Path, "open", self.opened(Path.open))

    def __call__(self):
        number, self.count = self.count, self.count + 1
        if number == self.moment or (number > self.moment and isinstance(self.error, Crash)):
            raise self.error

    def counted(self, function):
        def counted(*args, **kwargs):
            self()
            return function(*args, **kwargs)

        return counted

    def opened(self, function):
        def opened(path, mode, *args, **kwargs):
            if mode != "wb":
                return function(path, mode, *args, **kwargs)
            self()
            return io.BufferedWriter(Pieces(path, self), buffer_size=10_000)  # as many calls each time

        return opened


class Pieces(io.FileIO):
    """A file that is written in many calls."""

    def __init__(self, path, call):
        super().__init__(path, "w")
        self.call = call

    def write(self, data):
        self.call()
        return super().write(bytes(data)[:50])


def failures(monkeypatch, error, prepare, save):
    """What `prepare` gives, after `save` of it has failed: at its first call, at its second, until it does not fail."""
    for moment in itertools.count():
        prepared = prepare(str(moment))
        with monkeypatch.context() as patch:
            failure = Failure(patch, moment, error)
            try:
                save(prepared)
            except (Crash, OSError) as found:
                assert found is error  # noqa: PT017  (at the end, there is none)
            else:
                assert failure.count == moment > 10
                return
        yield prepared


def prepared(folder, state):
    """A keeper of a folder in some state, the step that `latest` gives there, and what is accepted."""
    keeper = Keeper(folder)
    accept = refuse(2) if state == "refused last" else refuse()
    for step in range(1, {"nothing": 0, "one": 1, "only previous": 1}.get(state, 2) + 1):
        keeper.save(at_step(step))
    if state == "only previous":
        (folder / LAST).rename(folder / PREVIOUS)
    if state == "damaged last":
        damage(folder / LAST)
    found = keeper.latest(lambda _: None, accept)
    return keeper, found and step_of(found), accept


def steps_after(monkeypatch, error, tmp_path, state):
    """For each moment at which saving step 9 may fail: a keeper, what is accepted, and the latest step before and now."""
    for keeper, before, accept in failures(
        monkeypatch, error, lambda name: prepared(tmp_path / name, state), lambda p: p[0].save(at_step(9))
    ):
        again = Keeper(keeper.folder)
        found = again.latest(lambda _: None, accept)
        yield again, accept, before, found and step_of(found)


@pytest.mark.parametrize("state", STATES)
def test_a_crash_at_any_moment(tmp_path, monkeypatch, state):
    outcomes = []
    for keeper, accept, before, now in steps_after(monkeypatch, Crash(), tmp_path, state):
        outcomes.append("old" if now == before else now)
        keeper.save(at_step(10))
        assert step_of(keeper.latest(never, accept)) == 10
        assert set(names(keeper.folder)) <= {LAST, PREVIOUS}
    assert outcomes == ["old"] * outcomes.index(9) + [9] * 2  # the name is there, and the folder is not synced yet
    assert len(outcomes) > 10


def test_a_crash_while_the_best_is_saved(tmp_path, monkeypatch):
    def prepare(name):
        keeper = Keeper(tmp_path / name)
        keeper.save_best(at_step(1))
        return keeper

    after = failures(monkeypatch, Crash(), prepare, lambda keeper: keeper.save_best(at_step(9)))
    outcomes = [step_of(keeper.best(never)) for keeper in after]
    assert outcomes == [1] * outcomes.index(9) + [9] * 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("state", STATES)
def test_an_error_at_any_moment(tmp_path, monkeypatch, state, code):
    outcomes = []
    for keeper, _, before, now in steps_after(monkeypatch, OSError(code, os.strerror(code)), tmp_path, state):
        assert not list(keeper.folder.glob("*.part"))
        outcomes.append("old" if now == before else now)
    assert outcomes == ["old"] * outcomes.index(9) + [9] * 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_a_full_disk(keeper):
    keeper.save(at_step(1))
    keeper.save(at_step(2))
    files = {name: (keeper.folder / name).read_bytes() for name in names(keeper.folder)}
    (keeper.folder / f"{LAST}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        keeper.save(at_step(3))
    assert {name: (keeper.folder / name).read_bytes() for name in names(keeper.folder)} == files


def test_the_first_error_is_told(keeper, monkeypatch):
    def fail(code):
        def fail(*_args, **_kwargs):
            raise OSError(code, os.strerror(code))

        return fail

    monkeypatch.setattr(os, "fsync", fail(errno.ENOSPC))
    monkeypatch.setattr(os, "unlink", fail(errno.EROFS))
    with pytest.raises(OSError, match="No space left on device"):
        keeper.save(at_step(1))
    assert keeper.latest(never) is None


def test_what_is_written_is_on_the_disk_before_it_has_its_name(keeper, monkeypatch):
    events = []
    real = {name: getattr(os, name) for name in ("fsync", "replace")}

    def fsync(descriptor):
        events.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        real["fsync"](descriptor)

    def replace(old, new):
        events.append(f"{Path(old).name} to {Path(new).name}")
        real["replace"](old, new)

    keeper.save(at_step(1))
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    keeper.save(at_step(2))
    assert events == [f"sync {LAST}.part", f"{LAST} to {PREVIOUS}", f"{LAST}.part to {LAST}", "sync run"]


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(OSError, match="/run'"):
        Keeper(tmp_path / "run").save(at_step(1))


# Without safetensors.


def test_safetensors_is_loaded_when_it_is_needed():
    code = "import sys, tailsum.apps.vae.checkpoint; sys.exit('safetensors' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_without_safetensors(keeper, monkeypatch):
    keeper.save(at_step(1))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for use in (lambda: keeper.latest(never), lambda: keeper.save(at_step(2))):
        with pytest.raises(ImportError, match=r"pip install 'tailsum\[vae\]'"):
            use()


def test_facts_are_there_for_other_programs(path):
    write(path, Checkpoint({"w": torch.ones(2)}, {"step": 3}))
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "tailsum-vae"
    assert json.loads(metadata["facts"]) == {"step": 3}
