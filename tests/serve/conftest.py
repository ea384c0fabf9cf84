"""Devices on paper and tiny stores, as tests of sessions have them."""

from tests.run.conftest import slow_profile as slow_profile
from tests.run.conftest import tiny_store as tiny_store
