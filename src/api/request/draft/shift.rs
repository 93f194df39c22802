//! The new due times of a move of many tasks.
//!
//! A task that was moved must not be met again, by the same call or by its repetition. So the new
//! times lie outside of the range: a shift is at least as long as the range. Tasks of a choice may
//! all move to one time of the future: a task that is due then already is not moved again. Nor is
//! an overdue task moved to a time of the past, so a move may go on when its times have passed.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::api::json::times;
use crate::api::problems::problem::Problem;
use crate::api::problems::problem_type::ProblemType;
use crate::domain::{Selection, Timestamp};
use crate::node::messages::Shift;

/// A range of due times, from the first one to before the second.
type DueRange = (Option<Timestamp>, Option<Timestamp>);

/// The new due times of a move, as written.
#[derive(Clone, Copy, Debug)]
pub struct NewDue<'a> {
    pub by: Option<&'a RawValue>,
    pub to: Option<&'a RawValue>,
    /// True when the call goes on behind a cursor: its times may have passed meanwhile.
    pub is_follow_up: bool,
}

/// Reads `by` or `to` for the selected tasks. Returns the latest new due time, too. `now` is
/// unknown while the node starts. The first call of a move compares its times with `now`. Its
/// follow-ups do not: the move must not break off half-way.
pub fn read(
    NewDue { by, to, is_follow_up }: NewDue<'_>,
    selection: &Selection,
    now: Option<Timestamp>,
) -> Result<(Shift, Timestamp), Problem> {
    let range = (selection.due_from, selection.due_to);
    match (by, to) {
        (Some(by), None) => by_of(by, range, now.filter(|_now| !is_follow_up)),
        (None, Some(to)) => to_of(to, selection, (now, is_follow_up)),
        (None, None) => {
            let detail = "the new due times are required: by, such as \"1h\" or \"-1h\", or to";
            Err(Problem::new(ProblemType::MissingField, detail).at("by"))
        }
        (Some(_), Some(_)) => {
            Err(Problem::new(ProblemType::ConflictingFields, "give by or to, not both").at("to"))
        }
    }
}

/// Without `now`, the new due times may lie in the past.
fn by_of(
    by: &RawValue,
    range: DueRange,
    now: Option<Timestamp>,
) -> Result<(Shift, Timestamp), Problem> {
    let (span, is_earlier) = span_of(by)?;
    let (Some(from), Some(to)) = range else {
        let field = if range.0.is_none() { "due_from" } else { "due_to" };
        let detail = "by needs both ends of the range: due_from and due_to";
        return Err(Problem::new(ProblemType::MissingField, detail).at(field));
    };
    let width = to.since(from);
    if span.is_zero() || span < width {
        let detail = "the shift must be at least as long as the range from due_from to due_to, so \
                      that no task is met twice; move a longer range in parts: to a later time \
                      the latest part first, to an earlier time the earliest";
        return Err(Problem::invalid("by", detail));
    }
    if !is_earlier {
        return Ok((Shift::Later(span), to.plus(span).ceil_millis()));
    }
    if now.is_some_and(|now| from.minus(span) < now.floor_millis()) {
        let detail = "the earliest new due time, due_from plus by, would lie in the past; give to";
        return Err(Problem::invalid("by", detail));
    }
    Ok((Shift::Earlier(span), to.minus(span)))
}

fn to_of(
    to: &RawValue,
    selection: &Selection,
    (now, is_follow_up): (Option<Timestamp>, bool),
) -> Result<(Shift, Timestamp), Problem> {
    let given = times::due_at(to).map_err(|wrong| Problem::invalid("to", wrong))?;
    // A time in the past is due now, and each call has another now.
    let at = now.map_or(given, |now| given.max(now.ceil_millis()));
    let lies_ahead = now.is_some_and(|now| given > now);
    let is_safe = match &selection.choice {
        // One page, in which no task is met twice.
        Some(choice) if choice.is_enumerated() => true,
        Some(_) => lies_ahead,
        None => false,
    };
    let is_inside = selection.due_from.is_none_or(|from| at >= from)
        && selection.due_to.is_none_or(|until| at < until);
    if is_inside && !is_safe && !is_follow_up {
        let detail = "the new due time must lie outside of the range, before due_from or at \
                      due_to or later, so that no task is met twice; a time in the past counts as \
                      now. With name_prefix or key, any time of the future will do";
        return Err(Problem::invalid("to", detail));
    }
    Ok((Shift::To(at), at))
}

