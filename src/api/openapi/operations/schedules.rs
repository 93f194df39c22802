//! Operations of schedules.

use axum::http::StatusCode;

use super::parameters::LIMIT;
use crate::access::Action;
use crate::api::access::required::Access;
use crate::api::openapi::operation::{
    Example, Operation, OperationAnswer, Parameter, RequestBody, ShellSample, Tag,
};
use crate::api::problems::problem_type::ProblemType as P;

const TOPIC: Parameter = Parameter::path("topic", "The topic of the schedule.", "TopicName");
const NAME: Parameter = Parameter::path(
    "name",
    "The name of the schedule, percent-encoded, at most 200 bytes.",
    "NameInPath",
);
const IF_MATCH: Parameter = Parameter::header(
    "If-Match",
    "Act only if the schedule has this `ETag`, else 412; `*` for any.",
    "RevisionTag",
);
const IF_NONE_MATCH: Parameter = Parameter::header(
    "If-None-Match",
    "Only `*`: act only if there is no such schedule, else 412.",
    "AnyRevision",
);
const NEXT: Parameter =
    Parameter::query("next", "Show this many upcoming runs, as `next`.", "NextCount");

const SCHEDULE: &str = r#"curl --silent --show-error --fail --output /dev/null \
  --request PUT "http://127.0.0.1:7070/v1/schedules/demo/nightly" \
  --header 'content-type: application/json' \
  --data '{"cron":"30 2 * * *","time_zone":"Europe/Berlin","payload":"backup"}'"#;
const PATH: &str = "/v1/schedules/demo/nightly";
const ON_TOPIC: Access = Access::OnTopic(&[Action::Schedule]);

pub const LIST: Operation = Operation {
    id: "listSchedules",
    tag: Tag::Schedules,
    access: Access::OnTopic(&[Action::Read]),
    summary: "List the schedules of a topic",
    description: "The schedules in the order of their names, without headers, payloads, and keys \
                  over 1 KiB. Repeat with `after` set to `next_after` until that is null.",
    parameters: &[
        TOPIC,
        Parameter::query("after", "Begin after this name.", "ScheduleName"),
        LIMIT,
    ],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Schedules", "A page of schedules.")],
    problems: &[P::InvalidValue, P::DuplicateField, P::Unavailable],
    sample: ShellSample { before: SCHEDULE, path: "/v1/schedules/demo" },
};

pub const LOOK_UP: Operation = Operation {
    id: "getSchedule",
    tag: Tag::Schedules,
    access: Access::OnTopic(&[Action::Read]),
    summary: "Look up a schedule",
    description: "The schedule with its next run. `ETag` is its revision.",
    parameters: &[TOPIC, NAME, NEXT],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Schedule", "The schedule.")],
    problems: &[P::InvalidValue, P::DuplicateField, P::ScheduleNotFound, P::Unavailable],
    sample: ShellSample { before: SCHEDULE, path: PATH },
};

pub const PUT: Operation = Operation {
    id: "putSchedule",
    tag: Tag::Schedules,
    access: ON_TOPIC,
    summary: "Create or replace a schedule",
    description: "Each run is a task named `<schedule>@<instant>`, made a minute ahead, and one is \
                  always made. A change withdraws the runs that are not due yet, and makes them \
                  anew. Runs that are due keep their record, unless the key is another one. A \
                  pause or another timing withdraws all runs that are not claimed. A PUT of what \
                  is there already changes nothing, so repeating is safe. `dry_run=true` checks \
                  everything, stores nothing, and shows the next runs.",
    parameters: &[
        TOPIC,
        NAME,
        Parameter::query("dry_run", "True: check, and store nothing.", "DryRun"),
        NEXT,
        IF_MATCH,
        IF_NONE_MATCH,
    ],
    body: Some(RequestBody {
        schema: "ScheduleRequest",
        is_required: true,
        examples: &[
            Example {
                name: "nightly",
                summary: "At half past two on working days, in Berlin",
                json: r#"{"cron":"30 2 * * 1-5","time_zone":"Europe/Berlin","payload":"backup"}"#,
            },
            Example {
                name: "often",
                summary: "Every 15 minutes",
                json: r#"{"every":"15m","key":"poll","payload":{"poll":true}}"#,
            },
        ],
    }),
    answers: &[
        OperationAnswer::json(
            StatusCode::OK,
            "Schedule",
            "The schedule: replaced, or the same as before, or not stored by a dry run.",
        ),
        OperationAnswer::json(StatusCode::CREATED, "Schedule", "The new schedule."),
    ],
    problems: &[
        P::PreconditionFailed,
        P::MissingField,
        P::ConflictingFields,
        P::UnknownTopic,
        P::RecordTooLarge,
        P::KeyRequired,
        P::TooFarAhead,
        P::TooManySchedules,
        P::RefusedValue,
        P::TooManyPending,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: "", path: PATH },
};

