package punctual

import (
	"context"
	"encoding/json"
	"errors"
	mathrand "math/rand/v2"
	"net/http"
	"time"
)

// RetryPolicy says how a task is tried again that its consumer fails, or does not finish in time.
// Zero values stand for the defaults.
type RetryPolicy struct {
	AttemptsMax   int
	BackoffMin    time.Duration
	BackoffMax    time.Duration
	BackoffFactor int
	DeadTopic     string
}

// AnswerVerdict is the verdict on a consumer's answer. The first five took effect, the others
// changed nothing. More may be added: see TookEffect.
type AnswerVerdict string

const (
	AnswerFinished AnswerVerdict = "finished"
	// AnswerRetrying: the next attempt has a due time.
	AnswerRetrying AnswerVerdict = "retrying"
	// AnswerDead: the task is a dead letter, or about to be one: by this answer, or before it.
	AnswerDead     AnswerVerdict = "dead"
	AnswerExtended AnswerVerdict = "extended"
	// AnswerNoted takes effect once the node knows that the record was published.
	AnswerNoted           AnswerVerdict = "noted"
	AnswerNotPublishedYet AnswerVerdict = "not_published_yet"
	AnswerAttemptTooHigh  AnswerVerdict = "attempt_too_high"
	// AnswerAttemptSuperseded: a later attempt was made. Stop the work.
	AnswerAttemptSuperseded AnswerVerdict = "attempt_superseded"
	AnswerAlreadyFailed     AnswerVerdict = "already_failed"
	AnswerAlreadyFinished   AnswerVerdict = "already_finished"
	AnswerCancelled         AnswerVerdict = "cancelled"
	AnswerNotTracked        AnswerVerdict = "not_tracked"
	AnswerNotFound          AnswerVerdict = "not_found"
)

// Answered is a verdict with its task, which is nil if there is none.
type Answered struct {
	Verdict AnswerVerdict `json:"verdict"`
	// TookEffect is false if the answer came too late, or was wrong: nothing was changed.
	TookEffect bool `json:"-"`
	// InFlight: finished, and an attempt that was claimed before may still reach the topic.
	InFlight bool `json:"in_flight"`
	// Superseded: finished after a later attempt was made.
	Superseded bool  `json:"superseded"`
	Task       *Task `json:"task"`
}

// Failure says what follows a failed attempt: the back-off, unless RetryIn, RetryAt or Final is
// set.
type Failure struct {
	Reason  string
	RetryIn *time.Duration
	RetryAt time.Time
	// Final: no further attempt. The task is dead.
	Final bool
}

// Outcome is an answer among many: about the task of ID, or of Topic and Name.
type Outcome struct {
	ID, Topic, Name string
	// Call is finish, fail or extend.
	Call    string
	Attempt int
	Failure Failure
	// By is the new deadline of an extend, from now. Zero: the time to run.
	By time.Duration
}

// Result is that of one of many drafts or outcomes. The one of Task, Answered and Problem is set
// that it is.
type Result struct {
	Task     *Task
	Answered *Answered
	Problem  *Problem
}

// Finish says that the work of a tracked task is done: no further attempt is made. The attempt may
// be 0, for any.
func (client *Client) Finish(ctx context.Context, id string, attempt int) (Answered, error) {
	return client.answer(ctx, Outcome{ID: id, Call: "finish", Attempt: attempt})
}

// Fail says that an attempt has failed. The next one follows.
func (client *Client) Fail(
	ctx context.Context, id string, attempt int, failure Failure,
) (Answered, error) {
	return client.answer(ctx, Outcome{ID: id, Call: "fail", Attempt: attempt, Failure: failure})
}

// Extend moves the deadline of an attempt to now plus by, or plus the time to run if by is 0.
func (client *Client) Extend(
	ctx context.Context, id string, attempt int, by time.Duration,
) (Answered, error) {
	return client.answer(ctx, Outcome{ID: id, Call: "extend", Attempt: attempt, By: by})
}

// Outcomes answers for up to 10,000 attempts. It returns a Result for each, in order.
func (client *Client) Outcomes(ctx context.Context, outcomes []Outcome) ([]Result, error) {
	bodies := make([]map[string]any, len(outcomes))
	for index, outcome := range outcomes {
		if err := outcome.check(); err != nil {
			return nil, err
		}
		bodies[index] = outcome.body()
		bodies[index]["outcome"] = outcome.Call
		for field, value := range map[string]string{
			"id": outcome.ID, "topic": outcome.Topic, "name": outcome.Name,
		} {
			if value != "" {
				bodies[index][field] = value
			}
		}
	}
	return client.many(ctx, "/v1/outcomes", "outcomes", bodies)
}

// SubmitMany submits up to 10,000 tasks for a topic. It returns a Result for each, in order. A task
// whose Problem is outcome-unknown may exist.
func (client *Client) SubmitMany(
	ctx context.Context, topic string, drafts []Draft,
) ([]Result, error) {
	bodies := make([]map[string]any, len(drafts))
	for index, draft := range drafts {
		body, err := draft.named(topic)
		if err != nil {
			return nil, err
		}
		bodies[index] = body
	}
	return client.many(ctx, "/v1/tasks/batch", "tasks", bodies)
}

