// Kafka's own log and cleaner over a partition directory, to hold our compaction against (T-10). With Kafka's server jars:
// Compaction fill DIRECTORY ROUND    appends what tries every rule: codecs, tombstones, producers, transactions
// Compaction clean DIRECTORY         lets Kafka's cleaner do all that there is to do
// Compaction print DIRECTORY         prints segments, batches, records and aborted transactions, but for the time of a horizon

import java.io.File;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import kafka.log.LogCleaner;
import kafka.log.UnifiedLog;
import kafka.server.BrokerTopicStats;
import kafka.server.RequestLocal;
import kafka.utils.Pool;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.*;

public final class Compaction {
  static final LogDirFailureChannel FAILURES = new LogDirFailureChannel(10);
  static final CompressionType[] CODECS = CompressionType.values();

  static UnifiedLog open(File directory) throws Exception {
    Properties settings = new Properties();
    settings.put("cleanup.policy", "compact");
    settings.put("segment.bytes", "4000");
    settings.put("min.cleanable.dirty.ratio", "0.01");
    settings.put("delete.retention.ms", "1");
    return UnifiedLog.apply(directory, new LogConfig(settings), 0L, Long.MAX_VALUE, new KafkaScheduler(1),
        new BrokerTopicStats(false), Time.SYSTEM, 900_000, new ProducerStateManagerConfig(86_400_000, false), 600_000, FAILURES, true,
        scala.Option.empty(), true, new ConcurrentHashMap<>(), false, LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
  }

  static void append(UnifiedLog log, MemoryRecords records, AppendOrigin origin) {
    log.appendAsLeader(records, 0, origin, MetadataVersion.latestProduction(), RequestLocal.NoCaching(), VerificationGuard.SENTINEL);
  }

  static SimpleRecord record(Random random, int round, int number) {
    byte[] key = ("key" + random.nextInt(14)).getBytes();
    byte[] value = random.nextInt(4) == 0 ? null : (round + "-" + number + "-" + "v".repeat(random.nextInt(60))).getBytes();
    return new SimpleRecord(System.currentTimeMillis(), key, value);
  }

  static void fill(File directory, int round) throws Exception {
    UnifiedLog log = open(directory);
    Random random = new Random(round);
    Map<Long, Integer> sequences = new HashMap<>();
    Set<Long> inTransaction = new TreeSet<>();
    for (int at = 0; at < 120; at++) {
      // Producers of this round only, so that their sequences begin at 0; later rounds find them idle.
      int kind = random.nextInt(3);
      long producer = 100L * round + (kind == 1 ? random.nextInt(4) : 10 + random.nextInt(4));
      SimpleRecord[] records = new SimpleRecord[1 + random.nextInt(4)];
      for (int i = 0; i < records.length; i++) records[i] = record(random, round, at * 10 + i);
      Compression codec = Compression.of(CODECS[random.nextInt(CODECS.length)]).build();
      int sequence = sequences.getOrDefault(producer, 0);
      if (kind == 0) append(log, MemoryRecords.withRecords(codec, records), AppendOrigin.CLIENT);
      else if (kind == 1) append(log, MemoryRecords.withIdempotentRecords(codec, producer, (short) 0, sequence, records), AppendOrigin.CLIENT);
      else {
        append(log, MemoryRecords.withTransactionalRecords(codec, producer, (short) 0, sequence, records), AppendOrigin.CLIENT);
        inTransaction.add(producer);
      }
      if (kind != 0) sequences.put(producer, sequence + records.length);
      if (random.nextInt(5) == 0) end(log, random, inTransaction);
    }
    while (!inTransaction.isEmpty()) end(log, random, inTransaction);
    // The last batch before what is not cleaned keeps its record: Kafka 3.9 and we differ over one that loses all.
    append(log, MemoryRecords.withRecords(Compression.NONE, new SimpleRecord(System.currentTimeMillis(), ("last" + round).getBytes(), new byte[9])), AppendOrigin.CLIENT);
    log.roll(scala.Option.empty());
    log.close();
  }

  /// Commits or aborts one of the open transactions.
  static void end(UnifiedLog log, Random random, Set<Long> inTransaction) {
    if (inTransaction.isEmpty()) return;
    long producer = new ArrayList<>(inTransaction).get(random.nextInt(inTransaction.size()));
    var marker = new EndTransactionMarker(random.nextBoolean() ? ControlRecordType.COMMIT : ControlRecordType.ABORT, 1);
    append(log, MemoryRecords.withEndTransactionMarker(producer, (short) 0, marker), AppendOrigin.COORDINATOR);
    inTransaction.remove(producer);
  }

  static void clean(File directory) throws Exception {
    UnifiedLog log = open(directory);
    log.updateHighWatermark(log.logEndOffset());
    TopicPartition partition = log.topicPartition();
    Pool<TopicPartition, UnifiedLog> logs = new Pool<>(scala.Option.empty());
    logs.put(partition, log);
    var directories = scala.jdk.javaapi.CollectionConverters.asScala(List.of(directory.getParentFile())).toSeq();
    LogCleaner cleaner = new LogCleaner(new CleanerConfig(true), directories, logs, FAILURES, Time.SYSTEM);
    cleaner.startup();
    long end = log.activeSegment().baseOffset();
    if (!cleaner.awaitCleaned(partition, end, 60_000L)) throw new IllegalStateException("Kafka has not cleaned up to " + end);
    cleaner.shutdown();
    log.close();
  }

  static String text(ByteBuffer bytes) {
    if (bytes == null) return "null";
    byte[] copy = new byte[bytes.remaining()];
    bytes.duplicate().get(copy);
    return Base64.getEncoder().encodeToString(copy);
  }

  static void print(File directory) throws Exception {
    File[] files = directory.listFiles((d, name) -> name.endsWith(".log"));
    Arrays.sort(files);
    for (File file : files) {
      System.out.println("segment " + file.getName());
      try (FileRecords records = FileRecords.open(file, false)) {
        for (RecordBatch batch : records.batches()) {
          batch.ensureValid();
          System.out.println("batch " + batch.baseOffset() + "-" + batch.lastOffset() + " count " + batch.countOrNull() + " " + batch.compressionType()
              + " producer " + batch.producerId() + ":" + batch.producerEpoch() + ":" + batch.baseSequence() + " txn " + batch.isTransactional()
              + " control " + batch.isControlBatch() + " max " + batch.maxTimestamp() + " horizon " + batch.deleteHorizonMs().isPresent());
          for (org.apache.kafka.common.record.Record record : batch)
            System.out.println("record " + record.offset() + " " + record.timestamp() + " " + text(record.key()) + " " + text(record.value()));
        }
      }
      File index = new File(file.getPath().replace(".log", ".txnindex"));
      if (index.exists() && index.length() > 0) {
        long base = Long.parseLong(file.getName().replace(".log", ""));
        for (AbortedTxn txn : new TransactionIndex(base, index).allAbortedTxns())
          System.out.println("aborted " + txn.producerId() + " " + txn.firstOffset() + "-" + txn.lastOffset() + " " + txn.lastStableOffset());
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    File directory = new File(arguments[1]);
    switch (arguments[0]) {
      case "fill" -> fill(directory, Integer.parseInt(arguments[2]));
      case "clean" -> clean(directory);
      default -> print(directory);
    }
    System.exit(0);
  }
}
