"""Every guard that is taken out, by the part of the code that it is in."""

from typing import Final

from tests.mutants.guards import (
    api,
    bulk_change,
    cluster,
    engine,
    handlers,
    ingest,
    kafka,
    protocol,
    remote,
    servers,
    sqlite,
    upkeep,
)
from tests.mutants.mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    *protocol.MUTANTS,
    *sqlite.MUTANTS,
    *upkeep.MUTANTS,
    *servers.MUTANTS,
    *engine.MUTANTS,
    *cluster.MUTANTS,
    *ingest.MUTANTS,
    *kafka.MUTANTS,
    *handlers.MUTANTS,
    *api.MUTANTS,
    *bulk_change.MUTANTS,
    *remote.MUTANTS,
)
