"""Arena, rules and waiting callers joined into reserve, put, get, release, abort. Synchronous; no event loop."""

from .embedded import EmbeddedStore
from .interface import Done, Facts, Parked, Reading, Sight, Store
from .ticker import Ticker

__all__ = ["Done", "EmbeddedStore", "Facts", "Parked", "Reading", "Sight", "Store", "Ticker"]
