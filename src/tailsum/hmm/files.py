"""Models on a disk: their parameters in a file of safetensors (an extra package)."""

from pathlib import Path
from typing import TypeVar

from tailsum.hmm.core import MarkovModel

Model = TypeVar("Model", bound=MarkovModel)


def save(model: MarkovModel, path: str | Path) -> None:
    """Write the parameters, and the form of the model as a note."""
    try:
        from safetensors.torch import save_file  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("save needs the package safetensors: pip install tailsum[hmm]") from error

    tensors = {name: x.detach().contiguous() for name, x in model.state_dict().items()}
    save_file(tensors, str(path), {"tailsum": "HiddenMarkov", "form": form(model)})


def load(model: Model, path: str | Path) -> Model:
    """Read them into a model of the same form."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    try:
        opened = safe_open(str(path), "pt", device=str(model.device))
    except SafetensorError as error:
        raise ValueError(f"path must hold a file that `save` wrote: {path} cannot be read") from error
    with opened as file:
        written = (file.metadata() or {}).get("form")
        if written != form(model):
            raise ValueError(f"path must hold the parameters of {form(model)}: got {written}")
        model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return model


def form(model: MarkovModel) -> str:
    """What must agree: the kinds of the parts, and the shapes of the parameters."""
    parts = ", ".join(f"{name or 'a'} {type(part).__name__}" for name, part in model.named_modules())
    moves = "" if model.transition.takes_inputs else f" with a {type(model.transition()).__name__}"
    return f"{parts}{moves}: " + ", ".join(f"{name} {list(x.shape)}" for name, x in model.named_parameters())
