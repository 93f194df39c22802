package punctual;

/** No attempt got an answer in time. */
public final class NoAnswer extends RuntimeException {
    private final boolean isUnknown;

    NoAnswer(String message, boolean isUnknown, Throwable cause) {
        super(message, cause);
        this.isUnknown = isUnknown;
    }

    /** True if an attempt may have taken effect. False: nothing was done. */
    public boolean isUnknown() {
        return isUnknown;
    }
}
