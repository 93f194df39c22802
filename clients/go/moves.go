package punctual

import (
	"context"
	"encoding/json"
	"errors"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"time"
)

// Due is a due time, from In or At.
type Due struct {
	at    time.Time
	delay time.Duration
	isIn  bool
}

// In is a due time that long after now. Durations below a millisecond are refused, because they
// miss their unit.
func In(delay time.Duration) Due { return Due{delay: delay, isIn: true} }

// At is a due time. One in the past is now; the zero time is refused.
func At(at time.Time) Due { return Due{at: at} }

// MoveVerdict is the result of a move; more may be added.
type MoveVerdict string

const (
	// MoveMoved: the task is due at the new time.
	MoveMoved MoveVerdict = "moved"
	// MoveTooLate: the task is on its way, or has ended. Nothing was changed.
	MoveTooLate MoveVerdict = "too_late"
	// MoveReplaced: another task has replaced the one of this id. Move the one of ReplacedBy.
	MoveReplaced MoveVerdict = "replaced"
	MoveNotFound MoveVerdict = "not_found"
)

// Moved is a verdict with its task, which is nil if there is none.
type Moved struct {
	Verdict MoveVerdict `json:"verdict"`
	Task    *Task       `json:"task"`
}

// Move gives the pending task of a name another due time. The verdict says whether it has it. Id,
// name and record stay. A delay counts from the attempt that is answered.
func (client *Client) Move(
	ctx context.Context, topic, name string, to Due, conditions ...Condition,
) (Moved, error) {
	return client.moveAt(ctx, pathOf(topic, name), to, conditions)
}

// MoveByID is as Move, by the id of the task.
func (client *Client) MoveByID(
	ctx context.Context, id string, to Due, conditions ...Condition,
) (Moved, error) {
	return client.moveAt(ctx, idPath(id), to, conditions)
}

func (client *Client) moveAt(
	ctx context.Context, path string, to Due, conditions []Condition,
) (Moved, error) {
	if !to.isIn && to.at.IsZero() {
		return Moved{}, errors.New("a move needs a due time: punctual.In(..), or punctual.At(..)")
	}
	if err := checkSpans(map[string]time.Duration{"Delay": to.delay}); err != nil {
		return Moved{}, err
	}
	body, dueIn := map[string]any{"delay": to.delay.Milliseconds()}, to.delay
	if !to.isIn {
		body, dueIn = map[string]any{"due_at": to.at.Format(time.RFC3339Nano)}, time.Until(to.at)
	}
	// Once the task may be due, a repetition would say too_late of a move that was made.
	got, err := client.call(ctx, http.MethodPatch, path, body, dueIn, conditions...)
	if err != nil {
		return Moved{}, err
	}
	var moved Moved
	if err := json.Unmarshal(got.body, &moved); err != nil {
		return Moved{}, err
	}
	if moved.Verdict == "" {
		return Moved{}, problemOf(got.body)
	}
	return moved, nil
}

// DeadLetters returns a page of the dead letters of a topic, or of all if it is empty, in the order
// of their due times, without payloads. The string is the cursor of the next page, and empty at the
// end. The first page has an empty cursor.
func (client *Client) DeadLetters(
	ctx context.Context, topic, cursor string,
) ([]Task, string, error) {
	page, err := ask[struct {
		Tasks  []Task `json:"tasks"`
		Cursor string `json:"cursor"`
	}](ctx, client, http.MethodGet, "/v1/dead"+query("topic", topic, "cursor", cursor), nil)
	return page.Tasks, page.Cursor, err
}

// Redrive makes a dead letter due now, in its topic, or in toTopic if that is not empty. The bool
// is false if there is no such task.
//
// A task that is no dead letter (any more) is returned as it is: look at its State. A dropped dead
// letter has the state dead.
func (client *Client) Redrive(ctx context.Context, id, toTopic string) (Task, bool, error) {
	path, body := "/v1/dead/"+url.PathEscape(id)+"/redrive", map[string]any{}
	if toTopic != "" {
		body["to_topic"] = toTopic
	}
	task, isDead, err := found(ask[Task](ctx, client, http.MethodPost, path, body))
	if err == nil && !isDead {
		return client.GetByID(ctx, id)
	}
	return task, isDead, err
}

// RedriveRange is a range of the dead letters of a topic: all of them if it is empty.
type RedriveRange struct {
	// DueFrom is the first due time, DueTo the one after the last, unless they are zero.
	DueFrom, DueTo time.Time
	// ToTopic is the topic to which the tasks go, instead of their own.
	ToTopic string
	// DryRun only counts.
	DryRun bool
}

// Redriven is the result of a redrive of many dead letters.
type Redriven struct {
	// Count is the number of tasks that were redriven; in a dry run, of those that would be.
	Count int
	// HasMore: there are more. Other callers were at work at them, or the call has failed there.
	HasMore bool
}

// RedriveMany redrives the dead letters of a topic in a range. The count lacks those of an attempt
// whose answer was lost. The call may be repeated. If it fails after some, they are counted, and
// HasMore is true. A dry run fails.
func (client *Client) RedriveMany(
	ctx context.Context, topic string, of RedriveRange,
) (Redriven, error) {
	body := map[string]any{"topic": topic, "dry_run": of.DryRun}
	setTime(body, "due_from", of.DueFrom)
	setTime(body, "due_to", of.DueTo)
	if of.ToTopic != "" {
		body["to_topic"] = of.ToTopic
	}
	total, since, pause := Redriven{}, time.Now(), pauseMin
	failed := func(err error) (Redriven, error) {
		if total.Count == 0 || of.DryRun {
			return Redriven{}, err
		}
		return total, nil
	}
	for cursor := ""; ; {
		part, err := ask[struct {
			Redriven int    `json:"redriven"`
			More     bool   `json:"more"`
			Cursor   string `json:"cursor"`
		}](ctx, client, http.MethodPost, "/v1/dead/redrive", body)
		if err != nil {
			return failed(err)
		}
		hasMoved := part.Cursor != "" && part.Cursor != cursor
		total.Count += part.Redriven
		total.HasMore = part.More
		if !part.More || of.DryRun && !hasMoved {
			return total, nil
		}
		cursor, body["cursor"] = part.Cursor, nil
		if cursor != "" {
			body["cursor"] = cursor
		}
		if part.Redriven > 0 || hasMoved {
			since, pause = time.Now(), pauseMin
			continue
		}
		if time.Since(since)+pause > client.retryFor {
			return total, nil
		}
		select {
		case <-ctx.Done():
			return failed(ctx.Err())
		case <-time.After(pause + mathrand.N(pause/4+1)):
		}
		pause = min(2*pause, pauseMax)
	}
}
