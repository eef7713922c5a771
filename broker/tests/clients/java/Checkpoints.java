// Kafka's own readers over the small files of a cleanly stopped directory: checkpoints, leader epochs, topic ids, identity.
// Usage: Checkpoints LOG_DIR, with Kafka's server jars. Prints `N partitions`, or a FAILED line per fault and exits with 1.

import java.io.File;
import java.util.*;
import kafka.server.checkpoints.OffsetCheckpointFile;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.metadata.properties.MetaProperties;
import org.apache.kafka.metadata.properties.PropertiesUtils;
import org.apache.kafka.storage.internals.checkpoint.*;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;

public final class Checkpoints {
  static final LogDirFailureChannel FAILURES = new LogDirFailureChannel(10);
  static int faults;

  static void expect(boolean condition, String what) {
    if (condition) return;
    faults++;
    System.out.println("FAILED " + what);
  }

  static Map<TopicPartition, Long> offsets(File directory, String name) {
    File file = new File(directory, name);
    expect(file.exists(), name + " is missing");
    Map<TopicPartition, Long> offsets = new HashMap<>();
    var each = new OffsetCheckpointFile(file, FAILURES).read().iterator();
    while (each.hasNext()) {
      var entry = each.next();
      offsets.put(entry._1(), (Long) entry._2());
    }
    return offsets;
  }

  static void checkEpochs(File partition, long end) throws Exception {
    File file = LeaderEpochCheckpointFile.newFile(partition);
    expect(file.exists() || end == 0, partition + " has records and no leader epoch");
    if (!file.exists()) return;
    List<EpochEntry> entries = new LeaderEpochCheckpointFile(file, FAILURES).read();
    expect(!entries.isEmpty() || end == 0, file + " is empty");
    for (int i = 0; i < entries.size(); i++) {
      EpochEntry entry = entries.get(i);
      expect(entry.startOffset <= end, file + ": an epoch begins at " + entry.startOffset + ", above the end " + end);
      if (i == 0) continue;
      EpochEntry before = entries.get(i - 1);
      expect(before.epoch < entry.epoch && before.startOffset < entry.startOffset, file + ": not ascending: " + entries);
    }
  }

  public static void main(String[] arguments) throws Exception {
    File directory = new File(arguments[0]);
    expect(new CleanShutdownFileHandler(directory.getPath()).exists(), "no mark of a clean stop");
    var identity = new MetaProperties.Builder(PropertiesUtils.readPropertiesFile(new File(directory, "meta.properties").getPath())).build();
    expect(identity.nodeId().isPresent() && identity.clusterId().isPresent(), "meta.properties: " + identity);
    var recoveryPoints = offsets(directory, "recovery-point-offset-checkpoint");
    var highWatermarks = offsets(directory, "replication-offset-checkpoint");
    var logStarts = offsets(directory, "log-start-offset-checkpoint");

    int partitions = 0;
    for (File partition : directory.listFiles(File::isDirectory)) {
      String name = partition.getName();
      if (name.endsWith("-delete")) continue;
      partitions++;
      int dash = name.lastIndexOf('-');
      var key = new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
      Long end = recoveryPoints.get(key);
      expect(end != null, key + " has no recovery point after a clean stop");
      if (end == null) continue;
      expect(end.equals(highWatermarks.get(key)), key + ": high watermark " + highWatermarks.get(key) + ", recovery point " + end);
      expect(logStarts.getOrDefault(key, 0L) <= end, key + ": log start " + logStarts.get(key) + " above " + end);
      checkEpochs(partition, end);
      var metadata = new PartitionMetadataFile(PartitionMetadataFile.newFile(partition), FAILURES).read();
      expect(metadata.version() == 0 && !metadata.topicId().equals(Uuid.ZERO_UUID), key + ": topic id " + metadata.topicId());
    }
    expect(partitions > 0, "no partition to look at");
    System.out.println(partitions + " partitions");
    System.exit(faults == 0 ? 0 : 1);
  }
}
