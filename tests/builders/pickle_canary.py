"""A harmless pickle that makes a folder when it is loaded, for tests that it never is."""

from __future__ import annotations

import os
import pickle
from pathlib import Path


class PickleCanary:
    """Shows whether its pickle was loaded."""

    def __init__(self, folder: Path) -> None:
        self.data = pickle.dumps(_MakeFolder(str(folder)))
        self._folder = folder

    @property
    def was_loaded(self) -> bool:
        """Tell whether somebody loaded the pickle."""
        return self._folder.exists()


class _MakeFolder:
    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self._path,)
