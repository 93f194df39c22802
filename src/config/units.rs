//! Parses sizes, counts and network addresses as people write them.
//!
//! Sizes are parsed without `bytesize`: it also accepts fractions and bare letters (`1.5g`), and a
//! setting should have one spelling.

/// Parses bytes: `256MiB`, `64kB`, or a plain number. The error describes valid values.
pub(super) fn size(text: &str) -> Result<usize, String> {
    let wrong =
        || format!("`{text}` is not a size; write it like 16MiB, 1GiB or a number of bytes");
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor: usize = match unit.trim_start() {
        "" | "B" => 1,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    let number: usize = number.parse().map_err(|_empty_or_too_long| wrong())?;
    number.checked_mul(factor).ok_or_else(wrong)
}

/// Parses a whole number. `_` may separate its digits. The error describes valid values.
pub(super) fn count(text: &str) -> Result<usize, String> {
    text.trim()
        .replace('_', "")
        .parse()
        .map_err(|_not_a_number| format!("`{text}` is not a whole number"))
}

/// Returns an address for use in a message. A part that may hold a password is not repeated.
pub(super) fn printable(place: &str) -> String {
    if place.contains('@') {
        "the value (not shown: with a user or password)".to_owned()
    } else {
        format!("`{place}`")
    }
}

/// Returns true for `host:port`, with an IPv6 address in brackets.
pub(super) fn has_port(place: &str) -> bool {
    let Some((host, port)) = place.rsplit_once(':') else { return false };
    let is_host = if host.starts_with('[') { host.ends_with(']') } else { !host.contains(':') };
    let is_clean =
        !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@?".contains(c));
    is_host && is_clean && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, bytes) in [
            ("7", 7),
            ("7B", 7),
            ("64kB", 64_000),
            ("256MiB", 268_435_456),
            ("1 GiB", 1_073_741_824),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "MiB", "1.5GiB", "-1", "1XB", "99999999999999999999", "18446744073709551615GiB"]
        {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_are_whole_numbers() {
        assert_eq!(count("100_000"), Ok(100_000));
        assert!(count("1e3").is_err() && count("").is_err() && count("-1").is_err());
    }
}
