import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Delayed retries over a retry topic, as Spring for Apache Kafka makes them (`@RetryableTopic`),
 * with the loop of its listener container. A consumer fails one record in ten, and sends it to the
 * retry topic with a due time in a header. The consumer of the retry topic pauses the partition of
 * a record that is not due, seeks back to it, and is woken at the due time to resume the partition.
 *
 * Usage: java -cp JARS RetryTopics.java KAFKA TOPIC RATE WARM-UP-MS MEASURED-MS BACKOFF-MS. The
 * topics TOPIC and TOPIC-retry exist. Prints a line for each retry: its due time, and when it was
 * consumed.
 */
public final class RetryTopics {
    private static final String DUE = "retry_topic-backoff-timestamp";
    private static final int FAILS_EACH = 10;
    private static final Duration POLL_TIMEOUT = Duration.ofSeconds(5);

    private final String kafka;
    private final String topic;
    private final long backoffMs;
    private final List<long[]> retries = new ArrayList<>();
    private volatile boolean isOver;

    private RetryTopics(String kafka, String topic, long backoffMs) {
        this.kafka = kafka;
        this.topic = topic;
        this.backoffMs = backoffMs;
    }

    public static void main(String[] arguments) throws InterruptedException {
        var rate = Long.parseLong(arguments[2]);
        var warmUpMs = Long.parseLong(arguments[3]);
        var measuredMs = Long.parseLong(arguments[4]);
        var run = new RetryTopics(arguments[0], arguments[1], Long.parseLong(arguments[5]));
        var threads = List.of(new Thread(run::consume), new Thread(run::consumeRetries));
        threads.forEach(Thread::start);
        // The consumers look for the ends of their partitions first.
        Thread.sleep(3_000);
        var from = System.currentTimeMillis() + warmUpMs;
        run.produce(rate, warmUpMs + measuredMs);
        Thread.sleep(run.backoffMs + 3_000);
        run.isOver = true;
        for (var thread : threads) {
            thread.join();
        }
        for (var retry : run.retries) {
            if (retry[0] >= from + run.backoffMs && retry[0] < from + run.backoffMs + measuredMs) {
                System.out.println(retry[0] + " " + retry[1]);
            }
        }
    }

    private void produce(long rate, long spanMs) throws InterruptedException {
        var payload = new byte[256];
        try (var producer = producer()) {
            var begunAt = System.nanoTime();
            for (long sent = 0; sent < rate * spanMs / 1_000; ) {
                var due = (System.nanoTime() - begunAt) * rate / 1_000_000_000;
                for (; sent < due; sent++) {
                    var key = Long.toString(sent).getBytes(StandardCharsets.UTF_8);
                    producer.send(new ProducerRecord<>(topic, key, payload));
                }
                Thread.sleep(1);
            }
        }
    }

    private void consume() {
        try (var consumer = consumer(topic); var producer = producer()) {
            while (!isOver) {
                var records = consumer.poll(Duration.ofMillis(500));
                for (var record : records) {
                    var number = Long.parseLong(new String(record.key(), StandardCharsets.UTF_8));
                    if (number % FAILS_EACH == 0) {
                        var due = Long.toString(System.currentTimeMillis() + backoffMs);
                        var header = new RecordHeader(DUE, due.getBytes(StandardCharsets.UTF_8));
                        producer.send(new ProducerRecord<>(topic + "-retry", null, record.key(),
                                record.value(), List.of(header)));
                    }
                }
                if (!records.isEmpty()) {
                    consumer.commitSync();
                }
            }
        }
    }

    private void consumeRetries() {
        ScheduledExecutorService scheduler = Executors.newScheduledThreadPool(2);
        try (var consumer = consumer(topic + "-retry")) {
            new Container(consumer, scheduler).run();
        } finally {
            scheduler.shutdownNow();
        }
    }

    /** The loop of a listener container. */
    private final class Container {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final ScheduledExecutorService scheduler;
        private final Set<TopicPartition> pauseRequested = ConcurrentHashMap.newKeySet();
        private final Set<TopicPartition> paused = new HashSet<>();
        private volatile boolean isPolling;

        Container(KafkaConsumer<byte[], byte[]> consumer, ScheduledExecutorService scheduler) {
            this.consumer = consumer;
            this.scheduler = scheduler;
        }

        void run() {
            while (!isOver) {
                var toPause = new HashSet<>(pauseRequested);
                toPause.removeAll(paused);
                consumer.pause(toPause);
                paused.addAll(toPause);
                invoke(poll());
                var toResume = new HashSet<>(paused);
                toResume.removeAll(pauseRequested);
                consumer.resume(toResume);
                paused.removeAll(toResume);
            }
        }

        private List<ConsumerRecord<byte[], byte[]>> poll() {
            var records = new ArrayList<ConsumerRecord<byte[], byte[]>>();
            isPolling = true;
            try {
                consumer.poll(isOver ? Duration.ZERO : POLL_TIMEOUT).forEach(records::add);
            } catch (WakeupException woken) {
                return List.of();
            } finally {
                isPolling = false;
            }
            return records;
        }

        /** Handles records up to the first that is not due. The others are read again. */
        private void invoke(List<ConsumerRecord<byte[], byte[]>> records) {
            var done = new HashMap<TopicPartition, OffsetAndMetadata>();
            for (int index = 0; index < records.size(); index++) {
                var record = records.get(index);
                var partition = new TopicPartition(record.topic(), record.partition());
                var due = Long.parseLong(
                        new String(record.headers().lastHeader(DUE).value(), StandardCharsets.UTF_8));
                var now = System.currentTimeMillis();
                if (due > now) {
                    pauseRequested.add(partition);
                    scheduler.schedule(() -> resume(partition), due - now, TimeUnit.MILLISECONDS);
                    seekBack(records.subList(index, records.size()));
                    break;
                }
                retries.add(new long[] {due, now});
                done.put(partition, new OffsetAndMetadata(record.offset() + 1));
            }
            if (!done.isEmpty()) {
                commit(done);
            }
        }

        private void commit(Map<TopicPartition, OffsetAndMetadata> done) {
            try {
                consumer.commitSync(done);
            } catch (WakeupException woken) {
                // The wake-up came at the end of a poll.
                consumer.commitSync(done);
            }
        }

        private void seekBack(List<ConsumerRecord<byte[], byte[]>> records) {
            Map<TopicPartition, Long> first = new HashMap<>();
            for (var record : records) {
                first.putIfAbsent(new TopicPartition(record.topic(), record.partition()), record.offset());
            }
            first.forEach(consumer::seek);
        }

        private void resume(TopicPartition partition) {
            pauseRequested.remove(partition);
            if (isPolling) {
                consumer.wakeup();
            }
        }
    }

    private KafkaProducer<byte[], byte[]> producer() {
        Map<String, Object> settings = Map.of("bootstrap.servers", kafka, "acks", "all", "linger.ms", 0);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private KafkaConsumer<byte[], byte[]> consumer(String of) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", kafka, "group.id", of, "enable.auto.commit", false);
        var consumer = new KafkaConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        var partitions = consumer.partitionsFor(of).stream()
                .map(info -> new TopicPartition(of, info.partition()))
                .toList();
        consumer.assign(partitions);
        consumer.seekToEnd(partitions);
        partitions.forEach(consumer::position);
        return consumer;
    }
}
