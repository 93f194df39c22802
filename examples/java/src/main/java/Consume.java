import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;

/** Handles each task once: for ever, or until as many records were read as the argument says. KAFKA is the broker (127.0.0.1:9092), TOPIC where they are (demo). */
public class Consume {
    /** A duplicate comes soon after the first: when a node was declared dead, or an acknowledgement was lost. */
    static final int REMEMBERED = 100_000;

    public static void main(String[] args) {
        long left = args.length > 0 ? Long.parseLong(args[0]) : -1;
        var settings = Map.<String, Object>of(
            "bootstrap.servers", System.getenv().getOrDefault("KAFKA", "127.0.0.1:9092"),
            "group.id", System.getenv().getOrDefault("GROUP", "orders-java"),
            "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer",
            "value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        // In production: a table with a unique key, written in the transaction of the task's work.
        var seen = Collections.newSetFromMap(new LinkedHashMap<String, Boolean>() {
            @Override protected boolean removeEldestEntry(Map.Entry<String, Boolean> eldest) { return size() > REMEMBERED; }
        });
        try (var consumer = new KafkaConsumer<String, String>(settings)) {
            consumer.subscribe(List.of(System.getenv().getOrDefault("TOPIC", "demo")));
            while (left != 0) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    var task = new String(record.headers().lastHeader("punctual-task-id").value());
                    System.out.println(record.key() + ": " + (seen.add(task) ? record.value() : "seen before, skipped"));
                    var done = new TopicPartition(record.topic(), record.partition());
                    consumer.commitSync(Map.of(done, new OffsetAndMetadata(record.offset() + 1)));
                    if (--left == 0) break;
                }
            }
        }
    }
}
