"""Run the benchmarks and write a table: `python -m benchmarks [SUITE] [--output FILE]`."""

import argparse
import sys
import time
from pathlib import Path

import torch

from benchmarks import (
    accuracy,
    crf,
    estimates,
    gpu,
    gpu_graphs,
    gpu_kernels,
    gpu_table,
    gpu_trees,
    gpu_vae,
    graphs,
    large,
    lattices,
    segments,
    speed,
    structured,
    torch_struct,
    trees,
)
from benchmarks.measure import Figure

SUITES = {
    "speed": (
        speed.exact_figures,
        speed.entropy_figures,
        speed.best_path_figures,
        speed.sketch_figures,
        speed.memory_figures,
    ),
    "crf": (crf.crf_figures,),
    "structured": (
        structured.sparse_figures,
        structured.grid_figures,
        structured.banded_figures,
        structured.monarch_figures,
    ),
    "segments": (segments.growth_figures, segments.durations_figures),
    "lattices": (lattices.ctc_figures, lattices.alignment_figures, lattices.lattice_figures),
    "gpu": (gpu_table.table_figures, gpu_kernels.kernel_figures),
    "gpu_accuracy": (gpu.gpu_figures, gpu_trees.tree_figures, gpu_graphs.graph_figures),
    "gpu_vae": (gpu_vae.vae_figures,),
    "accuracy": (accuracy.paper_figures, accuracy.headline_figures, accuracy.hard_figures),
    "large": (large.family_figures, large.million_figures, large.refined_figures, large.choosing_figures),
    "estimates": (estimates.coverage_figures, estimates.warning_figures),
    "trees": (trees.paper_tree_figures, trees.grammar_figures, trees.large_figures),
    "torch_struct": (torch_struct.chain_figures, torch_struct.ordinary_figures),
    "graphs": (graphs.grid_figures, graphs.large_figures, graphs.tree_figures, graphs.small_figures),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure speed, memory and accuracy.")
    parser.add_argument("suite", nargs="?", default="all", choices=["all", *SUITES])
    parser.add_argument("--output", type=Path, help="also write the table here, as Markdown")
    arguments = parser.parse_args()
    figures = []
    for name, suite in SUITES.items():
        if arguments.suite in {"all", name}:
            for measure in suite:
                for figure in measure():
                    figures.append(figure)
                    mark = "ok  " if figure.reached else "MISS"
                    print(f"{mark} {figure.name}: {figure.measured} [{figure.goal}]", flush=True)
    if arguments.output:
        arguments.output.write_text(markdown(figures))
    sys.exit(0 if all(figure.reached for figure in figures) else 1)


def markdown(figures: list[Figure]) -> str:
    lines = [
        f"Measured {time.strftime('%Y-%m-%d')}: torch {torch.__version__}, {torch.get_num_threads()} threads.",
        "",
        "| what | measured | goal | reached |",
        "|---|---|---|---|",
        *(f"| {f.name} | {f.measured} | {f.goal} | {'yes' if f.reached else 'no'} |" for f in figures),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
