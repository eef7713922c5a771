// Groups of Java consumers: each assignor under load, static members, commits, and groups as the admin sees them.
// A part of Suite, whose helpers it uses.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

final class Groups {
  static final int PARTITIONS = 6;

  /** A member on a thread of its own, which notes what it reads and commits it, until it is told to stop. */
  static final class Member {
    final AtomicBoolean stop = new AtomicBoolean();
    final Future<?> done;

    Member(ExecutorService threads, String topic, Map<String, Object> settings, Set<String> seen) {
      done = threads.submit(() -> {
        try (var consumer = consumer(settings)) {
          consumer.subscribe(List.of(topic));
          boolean committed = true;
          while (!stop.get()) {
            var records = consumer.poll(Duration.ofMillis(100));
            for (var record : records) seen.add(new String(record.value()));
            if (records.isEmpty() && committed) continue;
            try {
              consumer.commitSync();
              committed = true;
            } catch (CommitFailedException | RebalanceInProgressException error) {
              committed = false; // what was taken away somebody else reads again
            }
          }
        }
        return null;
      });
    }

    void end() throws Exception {
      stop.set(true);
      done.get(60, TimeUnit.SECONDS);
    }
  }

  static KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings) {
    Map<String, Object> all = new HashMap<>(Map.of(
        "enable.auto.commit", false, "auto.offset.reset", "earliest", "session.timeout.ms", 10_000,
        "heartbeat.interval.ms", 200, "fetch.max.wait.ms", 100));
    all.putAll(settings);
    return new KafkaConsumer<>(Suite.base(all), new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  static long committed(String group) throws Exception {
    var offsets = Suite.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
    return offsets.values().stream().filter(Objects::nonNull).mapToLong(OffsetAndMetadata::offset).sum();
  }

  /**
   * Two members, a third that comes, then each of them leaves and comes back, while records are produced. Every record must
   * reach somebody, those that were sent during a rebalance too, and be committed by somebody.
   */
  static void underLoad(Class<?> assignor, boolean isStatic) throws Exception {
    String topic = Suite.create("java-group", PARTITIONS, Map.of()), group = "java-group-" + UUID.randomUUID();
    Set<String> seen = ConcurrentHashMap.newKeySet(), sent = new HashSet<>();
    Map<String, Member> members = new TreeMap<>();
    ExecutorService threads = Executors.newCachedThreadPool();
    try (var producer = Suite.producer(Map.of())) {
      Suite.Check load = () -> {
        for (int batch = 0; batch < 10; batch++) {
          List<Future<RecordMetadata>> acknowledged = new ArrayList<>();
          for (int i = 0; i < 40; i++) {
            String value = "v" + sent.size();
            acknowledged.add(producer.send(new ProducerRecord<>(topic, i % PARTITIONS, null, Suite.bytes(value))));
            sent.add(value);
          }
          for (var one : acknowledged) one.get();
          Thread.sleep(20);
        }
      };
      Suite.Check[] changes = new Suite.Check[5];
      java.util.function.Consumer<String> begin = name -> {
        Map<String, Object> settings = new HashMap<>(Map.of("group.id", group, "partition.assignment.strategy", assignor.getName()));
        if (isStatic) settings.put("group.instance.id", name);
        members.put(name, new Member(threads, topic, settings, seen));
      };
      changes[0] = () -> { begin.accept("a"); begin.accept("b"); };
      changes[1] = () -> begin.accept("c");
      int next = 2;
      for (String name : List.of("a", "b", "c")) changes[next++] = () -> { members.get(name).end(); begin.accept(name); };
      for (Suite.Check change : changes) {
        Future<?> loading = threads.submit(() -> { load.run(); return null; });
        change.run();
        loading.get(60, TimeUnit.SECONDS);
        Suite.eventually("all records", () -> {
          for (Member member : members.values()) if (member.done.isDone()) member.done.get();
          return seen.size() == sent.size();
        });
      }
      Suite.eventually("all is committed", () -> committed(group) == sent.size());
      for (Member member : members.values()) member.end();
      members.clear();
      Suite.equal(committed(group), (long) sent.size(), "committed when all have left");
    } finally {
      for (Member member : members.values()) member.stop.set(true);
      threads.shutdown();
    }
  }

  /** Commits by hand: what is committed is where the next member begins, once and not twice. */
  static void commits() throws Exception {
    String topic = Suite.create("java-commits", 1, Map.of()), group = "java-commits-" + UUID.randomUUID();
    TopicPartition where = new TopicPartition(topic, 0);
    try (var producer = Suite.producer(Map.of())) {
      for (int i = 0; i < 100; i++) producer.send(new ProducerRecord<>(topic, Suite.bytes("v" + i)));
    }
    List<String> read = new ArrayList<>();
    for (int round = 0; round < 4; round++) {
      try (var consumer = consumer(Map.of("group.id", group, "max.poll.records", 25))) {
        consumer.subscribe(List.of(topic));
        int wanted = read.size() + 25;
        Suite.eventually("25 records", () -> {
          for (var record : consumer.poll(Duration.ofMillis(200))) if (read.size() < wanted) read.add(new String(record.value()));
          return read.size() == wanted;
        });
        String metadata = "round " + round;
        consumer.commitSync(Map.of(where, new OffsetAndMetadata(wanted, Optional.of(0), metadata)));
        OffsetAndMetadata found = consumer.committed(Set.of(where)).get(where);
        Suite.equal(found, new OffsetAndMetadata(wanted, Optional.of(0), metadata), "committed");
      }
    }
    for (int i = 0; i < 100; i++) Suite.equal(read.get(i), "v" + i, "each record once, in order");
    try (var consumer = consumer(Map.of("group.id", group, "group.instance.id", "auto", "enable.auto.commit", true))) {
      consumer.assign(List.of(where));
      Suite.equal(consumer.position(where), 100L, "position of a member that assigns itself");
    }
  }

  static void refused(Class<?> error, Suite.Check check) throws Exception {
    try {
      check.run();
    } catch (ExecutionException wrapped) {
      Suite.equal(wrapped.getCause().getClass(), error, "error");
      return;
    }
    throw new AssertionError("not refused with " + error);
  }

  static void adminCalls() throws Exception {
    Admin admin = Suite.admin;
    String topic = Suite.create("java-group-admin", 2, Map.of()), other = Suite.create("java-group-other", 1, Map.of());
    String group = "java-group-admin-" + UUID.randomUUID();
    TopicPartition where = new TopicPartition(topic, 0), elsewhere = new TopicPartition(other, 0);
    try (var consumer = consumer(Map.of("group.id", group, "client.id", "described", "group.instance.id", "mine"))) {
      consumer.subscribe(List.of(topic));
      Suite.eventually("assignment", () -> { consumer.poll(Duration.ofMillis(100)); return consumer.assignment().size() == 2; });
      consumer.commitSync(Map.of(where, new OffsetAndMetadata(3), elsewhere, new OffsetAndMetadata(4)));
      var options = new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true);
      var described = admin.describeConsumerGroups(List.of(group), options).all().get().get(group);
      Suite.equal(described.toString().contains("Stable"), true, "state: " + described);
      Suite.equal(described.partitionAssignor(), "range", "assignor");
      Suite.equal(described.authorizedOperations().size(), 3, "authorized operations");
      MemberDescription member = described.members().iterator().next();
      Suite.equal(List.of(member.clientId(), member.host(), member.groupInstanceId().get()), List.of("described", "/127.0.0.1", "mine"), "member");
      Suite.equal(member.assignment().topicPartitions().size(), 2, "assignment");
      refused(GroupNotEmptyException.class, () -> admin.deleteConsumerGroups(List.of(group)).all().get());
      refused(GroupSubscribedToTopicException.class, () -> admin.deleteConsumerGroupOffsets(group, Set.of(where)).partitionResult(where).get());
      admin.deleteConsumerGroupOffsets(group, Set.of(elsewhere)).all().get();
      refused(UnknownMemberIdException.class, () -> admin.alterConsumerGroupOffsets(group, Map.of(where, new OffsetAndMetadata(1))).all().get());
      var leaving = new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("mine")));
      admin.removeMembersFromConsumerGroup(group, leaving).all().get();
    }
    Suite.eventually("empty", () -> admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().isEmpty());
    admin.alterConsumerGroupOffsets(group, Map.of(where, new OffsetAndMetadata(1, "altered"))).all().get();
    Suite.equal(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get(), Map.of(where, new OffsetAndMetadata(1, "altered")), "offsets");
    var spec = new ListConsumerGroupOffsetsSpec();
    Suite.equal(admin.listConsumerGroupOffsets(Map.of(group, spec, "java-absent", spec)).all().get().get("java-absent"), Map.of(), "offsets of nobody");
    Suite.equal(admin.listConsumerGroups().all().get().stream().anyMatch(listed -> listed.groupId().equals(group)), true, "listed");
    admin.deleteConsumerGroups(List.of(group)).all().get();
    refused(GroupIdNotFoundException.class, () -> admin.deleteConsumerGroups(List.of(group)).all().get());
  }

  static void run() {
    for (Class<?> assignor : List.of(RangeAssignor.class, StickyAssignor.class, CooperativeStickyAssignor.class))
      Suite.check("group under load, " + assignor.getSimpleName(), () -> underLoad(assignor, false));
    Suite.check("group under load, static members", () -> underLoad(RangeAssignor.class, true));
    Suite.check("commits", Groups::commits);
    Suite.check("group admin", Groups::adminCalls);
  }
}
