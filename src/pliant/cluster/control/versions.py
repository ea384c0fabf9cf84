"""Which versions of the wire formats are compatible, so that a cluster can be upgraded device by device.

Each format (control messages, their envelope, data frames) has a version number. The next version may append
fields and add kinds; members ignore what they do not know. A change that the version before cannot work with,
such as another way to cut a layer into steps or another layout of an exchange, skips a number. Releases of
pliant may differ as long as these numbers are neighbours.
"""


def is_neighbour(own: int, other: int, oldest: int = 1) -> bool:
    """Whether a member of version `own` works with one of `other`: the same, the one before, the one after.

    Versions below `oldest` had another form.
    """
    return other >= oldest and abs(other - own) <= 1


def refusal(own: int, other: int) -> str:
    """What to say of a version that is no neighbour."""
    return (
        f"speaks version {other} of the protocol, this member version {own}: versions may differ by one. "
        "Install the same pliant on both."
    )
