"""Property tests look as long as the profile says."""

from __future__ import annotations

from tests.property import profiles

profiles.load()
