"""Memory: rows of records in preallocated torch storage. No transport, no rules of life."""

from .arena import Arena, DamagedRowError
from .draft import Draft, measure
from .layout import Column, Layout, Limits

__all__ = ["Arena", "Column", "DamagedRowError", "Draft", "Layout", "Limits", "measure"]
