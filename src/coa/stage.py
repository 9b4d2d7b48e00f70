"""Packages that are called like functions.

`coa.evaluate` is both the package with the stage's parts and the stage itself: `coa.evaluate(config, out=...)`. Python
sets a package's name in its parent when it is first imported, so a function of the same name would be lost; a package
whose class is `Stage` instead hands a call on to its function of that name.
"""

from inspect import Signature, signature
from types import ModuleType
from typing import Any


class Stage(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self._function(*arguments, **settings)

    @property
    def _function(self) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])

    @property
    def __signature__(self) -> Signature:
        """For `help` and notebooks: the arguments of the function."""
        return signature(self._function)
