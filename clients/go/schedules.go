package punctual

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// ScheduleDraft says when a schedule runs, and what each of its runs publishes. It has either a
// Cron or a period, Every. Durations below a millisecond are refused, because they miss their unit.
type ScheduleDraft struct {
	// Cron is an expression with five fields, TimeZone its zone, such as Europe/Berlin.
	Cron, TimeZone string
	// Seconds: Cron has six fields, the first one for seconds.
	Seconds bool
	// Every is a period, Phase moves its instants.
	Every, Phase time.Duration
	// StartsAt is the time of the first run at the earliest, EndsAt is after the last one.
	StartsAt, EndsAt time.Time
	// Exclude has days without runs: the dates of these times.
	Exclude []time.Time
	// RunsMax ends the schedule after so many runs.
	RunsMax int
	// SkipOverlap: no run while one before is not finished. It needs TTR.
	SkipOverlap bool
	// Spread makes each run due up to so much later.
	Spread time.Duration
	DST    *DST
	Missed *MissedRuns
	// Paused: the schedule makes no runs. False resumes a paused schedule.
	Paused bool
	Note   string

	// Key and what follows are as in a Draft.
	Key          *string
	KeyBytes     []byte
	Payload      any
	PayloadBytes []byte
	Tombstone    bool
	Headers      map[string]any
	TTR          time.Duration
	Retry        *RetryPolicy
}

// DST says what becomes of local times when the clocks change. Empty values stand for the defaults.
type DST struct {
	// Gap is shift (the default) or skip, for a time that does not exist.
	Gap string
	// Overlap is first (the default) or both, for a time that occurs twice.
	Overlap string
}

// MissedRuns says what becomes of instants that passed without a run. Zero values stand for the
// defaults.
type MissedRuns struct {
	// Policy is last (the default), all or none.
	Policy string
	// Within is how long ago the instants may be.
	Within time.Duration
	// CountMax is the most runs of the policy all.
	CountMax int
}

// Schedule is a schedule as the API shows it.
type Schedule struct {
	Topic string `json:"topic"`
	Name  string `json:"name"`
	// Revision counts the changes, from 1 on.
	Revision int64 `json:"revision"`
	Paused   bool  `json:"paused"`
	RunsMade int64 `json:"runs_made"`
	// NextRunAt is zero if the schedule is paused or has ended.
	NextRunAt time.Time `json:"next_run_at"`
	// NextRuns are the upcoming runs, as many as were asked for.
	NextRuns []time.Time `json:"next"`
	Cron     string      `json:"cron"`
	TimeZone string      `json:"time_zone"`
	// Every is a period as text, such as 15m.
	Every string `json:"every"`
	Note  string `json:"note"`
	Key   string `json:"key"`
	// Payload is that of the record, if it is JSON. Lists are without it.
	Payload json.RawMessage `json:"payload"`
}

// SetSchedule creates a schedule, or replaces it as a whole, and returns it. IfNoneMatch("*") only
// creates, IfRevision only replaces.
func (client *Client) SetSchedule(
	ctx context.Context, topic, name string, draft ScheduleDraft, conditions ...Condition,
) (Schedule, error) {
	return client.putSchedule(ctx, schedulePath(topic, name), draft, conditions...)
}

// PreviewSchedule checks a schedule without storing it. NextRuns has its first runs, so many.
func (client *Client) PreviewSchedule(
	ctx context.Context, topic, name string, draft ScheduleDraft, runs int,
) (Schedule, error) {
	parameters := query("dry_run", "true", "next", strconv.Itoa(runs))
	return client.putSchedule(ctx, schedulePath(topic, name)+parameters, draft)
}

// GetSchedule returns a schedule, with so many of its NextRuns. The bool is false if there is none.
func (client *Client) GetSchedule(
	ctx context.Context, topic, name string, runs int,
) (Schedule, bool, error) {
	path := schedulePath(topic, name)
	if runs != 0 {
		path += query("next", strconv.Itoa(runs))
	}
	return found(ask[Schedule](ctx, client, http.MethodGet, path, nil))
}

// Schedules returns a page of the schedules of a topic, in the order of their names. The string is
// the name after which the next page begins, and empty at the end. The first page is after "".
func (client *Client) Schedules(
	ctx context.Context, topic, after string,
) ([]Schedule, string, error) {
	path := "/v1/schedules/" + url.PathEscape(topic) + query("after", after)
	page, err := ask[struct {
		Schedules []Schedule `json:"schedules"`
		NextAfter string     `json:"next_after"`
	}](ctx, client, http.MethodGet, path, nil)
	return page.Schedules, page.NextAfter, err
}

// PauseSchedule pauses a schedule and returns it. Its runs that are not claimed are withdrawn.
func (client *Client) PauseSchedule(ctx context.Context, topic, name string) (Schedule, error) {
	return ask[Schedule](ctx, client, http.MethodPost, schedulePath(topic, name)+"/pause", nil)
}

// ResumeSchedule ends the pause of a schedule and returns it.
func (client *Client) ResumeSchedule(ctx context.Context, topic, name string) (Schedule, error) {
	return ask[Schedule](ctx, client, http.MethodPost, schedulePath(topic, name)+"/resume", nil)
}

