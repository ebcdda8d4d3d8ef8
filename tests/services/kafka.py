"""A private Apache Kafka broker, which is its own controller."""

import base64
import fcntl
import shutil
import signal
import socket
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.services import jars
from tests.services.folder import give, passing_home
from tests.services.server import ADMIN, Server, free_port, is_free

# Acknowledged means: written to the file by the one replica. The kernel keeps that when the broker is killed.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "CLIENTS",
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "2000",  # for so long a killed broker is taken to live: it may not come back meanwhile
    "broker.heartbeat.interval.ms": "200",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",  # tests wait for the death of a consumer to be noticed
    "log.retention.check.interval.ms": "500",  # and for retention and compaction to do their work
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": str(8 << 20),  # of the heap; 128 MiB by default
    "log.segment.delete.delay.ms": "1000",
}
QUICK = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # starts in 2 s instead of 3
LONG_RUN = ("-Xms512m", "-Xmx512m")
JAVA = (
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


def program() -> str | None:
    """The path of Java."""
    return shutil.which("java")


class Kafka(Server):
    """A private broker; its `url` is what clients call bootstrap servers."""

    kind = "kafka"
    ask = signal.SIGTERM
    is_copied = True

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def options(self) -> Mapping[str, str]:
        """What a client is told so that it may do everything."""
        return {"bootstrap.servers": self.url}

    def _initialise(self, data: Path) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._remember(port=0, controller_port=0)
        file = self._write_settings(data)
        self._run(
            *self._java("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", f"--config={file}")
        )  # it may begin with -

    def _command(self) -> Sequence[str]:
        last = self._remembered().get("controller_port")
        self._remember(controller_port=last if last and is_free(last) else free_port())
        return self._java("kafka.Kafka", str(self._write_settings(self.data)))

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return self._tells_its_topics()

    def _tells_its_topics(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            AdminClient({**self.options, "log_level": 0}).list_topics(timeout=5)
        except KafkaException:
            return False
        return True

    def _forget_last_run(self) -> None:
        pass  # its lock ends with its process

    def _java(self, program_class: str, *arguments: str) -> list[str]:
        speed = LONG_RUN if self.durable else (*QUICK, *self._archive())
        own = (f"-Djava.io.tmpdir={self._temporary_files}", f"-XX:ErrorFile={self.folder}/crash")
        return [str(program()), *speed, *JAVA, *own, "-cp", f"{jars.folder()}/*", program_class, *arguments]

    def _archive(self) -> Sequence[str]:
        """The classes of an earlier broker, as they were in memory."""
        return [f"-XX:SharedArchiveFile={jars.archive()}"] if jars.archive().exists() else []

    def _write_settings(self, data: Path) -> Path:
        ports = self._remembered()
        settings = self._settings() | {
            "listeners": f"CLIENTS://127.0.0.1:{ports['port']},CONTROLLER://127.0.0.1:{ports['controller_port']}",
            "controller.quorum.voters": f"1@127.0.0.1:{ports['controller_port']}",
            "log.dirs": str(data / "log"),
        }
        file = data / "server.properties"
        file.touch(mode=0o600)
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        give(file)
        return file

    def _settings(self) -> dict[str, str]:
        return dict(SETTINGS)


def archive_classes() -> None:
    """Run a broker once for the archive of its classes that it leaves: all others start in half the time."""
    with jars.archive().with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.archive().exists():
            first = FirstKafka(passing_home() / "first-kafka")
            try:
                first.start()
                first.stop()
                if first.archived.exists():  # otherwise this Java has no archives, and brokers start as they always did
                    shutil.copy(first.archived, jars.archive().with_suffix(".new"))
                    jars.archive().with_suffix(".new").replace(jars.archive())
            finally:
                first.remove()


class FirstKafka(Kafka):
    """A broker that archives its classes when it stops."""

    @property
    def archived(self) -> Path:
        return self._temporary_files / "classes"

    def _archive(self) -> Sequence[str]:
        return [f"-XX:ArchiveClassesAtExit={self.archived}"]


class GuardedKafka(Kafka):
    """A broker that wants a password, and lets nobody but `admin` do anything without having been told."""

    GUEST = "guest"

    @property
    def options(self) -> Mapping[str, str]:
        return self.options_of(ADMIN)

    def options_of(self, user: str) -> Mapping[str, str]:
        """What a client is told to come as this user: `admin`, or `guest`, who has no rights yet."""
        return {
            "bootstrap.servers": self.url,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": self.password,
        }

    def _settings(self) -> dict[str, str]:
        users = " ".join(f'user_{name}="{self.password}"' for name in (ADMIN, self.GUEST))
        own = f'username="{ADMIN}" password="{self.password}"'
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return SETTINGS | {
            "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": f"{module} required {own} {users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN};User:ANONYMOUS",  # the controller's listener, on loopback, asks nobody
        }


class SafeKafka(Kafka):
    """A broker that speaks TLS only. It has two certificates, from two authorities, and shows the first."""

    AUTHORITIES = ("first", "second")
    is_copied = False  # it has certificates beside its data

    @property
    def options(self) -> Mapping[str, str]:
        return self.options_trusting(self._remembered().get("shown", self.AUTHORITIES[0]))

    def options_trusting(self, authority: str) -> Mapping[str, str]:
        """What a client is told that believes `first` or `second`."""
        return {
            "bootstrap.servers": self.url,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self._folder_of(authority) / "authority.pem"),
        }

    def show(self, authority: str) -> None:
        """Show the certificate of this authority from now on, without a restart."""
        from confluent_kafka.admin import (  # type: ignore[attr-defined]
            AdminClient,
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
        )

        name = "listener.name.clients.ssl.keystore.location"
        change = ConfigEntry(name, self._keystore(authority), incremental_operation=AlterConfigOpType.SET)
        broker = ConfigResource("broker", "1", incremental_configs=[change])
        admin = AdminClient({**self.options, "log_level": 0})
        admin.incremental_alter_configs([broker])[broker].result()
        self._remember(shown=authority)

    def _folder_of(self, authority: str) -> Path:
        return self.folder / "certificates" / authority

    def _keystore(self, authority: str) -> str:
        return str(self._folder_of(authority) / "broker.pem")

    @property
    def _authorities(self) -> Path:
        return self.folder / "certificates" / "authorities.pem"

    def _initialise(self, data: Path) -> None:
        from tests.servers.certificates import make_certificates

        known = []
        for authority in self.AUTHORITIES:
            self._folder_of(authority).mkdir(parents=True)
            made = make_certificates(self._folder_of(authority))
            keystore = Path(self._keystore(authority))
            keystore.touch(mode=0o600)
            keystore.write_bytes(made.key.read_bytes() + made.certificate.read_bytes())
            give(keystore)
            known.append(made.authority.read_bytes())
        self._authorities.write_bytes(b"".join(known))
        super()._initialise(data)

    def _settings(self) -> dict[str, str]:
        return SETTINGS | {
            "listener.security.protocol.map": "CLIENTS:SSL,CONTROLLER:PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._keystore(self.AUTHORITIES[0]),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._authorities),
        }
