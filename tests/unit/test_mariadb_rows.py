"""Rows of MariaDB and MySQL, read in one loop: as PyMySQL itself reads them."""

import ssl
from typing import Any

import pymysql
import pymysql.connections
from hypothesis import given
from hypothesis import strategies as st
from pymysql.connections import MySQLResult
from pymysql.protocol import MysqlPacket

from infinite_scheduler.store.sql.server.mariadb_connection import FastResult, Prompt

SIZES = (0, 1, 250, 251, 252, 255, 65_535, 65_536, 70_000)

texts = st.text(max_size=20) | st.sampled_from(["x" * size for size in SIZES])
columns = st.one_of(
    st.tuples(st.just(("utf8", None)), st.none() | texts.map(str.encode)),
    st.tuples(st.just((None, None)), st.none() | st.binary(max_size=20) | st.sampled_from([bytes(n) for n in SIZES])),
    st.tuples(st.just(("ascii", int)), st.none() | st.integers().map(lambda number: str(number).encode())),
    st.tuples(st.just(("ascii", float)), st.none() | st.just(b"1.5")),
)


def coded(value: bytes | None) -> bytes:
    """A value as it goes over the wire, with its length before it."""
    match value:
        case None:
            return b"\xfb"
        case _ if len(value) < 251:
            return bytes([len(value)]) + value
        case _ if len(value) < 1 << 16:
            return b"\xfc" + len(value).to_bytes(2, "little") + value
        case _ if len(value) < 1 << 24:
            return b"\xfd" + len(value).to_bytes(3, "little") + value
        case _:
            return b"\xfe" + len(value).to_bytes(8, "little") + value


def read(kind: type[MySQLResult], packet: bytes, converters: list[Any]) -> Any:
    result: Any = kind(object())  # type: ignore[arg-type]
    result.converters = converters
    return result._read_row_from_packet(MysqlPacket(packet, "utf8"))


@given(st.lists(columns, max_size=12))
def test_a_row_is_what_the_driver_would_have_read(row: list[Any]) -> None:
    packet = b"".join(coded(value) for _, value in row)
    converters = [converter for converter, _ in row]
    assert read(FastResult, packet, converters) == read(MySQLResult, packet, converters)


def test_a_value_of_many_megabytes_is_read_whole() -> None:
    value = b"x" * ((1 << 24) + 3)
    assert read(FastResult, coded(value) + coded(b"7"), [(None, None), (None, int)]) == (value, 7)


def context(kind: Any) -> ssl.SSLContext:
    made: ssl.SSLContext = kind(defer_connect=True, host="h", user="u").ctx
    return made


def test_tls_that_is_only_preferred_checks_nobody_and_is_set_up_once() -> None:
    first, second = (context(Prompt) for _ in range(2))
    assert first is second
    for name in ("verify_mode", "check_hostname", "minimum_version"):
        assert getattr(first, name) == getattr(context(pymysql.connections.Connection), name)
