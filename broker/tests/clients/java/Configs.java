// Our configuration tables against Kafka's own: what DescribeConfigs tells, entry by entry, against Kafka's ConfigHelper
// with the same settings; and which values a topic key takes, against Kafka's LogConfig.
// Usage: Configs BOOTSTRAP KEY=VALUE..., the settings that the broker was started with; or Configs --table, which prints
// Kafka's keys as broker/src/config/keys/kafka_{broker,topic}.txt hold them. Needs Kafka's server jars.

import java.lang.reflect.Proxy;
import java.util.*;
import java.util.stream.Collectors;
import kafka.server.*;
import kafka.server.metadata.ConfigRepository;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.config.*;
import org.apache.kafka.common.message.DescribeConfigsRequestData.DescribeConfigsResource;
import org.apache.kafka.common.message.DescribeConfigsResponseData.DescribeConfigsResourceResult;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.storage.internals.log.LogConfig;
import scala.jdk.javaapi.CollectionConverters;

public final class Configs {
  static final String TOPIC = "configs";
  /** Set in Kafka because its ZooKeeper mode demands it. */
  static final Set<String> DEMANDED = Set.of("zookeeper.connect");
  /** Keys of which a topic takes only the default here, until what they ask for is built. */
  static final Set<String> REFUSED = Set.of(
      "remote.storage.enable", "remote.log.copy.disable", "remote.log.delete.on.disable");
  static final String[] VALUES = {
    "", " ", "0", "1", " 7 ", "-1", "-2", "-3", "3", "4", "9", "10", "13", "14", "17", "18", "22", "23", "-131072", "-131073",
    "+5", "007", "1.0", "0.5", "1.5", "1e3", "0x10", "1_000", "NaN", "Infinity", ".5", "1f", "2d", "1L", "2147483647", "2147483648",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "true", "TRUE", " false ", "yes", "delete", "compact",
    "compact,delete", " compact , delete ", "delete,", ",", "delete,delete", "Delete", "none", "uncompressed", "gzip", "GZIP",
    "producer", "CreateTime", "LogAppendTime", "createtime", "*", "*,0:1", "0:1", "0:1,1:2", "0:1,", "0:-1", "a:1", "0",
    "3.0", "3.0-IV1", "2.8-IV1", "0.10.2", "0.10.2-IV0", "3.9", "3.9-IV0", "3.9.1", "4.0", "4.0-IV3", "5.0", "3", "x",
  };
  static int faults;

  static void expect(boolean condition, String what) {
    if (condition) return;
    faults++;
    System.out.println("FAILED " + what);
  }

  static String text(ConfigDef.ConfigKey key) {
    if (key.defaultValue == null || !key.hasDefault()) return "null";
    return ConfigDef.convertToString(key.defaultValue, key.type);
  }

  static String validator(ConfigDef.ConfigKey key) {
    String text = key.validator == null ? "-" : key.validator.toString();
    return text.startsWith("[0.8.0,") ? "release" : text;
  }

  static String camel(ConfigDef.Type type) {
    return type.name().charAt(0) + type.name().substring(1).toLowerCase(Locale.ROOT);
  }

  static void table() throws Exception {
    Map<String, String> modes = DynamicBrokerConfig$.MODULE$.dynamicConfigUpdateModes();
    System.out.println("# broker");
    for (ConfigDef.ConfigKey key : new TreeMap<>(KafkaConfig.configDef().configKeys()).values()) {
      String mode = modes.getOrDefault(key.name, "static");
      String dynamic = mode.equals("static") ? "Static" : mode.equals("per-broker") ? "PerBroker" : "ClusterWide";
      String origin = key.internalConfig ? "KafkaInternal" : "Kafka";
      System.out.println(String.join(" | ", key.name, camel(key.type), text(key), dynamic, origin, validator(key)));
    }
    System.out.println("# topic");
    for (ConfigDef.ConfigKey key : new TreeMap<>(LogConfig.configDefCopy().configKeys()).values()) {
      var synonyms = ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS.getOrDefault(key.name, List.of());
      String names = synonyms.stream()
          .map(s -> s.name() + "*" + (key.type == ConfigDef.Type.LONG ? s.converter().apply("1") : "1"))
          .collect(Collectors.joining(" "));
      System.out.println(String.join(" | ", key.name, camel(key.type), text(key), names.isEmpty() ? "-" : names, validator(key)));
    }
  }

