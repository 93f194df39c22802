//! Numbers and foreign text, as people read them in logs, answers and pages.

use std::borrow::Cow;

/// Returns a number with a comma between thousands: `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Returns a count, with `about` in front when it is an estimate: `about 12,000`.
pub fn estimate(count: u64, is_exact: bool) -> String {
    let about = if is_exact { "" } else { "about " };
    format!("{about}{}", grouped(count))
}

/// Escapes the control characters of foreign text. So it stays on one line of a log, and does not
/// control a terminal.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escaped_where(text, char::is_control)
}

/// Escapes the characters for which `is_escaped` returns true, as Rust writes them: `\n`, `\u{1b}`.
pub fn escaped_where(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_have_commas_and_an_estimate_says_about() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [true, false].map(|is_exact| estimate(12_000, is_exact)),
            ["12,000", "about 12,000"]
        );
    }

    #[test]
    fn foreign_text_stays_one_line() {
        assert_eq!(escaped("Broker: out of order"), "Broker: out of order");
        assert_eq!(escaped("a\nINFO forged\u{1b}[2J\r"), "a\\nINFO forged\\u{1b}[2J\\r");
        assert_eq!(escaped_where("a\nb\r", |c| c == '\r'), "a\nb\\r");
    }
}
