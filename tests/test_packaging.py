"""What is built and installed: the wheel and the source distribution, the version, the extras, the types."""

import email
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tailsum

ROOT = Path(__file__).parent.parent
CORE = {"torch", "numpy", "jaxtyping"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with both, made without a network."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def facts(wheel):
    """The wheel's own metadata."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith("/METADATA"))
        return email.message_from_bytes(content.read(name))


@pytest.fixture(scope="module")
def required(facts):
    """The names of required packages, by extra; "" has those that are always installed."""
    found = {"": set()} | {extra: set() for extra in facts.get_all("Provides-Extra")}
    for line in facts.get_all("Requires-Dist"):
        (extra,) = re.findall(r"extra == '(\w+)'", line) or [""]
        found[extra].add(re.match(r"[\w-]+", line).group())
    return found


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
    assert {name.split("/")[0] for name in names} == {
        "tailsum",
        wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }
    assert {"tailsum/__main__.py", "tailsum/py.typed"} <= names
    ours = {f.relative_to(ROOT / "src").as_posix() for f in (ROOT / "src" / "tailsum").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == ours
    assert wheel.stat().st_size < 2e6


def test_the_source_distribution_has_what_it_takes_to_build_and_test(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    files = ("pyproject.toml", "Makefile", "constraints.txt", "README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE")
    assert {*files, "src/tailsum/py.typed", "tests/conftest.py", "docs/guide.md", "examples/tagger.py"} <= names
    assert {"conftest.py", "studies/pyproject.toml", "studies/src/tailsum_studies/cli/__init__.py"} <= names
    assert not [name for name in names if re.match(r"\.venv|\.git/|site/|dist/|build/|studies/docs/paper/", name)]
    assert path.stat().st_size < 10e6


def test_the_version_stands_in_one_place(facts):
    assert facts["Version"] == tailsum.__version__
    found = subprocess.run(
        ["git", "grep", "-lF", tailsum.__version__, "--", "pyproject.toml", "src", "CITATION.cff"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.split() in (["src/tailsum/__init__.py"], [])  # nothing where there is no git


def test_extras(required):
    assert required[""] == CORE
    assert set(required) == {"", "plot", "huggingface", "hmm", "test", "dev", "docs"}
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert set().union(*required.values()) - pinned == {"networkx"}  # torch's own requirement


def test_the_library_needs_no_extra(required):
    """Every public name, and the README's imports, where nothing but the core is installed."""
    known = {name.replace("-", "_") for names in required.values() for name in names} | {"tailsum_studies"}
    others = sorted(known - CORE - {"networkx", "triton"})
    code = f"""
import sys
sys.modules.update(dict.fromkeys({others}))
import tailsum, tailsum.nn.public, tailsum.distributed
assert [getattr(tailsum, name) for name in tailsum.__all__]
print(sorted({others}) == sorted(name for name in {others} if sys.modules[name] is None))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "True\n"


def test_what_a_user_may_write_in_strict_mode_runs():
    pytest.importorskip("matplotlib")
    import typed_user  # noqa: PLC0415  (above)

    typed_user.chains()
    typed_user.other_structures()
    typed_user.rooms()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "unknown"), [("right", 0), ("wrong", 2)])
def test_types_of_the_wheel(wheel, tmp_path, name, unknown):
    """As an installed package, not as sources: a strict type checker is content, and finds names that do not exist."""
    pytest.importorskip("basedpyright")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "installed")
    code = {
        "right": (ROOT / "tests" / "typed_user.py").read_text(),
        "wrong": "import tailsum as ts\n\nprint(ts.LinearChian, ts.nn.Nothing)\n",
    }
    (tmp_path / "user.py").write_text(code[name])
    (tmp_path / "pyrightconfig.json").write_text(
        '{"include": ["user.py"], "extraPaths": ["installed"], "typeCheckingMode": "strict"}'
    )
    command = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert shown.stdout.count("is not a known attribute of module") == unknown, shown.stdout
    assert ("0 errors" in shown.stdout) == (unknown == 0), shown.stdout
