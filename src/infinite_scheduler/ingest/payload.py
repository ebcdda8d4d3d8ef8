"""The data of a job as JSON that every handler can decode, exactly as it was given."""

import math
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from infinite_scheduler.errors import InvalidPayload, PayloadTooLarge

MAX_PAYLOAD: Final = 1024 * 1024
MAX_DEPTH: Final = 100  # of lists and objects: far below the limits of decoders

_SHALLOW: Final = 2 * MAX_DEPTH  # bytes: shorter JSON has not enough brackets to be nested too deeply

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def encode_data(data: Any, max_payload: int = MAX_PAYLOAD) -> bytes:
    """The data as JSON that decodes to equal data; only a tuple comes back as a list."""
    try:
        payload = _encode(data)
        same = _decode(payload) == data
    except Exception:  # noqa: BLE001 - objects may raise anything here; the cause is searched for next
        payload, same = b"", False
    if same is not True:
        data = _plain(data, "data", 0)
        payload = _encode(data)
    _check_size(payload, max_payload)
    if len(payload) > _SHALLOW:
        _check_depth(payload, data)
    return payload


def as_bytes(payload: bytes | bytearray | memoryview) -> bytes:
    """The payload as bytes, given as any kind of bytes."""
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidPayload(f"the payload is {_article(payload)}: use bytes of JSON, or pass it as data")
    return bytes(payload)


def check_payload(payload: bytes | bytearray | memoryview, max_payload: int = MAX_PAYLOAD) -> bytes:
    """The payload byte for byte, if it is JSON in UTF-8."""
    payload = as_bytes(payload)
    read_payload(payload, max_payload)
    return payload


def read_payload(payload: bytes, max_payload: int = MAX_PAYLOAD) -> Any:
    """The data in the payload, if it is JSON in UTF-8, not too large and not too deep."""
    _check_size(payload, max_payload)
    try:
        data = _decode(payload)
    except UnicodeDecodeError as error:
        raise InvalidPayload(f"the payload is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise _too_deep() from None
    except msgspec.MsgspecError as error:
        raise InvalidPayload(f"the payload is not valid JSON: {error}") from None
    _check_depth(payload, data)
    return data


def _check_size(payload: bytes, max_payload: int) -> None:
    if len(payload) > max_payload:
        raise PayloadTooLarge(
            f"the payload has {len(payload)} bytes, but at most {max_payload} are allowed: send less, such as a "
            "reference to the data, or raise the setting limits.payload"
        )


def _check_depth(payload: bytes, data: Any) -> None:
    """Refuse data that is nested too deeply; few payloads have so many brackets that they must be checked."""
    if payload.count(b"[") + payload.count(b"{") <= MAX_DEPTH:
        return
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for value in level for inner in _items(value)]
        if not level:
            return
    raise _too_deep()


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _too_deep() -> InvalidPayload:
    return InvalidPayload(f"the data is nested more than {MAX_DEPTH} deep, or contains itself: make it flatter")


def _plain(value: Any, path: str, depth: int) -> Any:
    """The value in JSON's own types, or an error that names the path of a value that has no exact form in JSON."""
    if depth > MAX_DEPTH:
        raise _too_deep()
    match value:
        case None | bool():
            return value
        case str():
            return _text(value, path)
        case int():
            return _number(value, path)
        case float():
            if not math.isfinite(value):
                raise InvalidPayload(f"{path} is {value}, which JSON does not have: use null or a text")
            return float(value)
        case dict():
            return {_key(key, path): _plain(item, f"{path}.{key:.60}", depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
        case _:
            raise InvalidPayload(
                f"{path} is {_article(value)}, which JSON does not have: use text, numbers, lists and objects"
            )


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise InvalidPayload(
            f"{path} has the key {key!r}, which is {_article(key)}: JSON allows only text as keys, use str()"
        )
    return _text(key, f"a key of {path}")


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidPayload(f"{path} contains half of a surrogate pair, which is not text: {value!a:.60}") from None
    return str.__str__(value)


def _number(value: int, path: str) -> int:
    try:
        msgspec.json.encode(int(value))
    except (OverflowError, ValueError):
        raise InvalidPayload(
            f"{path} is a number of {value.bit_length()} bits, which is too large: use a text"
        ) from None
    return int(value)


def _article(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"
