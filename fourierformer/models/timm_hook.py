"""Makes `timm.create_model("fourierformer_tiny_patch16_224")` work after `import fourierformer`, at no cost to it.

Registering needs timm, which takes seconds to import and which most users of this package never need. So if timm is
there already our models are registered at once; else a finder waits in Python's import machinery until somebody
imports timm, lets the ordinary import happen, and registers right after it.
"""

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

MODELS = "fourierformer.models.timm_models"  # importing it registers


def register_with_timm() -> None:
    if "timm" in sys.modules:
        importlib.import_module(MODELS)
    else:
        sys.meta_path.insert(0, _AfterTimm())


class _AfterTimm(MetaPathFinder):
    """Finds timm as the other finders do, with one more thing to do when it is executed."""

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        if name != "timm":
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found), None)
        if spec is not None:  # asking for the spec is not importing: others ask to know whether timm is installed
            self._extend(spec.loader)
        return spec

    def _extend(self, loader) -> None:
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            if self in sys.meta_path:  # a failed import of timm may be tried again
                sys.meta_path.remove(self)
            importlib.import_module(MODELS)

        loader.exec_module = exec_module
