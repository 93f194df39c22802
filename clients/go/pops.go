package punctual

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Pop is the request of a consumer without Kafka.
type Pop struct {
	// Group shares the tasks of the topic: each goes to one caller of the group.
	Group string
	// Wait is how long to wait for the first task: 20 s unless given. A negative one does not wait.
	Wait time.Duration
	// Max is the most tasks: 1 unless given.
	Max int
}

// PoppedTask is an attempt of a tracked task, with its record.
type PoppedTask struct {
	ID    string `json:"id"`
	Topic string `json:"topic"`
	// Attempt is the number of this attempt, for Finish, Fail and Extend.
	Attempt     int       `json:"attempt"`
	AttemptsMax int       `json:"attempts_max"`
	DueAt       time.Time `json:"due_at"`
	PublishedAt time.Time `json:"published_at"`
	// FinishBy is the end of the time to run: the task comes again afterwards.
	FinishBy  time.Time                  `json:"finish_by"`
	Partition int32                      `json:"partition"`
	Offset    int64                      `json:"offset"`
	Key       *string                    `json:"key"`
	KeyBytes  []byte                     `json:"key_base64"`
	Headers   map[string]json.RawMessage `json:"headers"`
	// Payload is the record's value if it is JSON; otherwise one of the next three is set.
	Payload      json.RawMessage `json:"payload"`
	PayloadText  *string         `json:"payload_text"`
	PayloadBytes []byte          `json:"payload_base64"`
	Tombstone    bool            `json:"tombstone"`
}

// CallbackDraft is the service to which nodes POST each tracked task of a topic.
type CallbackDraft struct {
	URL     string
	Headers map[string]string
	// Timeout is how long the service may take: 10 s unless given.
	Timeout time.Duration
	// Concurrency is the most requests that wait for an answer: 50 unless given.
	Concurrency int
	// MaxPerSecond is the most requests in a second: any number unless given.
	MaxPerSecond int
	// Paused sends nothing.
	Paused bool
}

// Callback is a callback as the API shows it, without the values of its headers.
type Callback struct {
	Topic string `json:"topic"`
	// Revision is another one after each change.
	Revision     int64    `json:"revision"`
	URL          string   `json:"url"`
	HeaderNames  []string `json:"header_names"`
	Timeout      string   `json:"timeout"`
	Concurrency  int      `json:"concurrency"`
	MaxPerSecond int      `json:"max_per_second"`
	Paused       bool     `json:"paused"`
	// PauseReason is why a node has paused it.
	PauseReason string `json:"pause_reason"`
}

// Pop waits for tracked tasks of a topic and returns them, or none. Finish, Fail or Extend each of
// them. Wait must be shorter than the timeout of this client. Tasks of a lost answer come again
// after their time to run.
func (client *Client) Pop(ctx context.Context, topic string, pop Pop) ([]PoppedTask, error) {
	if err := checkSpans(map[string]time.Duration{"Wait": pop.Wait}); err != nil {
		return nil, err
	}
	wait := max(pop.Wait, 0)
	if pop.Wait == 0 {
		wait = popWait
	}
	if client.http.Timeout > 0 && wait >= client.http.Timeout {
		return nil, fmt.Errorf(
			"Wait is %v: give less than the timeout, %v", wait, client.http.Timeout)
	}
	body := map[string]any{"group": pop.Group, "wait": wait.Milliseconds()}
	set(body, "max", pop.Max)
	answer, err := ask[struct {
		Tasks []PoppedTask `json:"tasks"`
	}](ctx, client, http.MethodPost, topicPath(topic)+"/pop", body)
	return answer.Tasks, err
}

// SetCallback has nodes POST each tracked task of a topic to a service. IsGenuine checks there who
// calls it.
func (client *Client) SetCallback(
	ctx context.Context, topic string, draft CallbackDraft,
) (Callback, error) {
	if err := checkSpans(map[string]time.Duration{"Timeout": draft.Timeout}); err != nil {
		return Callback{}, err
	}
	body := map[string]any{"url": draft.URL, "paused": draft.Paused}
	set(body, "timeout", draft.Timeout.Milliseconds())
	set(body, "concurrency", draft.Concurrency)
	set(body, "max_per_second", draft.MaxPerSecond)
	if draft.Headers != nil {
		body["headers"] = draft.Headers
	}
	return ask[Callback](ctx, client, http.MethodPut, topicPath(topic)+"/callback", body)
}

// GetCallback returns the callback of a topic. The bool is false if there is none.
func (client *Client) GetCallback(ctx context.Context, topic string) (Callback, bool, error) {
	path := topicPath(topic) + "/callback"
	return found(ask[Callback](ctx, client, http.MethodGet, path, nil))
}

// DeleteCallback ends the callback of a topic, and returns it as it was. The bool is false if there
// is none.
func (client *Client) DeleteCallback(ctx context.Context, topic string) (Callback, bool, error) {
	path := topicPath(topic) + "/callback"
	return found(ask[Callback](ctx, client, http.MethodDelete, path, nil))
}

// set sets a member that is not zero.
func set[T comparable](body map[string]any, member string, value T) {
	var zero T
	if value != zero {
		body[member] = value
	}
}