func (client *Client) answer(ctx context.Context, outcome Outcome) (Answered, error) {
	if err := outcome.check(); err != nil {
		return Answered{}, err
	}
	path := idPath(outcome.ID) + "/" + outcome.Call
	got, err := client.call(ctx, http.MethodPost, path, outcome.body(), forEver)
	if err != nil {
		return Answered{}, err
	}
	var answered Answered
	if err := json.Unmarshal(got.body, &answered); err != nil {
		return Answered{}, err
	}
	if answered.Verdict == "" {
		return Answered{}, problemOf(got.body)
	}
	answered.TookEffect = got.status < 300
	return answered, nil
}

// partResult is a result as the API writes it.
type partResult struct {
	Status  int             `json:"status"`
	Problem json.RawMessage `json:"problem"`
	Answered
}

// retryAfter returns how long the part is not to be repeated.
func (part partResult) retryAfter() time.Duration {
	var problem struct {
		Seconds float64 `json:"retry_after"`
	}
	if part.Problem == nil || json.Unmarshal(part.Problem, &problem) != nil {
		return 0
	}
	return min(time.Duration(problem.Seconds*float64(time.Second)), retryAfterMax)
}

func (part partResult) result() Result {
	switch {
	case part.Verdict != "":
		answered := part.Answered
		answered.TookEffect = part.Status < 300
		if part.Problem != nil {
			answered.Task = problemOf(part.Problem).Task
		}
		return Result{Answered: &answered}
	case part.Problem != nil:
		return Result{Problem: problemOf(part.Problem)}
	default:
		return Result{Task: part.Task}
	}
}

// many makes a call with many parts. It repeats those that were not done, or perhaps. Once some
// parts have their answer, a failure leaves the others with their problem.
func (client *Client) many(
	ctx context.Context, path, member string, bodies []map[string]any,
) ([]Result, error) {
	results, left := make([]Result, len(bodies)), make([]int, len(bodies))
	for index := range left {
		left[index] = index
	}
	began, isFirst := time.Now(), true
	for pause := pauseMin; len(left) > 0; pause = min(2*pause, pauseMax) {
		parts := make([]map[string]any, len(left))
		for place, index := range left {
			parts[place] = bodies[index]
		}
		got, err := client.call(ctx, http.MethodPost, path, map[string]any{member: parts}, forEver)
		answers, err := read[struct {
			Results []partResult `json:"results"`
		}](got, err)
		if err != nil && isFirst {
			return nil, err
		}
		if err != nil {
			var noAnswer *NoAnswer
			if got.wasLost || errors.As(err, &noAnswer) && noAnswer.IsUnknown {
				for _, index := range left {
					results[index] = Result{Problem: unknown(err)}
				}
			}
			return results, nil
		}
		isFirst = false
		var again []int
		wait := pause
		for place, part := range answers.Results[:min(len(left), len(answers.Results))] {
			index, result := left[place], part.result()
			if !isRepeated(part.Status) {
				results[index] = result
				continue
			}
			again, wait = append(again, index), max(wait, part.retryAfter())
			// A refusal does not tell whether an earlier attempt was done.
			if before := results[index].Problem; before != nil && before.wasPerhapsDone() {
				continue
			}
			if refused := result.Problem; got.wasLost && refused != nil && !refused.wasPerhapsDone() {
				result.Problem = unknown(refused)
			}
			results[index] = result
		}
		left = again
		if len(left) == 0 || time.Since(began)+wait > client.retryFor {
			break
		}
		select {
		case <-ctx.Done():
			return results, nil
		case <-time.After(wait + mathrand.N(wait/4+1)):
		}
	}
	return results, nil
}

func (outcome Outcome) body() map[string]any {
	body := map[string]any{}
	if outcome.Attempt != 0 || outcome.Call != "finish" {
		body["attempt"] = outcome.Attempt
	}
	if outcome.By != 0 {
		body["by"] = outcome.By.Milliseconds()
	}
	failure := outcome.Failure
	if failure.Reason != "" {
		body["reason"] = failure.Reason
	}
	if failure.RetryIn != nil {
		body["retry_in"] = failure.RetryIn.Milliseconds()
	}
	if !failure.RetryAt.IsZero() {
		body["retry_at"] = failure.RetryAt.Format(time.RFC3339Nano)
	}
	if failure.Final {
		body["final"] = true
	}
	return body
}

func (policy RetryPolicy) body() map[string]any {
	body := map[string]any{}
	for field, number := range map[string]int64{
		"attempts_max":   int64(policy.AttemptsMax),
		"backoff_min":    policy.BackoffMin.Milliseconds(),
		"backoff_max":    policy.BackoffMax.Milliseconds(),
		"backoff_factor": int64(policy.BackoffFactor),
	} {
		if number != 0 {
			body[field] = number
		}
	}
	if policy.DeadTopic != "" {
		body["dead_topic"] = policy.DeadTopic
	}
	return body
}
