package punctual;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;

/**
 * For tests: runs {@code punctual dev} until it is closed, a node with a broker, and a clock that
 * the test sets.
 */
public final class DevServer implements AutoCloseable {
    /** The server answers after 10 minutes at the latest. */
    private static final Duration TIMEOUT = Duration.ofSeconds(610);

    private final HttpClient http = HttpClient.newHttpClient();
    private final Process process;
    private final JsonNode places;

    private DevServer(Process process, JsonNode places) {
        this.process = process;
        this.places = places;
    }

    /**
     * Starts a server with topics (NAME:PARTITIONS). The program is that of PUNCTUAL_BIN, otherwise
     * {@code punctual} from the PATH.
     */
    public static DevServer start(String... topics) throws IOException {
        return startProgram(System.getenv().getOrDefault("PUNCTUAL_BIN", "punctual"), topics);
    }

    static DevServer startProgram(String program, String... topics) throws IOException {
        var words = new ArrayList<>(
            List.of(program, "dev", "--port", "0", "--kafka-port", "0", "--json"));
        for (String topic : topics) words.add("--topic=" + topic);
        var folders = program.contains(File.separator) ? ""
            : System.getenv().getOrDefault("PATH", "");
        if (Stream.of(folders.split(File.pathSeparator))
                .noneMatch(folder -> Files.isExecutable(Path.of(folder, program))))
            throw new FileNotFoundException(
                "no program `" + program + "` on the PATH; set PUNCTUAL_BIN");
        var builder = new ProcessBuilder(words).redirectError(ProcessBuilder.Redirect.INHERIT);
        builder.environment().keySet().removeIf(name -> name.startsWith("PUNCTUAL_"));
        var process = builder.start();
        var line = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
        if (line == null) throw new IOException("punctual dev has ended: its errors are above");
        return new DevServer(process, Draft.JSON.readTree(line));
    }

    public String url() {
        return places.get("url").asText();
    }

    /** The bootstrap server for Kafka clients. */
    public String kafka() {
        return places.get("kafka").asText();
    }

    public PunctualClient client() {
        return PunctualClient.to(url()).build();
    }

    /** Lets time pass. Returns when every task that is due until then is published. */
    public void advance(Duration span) throws IOException, InterruptedException {
        var body = Draft.JSON.createObjectNode().put("advance", span.toMillis() + "ms").toString();
        send(request("/dev/clock").header("content-type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(body)));
    }

    /** Returns the records of a topic, in order. */
    public JsonNode published(String topic) throws IOException, InterruptedException {
        var name = URLEncoder.encode(topic, StandardCharsets.UTF_8);
        return send(request("/dev/published?topic=" + name)).get("records");
    }

    private HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(URI.create(url() + path)).timeout(TIMEOUT);
    }

    private JsonNode send(HttpRequest.Builder request) throws IOException, InterruptedException {
        var answer = Http.send(http, request.build(), TIMEOUT);
        var body = Draft.JSON.readTree(answer.body());
        if (answer.statusCode() != 200) throw new Problem(body);
        return body;
    }

    @Override
    public void close() throws InterruptedException {
        process.destroy();
        process.waitFor();
    }
}
