"""What a shell offers for the word being typed: found out quickly, or not at all, and nothing is created."""

from collections.abc import Iterable, MutableMapping, Sequence

import typer


def rejoin_words(environ: MutableMapping[str, str]) -> None:
    """Join what bash splits: it breaks words at ":" and "=", so that a URL arrives as three."""
    words, current = environ.get("COMP_WORDS", "").split("\n"), int(environ.get("COMP_CWORD") or 0)
    place = current
    whole: list[str] = []
    glued = False
    for number, word in enumerate(words):
        glue = bool(word) and set(word) <= {":", "="}
        if whole and (glue or glued):
            whole[-1] += word
            place -= number <= current
        else:
            whole.append(word)
        glued = glue
    environ.update(COMP_WORDS="\n".join(whole), COMP_CWORD=str(place))


def app_names(context: typer.Context) -> list[str]:
    """The apps of the store and of the configuration named in the words before; none if anything is wrong."""
    try:
        return sorted(set(_names(context.params.get("config"), context.params.get("store"))))
    except Exception:  # noqa: BLE001 - completion in a shell must not print errors
        return []


def _names(config: object, store: object) -> Iterable[str]:
    if isinstance(store, str):
        return _stored(store)  # without the settings, which take a moment to import
    from pathlib import Path  # noqa: PLC0415 - loaded only when needed

    from infinite_scheduler.config import load_settings  # noqa: PLC0415

    settings = load_settings(Path(str(config)) if config else None)
    return [*settings.apps, *_stored(settings.store.address_url)]


def _stored(url: str) -> Sequence[str]:
    from infinite_scheduler.store import scheme_of  # noqa: PLC0415

    return scheme_of(url).app_names(url)
