package punctual

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Topic is a topic as the API shows it.
type Topic struct {
	Topic string `json:"topic"`
	// Revision counts the changes of the policy and the pauses.
	Revision int64 `json:"revision"`
	// Policy is nil without a policy.
	Policy *Policy `json:"policy"`
	// Paused is nil if the topic is not paused.
	Paused *Pause `json:"paused"`
	// Pending is the number of pending tasks. Only GetTopic returns it.
	Pending *Count `json:"pending"`
	// InFlight is the number of tasks that are claimed and not settled: a pause does not stop them.
	// ResumeTopic does not return it.
	InFlight int64 `json:"in_flight"`
}

// Pause is the pause of a topic.
type Pause struct {
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
	// By is the caller that paused the topic; empty for an anonymous one.
	By string `json:"by"`
}

// Count is a number of tasks: an estimate unless it is Exact.
type Count struct {
	Count int64 `json:"count"`
	Exact bool  `json:"exact"`
}

// GetTopic returns a topic. The bool is false if Kafka has none of this name.
func (client *Client) GetTopic(ctx context.Context, topic string) (Topic, bool, error) {
	return found(ask[Topic](ctx, client, http.MethodGet, topicPath(topic), nil))
}

// PauseTopic pauses a topic and returns it. From now on none of its tasks is claimed. Submits and
// cancels are as before. Tasks that are InFlight may still be published. The reason may be empty; a
// topic that is paused already keeps its reason.
func (client *Client) PauseTopic(ctx context.Context, topic, reason string) (Topic, error) {
	return client.changeTopic(ctx, topic, "/pause", reason)
}

// ResumeTopic ends the pause of a topic and returns it. Overdue tasks are published now.
func (client *Client) ResumeTopic(ctx context.Context, topic, reason string) (Topic, error) {
	return client.changeTopic(ctx, topic, "/resume", reason)
}

func (client *Client) changeTopic(
	ctx context.Context, topic, change, reason string,
) (Topic, error) {
	body := map[string]any{}
	if reason != "" {
		body["reason"] = reason
	}
	return ask[Topic](ctx, client, http.MethodPost, topicPath(topic)+change, body)
}

func topicPath(topic string) string { return "/v1/topics/" + url.PathEscape(topic) }
