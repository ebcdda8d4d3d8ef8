"""Values as literals of MariaDB and MySQL, a column at a time: the driver would convert them one by one."""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

from pymysql.constants.SERVER_STATUS import SERVER_STATUS_NO_BACKSLASH_ESCAPES

from infinite_scheduler.store.sql.dialect import Blob, Cursor, Row

NULL = "NULL"

LONG = 1024
"""From this many bytes on, the shorter form is used: packets are limited."""


def row_texts(cursor: Cursor, rows: Sequence[Row]) -> list[str]:
    """Each row as it is written after VALUES."""
    plain = _plain_backslash(cursor)
    columns = [_column(values, plain=plain) for values in zip(*rows, strict=True)]
    return [f"({row})" for row in map(",".join, zip(*columns, strict=False))]


def key_text(key: bytes) -> str:
    """A key as a literal."""
    return f"X'{key.hex()}'"


def _column(values: Sequence[Any], *, plain: bool) -> Iterable[str]:
    kinds = set(map(type, values))
    if kinds == {int}:
        return map(str, values)
    if kinds == {bytes}:
        return map(key_text, values)
    if kinds == {type(None)}:
        return repeat(NULL)
    return [_literal(value, plain=plain) for value in values]


def _literal(value: Any, *, plain: bool) -> str:
    match value:
        case None:
            return NULL
        case str():
            return _quoted(value, plain=plain)
        case Blob() if len(value) > LONG:
            return f"FROM_BASE64('{b64encode(value).decode()}')"
        case bytes():
            return key_text(value)
        case int():
            return str(int(value))
        case _:
            raise TypeError(f"not a value of a column: {value!r}")


def _quoted(text: str, *, plain: bool) -> str:
    """A text in quotes; most have no characters that must be escaped."""
    if "'" in text:
        text = text.replace("'", "''")
    if not plain and "\\" in text:
        text = text.replace("\\", "\\\\")
    return f"'{text}'"


def _plain_backslash(cursor: Cursor) -> bool:
    """Is a backslash an ordinary character? It may be, on a connection of the user's."""
    status: int = cursor.connection.server_status  # type: ignore[attr-defined]
    return bool(status & SERVER_STATUS_NO_BACKSLASH_ESCAPES)
