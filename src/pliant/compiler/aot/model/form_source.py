"""Print forms as C tables: arguments, addresses, calls, and their shares by number of rows
(c/model/runtime.h).
"""

from collections.abc import Mapping, Sequence

from pliant.compiler.aot.c_source import escape_comment, format_array, format_bytes, format_numbers
from pliant.compiler.executable.stage import StageForm

Spaces = Mapping[str, tuple[str, int]]
"""The location of each space of a form in C: a value of `enum space`, and the start byte within it."""


def forms_source(forms: Sequence[StageForm], spaces: Sequence[Spaces], most_rows: int) -> str:
    """The array FORMS of `forms`, which run over 1 to `most_rows` rows, and the kernels that they call."""
    kernels = sorted({row.kernel for form in forms for row in form.program.rows})
    lines = [f"extern kernel_function {kernel};" for kernel in kernels]
    entries = []
    for i, (form, known) in enumerate(zip(forms, spaces, strict=True)):
        lines += _form(i, form, known, most_rows)
        entries.append(
            f"{{ARGUMENTS_{i}, ADDRESSES_{i}, EXTENTS_{i}, CALLS_{i}, SHARES_{i}, COPIES_{i}, "
            f"{len(form.program.arguments)}u, {len(form.program.addresses)}u, {len(form.program.extents)}u, "
            f"{len(form.program.rows)}u, {len(_shares(form, most_rows))}u, {len(form.program.copies)}u}}"
        )
    return "\n".join([*lines, format_array("struct form FORMS", entries)])


def _form(i: int, form: StageForm, spaces: Spaces, most_rows: int) -> list[str]:
    program = form.program
    addresses = [
        f"{{{a.at}u, {spaces[a.space][0]}, {spaces[a.space][1] + a.offset}u}}" for a in program.addresses
    ]
    calls = [f"{{{row.kernel}, {row.arguments}u}} /* {escape_comment(row.label)} */" for row in program.rows]
    shares = [f"{{{', '.join(map(str, share))}}}" for share in _shares(form, most_rows)]
    copies = []
    for copy in program.copies:
        (to, _), (source, at) = spaces[copy.output], spaces[copy.space]
        n_bytes = program.outputs[copy.output].n_bytes
        copies.append(f"{{{to}, {source}, {at + copy.offset}u, {n_bytes}u}}")
    return [
        f"static const unsigned char ARGUMENTS_{i}[] = {{{format_bytes(program.arguments or bytes(1))}}};",
        format_array(f"struct address ADDRESSES_{i}", addresses, "{0, 0, 0}"),
        format_numbers(f"uint32_t EXTENTS_{i}", program.extents),
        format_array(f"struct call CALLS_{i}", calls, "{0, 0}"),
        format_array(f"struct share SHARES_{i}", shares, "{0, 0, 0, 0, 0}"),
        format_array(f"struct copy COPIES_{i}", copies, "{0, 0, 0, 0}"),
    ]


def _shares(form: StageForm, most_rows: int) -> list[tuple[int, int, int, int, int]]:
    """(call, first rows, units, units a row, grain): pieces in which a call's units are linear in the
    rows.
    """
    by_rows = [form.shares((n,)) for n in range(1, most_rows + 1)]
    found = []
    for call in range(len(form.program.rows)):
        points = [(int(shares[call, 0]), int(shares[call, 1])) for shares in by_rows]
        found += [(call, *piece) for piece in linear_pieces(points)]
    return found


def linear_pieces(points: Sequence[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """(first rows, units, units a row, grain) of each piece; `points[i]` are units and grain for i + 1
    rows.
    """
    found = []
    at = 0
    while at < len(points):
        units, grain = points[at]
        slope = points[at + 1][0] - units if at + 1 < len(points) else 0
        end = at + 1
        while end < len(points) and points[end] == (units + slope * (end - at), grain):
            end += 1
        if end == at + 1:  # the next point has another grain: this piece has one point
            slope = 0
        found.append((at + 1, units - slope * (at + 1), slope, grain))
        at = end
    return found
