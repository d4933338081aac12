"""The metadata hand-off store as a service. Start it with `pd-handoff serve`."""

from pd_handoff._version import __version__

__all__ = ["__version__"]
