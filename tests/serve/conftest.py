"""Devices on paper, as tests of sessions have them."""

from tests.run.conftest import slow_profile as slow_profile
