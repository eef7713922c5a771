// A consumer of a group that goes on where the group has committed: checks that this is where it is said to be, reads so many
// records, each once and in order, commits batch by batch, and says where it has come to.
//
// Usage: Continues BOOTSTRAP TOPIC GROUP RECORDS OFFSETS, where OFFSETS is what is committed, as "0:12 1:30", or "".

import java.time.Duration;
import java.util.*;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class Continues {
  static final Duration LIMIT = Duration.ofMinutes(2);

  public static void main(String[] arguments) {
    String topic = arguments[1], told = arguments[4];
    int wanted = Integer.parseInt(arguments[3]);
    Map<TopicPartition, Long> expected = new HashMap<>();
    for (String one : told.isEmpty() ? new String[0] : told.split(" ")) {
      String[] parts = one.split(":");
      expected.put(new TopicPartition(topic, Integer.parseInt(parts[0])), Long.parseLong(parts[1]));
    }
    Map<String, Object> settings = Map.of(
        "bootstrap.servers", arguments[0], "group.id", arguments[2], "enable.auto.commit", false,
        "auto.offset.reset", expected.isEmpty() ? "earliest" : "none", "max.poll.records", 10,
        "session.timeout.ms", 10_000, "heartbeat.interval.ms", 200, "fetch.max.wait.ms", 100);
    try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      Set<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
          .map(info -> new TopicPartition(topic, info.partition())).collect(Collectors.toSet());
      Map<TopicPartition, Long> committed = new HashMap<>();
      consumer.committed(partitions, LIMIT).forEach((where, what) -> { if (what != null) committed.put(where, what.offset()); });
      if (!committed.equals(expected)) throw new AssertionError("committed is " + committed + ", not " + expected);
      Map<TopicPartition, Long> next = new HashMap<>();
      for (TopicPartition where : partitions) next.put(where, committed.getOrDefault(where, 0L));
      consumer.subscribe(List.of(topic));
      int read = 0;
      for (long deadline = System.currentTimeMillis() + LIMIT.toMillis(); read < wanted; ) {
        if (System.currentTimeMillis() > deadline) throw new AssertionError("only " + read + " records, to " + next);
        var records = consumer.poll(Duration.ofMillis(200));
        for (var record : records) {
          TopicPartition where = new TopicPartition(record.topic(), record.partition());
          if (record.offset() != next.get(where)) throw new AssertionError(where + ": " + record.offset() + ", not " + next.get(where));
          next.put(where, record.offset() + 1);
        }
        if (!records.isEmpty()) consumer.commitSync(LIMIT);
        read += records.count();
      }
      // Where it has read nothing it may have committed the beginning: it is assigned all partitions.
      consumer.committed(partitions, LIMIT).forEach((where, what) -> {
        if (what != null) System.out.println("committed " + where.partition() + " " + what.offset());
      });
    }
  }
}
