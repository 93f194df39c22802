import com.fasterxml.jackson.databind.*;
import java.io.IOException;
import java.net.URI;
import java.net.http.*;
import java.time.Duration;
import java.util.Map;

/** Cancel an order in 30 minutes unless it is paid. PUNCTUAL_URL is a node (http://127.0.0.1:7070), TOPIC where the record goes (demo). */
public class Submit {
    static final String BASE = System.getenv().getOrDefault("PUNCTUAL_URL", "http://127.0.0.1:7070") + "/v1";
    static final String TOPIC = System.getenv().getOrDefault("TOPIC", "demo");
    static final ObjectMapper JSON = new ObjectMapper();
    static final HttpClient CLIENT = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(2)).build();

    record Answer(int status, JsonNode body) {}

    /** Sends until there is an answer. That is safe because every task here has a name: it is the same task however often it is sent. */
    static Answer call(String method, String path, Object body) throws IOException, InterruptedException {
        var publisher = body == null ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofString(JSON.writeValueAsString(body));
        var request = HttpRequest.newBuilder(URI.create(BASE + path)).timeout(Duration.ofSeconds(5))
            .header("content-type", "application/json").method(method, publisher).build();
        for (int attempt = 0; attempt < 8; attempt++) {
            long pause = Math.min(100L << attempt, 5000);
            try {
                var answer = CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
                if (answer.statusCode() != 429 && answer.statusCode() != 503)
                    return new Answer(answer.statusCode(), JSON.readTree(answer.body()));
                pause = answer.headers().firstValueAsLong("Retry-After").orElse(1) * 1000;
            } catch (IOException lost) {
                // The request is repeated after the pause.
            }
            Thread.sleep(pause);
        }
        throw new IOException(method + " " + path + ": no answer");
    }

    static void submit(int order, String delay) throws Exception {
        var name = "cancel-order-" + order;
        var answer = call("POST", "/tasks", Map.of("topic", TOPIC, "name", name, "delay", delay, "key", "order-" + order, "payload", Map.of("cancel", order)));
        if (answer.status() > 201) throw new IOException(answer.body().toString());
        // A known task may be cancelled since: PUT schedules a new one.
        var state = answer.body().path("state").asText();
        System.out.println(name + ": " + (answer.status() == 201 ? state : "known already, " + state));
    }

    static void reschedule(int order, String delay) throws Exception {
        var name = "cancel-order-" + order;
        var answer = call("PUT", "/topics/" + TOPIC + "/tasks/" + name, Map.of("delay", delay, "key", "order-" + order, "payload", Map.of("cancel", order)));
        System.out.println(name + ": " + (answer.status() < 300 ? "rescheduled" : answer.body().path("verdict").asText()));
    }

    static void cancel(int order) throws Exception {
        var name = "cancel-order-" + order;
        System.out.println(name + ": " + call("DELETE", "/topics/" + TOPIC + "/tasks/" + name, null).body().path("verdict").asText());
    }

    public static void main(String[] args) throws Exception {
        submit(17, "30m");
        submit(17, "30m"); // again, as after a lost answer
        cancel(17); // it was paid
        submit(18, "30m");
        reschedule(18, "1s"); // this customer has less time
    }
}