// TriggerSchedule submits one more run, which is due now, and returns its task. It is not repeated
// once it may have been done, because each call makes a run.
func (client *Client) TriggerSchedule(ctx context.Context, topic, name string) (Task, error) {
	return client.must(ctx, http.MethodPost, schedulePath(topic, name)+"/trigger", nil, 0)
}

// BackfillRange is a range of the past: Last, or From and To. It begins at most seven days ago, and
// has at most 1,000 runs.
type BackfillRange struct {
	// Last is the length of a range that ends now.
	Last time.Duration
	// From is the beginning, To the end, which is not part of the range.
	From, To time.Time
	// DryRun only counts.
	DryRun bool
}

// Backfilled is the result of a backfill.
type Backfilled struct {
	// Made is the number of runs that were made; in a dry run, of those that would be.
	Made int `json:"made"`
	// AlreadyMade is the number of runs that had been made before.
	AlreadyMade int `json:"already_made"`
	// Runs are the instants of the schedule in the range.
	Runs []time.Time `json:"runs"`
}

// BackfillSchedule makes the runs of the past that were never made, due now. No run is made twice,
// so the call may be repeated. Runs of an attempt whose answer was lost count as AlreadyMade.
func (client *Client) BackfillSchedule(
	ctx context.Context, topic, name string, of BackfillRange,
) (Backfilled, error) {
	if err := checkSpans(map[string]time.Duration{"Last": of.Last}); err != nil {
		return Backfilled{}, err
	}
	body := map[string]any{"dry_run": of.DryRun}
	set(body, "last", of.Last.Milliseconds())
	setTime(body, "from", of.From)
	setTime(body, "to", of.To)
	path := schedulePath(topic, name) + "/backfill"
	return ask[Backfilled](ctx, client, http.MethodPost, path, body)
}

// DeleteSchedule deletes a schedule, withdraws its runs that are not claimed, and returns the
// schedule as it was. The bool is false if there is none (any more).
func (client *Client) DeleteSchedule(
	ctx context.Context, topic, name string, conditions ...Condition,
) (Schedule, bool, error) {
	path := schedulePath(topic, name)
	return found(ask[Schedule](ctx, client, http.MethodDelete, path, nil, conditions...))
}

func (client *Client) putSchedule(
	ctx context.Context, path string, draft ScheduleDraft, conditions ...Condition,
) (Schedule, error) {
	if err := draft.check(); err != nil {
		return Schedule{}, err
	}
	return ask[Schedule](ctx, client, http.MethodPut, path, draft.body(), conditions...)
}

func schedulePath(topic, name string) string {
	return "/v1/schedules/" + url.PathEscape(topic) + "/" + url.PathEscape(name)
}

// record is the draft of a task with the record of each run.
func (draft ScheduleDraft) record() Draft {
	return Draft{
		Key: draft.Key, KeyBytes: draft.KeyBytes, Payload: draft.Payload,
		PayloadBytes: draft.PayloadBytes, Tombstone: draft.Tombstone, Headers: draft.Headers,
		TTR: draft.TTR, Retry: draft.Retry,
	}
}

func (draft ScheduleDraft) body() map[string]any {
	body := draft.record().record()
	for field, text := range map[string]string{
		"cron": draft.Cron, "time_zone": draft.TimeZone, "note": draft.Note,
	} {
		if text != "" {
			body[field] = text
		}
	}
	for field, isSet := range map[string]bool{"seconds": draft.Seconds, "paused": draft.Paused} {
		if isSet {
			body[field] = true
		}
	}
	if draft.SkipOverlap {
		body["overlap"] = "skip"
	}
	for field, span := range map[string]time.Duration{
		"every": draft.Every, "phase": draft.Phase, "spread": draft.Spread,
	} {
		if span != 0 {
			body[field] = span.Milliseconds()
		}
	}
	setTime(body, "starts_at", draft.StartsAt)
	setTime(body, "ends_at", draft.EndsAt)
	if len(draft.Exclude) > 0 {
		days := make([]string, len(draft.Exclude))
		for index, day := range draft.Exclude {
			days[index] = day.Format(time.DateOnly)
		}
		body["exclude"] = days
	}
	if draft.RunsMax != 0 {
		body["runs_max"] = draft.RunsMax
	}
	if draft.DST != nil {
		body["dst"] = draft.DST.body()
	}
	if draft.Missed != nil {
		body["missed"] = draft.Missed.body()
	}
	return body
}

func (dst DST) body() map[string]any {
	body := map[string]any{}
	if dst.Gap != "" {
		body["gap"] = dst.Gap
	}
	if dst.Overlap != "" {
		body["overlap"] = dst.Overlap
	}
	return body
}

func (missed MissedRuns) body() map[string]any {
	body := map[string]any{}
	if missed.Policy != "" {
		body["policy"] = missed.Policy
	}
	if missed.Within != 0 {
		body["within"] = missed.Within.Milliseconds()
	}
	if missed.CountMax != 0 {
		body["count_max"] = missed.CountMax
	}
	return body
}
