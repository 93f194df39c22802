package punctual;

import static java.nio.charset.StandardCharsets.US_ASCII;

import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** For services that are called back: whether a node has sent a request. */
public final class Signature {
    /** The header with the signature of a callback. */
    public static final String HEADER = "punctual-signature";

    private static final Duration AGE_MAX = Duration.ofMinutes(5);
    /** Nodes take no shorter key. */
    private static final int KEY_BYTES_MIN = 24;

    private Signature() {}

    /**
     * Returns whether a node with one of these keys has sent the request, in the last five minutes.
     * The keys are the lines of the node's file, the topic is the one whose tasks the service takes,
     * and the body is the bytes of the request.
     */
    public static boolean isGenuine(List<String> keys, String signature, String topic, byte[] body) {
        return isGenuine(keys, signature, topic, body, AGE_MAX);
    }

    /** Returns the same, for another age. */
    public static boolean isGenuine(
            List<String> keys, String signature, String topic, byte[] body, Duration ageMax) {
        if (signature == null) return false;
        var parts = List.of(signature.split(","));
        var seconds = parts.stream().filter(part -> part.startsWith("t=")).map(part -> part.substring(2)).findFirst();
        if (seconds.filter(text -> text.matches("[0-9]{1,15}")).isEmpty()) return false;
        var age = Duration.between(Instant.ofEpochSecond(Long.parseLong(seconds.get())), Instant.now()).abs();
        if (age.compareTo(ageMax) > 0) return false;
        var given = parts.stream().filter(part -> part.startsWith("v1=")).map(part -> part.substring(3)).toList();
        var start = seconds.get() + "\n" + topic + "\n";
        var secrets = keys.stream().map(Signature::secret).filter(secret -> secret.length >= KEY_BYTES_MIN);
        return secrets.map(secret -> signed(secret, start, body).getBytes(US_ASCII)).anyMatch(digest ->
                given.stream().anyMatch(value -> MessageDigest.isEqual(digest, value.getBytes(US_ASCII))));
    }

    /** Returns the key of a line. Anybody could sign with an empty line or a comment. */
    private static byte[] secret(String line) {
        try {
            return Base64.getDecoder().decode(line.strip());
        } catch (IllegalArgumentException notAKey) {
            return new byte[0];
        }
    }

    private static String signed(byte[] secret, String start, byte[] body) {
        try {
            var mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(secret, "HmacSHA256"));
            mac.update(start.getBytes(US_ASCII));
            return HexFormat.of().formatHex(mac.doFinal(body));
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }
}