pub const DELETE: Operation = Operation {
    id: "deleteSchedule",
    tag: Tag::Schedules,
    access: ON_TOPIC,
    summary: "Delete a schedule",
    description: "Withdraws the runs that are not claimed, too. Answers with the schedule as it \
                  was.",
    parameters: &[TOPIC, NAME, IF_MATCH, IF_NONE_MATCH],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Schedule", "The schedule as it was.")],
    problems: &[
        P::ScheduleNotFound,
        P::RequestTimeout,
        P::PreconditionFailed,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: SCHEDULE, path: PATH },
};

pub const PAUSE: Operation = Operation {
    id: "pauseSchedule",
    tag: Tag::Schedules,
    access: ON_TOPIC,
    summary: "Pause a schedule",
    description: "Withdraws the runs that are not claimed. Repeating changes nothing.",
    parameters: &[TOPIC, NAME],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Schedule", "The paused schedule.")],
    problems: &[P::ScheduleNotFound, P::RequestTimeout, P::Unavailable, P::OutcomeUnknown],
    sample: ShellSample { before: SCHEDULE, path: "/v1/schedules/demo/nightly/pause" },
};

pub const RESUME: Operation = Operation {
    id: "resumeSchedule",
    tag: Tag::Schedules,
    access: ON_TOPIC,
    summary: "Resume a schedule",
    description: "The policy for missed runs decides about the runs that the pause has left out. \
                  Repeating changes nothing.",
    parameters: &[TOPIC, NAME],
    body: None,
    answers: &[OperationAnswer::json(StatusCode::OK, "Schedule", "The resumed schedule.")],
    problems: &[P::ScheduleNotFound, P::RequestTimeout, P::Unavailable, P::OutcomeUnknown],
    sample: ShellSample { before: SCHEDULE, path: "/v1/schedules/demo/nightly/resume" },
};

pub const TRIGGER: Operation = Operation {
    id: "triggerSchedule",
    tag: Tag::Schedules,
    access: ON_TOPIC,
    summary: "Run a schedule now",
    description: "Submits one more run, which is due now, also of a paused schedule. It counts for \
                  neither `runs_max` nor `runs_made`. Each call makes a run.",
    parameters: &[TOPIC, NAME],
    body: None,
    answers: &[OperationAnswer::created("The task of the run.")],
    problems: &[
        P::ScheduleNotFound,
        P::RequestTimeout,
        P::UnknownTopic,
        P::RecordTooLarge,
        P::KeyRequired,
        P::RefusedValue,
        P::TooManyPending,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: SCHEDULE, path: "/v1/schedules/demo/nightly/trigger" },
};

pub const BACKFILL: Operation = Operation {
    id: "backfillSchedule",
    tag: Tag::Schedules,
    access: ON_TOPIC,
    summary: "Make runs of the past",
    description: "Makes the runs of a range of the last seven days that were never made, due now: \
                  instants before the schedule was created, missed ones, and skipped ones. Their \
                  names and headers have the instants of the past. Repeating makes no run twice. \
                  They count for neither `runs_max` nor `runs_made`.",
    parameters: &[TOPIC, NAME],
    body: Some(RequestBody {
        schema: "BackfillRequest",
        is_required: true,
        examples: &[Example {
            name: "nightly",
            summary: "Count the runs of the last three days that would be made",
            json: r#"{"last":"3d","dry_run":true}"#,
        }],
    }),
    answers: &[OperationAnswer::json(StatusCode::OK, "Backfill", "The runs of the range.")],
    problems: &[
        P::ScheduleNotFound,
        P::MissingField,
        P::ConflictingFields,
        P::UnknownTopic,
        P::RecordTooLarge,
        P::KeyRequired,
        P::RefusedValue,
        P::TooManyPending,
        P::Unavailable,
        P::OutcomeUnknown,
    ],
    sample: ShellSample { before: SCHEDULE, path: "/v1/schedules/demo/nightly/backfill" },
};
