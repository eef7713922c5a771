// Kafka's own log over a partition directory of ours, which it loads as after a clean stop or as after a crash, and may
// change: give it a copy. Usage: Logs clean|killed DIRECTORY, with Kafka's server jars. Prints one line: where the log
// begins and ends, its epochs, and every producer with its last batch. Fails when loading cuts more than the last segment.

import java.io.File;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import kafka.log.UnifiedLog;
import kafka.server.BrokerTopicStats;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.log.*;

public final class Logs {
  static final LogDirFailureChannel FAILURES = new LogDirFailureChannel(10);

  static SortedMap<String, Long> segments(File directory) {
    SortedMap<String, Long> sizes = new TreeMap<>();
    for (File file : directory.listFiles((d, name) -> name.endsWith(".log"))) sizes.put(file.getName(), file.length());
    return sizes;
  }

  public static void main(String[] arguments) throws Exception {
    boolean clean = arguments[0].equals("clean");
    File directory = new File(arguments[1]);
    SortedMap<String, Long> before = segments(directory);
    Properties settings = new Properties();
    settings.put("segment.bytes", "1073741824");
    settings.put("retention.ms", "-1");
    long start = Long.parseLong(before.firstKey().replace(".log", ""));
    long recoveryPoint = clean ? Long.MAX_VALUE : start;
    UnifiedLog log = UnifiedLog.apply(directory, new LogConfig(settings), start, recoveryPoint, new KafkaScheduler(1),
        new BrokerTopicStats(false), Time.SYSTEM, 900_000, new ProducerStateManagerConfig(86_400_000, false), 600_000, FAILURES, clean,
        scala.Option.empty(), true, new ConcurrentHashMap<>(), false, LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
    SortedMap<String, Long> after = segments(directory);
    for (String name : before.headMap(before.lastKey()).keySet())
      if (!before.get(name).equals(after.get(name))) {
        System.out.println("FAILED " + name + " had " + before.get(name) + " bytes and has " + after.get(name));
        System.exit(1);
      }
    String producers = new TreeMap<>(log.producerStateManager().activeProducers()).values().stream()
        .map(p -> p.producerId() + ":" + p.producerEpoch() + ":" + p.lastSeq() + "@" + p.lastDataOffset() + "-" + p.lastOffsetDelta())
        .collect(Collectors.joining(" "));
    String epochs = new LeaderEpochCheckpointFile(LeaderEpochCheckpointFile.newFile(directory), FAILURES).read().stream()
        .map(e -> e.epoch + "@" + e.startOffset).collect(Collectors.joining(","));
    System.out.println("start " + log.logStartOffset() + " end " + log.logEndOffset() + " epochs " + epochs + " producers " + producers);
    System.exit(0);
  }
}
