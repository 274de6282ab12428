# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What lets an untouched SGLang serve on a CPU. Imported by the .pth file beside it in every Python of that environment.

The engine's own files stay as they were installed. Three things happen on import:

- sgl_kernel, compiled for GPUs only, is an empty module: whatever is taken from it fails when it is called. The engine has
  paths in plain torch for all of it.
- torchvision's extension is linked against CUDA and does not load beside a CPU build of torch. Its Python part then misses
  two operators that it wants to describe.
- torch_native is the attention backend that runs anywhere, but multi-head latent attention has no entry for it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

STAND_IN = "sgl_kernel"
KEPT: list[Any] = []  # a torch library is gone with its object


class Missing:
    """A name of a module that is not there: can be imported and looked into, not called."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.path}.{name}")

    def __call__(self, *_args: object, **_named: object) -> Any:
        raise NotImplementedError(f"{self.path} needs a GPU")


class StandIn(Loader):
    """Loads an empty module that has every name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        vars(module)["__getattr__"] = Missing(spec.name).__getattr__
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


class Around(Loader):
    """The loader of a module, with a step before and one after it runs."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        before, after = STEPS[module.__name__]
        before()
        self.loader.exec_module(module)
        after(module)


class Finder(MetaPathFinder):
    """Finds what is changed here, and leaves everything else to the finders behind it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] == STAND_IN:
            return ModuleSpec(name, StandIn(), is_package=True)
        if name not in STEPS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = Around(spec.loader)
                return spec
        return None


def nothing(*_: object) -> None:
    pass


def declare_operators() -> None:
    if importlib.import_module("torchvision.extension")._has_ops():
        return
    library = importlib.import_module("torch.library").Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    KEPT.append(library)


def register_latent_attention(handlers: Any) -> None:
    handlers.AttentionBackendRegistry.register("torch_native", handlers._dispatch_mla_subtype)


STEPS: dict[str, Any] = {
    "torchvision._meta_registrations": (declare_operators, nothing),
    "sglang.srt.models.deepseek_common.attention_backend_handler": (nothing, register_latent_attention),
}
sys.meta_path.insert(0, Finder())
