"""Images in a table of the library `datasets`."""

import io
from typing import BinaryIO

from fourierformer.data.images.sets import ImageSet, checked_labels, listed
from fourierformer.errors import SetupError


class ArrowSet(ImageSet):
    """Images in a memory-mapped table of `datasets`: rows with an image, as bytes or path, and a label."""

    IMAGES = ("image", "img")
    LABELS = ("label", "labels", "fine_label")

    def __init__(self, rows, origin: str):
        self.rows, self.origin = rows, origin
        self.column = self._find(self.IMAGES)
        label = self._find(self.LABELS)
        values = rows.data.column(label)
        if values.null_count or "int" not in str(values.type):
            raise SetupError(f"{origin}: column '{label}' does not hold a class number in every row")
        labels = checked_labels(values.to_numpy(), f"{origin}: column '{label}'")
        super().__init__(labels, list(getattr(rows.features[label], "names", None) or []))

    def _find(self, names: tuple[str, ...]) -> str:
        columns = self.rows.column_names
        if found := [name for name in names if name in columns]:
            return found[0]
        raise SetupError(f"{self.origin} has no column {' or '.join(names)} (it has: {listed(columns)})")

    def name_of(self, index: int) -> str:
        return f"{self.origin} row {index}"

    def open(self, index: int) -> BinaryIO | str:
        value = self.rows.data.column(self.column)[index].as_py()  # encoded; rows[index] would decode it
        if isinstance(value, dict):
            return io.BytesIO(value["bytes"]) if value["bytes"] else value["path"]
        return io.BytesIO(value)
