import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import punctual.Once;

/**
 * Handles each task once: for ever, or until as many records were read as the argument says. KAFKA
 * is the broker (127.0.0.1:9092), TOPIC the topic of the records (demo).
 */
public class Consume {
    /** Leaves the group at once. Otherwise the partitions wait until the session has ended. */
    static void closeAtTheEnd(KafkaConsumer<?, ?> consumer, Thread reader) {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                reader.join();
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }));
    }

    public static void main(String[] args) {
        long left = args.length > 0 ? Long.parseLong(args[0]) : -1;
        var settings = Map.<String, Object>of(
            "bootstrap.servers", System.getenv().getOrDefault("KAFKA", "127.0.0.1:9092"),
            "group.id", System.getenv().getOrDefault("GROUP", "orders-java"),
            "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer",
            "value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        // In production: a table with a unique key, written in the transaction of the task's work.
        var once = new Once();
        try (var consumer = new KafkaConsumer<String, String>(settings)) {
            closeAtTheEnd(consumer, Thread.currentThread());
            consumer.subscribe(List.of(System.getenv().getOrDefault("TOPIC", "demo")));
            while (left != 0) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    // A record of another producer has none.
                    var header = record.headers().lastHeader(Once.TASK_ID);
                    var task = header == null ? null : header.value();
                    if (!once.run(task, () -> System.out.println(record.key() + ": " + record.value())))
                        System.out.println(record.key() + ": seen before, skipped");
                    var done = new TopicPartition(record.topic(), record.partition());
                    consumer.commitSync(Map.of(done, new OffsetAndMetadata(record.offset() + 1)));
                    if (--left == 0) break;
                }
            }
        } catch (WakeupException stopped) {
            // By Ctrl-C. The group is left.
        }
    }
}
