//! THE table of what is told: a row per family, in the order of the text. Names that Kafka has are those that the JMX
//! exporter makes of them (security-admin.md 6), `odradek_` is ours. What is not built has no row.

/// How a family behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Never falls but at a restart.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Quantiles of the last minutes, and the count and sum of everything.
    Summary,
}

impl Kind {
    /// As the text's `# TYPE` says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Summary => "summary",
        }
    }
}

macro_rules! families {
    ($($family:ident $kind:ident $name:literal $help:literal;)*) => {
        /// A name, and everything that is told under it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Family {
            $(
                #[doc = concat!("`", $name, "`")]
                $family,
            )*
        }

        impl Family {
            /// All of them, in the order of the text.
            pub const ALL: &'static [Self] = &[$(Self::$family),*];

            /// The name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$family => $name,)* }
            }

            /// How it behaves.
            pub const fn kind(self) -> Kind {
                match self { $(Self::$family => Kind::$kind,)* }
            }

            /// Whether of the values of several shards the greatest counts, not their sum.
            pub const fn is_greatest(self) -> bool {
                matches!(
                    self,
                    Self::CleanerMaxDirty
                        | Self::CleanerLastRun
                        | Self::CleanerMapUsed
                        | Self::CleanerRecopied
                        | Self::CleanerTime
                        | Self::CleanerDelay
                        | Self::GroupLoadMax
                        | Self::GroupLoadAverage
                )
            }

            /// What it tells.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$family => $help,)* }
            }
        }
    };
}

