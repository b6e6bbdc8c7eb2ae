"""A trained model as serving takes it: what interface.py says of it, and how it is loaded, PyTorch imported then."""

from __future__ import annotations

from pathlib import Path

from scoring.model.interface import AdFeatures, Model, ModelError

__all__ = ["AdFeatures", "Model", "ModelError", "load_model"]


def load_model(folder: Path) -> Model:
    """The model that `mirach train` exported to `folder`. Raises ModelError."""
    try:
        from scoring.model.export import read_export
    except ImportError as missing:
        if missing.name not in ("torch", "safetensors"):
            raise
        raise ModelError(
            f"a model needs the package {missing.name}, which is not installed: pip install 'mirach[model]' (that "
            "takes gigabytes on Linux; docs/model.md says how to install PyTorch for the CPU alone)"
        ) from None
    return read_export(folder)
