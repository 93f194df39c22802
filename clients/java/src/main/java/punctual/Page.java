package punctual;

import java.util.List;

/** A page of a list. {@code next} is what the call for the next page takes, or null at the end. */
public record Page<T>(List<T> items, String next) {}
