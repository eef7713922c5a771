// Log dirs through Kafka's Java clients: where partitions are, moves between the dirs while a producer and a consumer go on,
// and what is refused. Usage: LogDirs BOOTSTRAP DIR DIR, the log dirs of the broker.

import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public final class LogDirs {
  static final String TOPIC = "moved";
  static final int PARTITIONS = 4;

  static void ok(boolean condition, String what) {
    System.out.println((condition ? "ok " : "FAILED ") + what);
  }

  /** The broker: there is one. */
  static int broker(Admin admin) throws Exception {
    return admin.describeCluster().nodes().get().iterator().next().id();
  }

  static Map<String, LogDirDescription> describe(Admin admin, int broker) throws Exception {
    return admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker);
  }

  static String place(Admin admin, TopicPartitionReplica replica) throws Exception {
    var info = admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica);
    return info.getCurrentReplicaLogDir();
  }

  static boolean isMoving(Admin admin, TopicPartitionReplica replica) throws Exception {
    var info = admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica);
    return info.getFutureReplicaLogDir() != null;
  }

  static void refused(Admin admin, TopicPartitionReplica replica, String dir, Class<?> with) throws Exception {
    try {
      admin.alterReplicaLogDirs(Map.of(replica, dir)).all().get();
      ok(false, dir + " is taken for " + replica);
    } catch (ExecutionException e) {
      ok(with.isInstance(e.getCause()), with.getSimpleName() + " for " + replica + " in " + dir + ": " + e.getCause());
    }
  }

  static Producer<String, byte[]> producer(String bootstrap) {
    var config = new Properties();
    config.put("bootstrap.servers", bootstrap);
    config.put("acks", "all");
    config.put("enable.idempotence", "true");
    return new KafkaProducer<>(config, new StringSerializer(), new ByteArraySerializer());
  }

  static void send(Producer<String, byte[]> producer, int from, int count) throws Exception {
    var sent = new ArrayList<java.util.concurrent.Future<RecordMetadata>>();
    for (int number = from; number < from + count; number++) {
      for (int partition = 0; partition < PARTITIONS; partition++) {
        sent.add(producer.send(new ProducerRecord<>(TOPIC, partition, "k" + number, new byte[2000])));
      }
    }
    for (var one : sent) one.get();
  }

  /** The keys of a partition, in their order. */
  static List<String> keys(String bootstrap, int partition) {
    var config = new Properties();
    config.put("bootstrap.servers", bootstrap);
    config.put("auto.offset.reset", "earliest");
    var keys = new ArrayList<String>();
    try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new ByteArrayDeserializer())) {
      var of = new TopicPartition(TOPIC, partition);
      consumer.assign(List.of(of));
      long end = consumer.endOffsets(List.of(of)).get(of);
      while (consumer.position(of) < end) {
        for (var record : consumer.poll(java.time.Duration.ofMillis(500))) keys.add(record.key());
      }
    }
    return keys;
  }

  public static void main(String[] args) throws Exception {
    String bootstrap = args[0];
    List<String> dirs = List.of(args[1], args[2]);
    try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap));
        var producer = producer(bootstrap)) {
      int broker = broker(admin);
      refused(admin, new TopicPartitionReplica(TOPIC, 0, broker), dirs.get(1), ReplicaNotAvailableException.class);
      admin.createTopics(List.of(new NewTopic(TOPIC, PARTITIONS, (short) 1).configs(Map.of("segment.bytes", "100000")))).all().get();
      var first = new TopicPartitionReplica(TOPIC, 0, broker);
      ok(place(admin, first).equals(dirs.get(1)), "a partition is made where it was wished to be");
      var described = describe(admin, broker);
      ok(described.keySet().equals(new HashSet<>(dirs)), "both log dirs are told: " + described.keySet());
      for (var dir : described.values()) {
        ok(dir.error() == null && dir.replicaInfos().size() == PARTITIONS / 2, "half of the partitions: " + dir);
        ok(dir.totalBytes().getAsLong() > dir.usableBytes().getAsLong(), "bytes of the volume: " + dir);
      }
      send(producer, 0, 300);
      refused(admin, first, "/nowhere", LogDirNotFoundException.class);
      refused(admin, new TopicPartitionReplica("absent", 0, broker), dirs.get(0), ReplicaNotAvailableException.class);
      int sent = 300;
      for (int round = 0; round < 4; round++) {
        var wanted = new HashMap<TopicPartitionReplica, String>();
        for (int partition = 0; partition < PARTITIONS; partition++) {
          var replica = new TopicPartitionReplica(TOPIC, partition, broker);
          wanted.put(replica, place(admin, replica).equals(dirs.get(0)) ? dirs.get(1) : dirs.get(0));
        }
        admin.alterReplicaLogDirs(wanted).all().get();
        long deadline = System.currentTimeMillis() + 60_000;
        boolean arrived = false;
        while (!arrived && System.currentTimeMillis() < deadline) {
          send(producer, sent, 10);
          sent += 10;
          arrived = true;
          for (var one : wanted.entrySet()) {
            arrived &= place(admin, one.getKey()).equals(one.getValue()) && !isMoving(admin, one.getKey());
          }
        }
        ok(arrived, "all partitions are where they were wished to be, round " + round);
      }
      for (int partition = 0; partition < PARTITIONS; partition++) {
        var expected = new ArrayList<String>();
        for (int number = 0; number < sent; number++) expected.add("k" + number);
        ok(keys(bootstrap, partition).equals(expected), "every record once and in order, partition " + partition);
      }
    }
  }
}
