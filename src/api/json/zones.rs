//! Time zones as RFC 9557 writes them after a time: `[Europe/Berlin]` or `[+01:00]`.
//!
//! The rules come with this build and not from the machine. All nodes of one release thus read a
//! time alike, also on machines without a time zone database.

use std::fmt;
use std::sync::LazyLock;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase};

use super::values::shown;

static RULES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A zone, with the name under which it was given.
#[derive(Debug)]
pub struct Zone<'a> {
    name: &'a str,
    rules: TimeZone,
}

impl<'a> Zone<'a> {
    /// Reads the zone in `suffix`: an empty text, or a bracketed one. The error has the reason.
    ///
    /// A mark that is not critical (`[u-ca=hebrew]`) is about the display of a time. RFC 9557 lets
    /// readers skip the mark.
    pub fn of_suffix(suffix: &'a str) -> Result<Option<Self>, String> {
        let mut zone = None;
        let mut rest = suffix;
        let mut is_first = true;
        while !rest.is_empty() {
            let mark = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            let Some((mark, after)) = mark else {
                return Err("has text after its time that is not a zone in brackets".to_owned());
            };
            let (is_critical, mark) =
                mark.strip_prefix('!').map_or((false, mark), |mark| (true, mark));
            match mark.split_once('=') {
                Some((key, _)) if is_critical => {
                    return Err(format!("has an unknown critical suffix, {:?}", shown(key)));
                }
                Some(_) => {}
                None if is_first => zone = Some(Self::named(mark)?),
                None => return Err("has a zone that is not the first in brackets".to_owned()),
            }
            (rest, is_first) = (after, false);
        }
        Ok(zone)
    }

    fn named(name: &'a str) -> Result<Self, String> {
        let rules = match offset_of(name.as_bytes()) {
            Some(seconds) => Offset::from_seconds(seconds).ok().map(TimeZone::fixed),
            None => RULES.get(name).ok(),
        };
        let rules =
            rules.ok_or_else(|| format!("names an unknown time zone, {:?}", shown(name)))?;
        Ok(Self { name, rules })
    }

    /// Returns the zone's offset from UTC in seconds when its clocks show `at`. The error says why
    /// there is no single such moment.
    pub fn offset_at(&self, at: DateTime) -> Result<i32, String> {
        let name = self.name;
        match self.rules.to_ambiguous_timestamp(at).offset() {
            AmbiguousOffset::Unambiguous { offset } => Ok(offset.seconds()),
            AmbiguousOffset::Gap { before, after } => {
                let [before, after] = [before, after].map(Written);
                Err(format!(
                    "does not exist in {name}, where the clocks skip it when they change from \
                     {before} to {after}"
                ))
            }
            AmbiguousOffset::Fold { before, after } => {
                let [before, after] = [before, after].map(Written);
                Err(format!(
                    "occurs twice in {name}, with {before} and with {after}: add one of these \
                     offsets"
                ))
            }
        }
    }

    /// Checks an offset that was given beside the zone against the zone's rules. If they differ,
    /// the rules have changed since, or one of the two is a mistake. The intended time could be
    /// earlier or later by hours, so it is refused, critical (`!`) or not.
    pub fn check(&self, seconds: i32, at: DateTime) -> Result<(), String> {
        let (name, given) =
            (self.name, Written(Offset::from_seconds(seconds).unwrap_or(Offset::UTC)));
        let of_zone = match self.rules.to_ambiguous_timestamp(at).offset() {
            AmbiguousOffset::Unambiguous { offset } if offset.seconds() == seconds => return Ok(()),
            AmbiguousOffset::Fold { before, after }
                if [before, after].map(Offset::seconds).contains(&seconds) =>
            {
                return Ok(());
            }
            AmbiguousOffset::Unambiguous { offset } => offset,
            AmbiguousOffset::Fold { before, .. } => before,
            AmbiguousOffset::Gap { .. } => return self.offset_at(at).map(drop),
        };
        Err(format!(
            "contradicts itself: its offset is {given}, but {name} has {} then; give only one of \
             them",
            Written(of_zone)
        ))
    }
}

/// Returns the seconds of an offset such as `+01:00`.
pub fn offset_of(text: &[u8]) -> Option<i32> {
    let [sign @ (b'+' | b'-'), a, b, b':', c, d] = text else { return None };
    if ![a, b, c, d].iter().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let of = |tens: &u8, ones: &u8| i32::from(tens - b'0') * 10 + i32::from(ones - b'0');
    let (hours, minutes) = (of(a, b), of(c, d));
    let seconds = hours * 3600 + minutes * 60;
    (hours < 24 && minutes < 60).then_some(if *sign == b'-' { -seconds } else { seconds })
}

/// Displays an offset as RFC 3339 writes it.
struct Written(Offset);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.seconds();
        let minutes = seconds.abs() / 60;
        write!(f, "{}{:02}:{:02}", if seconds < 0 { '-' } else { '+' }, minutes / 60, minutes % 60)
    }
}
