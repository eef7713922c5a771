//! Keys of the `[listeners]` section: endpoints, sockets, limits.

use super::broker_table;

const THREADS: &str = "the broker runs one thread per core; see cores";
const RATES: &str = "limits on the rate of new connections are not built yet";

broker_table!(LISTENERS, Listeners, {
    "listeners": String = "PLAINTEXT://:9092", any, broker, works,
        "Addresses to listen on, NAME://host:port separated by commas; an empty host is every interface, as 0.0.0.0 is, port 0 is any free port.";
    "advertised.listeners": String = null, any, broker, works,
        "Addresses that clients are told to connect to, by listener name; the listeners themselves if unset.";
    "listener.security.protocol.map": String = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", any, broker, works,
        "Security protocol of each listener name, NAME:PROTOCOL separated by commas; replaces the default map when set.";
    "inter.broker.listener.name": String = null, any, fixed, works,
        "Name of the listener that brokers use among themselves; it must be advertised.";
    "security.inter.broker.protocol": String = "PLAINTEXT", (one_of "PLAINTEXT" "SSL" "SASL_PLAINTEXT" "SASL_SSL"), fixed, works,
        "Security protocol among brokers, when no listener is named for it; the listener of that name is used.";
    "control.plane.listener.name": String = null, any, fixed, (refused "a listener of its own for the controller is not built yet"),
        "Name of a listener that only the controller uses.";
    "early.start.listeners": String = null, any, fixed, (no_effect "all listeners open together"),
        "Names of listeners that open before authorisation is ready.";
    "num.network.threads": Int = "3", (>= 1), cluster, (no_effect THREADS),
        "Threads that read and write sockets, per listener.";
    "num.io.threads": Int = "8", (>= 1), cluster, (no_effect THREADS),
        "Threads that work on requests.";
    "background.threads": Int = "10", (>= 1), cluster, (no_effect THREADS),
        "Threads for background work.";
    "queued.max.requests": Int = "500", (>= 1), fixed, (no_effect "back-pressure counts bytes, not requests; see queued.max.request.bytes"),
        "Requests that may wait before sockets are no longer read.";
    "queued.max.request.bytes": Long = "-1", any, fixed, works,
        "Bytes of requests that may be in the broker before sockets of clients are no longer read; -1 takes a share of memory.bytes.";
    "socket.send.buffer.bytes": Int = "102400", any, fixed, (no_effect "sockets keep the buffers that the operating system gives them"),
        "Send buffer of accepted sockets in bytes; -1 leaves it to the operating system.";
    "socket.receive.buffer.bytes": Int = "102400", any, fixed, (no_effect "sockets keep the buffers that the operating system gives them"),
        "Receive buffer of accepted sockets in bytes; -1 leaves it to the operating system.";
    "socket.request.max.bytes": Int = "104857600", (>= 1), fixed, works,
        "Largest request in bytes; a connection that announces a larger one is closed.";
    "socket.listen.backlog.size": Int = "50", (>= 1), fixed, works,
        "Connections that the operating system keeps waiting for us to accept.";
    "request.timeout.ms": Int = "30000", any, fixed, (no_effect "no requests go to other brokers yet"),
        "Milliseconds to wait for an answer of another broker.";
    "socket.connection.setup.timeout.ms": Long = "10000", any, fixed, (no_effect "no connections go to other brokers yet"),
        "Milliseconds to wait for a connection to another broker, at first.";
    "socket.connection.setup.timeout.max.ms": Long = "30000", any, fixed, (no_effect "no connections go to other brokers yet"),
        "Milliseconds to wait for a connection to another broker, at most.";
    "max.connections": Int = "2147483647", (>= 0), cluster, works,
        "Connections that the broker keeps open; above it new ones wait. May be set for one listener.";
    "max.connections.per.ip": Int = "2147483647", (>= 0), cluster, works,
        "Connections that one address may keep open; above it a new one is closed at once.";
    "max.connections.per.ip.overrides": String = "", any, cluster, works,
        "Other limits for single addresses or host names, host:count separated by commas.";
    "max.connection.creation.rate": Int = "2147483647", (>= 0), cluster, (refused RATES),
        "New connections per second. May be set for one listener.";
    "connections.max.idle.ms": Long = "600000", any, fixed, works,
        "Milliseconds after which a silent connection is closed; negative is never.";
    "connection.failed.authentication.delay.ms": Int = "100", (>= 0), fixed, (no_effect "no listener authenticates yet"),
        "Milliseconds before a connection whose authentication failed is closed.";
    "max.incremental.fetch.session.cache.slots": Int = "1000", (>= 0), fixed, works,
        "Fetch sessions that are kept at most. Together they take at most a sixteenth of memory.bytes, about 256 bytes for each partition; beyond that no new one is made.";
    "fetch.max.bytes": Int = "57671680", (>= 1024), fixed, works,
        "Bytes of records that one fetch returns at most, whatever the client asks for.";
    "max.request.partition.size.limit": Int = "2000", (>= 1), fixed, (no_effect "DescribeTopicPartitions is not served"),
        "Partitions that one DescribeTopicPartitions answer holds at most.";
});
