import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.Arrays;
import java.util.Scanner;

/**
 * Asks with java.net.http, as {@code tests/integration/http_clients.rs} has it: BASE, then lines of PATH TYPE BYTES on standard
 * input. For each: the status of a POST of so many blanks, and of GET /livez after it with the same client.
 */
public final class Clients {
    public static void main(String[] arguments) {
        var plain = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        // Asks for an upgrade to HTTP/2 in each request, as it does unless it is told otherwise.
        var usual = HttpClient.newHttpClient();
        var lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            var words = lines.nextLine().split(" ");
            var body = new byte[Integer.parseInt(words[2])];
            Arrays.fill(body, (byte) ' ');
            ask("HttpClient", plain, arguments[0], words, BodyPublishers.ofByteArray(body));
            ask("HttpClient,usual", usual, arguments[0], words, BodyPublishers.ofByteArray(body));
            ask("HttpClient,chunked", plain, arguments[0], words, BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body)));
        }
    }

    private static void ask(String name, HttpClient client, String base, String[] words, BodyPublisher body) {
        String outcome;
        try {
            var request = HttpRequest.newBuilder(URI.create(base + words[0])).header("Content-Type", words[1]).POST(body);
            var answer = client.send(request.timeout(Duration.ofMinutes(1)).build(), BodyHandlers.ofString());
            var after = client.send(HttpRequest.newBuilder(URI.create(base + "/livez")).build(), BodyHandlers.ofString());
            outcome = answer.statusCode() + " " + after.statusCode();
        } catch (Exception error) {
            outcome = error.getClass().getSimpleName() + " " + String.valueOf(error.getMessage()).replace(' ', '_');
        }
        System.out.println(String.join(" ", name, words[0], words[1], words[2], outcome));
    }
}
