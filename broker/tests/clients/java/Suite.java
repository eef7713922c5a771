// The Java clients: a default (idempotent) producer, each codec and acks, a consumer by assignment and in groups, and the
// admin.
// Usage: Suite BOOTSTRAP VERSION. Prints a line per check and ends with `N passed, N failed`.

import java.io.*;
import java.net.Socket;
import java.nio.ByteBuffer;
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
import org.xerial.snappy.*;

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
    long deadline = System.nanoTime() + 60_000_000_000L;
    while (!condition.call()) {
      if (System.nanoTime() > deadline) throw new AssertionError(what + ": not within 60 s");
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
      long deadline = System.nanoTime() + 60_000_000_000L;
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

  static void varint(DataOutputStream out, long value) throws Exception {
    long zigzag = (value << 1) ^ (value >> 63);
    for (; (zigzag & ~0x7fL) != 0; zigzag >>>= 7) out.writeByte((int) (zigzag & 0x7f) | 0x80);
    out.writeByte((int) zigzag);
  }

  /** The records of a batch, by their values; the keys are empty. */
  static byte[] payload(List<String> values) throws Exception {
    var all = new ByteArrayOutputStream();
    for (int i = 0; i < values.size(); i++) {
      var record = new ByteArrayOutputStream();
      var out = new DataOutputStream(record);
      out.writeByte(0);
      varint(out, i); varint(out, i); varint(out, 0);
      byte[] value = bytes(values.get(i));
      varint(out, value.length);
      out.write(value);
      varint(out, 0);
      varint(new DataOutputStream(all), record.size());
      record.writeTo(all);
    }
    return all.toByteArray();
  }

  /** A batch whose records somebody else compressed with snappy. */
  static byte[] foreign(int count, byte[] compressed) {
    ByteBuffer batch = ByteBuffer.allocate(61 + compressed.length);
    batch.putLong(0).putInt(batch.capacity() - 12).putInt(-1).put((byte) 2).putInt(0).putShort((short) 2).putInt(count - 1);
    batch.putLong(NOW).putLong(NOW + count - 1).putLong(-1).putShort((short) -1).putInt(-1).putInt(count).put(compressed);
    var checksum = new java.util.zip.CRC32C();
    checksum.update(batch.array(), 21, batch.capacity() - 21);
    batch.putInt(17, (int) checksum.getValue());
    return batch.array();
  }

  static byte[] xerial(byte[] plain, int block) throws Exception {
    var bytes = new ByteArrayOutputStream();
    try (var out = new SnappyOutputStream(bytes, block)) { out.write(plain); }
    return bytes.toByteArray();
  }

  /** Produce v3 by hand; the error code. */
  static short produce(String topic, byte[] batch) throws Exception {
    var body = new ByteArrayOutputStream();
    var out = new DataOutputStream(body);
    out.writeShort(0); out.writeShort(3); out.writeInt(1); out.writeUTF("foreign");
    out.writeShort(-1); out.writeShort(-1); out.writeInt(30_000);
    out.writeInt(1); out.writeUTF(topic); out.writeInt(1); out.writeInt(0); out.writeInt(batch.length); out.write(batch);
    String[] where = bootstrap.split(":");
    try (var socket = new Socket(where[0], Integer.parseInt(where[1]))) {
      var to = new DataOutputStream(socket.getOutputStream());
      to.writeInt(body.size());
      body.writeTo(to);
      to.flush();
      var from = new DataInputStream(socket.getInputStream());
      from.readInt(); from.readInt(); from.readInt(); from.readUTF(); from.readInt(); from.readInt();
      return from.readShort();
    }
  }

  /** Statement 91 of protocol.md 5: snappy raw, as librdkafka writes it, and in xerial's frames of any size. */
  static void foreignSnappy(String codec) throws Exception {
    String topic = create("java-foreign", 1, Map.of("compression.type", codec));
    List<String> values = new ArrayList<>(), want = new ArrayList<>(), got = new ArrayList<>();
    for (int i = 0; i < 40; i++) values.add(("value" + i).repeat(500));
    byte[] payload = payload(values);
    byte[][] all = {Snappy.compress(payload), xerial(payload, 32 * 1024), xerial(payload, 1024), xerial(payload, 1 << 20)};
    equal(all[0][0] == (byte) 0x82, false, "raw snappy has no frame");
    for (byte[] compressed : all) {
      equal(produce(topic, foreign(values.size(), compressed)), (short) 0, "error code");
      for (int i = 0; i < values.size(); i++) want.add((NOW + i) + values.get(i));
    }
    for (var record : read(topic, want.size(), 0, Map.of("check.crcs", true))) got.add(record.timestamp() + new String(record.value()));
    equal(got, want, "records");
    byte[] half = Arrays.copyOf(all[0], all[0].length / 2);
    equal(produce(topic, foreign(values.size(), half)) == 0, false, "half a block is taken");
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
    for (String codec : List.of("producer", "gzip", "snappy")) check("foreign snappy, stored as " + codec, () -> foreignSnappy(codec));
    check("admin", Suite::adminCalls);
    Groups.run();
    admin.close(Duration.ofSeconds(5));
    System.out.printf("%d passed, %d failed%n", passed, failed);
    System.exit(failed == 0 ? 0 : 1);
  }
}
