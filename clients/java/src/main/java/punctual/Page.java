package punctual;

import java.util.List;

/** A page of a list. {@code next} is the place of the next page, or null at the end. */
public record Page<T>(List<T> items, String next) {}
