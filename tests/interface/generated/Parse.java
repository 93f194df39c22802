import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Files;
import java.nio.file.Path;
import org.openapitools.client.ApiClient;

/** Parses answers with a generated client: Parse FILE. Prints the number of parsed answers. */
public class Parse {
    public static void main(String[] args) throws Exception {
        ObjectMapper generated = ApiClient.createDefaultObjectMapper();
        int count = 0;
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            var one = new ObjectMapper().readTree(line);
            var type = Class.forName("org.openapitools.client.model." + one.get("schema").asText());
            try {
                if (generated.readValue(one.get("answer").toString(), type) == null) throw new IllegalStateException("null");
                count++;
            } catch (Exception error) {
                System.err.println(error + " in " + line);
                System.exit(1);
            }
        }
        System.out.println(count);
    }
}