/// Reads a span with a sign: text or a whole number of milliseconds. Returns true for a shift to
/// earlier times.
fn span_of(by: &RawValue) -> Result<(Duration, bool), Problem> {
    let text = by.get();
    let (unsigned, is_earlier) = match (text.strip_prefix("\"-"), text.strip_prefix('-')) {
        (Some(rest), _) => (format!("\"{rest}"), true),
        (None, Some(rest)) => (rest.to_owned(), true),
        (None, None) => (text.to_owned(), false),
    };
    let wrong = |wrong: String| Problem::invalid("by", wrong);
    let span = RawValue::from_string(unsigned).map_err(|error| wrong(error.to_string()))?;
    let span = times::delay(&span).map_err(|error| wrong(error.to_string()))?;
    Ok((span, is_earlier))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Choice;

    const NOW: i64 = 1_893_456_000_000;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_millis(NOW + hours * 3_600_000)
    }

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    fn range(from: Option<i64>, to: Option<i64>) -> Selection {
        Selection { due_from: from.map(at), due_to: to.map(at), ..Selection::default() }
    }

    fn new_by(by: &RawValue, is_follow_up: bool) -> NewDue<'_> {
        NewDue { by: Some(by), to: None, is_follow_up }
    }

    fn new_to(to: &RawValue, is_follow_up: bool) -> NewDue<'_> {
        NewDue { by: None, to: Some(to), is_follow_up }
    }

    fn by(json: &str, from: i64, to: i64) -> Result<(Shift, Timestamp), Problem> {
        read(new_by(&raw(json), false), &range(Some(from), Some(to)), Some(at(0)))
    }

    fn to(hours: i64, (from, to): (Option<i64>, Option<i64>)) -> bool {
        let json = at(hours).as_millis().to_string();
        read(new_to(&raw(&json), false), &range(from, to), Some(at(0))).is_ok()
    }

    #[test]
    fn a_shift_is_at_least_as_long_as_its_range_and_never_into_the_past() {
        let hour = Duration::from_secs(3600);
        assert_eq!(by("\"1h\"", 1, 2).unwrap(), (Shift::Later(hour), at(3)));
        assert_eq!(by("3600000", 1, 2).unwrap(), (Shift::Later(hour), at(3)));
        assert_eq!(by("\"-1h\"", 1, 2).unwrap(), (Shift::Earlier(hour), at(1)));
        assert_eq!(by("-3600000", 1, 2).unwrap(), (Shift::Earlier(hour), at(1)));
        assert!(by("\"-61m\"", 1, 2).is_err(), "the first task would be due in the past");
        assert!(by("\"59m\"", 1, 2).is_err() && by("\"-59m\"", 2, 3).is_err());
        for wrong in ["0", "\"-\"", "\"--1h\"", "{}", "null", "\"soon\""] {
            assert!(by(wrong, 1, 1).is_err(), "{wrong}");
        }
        assert!(read(new_by(&raw("1"), false), &range(Some(1), None), Some(at(0))).is_err());
    }

    /// A move of many tasks takes several calls, and time passes between them.
    #[test]
    fn a_follow_up_goes_on_when_the_new_times_have_passed() {
        let hour = Duration::from_secs(3600);
        let (range, now) = (range(Some(1), Some(2)), at(0).plus(Duration::from_secs(1)));
        let by =
            |json: &str, is_follow_up| read(new_by(&raw(json), is_follow_up), &range, Some(now));
        assert!(by("\"-1h\"", false).is_err());
        assert_eq!(by("\"-1h\"", true).unwrap(), (Shift::Earlier(hour), at(1)));
        assert!(by("\"-59m\"", true).is_err(), "shorter than the range");
        // A time of the past counts as now, which lies in the range by then.
        let past = raw(&at(-9).as_millis().to_string());
        let to = |is_follow_up| {
            read(new_to(&past, is_follow_up), &range, Some(at(1))).map(|(shift, _)| shift)
        };
        assert!(to(false).is_err());
        assert_eq!(to(true).unwrap(), Shift::To(at(1)));
    }

    #[test]
    fn a_new_time_lies_outside_of_the_range() {
        assert!(to(3, (Some(1), Some(2))) && to(2, (Some(1), Some(2))));
        assert!(to(1, (Some(2), None)) && to(5, (None, Some(5))));
        assert!(!to(1, (Some(1), Some(2))) && !to(5, (None, Some(6))) && !to(5, (None, None)));
        assert!(to(-9, (Some(1), Some(2))), "now");
        assert!(!to(-9, (Some(-1), Some(2))), "now is in the range");
    }

    #[test]
    fn chosen_tasks_need_no_range_when_the_new_time_lies_ahead() {
        let json = at(5).as_millis().to_string();
        let read = |choice: Choice, json: &str| {
            let selection = Selection { choice: Some(choice), ..Selection::default() };
            let read = read(new_to(&raw(json), false), &selection, Some(at(0)));
            read.map(|(shift, _)| shift).ok()
        };
        assert_eq!(read(Choice::Ids(Vec::new()), &json), Some(Shift::To(at(5))));
        assert_eq!(read(Choice::Names(Vec::new()), &json), Some(Shift::To(at(5))));
        assert_eq!(read(Choice::Key(Box::from(*b"a")), &json), Some(Shift::To(at(5))));
        assert_eq!(read(Choice::NamePrefix(Box::from("a")), &json), Some(Shift::To(at(5))));
        // A time of the past is another one for each call.
        let past = at(-1).as_millis().to_string();
        assert_eq!(read(Choice::NamePrefix(Box::from("a")), &past), None);
        assert_eq!(read(Choice::Key(Box::from(*b"a")), &past), None);
        assert_eq!(read(Choice::Names(Vec::new()), &past), Some(Shift::To(at(0))));
    }
}
