"""A trained model as a directory that the service loads, and what it gives from it.

model.json            format, name, architecture, widths, temperature and bias, metrics, a checksum of each other file
weights.safetensors   the network
items.safetensors     labels and words of the items that it knows, since histories name items by id alone
vocabularies.json     which number each id, label and value has
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save as save_arrays
from safetensors.torch import load_file, save

from scoring.model.config import SERVED_HEADS, Architecture
from scoring.model.features import FIRST_ITEM, ItemTable, Vocabularies, catalogue, item_table
from scoring.model.heads import UserSide
from scoring.model.interface import AdFeatures, ModelError
from scoring.model.network import Network, table_rows
from scoring.model.ranking import encode_users
from scoring.model.requests import read_by, read_requests
from scoring.user import User

FORMAT = 1
NAME_MAX = 200  # characters of a model's name, which answers and logs carry
FILES = ("weights.safetensors", "items.safetensors", "vocabularies.json")
ADS_AT_ONCE = 1024
USERS_AT_ONCE = 256
WEIGHTS = {"float32": torch.float32, "float16": torch.float16}


class Described(msgspec.Struct, frozen=True):
    """model.json"""

    format: int
    name: str
    architecture: Architecture
    dim: int
    gate_dim: int
    experts: int
    route: int
    temperature: float
    bias: float
    shapes: dict[str, str]  # of each weight, as "125x32"
    metrics: dict[str, Any]
    files: dict[str, str]  # name -> BLAKE2b


def write_export(
    folder: Path, name: str, network: Network, table: ItemTable, calibration: tuple[float, float],
    metrics: dict[str, Any], weights: str = "float32",
) -> None:  # fmt: skip
    """Writes the directory. Raises ModelError for a head that the contract's score cannot say, no finite one, or
    a name that is too long."""
    architecture = network.architecture
    if architecture.head not in SERVED_HEADS:
        raise ModelError(f"a model with the head {architecture.head} is for comparison only and cannot be served")
    if not np.isfinite(calibration).all():
        raise ModelError("its temperature or bias is not a finite number: its scores would be none; train it again")
    if not 1 <= len(name) <= NAME_MAX:
        raise ModelError(f"a model's name has 1 to {NAME_MAX} characters, not {len(name)}")
    folder.mkdir(parents=True, exist_ok=True)
    state = {key: value.detach().cpu().to(WEIGHTS[weights]).contiguous() for key, value in network.state_dict().items()}
    (folder / "weights.safetensors").write_bytes(save(state))
    arrays = {"labels": table.labels[FIRST_ITEM:], "words": table.words[FIRST_ITEM:]}
    arrays = {key: array.astype(np.min_scalar_type(int(array.max(initial=0)))) for key, array in arrays.items()}
    (folder / "items.safetensors").write_bytes(save_arrays(arrays))
    (folder / "vocabularies.json").write_bytes(msgspec.json.encode(network.vocabularies))
    described = Described(
        format=FORMAT, name=name, architecture=architecture, dim=architecture.dim, gate_dim=architecture.gate_dim,
        experts=network.head.count, route=network.head.route, temperature=calibration[0], bias=calibration[1],
        shapes=shapes_of(state), metrics=metrics,
        files={file: _checksum((folder / file).read_bytes()) for file in FILES},
    )  # fmt: skip
    (folder / "model.json").write_bytes(msgspec.json.format(msgspec.json.encode(described)) + b"\n")


def read_export(folder: Path, device: str | None = None) -> TrainedModel:
    """Raises ModelError."""
    try:
        raw = (folder / "model.json").read_bytes()
        described = msgspec.json.decode(raw, type=Described)
        held = {name: (folder / name).read_bytes() for name in FILES}
    except OSError as error:
        raise ModelError(f"{folder} holds no whole model: {error.filename}: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ModelError(f"{folder / 'model.json'} is not a model's description: {error}") from None
    if described.format != FORMAT:
        raise ModelError(f"{folder} has format {described.format}; this version reads {FORMAT}: export it again")
    for name, content in held.items():
        if described.files.get(name) != _checksum(content):
            raise ModelError(f"{folder / name} is damaged: its checksum is not the one in model.json; export it again")
    try:
        vocabularies = msgspec.json.decode(held["vocabularies.json"], type=Vocabularies)
        network = Network(described.architecture, vocabularies)
        network.load_state_dict(load_file(folder / "weights.safetensors"))
        arrays = load_arrays(folder / "items.safetensors")
    except (msgspec.MsgspecError, SafetensorError, RuntimeError, KeyError) as error:
        raise ModelError(f"the files of {folder} do not fit each other: {error}; export it again") from None
    _check_described(described, network, folder)
    table = catalogue_of(vocabularies, arrays)
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return TrainedModel(described, network.to(where).eval(), table, _checksum(raw))


def _check_described(described: Described, network: Network, folder: Path) -> None:
    """Raises ModelError where model.json says what its own architecture and weights do not."""
    architecture, head = network.architecture, network.head
    known = Described(
        FORMAT, described.name, architecture, architecture.dim, architecture.gate_dim, head.count, head.route,
        described.temperature, described.bias, shapes_of(network.state_dict()), described.metrics, described.files,
    )  # fmt: skip
    for name in Described.__struct_fields__:
        if getattr(known, name) != getattr(described, name):
            raise ModelError(f"{folder / 'model.json'} is damaged: its {name} is not that of its weights")
    if not 1 <= len(described.name) <= NAME_MAX:
        raise ModelError(f"{folder / 'model.json'}: a name has 1 to {NAME_MAX} characters, not {len(described.name)}")
    if architecture.head not in SERVED_HEADS or not np.isfinite((described.temperature, described.bias)).all():
        raise ModelError(f"{folder / 'model.json'} says what cannot be served: head, temperature or bias")


def shapes_of(state: dict[str, torch.Tensor]) -> dict[str, str]:
    return {key: "x".join(map(str, value.shape)) for key, value in state.items()}


def catalogue_of(vocabularies: Vocabularies, arrays: dict[str, NDArray[Any]]) -> ItemTable:
    """The table of known items from what was exported of it."""
    empty = catalogue([], vocabularies)
    rows = np.arange(FIRST_ITEM, FIRST_ITEM + len(arrays["labels"]))
    return ItemTable(
        np.concatenate([empty.id, rows]),
        np.concatenate([empty.labels, arrays["labels"].astype(np.int64)]),
        np.concatenate([empty.words, arrays["words"].astype(np.int64)]),
    )


class TrainedModel:
    """served.Model"""

    def __init__(self, described: Described, network: Network, table: ItemTable, fingerprint: str) -> None:
        self.name, self.fingerprint = described.name, fingerprint
        self.dim, self.gate_dim, self.experts = described.dim, described.gate_dim, described.experts
        self.described, self.network, self.table = described, network, table
        self._read = read_by(described.architecture, network.vocabularies)  # [part of TOLD]

    def users(self, features: Sequence[dict[str, Any]], contexts: Sequence[dict[str, Any] | None]) -> list[User]:
        """Raises InvalidInput with a path that begins `[i].features` or `[i].context`."""
        asked = read_requests(features, contexts, self.network.vocabularies, self.table, self.dim)
        known = asked.known * self._read
        understood = np.stack([known, asked.told - known], -1)  # [user, part of TOLD, 2]
        users: list[User] = []
        for at in range(0, len(features), USERS_AT_ONCE):
            chosen = np.arange(at, min(at + USERS_AT_ONCE, len(features)))
            side = encode_users(
                self.network, self.table, asked.sequences, chosen, asked.sequences.start[chosen + 1],
                asked.asked.of(chosen), asked.given_vectors(chosen, self.network),
            )  # fmt: skip
            users += users_of(
                side, self.described.temperature, self.described.bias, self.described.route, understood[chosen]
            )
        return users

    def ads(self, ads: Sequence[AdFeatures]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Embeddings [ad, D] and gate queries [ad, G]"""
        embedding = np.empty((len(ads), self.dim), np.float32)
        gate = np.empty((len(ads), self.gate_dim), np.float32)
        for at in range(0, len(ads), ADS_AT_ONCE):
            table = item_table(ads[at : at + ADS_AT_ONCE], self.network.vocabularies)
            with torch.inference_mode():
                base, _ = self.network.items(table_rows(table, np.arange(len(table.id)), self.network.device))
                side = self.network.ads(base)
            embedding[at : at + ADS_AT_ONCE] = side.embedding.cpu().numpy()
            gate[at : at + ADS_AT_ONCE] = side.gate.cpu().numpy()
        return embedding, gate


def users_of(
    side: UserSide, temperature: float, bias: float, route: int, understood: NDArray[np.int64] | None = None
) -> list[User]:
    """A head's users as the contract's: the folded bias is multiplied by the temperature as the experts are.
    `understood`: [user, part of TOLD, 2]."""
    experts, gates, gate_bias, own = (each.float().cpu().numpy() for each in side[:4])
    return [
        User(experts[i], gates[i], gate_bias[i], temperature=temperature, bias=bias + temperature * float(own[i]),
             route=route, understood=None if understood is None else understood[i])
        for i in range(len(experts))
    ]  # fmt: skip


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
