//! Tests of times and delays as callers write them.

use proptest::prelude::*;

use super::*;

fn raw(json: &str) -> &RawValue {
    serde_json::from_str(json).unwrap()
}

fn millis_of(json: &str) -> Result<i64, String> {
    due_at(raw(json)).map(Timestamp::as_millis)
}

#[test]
fn due_times_are_read_in_every_form_of_rfc_3339() {
    for text in [
        "2030-01-31T09:30:00Z",
        "2030-01-31t09:30:00z",
        "2030-01-31 09:30:00Z",
        "2030-01-31T09:30:00.000Z",
        "2030-01-31T10:30:00+01:00",
        "2030-01-31T09:30:00-00:00",
        // Java prints whole minutes like this.
        "2030-01-31T09:30Z",
        "2030-01-31T10:30+01:00",
    ] {
        assert_eq!(millis_of(&format!("{text:?}")), Ok(1_896_082_200_000), "{text}");
    }
    assert_eq!(millis_of("1896082200000"), Ok(1_896_082_200_000));
    assert_eq!(millis_of(r#""1970-01-01T00:00:00Z""#), Ok(0));
    for whole in
        ["1896082200000.0", "1.8960822e12", "1.8960822E+12", "1896082200000000e-3", "18960822.00e5"]
    {
        assert_eq!(millis_of(whole), Ok(1_896_082_200_000), "{whole}");
    }
}

#[test]
fn what_is_finer_than_a_millisecond_is_rounded_up() {
    assert_eq!(millis_of(r#""2030-01-31T09:30:00.000000001Z""#), Ok(1_896_082_200_001));
    assert_eq!(millis_of(r#""2030-01-31T09:30:00.001Z""#), Ok(1_896_082_200_001));
    assert_eq!(millis_of(r#""2030-01-31T09:29:59.999999999Z""#), Ok(1_896_082_200_000));
    assert_eq!(delay(raw(r#""1us""#)), Ok(Duration::from_millis(1)));
    assert_eq!(delay(raw(r#""PT0.0015S""#)), Ok(Duration::from_millis(2)));
}

#[test]
fn a_leap_second_is_not_early() {
    assert_eq!(millis_of(r#""2016-12-31T23:59:60Z""#), millis_of(r#""2017-01-01T00:00:00Z""#));
}

#[test]
fn the_year_9999_is_read_and_written_to_its_end() {
    for (text, millis) in [
        ("9999-12-30T22:00:01Z", 253_402_207_201_000),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        ("9999-12-31T23:59:59.999Z", MILLIS_MAX),
        ("9999-12-31T23:59:59+23:59", MILLIS_MAX - 999 - 1439 * 60_000),
        ("9999-12-31T20:59:59.999-03:00", MILLIS_MAX),
    ] {
        assert_eq!(millis_of(&format!("{text:?}")), Ok(millis), "{text}");
    }
    assert_eq!(Rfc3339(Timestamp::from_millis(MILLIS_MAX)).to_string(), "9999-12-31T23:59:59.999Z");
    assert_eq!(millis_of(&MILLIS_MAX.to_string()), Ok(MILLIS_MAX));
}

proptest! {
    #[test]
    fn times_are_read_as_jiff_reads_them(
        text in concat!(
            "[12][0-9]{3}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-5][0-9]:[0-5][0-9]",
            "([.][0-9]{1,9})?(Z|z|[-+][01][0-9]:[0-5][0-9])",
        ),
    ) {
        let by_jiff = text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_nanosecond);
        let shape = shape_of(&text).unwrap();
        let seconds = |given| match given {
            GivenOffset::Offset(seconds) => seconds,
            GivenOffset::Nothing | GivenOffset::Utc => 0,
        };
        let nanos = shape
            .date_time()
            .zip(shape.offset())
            .map(|(at, given)| shape.nanos_since_epoch(at, seconds(given)));
        prop_assert_eq!(nanos, by_jiff);
    }
}

#[test]
fn due_times_that_are_none_are_refused_with_the_reason() {
    for (json, reason) in [
        (r#""2030-01-31T09:30:00""#, "zone"),
        (r#""2030-01-31T09:30""#, "zone"),
        (r#""2030-01-31""#, "no time of day"),
        (r#""2030-01-31[Europe/Berlin]""#, "no time of day"),
        (r#""2030-01-31T09Z""#, "RFC 3339"),
        (r#""2030-01-31T09:30:Z""#, "RFC 3339"),
        (r#""2030-01-31T09:30.5Z""#, "RFC 3339"),
        (r#""2030-02-30T09:30:00Z""#, "not a valid date"),
        (r#""2030-01-31T25:30:00Z""#, "not a valid date"),
        (r#""2030-01-31T09:30:00.1234567890Z""#, "RFC 3339"),
        (r#""1969-12-31T23:59:59Z""#, "1970"),
        (r#""9999-12-31T23:59:59.9991Z""#, "after the year 9999"),
        (r#""9999-12-31T23:59:59-00:01""#, "after the year 9999"),
        (r#""9999-12-31T24:00:00Z""#, "not a valid date"),
        (r#""2030-01-31T09:30:00+24:00""#, "not a valid date"),
        (r#""2030-01-31T09:30:00+01:60""#, "not a valid date"),
        (r#""tomorrow""#, "RFC 3339"),
        (r#""1896082200000""#, "number in quotes"),
        (r#""2030-01-31T09:30:00+0100""#, "+01:00"),
        ("1896082200000.5", "whole"),
        ("1896082200000.00000000000000000000001", "whole"),
        ("1e-3", "whole"),
        ("1e99", "out of range"),
        ("1e99999999999999999999", "out of range"),
        ("0.0", "seconds"),
        ("-1", "negative"),
        ("0", "seconds"),
        ("1896082200", "seconds"),
        ("253402300800000", "after the year 9999"),
        ("9999999999999999", "after the year 9999"),
        ("99999999999999999999999999", "out of range"),
        ("null", "null"),
        ("true", "boolean"),
    ] {
        let wrong = due_at(raw(json)).unwrap_err();
        // The reason follows a quotation of the input.
        let said = wrong.strip_prefix(json).unwrap_or(&wrong);
        assert!(said.contains(reason), "{json}: {wrong}");
    }
}

#[test]
fn times_with_the_name_of_a_zone_are_read_by_its_rules() {
    for (text, in_utc) in [
        ("2030-01-31T10:30:00+01:00[Europe/Berlin]", "2030-01-31T09:30:00Z"),
        ("2030-01-31T10:30+01:00[!Europe/Berlin]", "2030-01-31T09:30:00Z"),
        ("2030-01-31T10:30[Europe/Berlin]", "2030-01-31T09:30:00Z"),
        ("2030-01-31 10:30[europe/berlin]", "2030-01-31T09:30:00Z"),
        ("2030-07-31T11:30:00.5[Europe/Berlin]", "2030-07-31T09:30:00.5Z"),
        ("2030-01-31T09:30Z[Europe/Berlin]", "2030-01-31T09:30:00Z"),
        ("2030-01-31T09:30-00:00[Europe/Berlin]", "2030-01-31T09:30:00Z"),
        ("2030-01-31T09:30[UTC]", "2030-01-31T09:30:00Z"),
        ("2030-01-31T09:30Z[Etc/UTC]", "2030-01-31T09:30:00Z"),
        ("2030-01-31T10:30[+01:00]", "2030-01-31T09:30:00Z"),
        ("2030-01-31T10:30+01:00[Europe/Berlin][u-ca=hebrew]", "2030-01-31T09:30:00Z"),
        ("2030-01-31T10:30+01:00[_x=y]", "2030-01-31T09:30:00Z"),
        // This local time exists twice, and the offset says which one is meant.
        ("2030-10-27T02:30+02:00[Europe/Berlin]", "2030-10-27T00:30:00Z"),
        ("2030-10-27T02:30+01:00[Europe/Berlin]", "2030-10-27T01:30:00Z"),
        ("9999-12-31T23:59[Europe/Berlin]", "9999-12-31T22:59:00Z"),
    ] {
        assert_eq!(millis_of(&format!("{text:?}")), millis_of(&format!("{in_utc:?}")), "{text}");
        assert!(millis_of(&format!("{text:?}")).is_ok(), "{text}");
    }
}

#[test]
fn times_that_contradict_the_rules_of_their_zone_are_refused() {
    for (text, reason) in [
        (
            "2030-01-31T10:30+02:00[Europe/Berlin]",
            "its offset is +02:00, but Europe/Berlin has +01:00 then",
        ),
        ("2030-01-31T10:30+02:00[!Europe/Berlin]", "its offset is +02:00"),
        ("2030-01-31T10:30+02:00[-03:30]", "-03:30 has -03:30 then"),
        ("2030-03-31T02:30[Europe/Berlin]", "skip it when they change from +01:00 to +02:00"),
        ("2030-03-31T02:30+01:00[Europe/Berlin]", "skip it"),
        ("2030-10-27T02:30[Europe/Berlin]", "twice in Europe/Berlin, with +02:00 and with +01:00"),
        ("2030-10-27T02:30+03:00[Europe/Berlin]", "its offset is +03:00"),
        ("2030-01-31T10:30[Europe/Munich]", "unknown time zone, \"Europe/Munich\""),
        ("2030-01-31T10:30[CET-1CEST]", "unknown time zone"),
        ("2030-01-31T10:30[]", "unknown time zone"),
        ("2030-01-31T10:30[../../etc/passwd]", "unknown time zone"),
        ("2030-01-31T10:30[+25:00]", "unknown time zone"),
        ("2030-01-31T10:30[Europe/Berlin", "not a zone in brackets"),
        ("2030-01-31T10:30[Europe/Berlin]Z", "not a zone in brackets"),
        ("2030-01-31T10:30[Europe/Berlin][Europe/Paris]", "not the first"),
        ("2030-01-31T10:30Z[!u-ca=hebrew]", "critical"),
        ("2030-01-31T10:30[u-ca=hebrew]", "no time zone"),
    ] {
        let wrong = millis_of(&format!("{text:?}")).unwrap_err();
        assert!(wrong.contains(reason), "{text}: {wrong}");
    }
}

#[test]
fn a_plus_that_became_a_blank_is_a_plus() {
    let moment = due_at(raw(r#""2030-01-31T09:30:00Z""#)).unwrap();
    for text in [
        "2030-01-31T10:30:00 01:00",
        "2030-01-31 10:30 01:00",
        "2030-01-31T10:30+01:00[Europe/Berlin]",
        "2030-01-31T04:30[Etc/GMT 5]",
    ] {
        assert_eq!(due_at_of_parameter(text), Ok(moment), "{text}");
    }
}

#[test]
fn delays_are_read_in_words_in_iso_8601_and_in_milliseconds() {
    for (json, seconds) in [
        (r#""30m""#, 1800),
        (r#""1h 30m""#, 5400),
        (r#""1 hour 30 minutes""#, 5400),
        (r#""PT30M""#, 1800),
        (r#""pt30m""#, 1800),
        (r#""P1DT1H""#, 90_000),
        (r#""1d""#, 86_400),
        (r#""2 weeks""#, 1_209_600),
        (r#""PT0S""#, 0),
        ("0", 0),
        ("-0.0", 0),
        ("0e-9", 0),
        ("1800000", 1800),
    ] {
        assert_eq!(delay(raw(json)), Ok(Duration::from_secs(seconds)), "{json}");
    }
    assert_eq!(delay(raw(r#""250ms""#)), Ok(Duration::from_millis(250)));
}

#[test]
fn delays_that_are_none_are_refused_with_the_reason() {
    for (json, reason) in [
        (r#""1 month""#, "months"),
        (r#""P1Y""#, "months"),
        (r#""1mo""#, "months"),
        (r#""-30m""#, "negative"),
        (r#""30m ago""#, "negative"),
        (r#""30""#, "quotes"),
        (r#""1800000""#, "unit"),
        (r#""""#, "not a delay"),
        ("-1", "negative"),
        ("1.5", "whole"),
        (r#""200000000h""#, "1000 years"),
        ("99999999999999", "1000 years"),
        ("18446744073709551615", "out of range"),
        ("[]", "array"),
    ] {
        let wrong = delay(raw(json)).unwrap_err();
        assert!(wrong.contains(reason), "{json}: {wrong}");
    }
    assert!(delay(raw(&format!("{:?}", "1h ".repeat(100)))).is_err());
}

proptest! {
    #[test]
    fn no_text_makes_the_parsers_panic(text in ".{0,60}") {
        let json = serde_json::to_string(&text).unwrap();
        prop_assert!(delay(raw(&json)).is_err() || !text.is_empty());
        prop_assert!(due_at(raw(&json)).is_err() || !text.is_empty());
    }

    #[test]
    fn no_zone_makes_the_parser_panic(
        text in concat!(
            "2030-0[1-9]-[0-3][0-9]T[0-2][0-9]:30(:[0-5][0-9])?(Z|[-+]0[0-9]:[03]0)?",
            "([\\[]!?(Europe/Berlin|Africa/Monrovia|[-+]?[0-9:]{1,6}|.{0,10})[\\]]?){0,3}",
        ),
    ) {
        let json = serde_json::to_string(&text).unwrap();
        if let Ok(at) = due_at(raw(&json)) {
            prop_assert!(at.as_millis() > 0);
        }
    }

    #[test]
    fn no_delay_of_units_makes_the_parser_panic(
        text in concat!(
            "[-+]?(P|PT)?([0-9]{1,12}([.][0-9]{1,9})? ?",
            "(y|mo|w|d|h|m|s|ms|us|ns|H|M|S|D|W|Y),? ?){1,5}",
        ),
    ) {
        let json = serde_json::to_string(&text).unwrap();
        if let Ok(span) = delay(raw(&json)) {
            prop_assert!(span <= Duration::from_millis(DELAY_MILLIS_MAX));
        }
    }

    #[test]
    fn no_number_makes_the_parser_panic(
        number in "-?(0|[1-9][0-9]{0,30})([.][0-9]{1,30})?([eE][-+]?[0-9]{1,25})?",
    ) {
        if let Ok(span) = delay(raw(&number)) {
            let value: f64 = number.parse().unwrap();
            prop_assert!(
                (value - span.as_secs_f64() * 1000.0).abs() < 1.0,
                "{number}: {span:?}"
            );
        }
    }

    #[test]
    fn what_is_written_is_read_back(millis in MILLIS_MIN..=MILLIS_MAX) {
        let at = Timestamp::from_millis(millis);
        prop_assert_eq!(due_at(raw(&format!("\"{}\"", Rfc3339(at)))), Ok(at));
        prop_assert_eq!(due_at(raw(&millis.to_string())), Ok(at));
    }
}
