"""The order in which a single thread runs a member's own steps.

A message that another thread sends or takes costs two hand-offs, some 0.4 ms where cores are idle. A layer's
stages wait for its messages anyway, so the thread that computes also sends what it made, and then takes what
its next stage needs.
"""

from dataclasses import replace

from pliant.ir.program import Exchange, Program, Segment, Step, project, takes_part


def single(segment: Segment, device: str) -> tuple[Segment, tuple[int, ...]]:
    """`device`'s part of a segment, in order, and each step's number in the whole.

    Stages keep their order. What is sent goes out as soon as it is made; what is received is waited for when
    a stage needs it, or at the end. No two members wait for each other so, as long as a send does not wait
    for the receive.
    """
    own = project(Program((Segment(segment.steps),), (), ()), device).segments[0].steps
    numbers = [i for i, step in enumerate(segment.steps) if takes_part(step, device)]
    order = _order(own, device)
    place = {i: at for at, i in enumerate(order)}
    steps = tuple(_moved(own[i], place) for i in order)
    return Segment(steps), tuple(numbers[i] for i in order)


def _order(steps: tuple[Step, ...], device: str) -> list[int]:
    sends = [i for i, step in enumerate(steps) if isinstance(step.work, Exchange) and step.work.src == device]
    takes = [i for i, step in enumerate(steps) if isinstance(step.work, Exchange) and step.work.dst == device]
    order: list[int] = []

    def send_what_is_made() -> None:
        for i in [i for i in sends if all(j in order for j in steps[i].after)]:
            order.append(i)
            sends.remove(i)

    send_what_is_made()
    for i in [i for i, step in enumerate(steps) if not isinstance(step.work, Exchange)]:
        order += [j for j in steps[i].after if j in takes and j not in order]
        order.append(i)
        send_what_is_made()
    order += [j for j in takes if j not in order]
    assert len(order) == len(steps), "a member sends what it made itself"
    return order


def _moved(step: Step, place: dict[int, int]) -> Step:
    return replace(step, after=tuple(sorted(place[j] for j in step.after)), prefer=())
