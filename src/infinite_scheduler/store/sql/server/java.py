"""The options of Java drivers for databases: what they mean here, if they mean anything."""

from collections.abc import Mapping
from typing import Final

_SESSION: Final = """
    serverTimezone connectionTimeZone forceConnectionTimeZoneToSession preserveInstants useTimezone
    useLegacyDatetimeCode useJDBCCompliantTimezoneShift noDatetimeStringSync useUnicode characterEncoding
    characterSetResults charset connectionCollation passwordCharacterEncoding allowEncodingChanges client_encoding
    zeroDateTimeBehavior yearIsDateType tinyInt1isBit transformedBitIsBoolean sendFractionalSeconds
    jdbcCompliantTruncation stringtype
"""
"""The time zone and the character set of a session: ours are UTC and UTF-8, always."""

_STATEMENTS: Final = """
    rewriteBatchedStatements reWriteBatchedInserts useBulkStmts useBatchMultiSend allowMultiQueries useAffectedRows
    cachePrepStmts prepStmtCacheSize prepStmtCacheSqlLimit useServerPrepStmts cacheServerConfiguration
    cacheResultSetMetadata metadataCacheSize cacheCallableStmts callableStmtCacheSize useCursorFetch
    defaultFetchSize defaultRowFetchSize prepareThreshold preparedStatementCacheQueries
    preparedStatementCacheSizeMiB binaryTransfer binaryTransferEnable binaryTransferDisable preferQueryMode
    escapeSyntaxCallMode autosave cleanupSavepoints readOnly useLocalSessionState useLocalTransactionState
    elideSetAutoCommits alwaysSendSetIsolation autocommit useCompression enableQueryTimeouts allowLoadLocalInfile
    assumeMinServerVersion createDatabaseIfNotExist
"""
"""How a Java driver prepares, batches, caches and fetches."""

_CONNECTING: Final = """
    allowPublicKeyRetrieval defaultAuthenticationPlugin autoReconnect autoReconnectForPools failOverReadOnly
    maxReconnects initialTimeout socketTimeout cancelSignalTimeout sslResponseTimeout tcpKeepAlive tcpNoDelay
    sendBufferSize receiveBufferSize pool poolName maxPoolSize minPoolSize enabledTLSProtocols tlsVersions
    fallbackToSystemTrustStore fallbackToSystemKeyStore targetServerType loadBalanceHosts hostRecheckSeconds
"""
"""How it connects again, pools and keeps sockets: the store does that its own way."""

_TOLD: Final = """
    useInformationSchema nullCatalogMeansCurrent nullDatabaseMeansCurrent nullNamePatternMatchesAll useMysqlMetadata
    useOldAliasMetadataBehavior permitMysqlScheme pinGlobalTxToPhysicalConnection dontTrackOpenResources
    maintainTimeStats gatherPerfMetrics profileSQL logger loggerLevel loggerFile logUnclosedConnections
    unknownLength disableColumnSanitiser databaseMetadataCacheFields databaseMetadataCacheFieldsMiB
"""
"""What it tells Java programs and their logs."""

IGNORED: Final = frozenset((_SESSION + _STATEMENTS + _CONNECTING + _TOLD).split())
"""Options that concern Java drivers alone: accepted, so that their URLs can be used as they are, and without effect."""

REFUSED: Final[Mapping[str, str]] = {
    "options": "poolers refuse it; set what it says on the role: ALTER ROLE … SET …",
    "currentSchema": "set it on the role instead: ALTER ROLE … SET search_path = …",
    "sslfactory": "write sslmode instead: require to check no certificate, verify-full to check it",
    "trustCertificateKeyStoreUrl": "a Java key store cannot be read; name a PEM file by sslrootcert",
    "clientCertificateKeyStoreUrl": "a Java key store cannot be read; name PEM files by sslcert and sslkey",
    "trustStore": "a Java key store cannot be read; name a PEM file by sslrootcert",
    "keyStore": "a Java key store cannot be read; name PEM files by sslcert and sslkey",
}
"""Options that would be missed, and what to write instead."""

SWITCHES: Final[Mapping[str, tuple[str, ...]]] = {
    "mariadb": ("useSSL", "requireSSL", "verifyServerCertificate", "trustServerCertificate", "ssl"),
    "postgres": ("ssl",),
}
"""Java's way to say sslmode: true or false."""


def ssl_mode_of(kind: str, switches: Mapping[str, bool]) -> str | None:
    """What the switches of the Java drivers come to, by the rules of Connector/J and of pgjdbc."""
    if kind == "postgres":
        return "verify-full" if switches.get("ssl") else None
    if switches.get("useSSL") is False or switches.get("ssl") is False:
        return "disable"
    if switches.get("verifyServerCertificate"):
        return "verify-ca"
    if switches.get("requireSSL") or switches.get("trustServerCertificate") or switches.get("ssl"):
        return "require"
    return "prefer" if switches.get("useSSL") else None
