import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import punctual.Answered;
import punctual.Once;
import punctual.Outcome;
import punctual.PunctualClient;

/**
 * Cancels the orders of tracked tasks, and answers for each attempt: it finishes, or it fails. Runs
 * for ever, or until as many records of tracked tasks were read as the argument says; others are
 * skipped. PUNCTUAL_URL is the node (http://127.0.0.1:7070), KAFKA the broker (127.0.0.1:9092),
 * TOPIC the topic of the records (demo).
 */
public class Finish {
    static class ShopAway extends Exception {}

    /** Stands for the work. Here, the shop is away during the first attempt. */
    static void cancelUnlessPaid(String order, int attempt) throws ShopAway {
        if (attempt == 1) throw new ShopAway();
    }

    static Answered handle(PunctualClient client, String order, String task, int attempt)
            throws InterruptedException {
        try {
            cancelUnlessPaid(order, attempt);
            return client.answer(Outcome.finish(task).attempt(attempt));
        } catch (ShopAway away) {
            var failed = Outcome.fail(task, attempt).reason("the shop does not answer");
            return client.answer(failed.retryIn(Duration.ofSeconds(1)));
        }
    }

    static String header(ConsumerRecord<String, String> record, String name) {
        var header = record.headers().lastHeader(name);
        return header == null ? null : new String(header.value(), StandardCharsets.US_ASCII);
    }

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

    public static void main(String[] args) throws InterruptedException {
        long left = args.length > 0 ? Long.parseLong(args[0]) : -1;
        var settings = Map.<String, Object>of(
            "bootstrap.servers", System.getenv().getOrDefault("KAFKA", "127.0.0.1:9092"),
            "group.id", System.getenv().getOrDefault("GROUP", "cancel-java"),
            "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer",
            "value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        var url = System.getenv().getOrDefault("PUNCTUAL_URL", "http://127.0.0.1:7070");
        var client = PunctualClient.to(url).build();
        try (var consumer = new KafkaConsumer<String, String>(settings)) {
            closeAtTheEnd(consumer, Thread.currentThread());
            consumer.subscribe(List.of(System.getenv().getOrDefault("TOPIC", "demo")));
            while (left != 0) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    var number = header(record, Once.ATTEMPT);
                    // Without one, nobody waits for an answer: the task is not tracked, or the
                    // record is of another producer.
                    if (number != null) {
                        int attempt = Integer.parseInt(number);
                        var order = Objects.requireNonNullElse(record.key(), "-");
                        var answered = handle(client, order, header(record, Once.TASK_ID), attempt);
                        var verdict = answered.verdict().name().toLowerCase(Locale.ROOT);
                        System.out.println(order + ", attempt " + attempt + ": " + verdict);
                        left--;
                    }
                    // In any case: Punctual makes the next attempt, not Kafka.
                    var done = new TopicPartition(record.topic(), record.partition());
                    consumer.commitSync(Map.of(done, new OffsetAndMetadata(record.offset() + 1)));
                    if (left == 0) break;
                }
            }
        } catch (WakeupException stopped) {
            // By Ctrl-C. The group is left.
        }
    }
}
