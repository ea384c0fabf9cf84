"""Print tables as C source."""

from collections.abc import Sequence


def format_array(declaration: str, entries: Sequence[str], nothing: str = "0") -> str:
    """`static const DECLARATION[] = {...};`; C has no empty arrays, so an empty one holds `nothing`."""
    body = ",\n    ".join(entries or [nothing])
    return f"static const {declaration}[] = {{\n    {body}}};"


def format_numbers(declaration: str, values: Sequence[int]) -> str:
    """An array of whole numbers, many per line; values of 2**31 and above are unsigned 64-bit constants."""
    words = [f"UINT64_C({x})" if x >= 1 << 31 else str(x) for x in values]
    return format_array(declaration, [",".join(words[i : i + 16]) for i in range(0, len(words), 16)])


def format_bytes(data: bytes) -> str:
    """The initializer of an array of bytes, without its braces."""
    lines = (",".join(map(str, data[i : i + 32])) for i in range(0, len(data), 32))
    return ",\n".join(lines)


def escape_comment(text: str) -> str:
    """`text`, escaped for use inside a comment."""
    return text.replace("*/", "* /").replace("\n", " ")


def quote(text: str) -> str:
    """Any `text` as a string constant in UTF-8."""
    return '"' + "".join(_escape(byte) for byte in text.encode()) + '"'


def _escape(byte: int) -> str:
    character = chr(byte)
    is_plain = 32 <= byte < 127 and character not in '"\\?'
    return character if is_plain else f"\\{byte:03o}"