  static Map<String, String> properties(Properties properties) {
    Map<String, String> map = new TreeMap<>();
    properties.forEach((name, value) -> map.put((String) name, (String) value));
    return map;
  }

  /** What Kafka's broker with these settings would tell of a resource, one line per key. */
  static Map<String, String> kafkas(KafkaConfig config, ConfigResource resource, Properties overrides) {
    MetadataCache cache = (MetadataCache) Proxy.newProxyInstance(
        Configs.class.getClassLoader(), new Class<?>[] {MetadataCache.class}, (proxy, method, arguments) -> {
          if (method.getName().equals("contains")) return true;
          throw new UnsupportedOperationException(method.getName());
        });
    ConfigRepository repository = asked -> overrides;
    DescribeConfigsResource asked = new DescribeConfigsResource()
        .setResourceType(resource.type().id()).setResourceName(resource.name()).setConfigurationKeys(null);
    var one = CollectionConverters.asScala(List.of(asked)).toList();
    var result = new ConfigHelper(cache, config, repository).describeConfigs(one, true, true).head();
    expect(result.errorCode() == 0, "Kafka answers " + result.errorMessage());
    Map<String, String> lines = new TreeMap<>();
    for (DescribeConfigsResourceResult entry : result.configs()) {
      List<String> synonyms = entry.synonyms().stream()
          .map(s -> s.name() + "=" + s.value() + "(" + s.source() + ")").collect(Collectors.toList());
      lines.put(entry.name(), line(entry.configType(), entry.value(), entry.configSource(), entry.isSensitive(), entry.readOnly(), synonyms));
    }
    return lines;
  }

  static String line(byte type, String value, byte source, boolean sensitive, boolean readOnly, List<String> synonyms) {
    return "type " + type + " value " + value + " source " + source + (sensitive ? " sensitive" : "") + (readOnly ? " read-only" : "") + " " + synonyms;
  }

  static byte code(ConfigEntry.ConfigSource source) {
    return switch (source) {
      case DYNAMIC_TOPIC_CONFIG -> 1;
      case DYNAMIC_BROKER_CONFIG -> 2;
      case DYNAMIC_DEFAULT_BROKER_CONFIG -> 3;
      case STATIC_BROKER_CONFIG -> 4;
      case DEFAULT_CONFIG -> 5;
      default -> 0;
    };
  }

  static byte code(ConfigEntry.ConfigType type) {
    return (byte) List.of("UNKNOWN", "BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD").indexOf(type.name());
  }

  static Map<String, String> ours(Admin admin, ConfigResource resource) throws Exception {
    var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
    Map<String, String> lines = new TreeMap<>();
    for (ConfigEntry entry : admin.describeConfigs(List.of(resource), options).all().get().get(resource).entries()) {
      List<String> synonyms = entry.synonyms().stream()
          .map(s -> s.name() + "=" + s.value() + "(" + code(s.source()) + ")").collect(Collectors.toList());
      boolean known = entry.type() != ConfigEntry.ConfigType.UNKNOWN;
      expect(!known || entry.documentation() != null, entry.name() + " has no documentation");
      lines.put(entry.name(), line(code(entry.type()), entry.value(), code(entry.source()), entry.isSensitive(), entry.isReadOnly(), synonyms));
    }
    return lines;
  }

