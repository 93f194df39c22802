package punctual;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** For tests: runs {@code punctual dev}, with a broker and a clock that a test sets, until it is closed. */
public final class DevServer implements AutoCloseable {
    private final Process process;
    private final JsonNode told;

    private DevServer(Process process, JsonNode told) {
        this.process = process;
        this.told = told;
    }

    /** Topics are NAME:PARTITIONS. The program is that of PUNCTUAL_BIN, or {@code punctual} on the PATH. */
    public static DevServer start(String... topics) throws IOException {
        var program = System.getenv().getOrDefault("PUNCTUAL_BIN", "punctual");
        var words = new ArrayList<>(List.of(program, "dev", "--port", "0", "--kafka-port", "0", "--json"));
        for (String topic : topics) words.add("--topic=" + topic);
        var builder = new ProcessBuilder(words).redirectError(ProcessBuilder.Redirect.INHERIT);
        builder.environment().keySet().removeIf(name -> name.startsWith("PUNCTUAL_"));
        var process = builder.start();
        var line = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
        if (line == null) throw new IOException("punctual dev has ended: its errors are above");
        return new DevServer(process, Draft.JSON.readTree(line));
    }

    public String url() {
        return told.get("url").asText();
    }

    /** The bootstrap server for Kafka clients. */
    public String kafka() {
        return told.get("kafka").asText();
    }

    public PunctualClient client() {
        return PunctualClient.to(url()).build();
    }

    /** Lets time pass. Returns when all that is due until then is published. */
    public void advance(Duration delay) throws IOException, InterruptedException {
        var body = Draft.JSON.createObjectNode().put("advance", delay.toMillis() + "ms").toString();
        send(HttpRequest.newBuilder(URI.create(url() + "/dev/clock")).header("content-type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(body)));
    }

    /** Returns the records of a topic, in order. */
    public JsonNode published(String topic) throws IOException, InterruptedException {
        return send(HttpRequest.newBuilder(URI.create(url() + "/dev/published?topic=" + topic))).get("records");
    }

    private static JsonNode send(HttpRequest.Builder request) throws IOException, InterruptedException {
        var answer = HttpClient.newHttpClient().send(request.build(), BodyHandlers.ofString());
        if (answer.statusCode() != 200) throw new IOException(answer.body());
        return Draft.JSON.readTree(answer.body());
    }

    @Override
    public void close() throws InterruptedException {
        process.destroy();
        process.waitFor();
    }
}
