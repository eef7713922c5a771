// The Java clients: a default (idempotent) producer, each codec and acks, a consumer by assignment, and the admin.
// Usage: Suite BOOTSTRAP VERSION. Prints a line per check and ends with `N passed, N failed`.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

public final class Suite {
  interface Check { void run() throws Exception; }

  static String bootstrap, version;
  static Admin admin;
  static int passed, failed;
  static final long NOW = System.currentTimeMillis();

  static void check(String title, Check check) {
    long started = System.nanoTime();
    try {
      check.run();
      passed++;
      System.out.printf("ok java %s: %s (%.2f s)%n", version, title, (System.nanoTime() - started) / 1e9);
    } catch (Throwable error) {
      failed++;
      System.out.printf("FAILED java %s: %s%n", version, title);
      error.printStackTrace(System.out);
    }
  }

  static void equal(Object got, Object want, String what) {
    if (!Objects.equals(got, want)) throw new AssertionError(what + ": got " + got + ", want " + want);
  }

  static void eventually(String what, java.util.concurrent.Callable<Boolean> condition) throws Exception {
    long deadline = System.nanoTime() + 15_000_000_000L;
    while (!condition.call()) {
      if (System.nanoTime() > deadline) throw new AssertionError(what + ": not within 15 s");
      Thread.sleep(50);
    }
  }

  static byte[] bytes(String text) { return text == null ? null : text.getBytes(StandardCharsets.UTF_8); }

  static String create(String prefix, int partitions, Map<String, String> configs) throws Exception {
    String topic = prefix + "-" + UUID.randomUUID();
    CreateTopicsResult result = admin.createTopics(List.of(new NewTopic(topic, Optional.of(partitions), Optional.empty()).configs(configs)));
    result.all().get();
    equal(result.numPartitions(topic).get(), partitions, "partitions in the answer");
    eventually("metadata", () -> admin.listTopics().names().get().contains(topic));
    return topic;
  }

