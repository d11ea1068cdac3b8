"""A zip whose bytes follow from the names and contents of its files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date that the format has
READABLE = 0o100644 << 16


def zip_bytes(files: Mapping[str, str]) -> bytes:
    """Return an archive of text files by name.

    >>> zip_bytes({"a": "1", "b": "2"}) == zip_bytes({"b": "2", "a": "1"})
    True
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, READABLE
            entry.create_system = 3  # as on Unix, whatever it is made on
            archive.writestr(entry, files[name].encode(), compresslevel=9)
    return buffer.getvalue()