families! {
    MessagesIn Counter "kafka_server_brokertopicmetrics_messagesin_total" "Records appended by producers.";
    BytesIn Counter "kafka_server_brokertopicmetrics_bytesin_total" "Bytes of batches appended by producers.";
    BytesOut Counter "kafka_server_brokertopicmetrics_bytesout_total" "Bytes of batches handed out to consumers.";
    BytesRejected Counter "kafka_server_brokertopicmetrics_bytesrejected_total" "Bytes of batches refused as too large.";
    ProduceRequests Counter "kafka_server_brokertopicmetrics_totalproducerequests_total" "Appends asked for, one per partition of a request.";
    FetchRequests Counter "kafka_server_brokertopicmetrics_totalfetchrequests_total" "Reads done, one per partition of a request.";
    FailedProduceRequests Counter "kafka_server_brokertopicmetrics_failedproducerequests_total" "Appends refused for another reason than those that clients know and heal.";
    FailedFetchRequests Counter "kafka_server_brokertopicmetrics_failedfetchrequests_total" "Reads that the log failed.";
    ReplicationBytesOut Counter "kafka_server_brokertopicmetrics_replicationbytesout_total" "Bytes of batches handed out to followers.";
    InvalidMagic Counter "kafka_server_brokertopicmetrics_invalidmagicnumberrecords_total" "Batches refused for their magic.";
    InvalidCrc Counter "kafka_server_brokertopicmetrics_invalidmessagecrcrecords_total" "Batches refused for their CRC.";
    InvalidOffsetOrSequence Counter "kafka_server_brokertopicmetrics_invalidoffsetorsequencerecords_total" "Batches refused for their offsets or sequences.";
    NoKeyCompacted Counter "kafka_server_brokertopicmetrics_nokeycompactedtopicrecords_total" "Batches with records without a key refused by compacted topics.";
    UnderReplicatedPartitions Gauge "kafka_server_replicamanager_underreplicatedpartitions" "Partitions led here that miss a replica in sync.";
    UnderMinIsr Gauge "kafka_server_replicamanager_underminisrpartitioncount" "Partitions led here with fewer replicas in sync than min.insync.replicas.";
    AtMinIsr Gauge "kafka_server_replicamanager_atminisrpartitioncount" "Partitions led here with exactly min.insync.replicas replicas in sync.";
    OfflineReplicas Gauge "kafka_server_replicamanager_offlinereplicacount" "Replicas here whose log has failed or could not be opened.";
    PartitionCount Gauge "kafka_server_replicamanager_partitioncount" "Replicas here.";
    LeaderCount Gauge "kafka_server_replicamanager_leadercount" "Partitions led here.";
    ProducerIds Gauge "kafka_server_replicamanager_produceridcount" "Producers that the logs here know.";
    ActiveController Gauge "kafka_controller_kafkacontroller_activecontrollercount" "1 when this broker is the controller.";
    OfflinePartitions Gauge "kafka_controller_kafkacontroller_offlinepartitionscount" "Partitions without a live leader, as the controller sees it.";
    PreferredImbalance Gauge "kafka_controller_kafkacontroller_preferredreplicaimbalancecount" "Partitions not led by their preferred replica.";
    GlobalTopics Gauge "kafka_controller_kafkacontroller_globaltopiccount" "Topics of the cluster.";
    GlobalPartitions Gauge "kafka_controller_kafkacontroller_globalpartitioncount" "Partitions of the cluster.";
    ActiveBrokers Gauge "kafka_controller_kafkacontroller_activebrokercount" "Live brokers.";
    FencedBrokers Gauge "kafka_controller_kafkacontroller_fencedbrokercount" "Fenced brokers; a cluster on znodes has none.";
    TopicsToDelete Gauge "kafka_controller_kafkacontroller_topicstodeletecount" "Topics that wait for their deletion.";
    ReplicasToDelete Gauge "kafka_controller_kafkacontroller_replicastodeletecount" "Replicas of those topics that are not deleted.";
    UncleanElections Counter "kafka_controller_controllerstats_uncleanleaderelections_total" "Leaders elected out of sync.";
    LeaderElections Summary "kafka_controller_controllerstats_leaderelectionrateandtimems" "Milliseconds that a change of the live brokers took.";
    ApiRequests Counter "kafka_network_requestmetrics_requests_total" "Requests answered.";
    ApiErrors Counter "kafka_network_requestmetrics_errors_total" "Error codes in answers, NONE included.";
    TotalTime Summary "kafka_network_requestmetrics_totaltimems" "Milliseconds from the last byte of a request to the last byte of its answer.";
    QueueTime Summary "kafka_network_requestmetrics_requestqueuetimems" "Milliseconds that a request waited for those before it.";
    LocalTime Summary "kafka_network_requestmetrics_localtimems" "Milliseconds of handling; of a Produce until its batches are accepted.";
    RemoteTime Summary "kafka_network_requestmetrics_remotetimems" "Milliseconds that a request waited: a Fetch for bytes, a Produce for its writes and replicas.";
    ResponseQueueTime Summary "kafka_network_requestmetrics_responsequeuetimems" "Milliseconds that an answer waited for those before it.";
    SendTime Summary "kafka_network_requestmetrics_responsesendtimems" "Milliseconds of writing the answer to the socket.";
    RequestBytes Summary "kafka_network_requestmetrics_requestbytes" "Bytes of requests.";
    RequestQueueSize Gauge "kafka_network_requestchannel_requestqueuesize" "Requests that wait for those before them on their connection.";
    ResponseQueueSize Gauge "kafka_network_requestchannel_responsequeuesize" "Answers that are being written.";
    NetworkIdle Gauge "kafka_network_socketserver_networkprocessoravgidlepercent" "Share of the last minute that the shards were idle, 0 to 1.";
    NetworkIdlePercent Gauge "kafka_network_socketserver_networkprocessoravgidle_percent" "The same; both spellings are in use.";
    HandlerIdle Gauge "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent" "The same: shards do both.";
    HandlerIdlePercent Gauge "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent" "The same; both spellings are in use.";
    MemoryAvailable Gauge "kafka_network_socketserver_memorypoolavailable" "Bytes left for requests in flight.";
    MemoryUsed Gauge "kafka_network_socketserver_memorypoolused" "Bytes of requests in flight.";
    PurgatorySize Gauge "kafka_server_delayedoperationpurgatory_purgatorysize" "Partitions that delayed operations watch.";
    DelayedOperations Gauge "kafka_server_delayedoperationpurgatory_numdelayedoperations" "Operations that wait; a fetch counts once per shard that has partitions of it.";
    FetchSessions Gauge "kafka_server_fetchsessioncache_numincrementalfetchsessions" "Fetch sessions.";
    FetchSessionPartitions Gauge "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached" "Partitions in fetch sessions.";
    FetchSessionEvictions Counter "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total" "Fetch sessions that had to leave for another.";
    LogSize Gauge "kafka_log_log_size" "Bytes of a log.";
    LogStartOffset Gauge "kafka_log_log_logstartoffset" "First offset of a log.";
    LogEndOffset Gauge "kafka_log_log_logendoffset" "Offset behind the last record of a log.";
    LogSegments Gauge "kafka_log_log_numlogsegments" "Segments of a log.";
    OfflineLogDirs Gauge "kafka_log_logmanager_offlinelogdirectorycount" "Log directories that have failed.";
    LogDirOffline Gauge "kafka_log_logmanager_logdirectoryoffline" "1 when the directory has failed.";
    CleanerMaxDirty Gauge "kafka_log_logcleanermanager_max_dirty_percent" "Share of the dirtiest compacted log that is dirty, 0 to 100.";
    CleanerLastRun Gauge "kafka_log_logcleanermanager_time_since_last_run_ms" "Milliseconds since compacted logs were looked at, on the shard where that is longest.";
    Uncleanable Gauge "kafka_log_logcleanermanager_uncleanable_partitions_count" "Logs that could not be compacted and are left as they are.";
    UncleanableBytes Gauge "kafka_log_logcleanermanager_uncleanable_bytes" "Bytes in them that would be compacted.";
    CleanerDead Gauge "kafka_log_logcleaner_deadthreadcount" "Shards with compacted logs at which nobody looks any more.";
    CleanerMapUsed Gauge "kafka_log_logcleaner_max_buffer_utilization_percent" "Share of the offset map that the last compaction of a shard used, 0 to 100, on the shard where it is greatest.";
    CleanerRecopied Gauge "kafka_log_logcleaner_cleaner_recopy_percent" "Share of the bytes that the last compaction of a shard left, 0 to 100, on the shard where it is greatest.";
    CleanerTime Gauge "kafka_log_logcleaner_max_clean_time_secs" "Seconds that the last compaction of a shard took, on the shard where it was longest.";
    CleanerDelay Gauge "kafka_log_logcleaner_max_compaction_delay_secs" "Seconds by which the compaction of a log is behind max.compaction.lag.ms, of the log where it is most.";
    LogFlush Summary "kafka_log_logflushstats_logflushrateandtimems" "Milliseconds of one fdatasync of a segment.";
    PartitionUnderReplicated Gauge "kafka_cluster_partition_underreplicated" "1 when a partition led here misses a replica in sync.";
    PartitionUnderMinIsr Gauge "kafka_cluster_partition_underminisr" "1 when a partition led here has too few replicas in sync.";
    PartitionIsr Gauge "kafka_cluster_partition_insyncreplicascount" "Replicas in sync of a partition led here, else 0.";
    PartitionReplicas Gauge "kafka_cluster_partition_replicascount" "Replicas of a partition led here, else 0.";
    PartitionStableLag Gauge "kafka_cluster_partition_laststableoffsetlag" "Records between the last stable offset and the high watermark.";
    Groups Gauge "kafka_coordinator_group_groupmetadatamanager_numgroups" "Groups coordinated here.";
    GroupOffsets Gauge "kafka_coordinator_group_groupmetadatamanager_numoffsets" "Committed offsets of groups coordinated here.";
    GroupsPreparing Gauge "kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance" "Groups that wait for their members to join.";
    GroupsCompleting Gauge "kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance" "Groups that wait for their leader's assignment.";
    GroupsStable Gauge "kafka_coordinator_group_groupmetadatamanager_numgroupsstable" "Groups whose members know their assignment.";
    GroupsDead Gauge "kafka_coordinator_group_groupmetadatamanager_numgroupsdead" "Groups that are being removed.";
    GroupsEmpty Gauge "kafka_coordinator_group_groupmetadatamanager_numgroupsempty" "Groups without members.";
    GroupLoadMax Gauge "kafka_server_group_coordinator_metrics_partition_load_time_max" "Milliseconds of the longest load of a partition of __consumer_offsets since the start.";
    GroupLoadAverage Gauge "kafka_server_group_coordinator_metrics_partition_load_time_avg" "Milliseconds of such a load in the mean, on the shard where that is longest.";
    GroupCommits Counter "kafka_server_group_coordinator_metrics_offset_commit_count" "Offsets committed.";
    GroupExpirations Counter "kafka_server_group_coordinator_metrics_offset_expiration_count" "Committed offsets that expired.";
    GroupDeletions Counter "kafka_server_group_coordinator_metrics_offset_deletion_count" "Committed offsets that clients deleted.";
    GroupRebalances Counter "kafka_server_group_coordinator_metrics_group_completed_rebalance_count" "Rebalances whose assignment the members were given.";
    GroupRequests Gauge "odradek_group_requests_waiting" "Requests to groups that wait for a rebalance or a write.";
    GroupMemory Gauge "odradek_group_memory_bytes" "Bytes that groups, their members and offsets take, of groups.memory.bytes.";
    GroupRefusals Counter "odradek_group_memory_refusals_total" "Requests of groups that were told to come again as there was no memory for what they bring.";
    Connections Gauge "kafka_server_socket_server_metrics_connection_count" "Connections.";
    ConnectionRate Gauge "kafka_server_socket_server_metrics_connection_creation_rate" "New connections per second of the last minute.";
    ConnectionTotal Counter "kafka_server_socket_server_metrics_connection_creation_total" "New connections.";
    AcceptorBlocked Gauge "kafka_network_acceptor_acceptorblocked_percent" "Share of the last minute in which a listener accepted nobody because a limit on connections was reached, 0 to 1.";
    ConnectionsRefused Counter "odradek_connections_refused_total" "New connections that were closed at once by a limit.";
    ConnectionsHeldUp Counter "odradek_connections_held_up_total" "New connections that had to wait for a place, and attempts to accept for which there was no descriptor.";
    AcceptingBlocked Counter "odradek_accepting_blocked_seconds_total" "Time in which a shard accepted nobody on a listener because a limit on connections was reached.";
    ConnectionsLimit Gauge "odradek_connections_limit" "Connections that may be open: max.connections, or half of the descriptors if that is less.";
    BrokerState Gauge "kafka_server_kafkaserver_brokerstate" "1 starting, 2 recovery, 3 running, 6 pending shutdown, 7 shutting down.";
    ResponseBytes Counter "odradek_response_bytes_total" "Bytes of answers.";
    ShardCpu Counter "odradek_shard_cpu_seconds_total" "CPU time of a shard's thread.";
    ShardRequests Counter "odradek_shard_requests_total" "Requests that a shard's connections have answered.";
    ShardBytesIn Counter "odradek_shard_request_bytes_total" "Bytes of those requests.";
    ShardBytesOut Counter "odradek_shard_response_bytes_total" "Bytes of their answers.";
    ShardSync Summary "odradek_shard_fdatasync_ms" "Milliseconds of one fdatasync of a segment of a shard.";
    ShardLateWakes Counter "odradek_shard_late_wakes_total" "Times that a shard's ticker woke more than 20 ms late.";
    ShardColdPieces Counter "odradek_shard_cold_pieces_total" "Pieces of files, of at most 256 KiB, that were not in memory when they were to be sent.";
    ShardSlowSends Counter "odradek_shard_slow_file_sends_total" "Pieces of files whose sending took more than 1 ms: it waited for a disk, or the core was taken away.";
    ShardTasks Counter "odradek_shard_tasks_total" "Times that a shard has polled a task.";
    ShardConnections Gauge "odradek_shard_connections" "Connections of a shard.";
    ShardMailbox Gauge "odradek_shard_mailbox_depth" "Messages from other shards that a shard has not taken.";
    ShardMemoryUsed Gauge "odradek_shard_request_memory_bytes" "Bytes of requests in flight on a shard.";
    ShardMemoryLimit Gauge "odradek_shard_request_memory_limit_bytes" "Bytes of requests in flight at which a shard stops to read.";
    PartitionsNotTold Gauge "odradek_partitions_not_told" "Partitions left out of the series by partition, beyond the first 10000.";
    ProcessCpu Counter "process_cpu_seconds_total" "CPU time of the process, all threads.";
    ProcessMemory Gauge "process_resident_memory_bytes" "Resident memory.";
    ProcessDescriptors Gauge "process_open_fds" "Open file descriptors.";
    ProcessDescriptorsMax Gauge "process_max_fds" "File descriptors that the process may have.";
}
