"""Stands in for torchvision, of which SGLang's image processors want names at import. Its wheels for this torch would
bring CUDA; no test has an image. Hidden from transformers, which asks whether torchvision is there and would use it."""

import importlib.machinery
import sys
import types


class _StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "torchvision":
            return None
        frame = sys._getframe(1)
        while frame is not None:
            if "/transformers/" in frame.f_code.co_filename:
                return None
            frame = frame.f_back
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(_Finder())
