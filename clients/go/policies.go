package punctual

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Policy is the whole policy of a topic, for the tasks to come. A zero member is no limit.
type Policy struct {
	// TTR and Retry are for tasks without a TTR of their own.
	TTR   time.Duration
	Retry *RetryPolicy
	// DelayMax is how far ahead tasks may be due.
	DelayMax time.Duration
	// ExpireAfter is how long after its due time a task without an ExpiresAt is published at the
	// latest.
	ExpireAfter time.Duration
	// Spread makes tasks due up to so much later than requested.
	Spread time.Duration
	// PendingMax is the number of pending tasks with which submits are refused.
	PendingMax int64
	// SubmittedByHeader: records carry the name of their submitter.
	SubmittedByHeader bool
	// Paused pauses or resumes the topic, unless it is nil. It is nil in answers: see Topic.Paused.
	Paused *bool
}

// SetPolicy sets the whole policy of a topic and returns the topic. To change one member, change it
// in the Policy of GetTopic, and set that under the condition IfRevision. IfNoneMatch("*") is for a
// topic without a policy and without a pause.
func (client *Client) SetPolicy(
	ctx context.Context, topic string, policy Policy, conditions ...Condition,
) (Topic, error) {
	if err := policy.check(); err != nil {
		return Topic{}, err
	}
	path := topicPath(topic) + "/policy"
	return ask[Topic](ctx, client, http.MethodPut, path, policy.body(), conditions...)
}

// DeletePolicy takes the policy of a topic away, and returns the topic.
func (client *Client) DeletePolicy(
	ctx context.Context, topic string, conditions ...Condition,
) (Topic, error) {
	path := topicPath(topic) + "/policy"
	return ask[Topic](ctx, client, http.MethodDelete, path, nil, conditions...)
}

func (policy Policy) body() map[string]any {
	body := map[string]any{}
	set(body, "ttr", policy.TTR.Milliseconds())
	set(body, "delay_max", policy.DelayMax.Milliseconds())
	set(body, "expire_after", policy.ExpireAfter.Milliseconds())
	set(body, "spread", policy.Spread.Milliseconds())
	set(body, "pending_max", policy.PendingMax)
	set(body, "submitted_by_header", policy.SubmittedByHeader)
	if policy.Retry != nil {
		body["retry"] = policy.Retry.body()
	}
	if policy.Paused != nil {
		body["paused"] = *policy.Paused
	}
	return body
}

// UnmarshalJSON reads a policy as the API shows it, with lengths of time as text.
func (policy *Policy) UnmarshalJSON(text []byte) error {
	var read struct {
		TTR   span `json:"ttr"`
		Retry *struct {
			AttemptsMax   int    `json:"attempts_max"`
			BackoffMin    span   `json:"backoff_min"`
			BackoffMax    span   `json:"backoff_max"`
			BackoffFactor int    `json:"backoff_factor"`
			DeadTopic     string `json:"dead_topic"`
		} `json:"retry"`
		DelayMax          span  `json:"delay_max"`
		ExpireAfter       span  `json:"expire_after"`
		Spread            span  `json:"spread"`
		PendingMax        int64 `json:"pending_max"`
		SubmittedByHeader bool  `json:"submitted_by_header"`
	}
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	*policy = Policy{
		TTR: time.Duration(read.TTR), DelayMax: time.Duration(read.DelayMax),
		ExpireAfter: time.Duration(read.ExpireAfter), Spread: time.Duration(read.Spread),
		PendingMax: read.PendingMax, SubmittedByHeader: read.SubmittedByHeader,
	}
	if retry := read.Retry; retry != nil {
		policy.Retry = &RetryPolicy{
			AttemptsMax: retry.AttemptsMax, BackoffMin: time.Duration(retry.BackoffMin),
			BackoffMax: time.Duration(retry.BackoffMax), BackoffFactor: retry.BackoffFactor,
			DeadTopic: retry.DeadTopic,
		}
	}
	return nil
}

// span is a length of time as the API shows it, such as "1d 2h".
type span time.Duration

func (length *span) UnmarshalJSON(text []byte) error {
	var written string
	if err := json.Unmarshal(text, &written); err != nil {
		return err
	}
	*length = 0
	for _, part := range strings.Fields(written) {
		// time.ParseDuration knows no days.
		if days, isDays := strings.CutSuffix(part, "d"); isDays {
			count, err := strconv.Atoi(days)
			if err != nil {
				return err
			}
			part = strconv.Itoa(24*count) + "h"
		}
		parsed, err := time.ParseDuration(part)
		if err != nil {
			return err
		}
		*length += span(parsed)
	}
	return nil
}
