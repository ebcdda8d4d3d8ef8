"""Apache Kafka's jars: fetched by Maven once, from wherever it is set up to fetch, and kept."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.services.folder import kept

POM = Path(__file__).with_name("kafka_jars.xml")
GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


class NotFetched(RuntimeError):
    """The jars are not here and could not be fetched; the message has what Maven said."""


@cache
def folder() -> Path:
    """Where the jars are, once they are; another choice of them has another folder."""
    return kept() / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"


def archive() -> Path:
    """The classes of the jars as a broker has them in memory, which Java loads faster, once they were archived."""
    return folder().with_suffix(".jsa")


def are_here() -> bool:
    return folder().exists()


def fetch() -> None:
    """Make sure that the jars are here; where they are, this does nothing and needs no network."""
    if are_here():
        return
    with folder().with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not are_here():
            _fetch()


def _fetch() -> None:
    print("fetching Apache Kafka", flush=True)
    half_made = folder().with_suffix(".new")
    shutil.rmtree(half_made, ignore_errors=True)
    half_made.mkdir()
    command = ["mvn", "--batch-mode", "--quiet", "--strict-checksums", f"--file={POM}", GOAL]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={half_made}"],
        check=False,
        cwd=half_made,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )
    if done.returncode or not any(half_made.glob("kafka_*.jar")):
        raise NotFetched(f"Maven could not fetch Apache Kafka, and ended with {done.returncode}\n{done.stdout}")
    for jar in half_made.iterdir():
        jar.chmod(0o644)
    half_made.chmod(0o755)
    half_made.rename(folder())
