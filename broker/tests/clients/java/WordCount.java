// A word count of Kafka Streams: a repartition topic, a changelog, and a second instance that restores the state of the
// first from it. Usage: WordCount BOOTSTRAP. Prints a line per check and ends with `N passed, N failed`.

import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

public final class WordCount {
  static final String[] WORDS = "all streams lead to kafka join kafka streams and count".split(" ");
  static final int LINES = 600;

  static Properties settings(String bootstrap, String application) throws Exception {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("application.id", application);
    settings.put("default.key.serde", Serdes.StringSerde.class);
    settings.put("default.value.serde", Serdes.StringSerde.class);
    settings.put("commit.interval.ms", 200);
    settings.put("num.stream.threads", 2);
    settings.put("state.dir", Files.createTempDirectory("odradek-streams-").toString());
    settings.put("consumer.auto.offset.reset", "earliest");
    settings.put("consumer.heartbeat.interval.ms", 300);
    settings.put("consumer.session.timeout.ms", 10_000);
    return settings;
  }

  static KafkaStreams start(String bootstrap, String application, String input, String output) throws Exception {
    StreamsBuilder builder = new StreamsBuilder();
    builder.<String, String>stream(input)
        .flatMapValues(line -> Arrays.asList(line.split(" ")))
        .groupBy((key, word) -> word)
        .count(Materialized.as("counts"))
        .toStream()
        .to(output, Produced.with(Serdes.String(), Serdes.Long()));
    KafkaStreams streams = new KafkaStreams(builder.build(), settings(bootstrap, application));
    streams.start();
    return streams;
  }

  /** Sends lines, and adds their words to what is wanted. */
  static void send(String bootstrap, String input, Map<String, Long> wanted, Random random) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
      for (int line = 0; line < LINES; line++) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 5; i++) {
          String word = WORDS[random.nextInt(WORDS.length)];
          wanted.merge(word, 1L, Long::sum);
          text.append(i == 0 ? "" : " ").append(word);
        }
        producer.send(new ProducerRecord<>(input, "" + line, text.toString()));
      }
    }
  }

  /** The newest counts, once they are those wanted, or after two minutes. */
  static Map<String, Long> counts(String bootstrap, String output, Map<String, Long> wanted) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    Map<String, Long> found = new TreeMap<>();
    try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new LongDeserializer())) {
      List<TopicPartition> all = List.of(new TopicPartition(output, 0), new TopicPartition(output, 1));
      consumer.assign(all);
      consumer.seekToBeginning(all);
      long deadline = System.nanoTime() + 120_000_000_000L;
      while (!found.equals(wanted) && System.nanoTime() < deadline)
        consumer.poll(Duration.ofMillis(200)).forEach(record -> found.put(record.key(), record.value()));
    }
    return found;
  }

  static int passed, failed;

  static void check(String title, Object got, Object want) {
    boolean same = Objects.equals(got, want);
    if (same) passed++; else failed++;
    System.out.println((same ? "ok " : "FAILED ") + "streams: " + title + (same ? "" : ": got " + got + ", want " + want));
  }

  public static void main(String[] arguments) throws Exception {
    String bootstrap = arguments[0], id = UUID.randomUUID().toString();
    String input = "lines-" + id, output = "counts-" + id, application = "words-" + id;
    Map<String, Long> wanted = new TreeMap<>();
    Random random = new Random(7);
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
      admin.createTopics(List.of(new NewTopic(input, 3, (short) 1), new NewTopic(output, 2, (short) 1))).all().get();
      KafkaStreams first = start(bootstrap, application, input, output);
      send(bootstrap, input, wanted, random);
      check("counts", counts(bootstrap, output, wanted), wanted);
      Set<String> made = new TreeSet<>(admin.listTopics().names().get());
      made.removeIf(name -> !name.startsWith(application));
      check("a repartition topic and a changelog", made.size(), 2);
      KafkaStreams second = start(bootstrap, application, input, output);
      send(bootstrap, input, wanted, random);
      check("counts of two instances", counts(bootstrap, output, wanted), wanted);
      check("the first one closes", first.close(Duration.ofSeconds(60)), true);
      send(bootstrap, input, wanted, random);
      check("counts of the second one alone", counts(bootstrap, output, wanted), wanted);
      check("the second one closes", second.close(Duration.ofSeconds(60)), true);
      KafkaStreams third = start(bootstrap, application, input, output);
      send(bootstrap, input, wanted, random);
      check("counts with the state of the changelog", counts(bootstrap, output, wanted), wanted);
      check("the third one closes", third.close(Duration.ofSeconds(60)), true);
    }
    System.out.printf("%d passed, %d failed%n", passed, failed);
    System.exit(failed == 0 ? 0 : 1);
  }
}
