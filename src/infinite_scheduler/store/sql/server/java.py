"""The options of Java database drivers: what they mean here, if anything."""

from collections.abc import Mapping
from typing import Final

_SESSION: Final = """
    serverTimezone connectionTimeZone forceConnectionTimeZoneToSession preserveInstants useTimezone
    useLegacyDatetimeCode useJDBCCompliantTimezoneShift noDatetimeStringSync useUnicode characterEncoding
    characterSetResults charset connectionCollation passwordCharacterEncoding allowEncodingChanges client_encoding
    zeroDateTimeBehavior yearIsDateType tinyInt1isBit transformedBitIsBoolean sendFractionalSeconds
    jdbcCompliantTruncation stringtype
"""
"""The time zone and the character set of a session: here they are always UTC and UTF-8."""

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
"""How it reconnects, pools and keeps sockets: the store does that in its own way."""

_TOLD: Final = """
    useInformationSchema nullCatalogMeansCurrent nullDatabaseMeansCurrent nullNamePatternMatchesAll useMysqlMetadata
    useOldAliasMetadataBehavior permitMysqlScheme pinGlobalTxToPhysicalConnection dontTrackOpenResources
    maintainTimeStats gatherPerfMetrics profileSQL logger loggerLevel loggerFile logUnclosedConnections
    unknownLength disableColumnSanitiser databaseMetadataCacheFields databaseMetadataCacheFieldsMiB
"""
"""What it reports to Java programs and their logs."""

IGNORED: Final = frozenset((_SESSION + _STATEMENTS + _CONNECTING + _TOLD).split())
"""Options that concern Java drivers only: accepted, so that their URLs can be used unchanged, but without effect."""

REFUSED: Final[Mapping[str, str]] = {
    "options": "poolers refuse it; set its values on the role: ALTER ROLE … SET …",
    "currentSchema": "set it on the role instead: ALTER ROLE … SET search_path = …",
    "sslfactory": "write sslmode instead: require for no check of certificates, verify-full for a check",
    "trustCertificateKeyStoreUrl": "a Java key store cannot be read; name a PEM file with sslrootcert",
    "clientCertificateKeyStoreUrl": "a Java key store cannot be read; name PEM files with sslcert and sslkey",
    "trustStore": "a Java key store cannot be read; name a PEM file with sslrootcert",
    "keyStore": "a Java key store cannot be read; name PEM files with sslcert and sslkey",
}
"""Options whose loss would matter, and what to write instead."""

SWITCHES: Final[Mapping[str, tuple[str, ...]]] = {
    "mariadb": ("useSSL", "requireSSL", "verifyServerCertificate", "trustServerCertificate", "ssl"),
    "postgres": ("ssl",),
}
"""Java's form of sslmode: true or false."""


def ssl_mode_of(kind: str, switches: Mapping[str, bool]) -> str | None:
    """The sslmode that the switches of the Java drivers mean, by the rules of Connector/J and of pgjdbc."""
    if kind == "postgres":
        return "verify-full" if switches.get("ssl") else None
    if switches.get("useSSL") is False or switches.get("ssl") is False:
        return "disable"
    if switches.get("verifyServerCertificate"):
        return "verify-ca"
    if switches.get("requireSSL") or switches.get("trustServerCertificate") or switches.get("ssl"):
        return "require"
    return "prefer" if switches.get("useSSL") else None