  static Properties base(Map<String, Object> more) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.putAll(more);
    return settings;
  }

  static KafkaProducer<byte[], byte[]> producer(Map<String, Object> settings) {
    return new KafkaProducer<>(base(settings), new ByteArraySerializer(), new ByteArraySerializer());
  }

  static List<ProducerRecord<byte[], byte[]>> records(String topic) {
    List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
    records.add(new ProducerRecord<>(topic, 0, NOW - 5000, bytes("key"), bytes("value"), List.of()));
    records.add(new ProducerRecord<>(topic, 0, NOW - 4000, null, bytes("no key"), List.of(new RecordHeader("h", bytes("1")))));
    List<Header> headers = new ArrayList<>();
    for (int i = 0; i < 500; i++) headers.add(new RecordHeader("h", bytes("" + i)));
    headers.add(new RecordHeader("none", (byte[]) null));
    headers.add(new RecordHeader("", bytes("")));
    records.add(new ProducerRecord<>(topic, 0, NOW - 3000, bytes("no value"), null, headers));
    records.add(new ProducerRecord<>(topic, 0, NOW - 2000, bytes(""), bytes(""), List.of()));
    byte[] big = new byte[300_000];
    new Random(7).nextBytes(big);
    records.add(new ProducerRecord<>(topic, 0, NOW - 1000, bytes("big"), big, List.of()));
    return records;
  }

  static List<ConsumerRecord<byte[], byte[]>> read(String topic, int count, long offset, Map<String, Object> settings) {
    Map<String, Object> all = new HashMap<>(Map.of("enable.auto.commit", false, "auto.offset.reset", "none", "fetch.max.wait.ms", 100));
    all.putAll(settings);
    try (var consumer = new KafkaConsumer<>(base(all), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      TopicPartition where = new TopicPartition(topic, 0);
      consumer.assign(List.of(where));
      consumer.seek(where, offset);
      List<ConsumerRecord<byte[], byte[]>> got = new ArrayList<>();
      long deadline = System.nanoTime() + 20_000_000_000L;
      while (got.size() < count && System.nanoTime() < deadline) consumer.poll(Duration.ofMillis(500)).forEach(got::add);
      equal(got.size(), count, "records read");
      return got;
    }
  }

  static String text(byte[] key, byte[] value, Iterable<Header> headers, long timestamp) {
    StringBuilder all = new StringBuilder().append(Arrays.toString(key)).append(Arrays.hashCode(value)).append(value == null).append(timestamp);
    for (Header header : headers) all.append(header.key()).append(Arrays.toString(header.value()));
    return all.toString();
  }

  static void roundTrip(String codec, String acks) throws Exception {
    String topic = create("java-" + codec, 1, Map.of());
    List<String> want = new ArrayList<>(), got = new ArrayList<>();
    try (var producer = producer(Map.of("compression.type", codec, "acks", acks, "linger.ms", 5, "enable.idempotence", acks.equals("all")))) {
      List<Future<RecordMetadata>> sent = new ArrayList<>();
      for (var record : records(topic)) {
        sent.add(producer.send(record));
        want.add(text(record.key(), record.value(), record.headers(), record.timestamp()));
      }
      for (int i = 0; i < sent.size(); i++) {
        long offset = sent.get(i).get().offset();
        if (!acks.equals("0")) equal(offset, (long) i, "offset");
      }
    }
    for (var record : read(topic, want.size(), 0, Map.of("isolation.level", "read_committed")))
      got.add(text(record.key(), record.value(), record.headers(), record.timestamp()));
    equal(got, want, "records");
  }

  static void defaultProducer() throws Exception {
    String topic = create("java-default", 1, Map.of());
    try (var producer = producer(Map.of())) {
      List<Future<RecordMetadata>> sent = new ArrayList<>();
      for (int i = 0; i < 20_000; i++) sent.add(producer.send(new ProducerRecord<>(topic, bytes("v" + i))));
      for (int i = 0; i < sent.size(); i++) equal(sent.get(i).get().offset(), (long) i, "offset");
    }
    int i = 0;
    for (var record : read(topic, 20_000, 0, Map.of("max.poll.records", 5000))) equal(new String(record.value()), "v" + i++, "order");
  }

  static void seekAndListOffsets() throws Exception {
    String topic = create("java-offsets", 1, Map.of());
    TopicPartition where = new TopicPartition(topic, 0);
    try (var producer = producer(Map.of())) {
      long[] times = {1000, 3000, 2000};
      for (long time : times) producer.send(new ProducerRecord<>(topic, 0, time, null, bytes("" + time))).get();
    }
    Map<OffsetSpec, Long> cases = Map.of(OffsetSpec.earliest(), 0L, OffsetSpec.latest(), 3L, OffsetSpec.maxTimestamp(), 1L, OffsetSpec.forTimestamp(1500), 1L);
    for (var each : cases.entrySet())
      equal(admin.listOffsets(Map.of(where, each.getKey())).partitionResult(where).get().offset(), each.getValue(), each.getKey().toString());
    equal(new String(read(topic, 1, 2, Map.of()).get(0).value()), "2000", "seek");
    equal(admin.deleteRecords(Map.of(where, RecordsToDelete.beforeOffset(2))).lowWatermarks().get(where).get().lowWatermark(), 2L, "low watermark");
    equal(admin.listOffsets(Map.of(where, OffsetSpec.earliest())).partitionResult(where).get().offset(), 2L, "earliest after deletion");
  }

  static void tooBig() throws Exception {
    String topic = create("java-toobig", 1, Map.of("max.message.bytes", "5000"));
    try (var producer = producer(Map.of())) {
      producer.send(new ProducerRecord<>(topic, new byte[9000])).get();
      throw new AssertionError("a record above max.message.bytes was taken");
    } catch (ExecutionException error) {
      equal(error.getCause().getClass(), RecordTooLargeException.class, "error");
    }
  }

  static void adminCalls() throws Exception {
    String topic = create("java-admin", 2, Map.of("retention.ms", "12345"));
    ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
    equal(admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value(), "12345", "config");
    admin.incrementalAlterConfigs(Map.of(resource, List.of(
        new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND),
        new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE)))).all().get();
    eventually("altered", () -> {
      Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
      return config.get("cleanup.policy").value().equals("delete,compact") && config.get("retention.ms").isDefault();
    });
    admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
    eventually("4 partitions", () -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size() == 4);
    TopicDescription description = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
    for (TopicPartitionInfo partition : description.partitions()) equal(partition.leader().id(), partition.replicas().get(0).id(), "leader");
    int broker = admin.describeCluster().nodes().get().iterator().next().id();
    equal(admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker).size(), 1, "log dirs");
    equal(admin.describeProducers(List.of(new TopicPartition(topic, 0))).all().get().get(new TopicPartition(topic, 0)).activeProducers(), List.of(), "producers");
    admin.deleteTopics(org.apache.kafka.common.TopicCollection.ofTopicIds(List.of(description.topicId()))).all().get();
    eventually("deleted", () -> !admin.listTopics().names().get().contains(topic));
  }

  public static void main(String[] arguments) {
    bootstrap = arguments[0];
    version = arguments[1];
    admin = Admin.create(base(Map.of()));
    for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
      for (String acks : List.of("0", "1", "all")) check("round trip, " + codec + ", acks=" + acks, () -> roundTrip(codec, acks));
    check("default producer", Suite::defaultProducer);
    check("seek and list offsets", Suite::seekAndListOffsets);
    check("too big", Suite::tooBig);
    check("admin", Suite::adminCalls);
    admin.close(Duration.ofSeconds(5));
    System.out.printf("%d passed, %d failed%n", passed, failed);
    System.exit(failed == 0 ? 0 : 1);
  }
}
