import java.time.Duration;
import java.util.Locale;
import java.util.Map;
import punctual.Draft;
import punctual.PunctualClient;

/**
 * Cancel an order in 30 minutes unless it is paid. PUNCTUAL_URL is a node (http://127.0.0.1:7070),
 * TOPIC where the record goes (demo).
 */
public class Submit {
    static Draft draft(int order, Duration delay) {
        return Draft.in(delay).key("order-" + order).payload(Map.of("cancel", order));
    }

    public static void main(String[] args) throws Exception {
        var url = System.getenv().getOrDefault("PUNCTUAL_URL", "http://127.0.0.1:7070");
        var client = PunctualClient.to(url).build();
        var topic = System.getenv().getOrDefault("TOPIC", "demo");
        var first = client.submit(topic, draft(17, Duration.ofMinutes(30)).name("cancel-order-17"));
        System.out.println("cancel-order-17: " + first.get("state").asText());
        // Again, as after a crash: the name is known, so this makes no second task.
        var again = client.submit(topic, draft(17, Duration.ofMinutes(30)).name("cancel-order-17"));
        var known = again.get("id").equals(first.get("id")) ? "known already, " : "new, ";
        System.out.println("cancel-order-17: " + known + again.get("state").asText());
        // It was paid.
        var verdict = client.cancel(topic, "cancel-order-17").verdict();
        System.out.println("cancel-order-17: " + verdict.name().toLowerCase(Locale.ROOT));
        var other = client.submit(topic, draft(18, Duration.ofMinutes(30)).name("cancel-order-18"));
        System.out.println("cancel-order-18: " + other.get("state").asText());
        // This customer has less time.
        client.replace(topic, "cancel-order-18", draft(18, Duration.ofSeconds(1)));
        System.out.println("cancel-order-18: rescheduled");
    }
}