  static void compare(String what, Map<String, String> kafkas, Map<String, String> ours, Set<String> apart) {
    int equal = 0;
    for (String name : new TreeSet<>(kafkas.keySet())) {
      if (apart.contains(name)) continue;
      boolean same = kafkas.get(name).equals(ours.get(name));
      equal += same ? 1 : 0;
      expect(same, what + " " + name + "\n  Kafka: " + kafkas.get(name) + "\n  ours:  " + ours.get(name));
    }
    for (String name : ours.keySet()) expect(kafkas.containsKey(name), what + " " + name + " is no key of Kafka's");
    System.out.println("ok " + what + ": " + equal + " entries are Kafka's");
  }

  static boolean kafkaTakes(KafkaConfig config, String name, String value) {
    Properties properties = new Properties();
    properties.put(name, value);
    try {
      LogConfig.validate(Map.of(), properties, config.extractLogConfigMap(), false, true);
      return true;
    } catch (RuntimeException refused) {
      return false;
    }
  }

  static void values(Admin admin, KafkaConfig config) throws Exception {
    List<NewTopic> topics = new ArrayList<>();
    for (int i = 0; i < VALUES.length; i++) topics.add(new NewTopic("value-" + i, 1, (short) 1));
    admin.createTopics(topics).all().get();
    int checked = 0;
    for (String name : new TreeSet<>(LogConfig.configDefCopy().names())) {
      if (REFUSED.contains(name)) continue;
      Map<ConfigResource, Collection<AlterConfigOp>> wishes = new LinkedHashMap<>();
      for (int i = 0; i < VALUES.length; i++) {
        var op = new AlterConfigOp(new ConfigEntry(name, VALUES[i]), AlterConfigOp.OpType.SET);
        wishes.put(new ConfigResource(ConfigResource.Type.TOPIC, "value-" + i), List.of(op));
      }
      Map<ConfigResource, KafkaFuture<Void>> answers =
          admin.incrementalAlterConfigs(wishes, new AlterConfigsOptions().validateOnly(true)).values();
      for (int i = 0; i < VALUES.length; i++) {
        if (VALUES[i].equals("NaN")) continue; // Kafka takes it for a double: no comparison with it is ever true
        String refusal = null;
        try {
          answers.get(new ConfigResource(ConfigResource.Type.TOPIC, "value-" + i)).get();
        } catch (Exception error) {
          refusal = String.valueOf(error.getCause());
        }
        boolean kafka = kafkaTakes(config, name, VALUES[i]);
        expect(kafka == (refusal == null), name + "=\"" + VALUES[i] + "\": Kafka " + (kafka ? "takes" : "refuses") + " it, we say " + refusal);
        boolean invalid = refusal == null || (refusal.contains("InvalidConfigurationException") && refusal.contains(name));
        expect(invalid, name + "=\"" + VALUES[i] + "\": we say " + refusal);
        checked++;
      }
    }
    System.out.println("ok " + checked + " values of topic keys are judged as Kafka judges them");
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments[0].equals("--table")) {
      table();
      return;
    }
    Properties settings = new Properties();
    for (int i = 1; i < arguments.length; i++) {
      String[] pair = arguments[i].split("=", 2);
      settings.put(pair[0], pair[1]);
    }
    settings.put("zookeeper.connect", "unused:2181");
    Properties overrides = new Properties();
    overrides.putAll(Map.of("retention.ms", "12345", "cleanup.policy", " compact , delete", "min.cleanable.dirty.ratio", "0.25"));
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
      String id = admin.describeCluster().nodes().get().iterator().next().idString();
      KafkaConfig config = new KafkaConfig(settings, false);
      ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, id);
      compare("broker", kafkas(config, broker, new Properties()), ours(admin, broker), DEMANDED);
      admin.createTopics(List.of(new NewTopic(TOPIC, 1, (short) 1).configs(properties(overrides)))).all().get();
      ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, TOPIC);
      compare("topic", kafkas(config, topic, overrides), ours(admin, topic), Set.of());
      values(admin, config);
    }
    System.exit(faults == 0 ? 0 : 1);
  }
}
