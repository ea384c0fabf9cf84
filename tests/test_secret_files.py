"""Modes of files with secrets: what nobody else reads, and what Kubernetes mounts."""

import os

import pytest

from pliant.secret_files import format_mode, is_exposed

MINE, OTHER = os.getegid(), 987_654


def found(mode: int, owner: int, group: int) -> os.stat_result:
    return os.stat_result((0o100000 | mode, 1, 1, 1, owner, group, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "owner", "group", "is_open"),
    [
        (0o600, os.geteuid(), MINE, False),
        (0o400, os.geteuid(), MINE, False),
        (0o440, 0, MINE, False),
        (0o640, 0, MINE, False),
        (0o440, 0, OTHER, True),
        (0o440, OTHER, MINE, True),
        (0o444, 0, MINE, True),
        (0o460, 0, MINE, True),
        (0o441, 0, MINE, True),
        (0o644, os.geteuid(), MINE, True),
        (0o602, os.geteuid(), MINE, True),
    ],
)
def test_a_secret_is_for_its_owner_or_a_group_of_this_process(
    mode: int, owner: int, group: int, is_open: bool
) -> None:
    """With `fsGroup`, Kubernetes mounts secrets as 0440 of root, and their group is the process's."""
    assert is_exposed(found(mode, owner, group)) is is_open
    assert format_mode(found(mode, owner, group)) == f"{mode:04o}"


def test_a_supplementary_group_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fsGroup` is one of these, and seldom the process's own."""
    assert is_exposed(found(0o440, 0, OTHER))
    monkeypatch.setattr(os, "getgroups", lambda: [OTHER])
    assert not is_exposed(found(0o440, 0, OTHER))
