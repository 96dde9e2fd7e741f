"""What the wheel of the studies holds and needs."""

import email
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tailsum
import tailsum_studies

STUDIES = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Made without a network."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder), "--target", "wheel"]
    subprocess.run(command, cwd=STUDIES, check=True, capture_output=True, timeout=120)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as content:
        yield content


def metadata(wheel, name):
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_the_wheel_holds_the_package_its_pages_and_the_paper_s_figures(wheel):
    names = set(wheel.namelist())
    ours = {file.relative_to(STUDIES / "src").as_posix() for file in (STUDIES / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == ours
    data = {"paper/published.csv", "report/templates/layout.html", "report/templates/vae.toml"}
    assert {f"tailsum_studies/{name}" for name in data} <= names


def test_a_tag_releases_both():
    assert tailsum_studies.__version__ == tailsum.__version__


def test_the_command_and_what_it_needs(wheel):
    facts = email.message_from_string(metadata(wheel, "METADATA"))
    assert (facts["Name"], facts["Version"]) == ("tailsum-studies", tailsum_studies.__version__)
    assert "tailsum = tailsum_studies.cli:main" in metadata(wheel, "entry_points.txt")
    needed = {re.match(r"[\w-]+", line).group() for line in facts.get_all("Requires-Dist") if "extra ==" not in line}
    assert needed == {"tailsum", "typer", "rich", "matplotlib", "jinja2", "pandas", "tomli"}
    assert facts.get_all("Provides-Extra") == ["vae"]
    pinned = (STUDIES.parent / "constraints.txt").read_text()
    assert all(f"\n{name}==" in pinned for name in needed - {"tailsum", "tomli"})
