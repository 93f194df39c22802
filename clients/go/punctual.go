// Package punctual is a client of Punctual, which publishes records to Kafka at their due time.
package punctual

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	pauseMin      = 100 * time.Millisecond
	pauseMax      = 5 * time.Second
	retryAfterMax = time.Minute
	forEver       = time.Duration(math.MaxInt64)
	answerMax     = 64 << 20
	popWait       = 20 * time.Second
)

// Draft is a task to submit: one of Delay and DueAt, one payload or a tombstone.
type Draft struct {
	// Name is your idempotency key, unique within the topic. Only for a submit.
	Name string
	// Delay is the time from now, if DueAt is zero. Durations below a millisecond are refused,
	// because they miss their unit.
	Delay time.Duration
	DueAt time.Time
	// ExpiresAt is the time from which the task is not published any more, unless it is zero.
	ExpiresAt time.Time
	Key       *string
	// KeyBytes is a key that is not text.
	KeyBytes []byte
	// Payload is any value that encoding/json writes, nil included (JSON's null), except
	// []byte, unless PayloadBytes or Tombstone is set.
	Payload      any
	PayloadBytes []byte
	// Tombstone makes the record's value null.
	Tombstone bool
	Headers   map[string]any
	// TTR is the consumer's time for an attempt. With it, the consumer answers for the task.
	TTR   time.Duration
	Retry *RetryPolicy
}

// Task is a task as the API shows it.
type Task struct {
	ID    string    `json:"id"`
	Topic string    `json:"topic"`
	Name  string    `json:"name"`
	DueAt time.Time `json:"due_at"`
	// State is scheduled, claimed, published, cancelled, dead or expired, and of a tracked task
	// awaiting, retrying or finished; more may be added.
	State string `json:"state"`
	// Reason is why a dead letter was given up.
	Reason     string   `json:"reason"`
	ReplacedBy string   `json:"replaced_by"`
	Receipt    *Receipt `json:"receipt"`
}

// Receipt is the place of a published record.
type Receipt struct {
	Partition   int32     `json:"partition"`
	Offset      int64     `json:"offset"`
	PublishedAt time.Time `json:"published_at"`
	LatenessMS  int64     `json:"lateness_ms"`
}

// Verdict is the result of a cancel; more may be added.
type Verdict string

const (
	VerdictCancelled Verdict = "cancelled"
	VerdictTooLate   Verdict = "too_late"
	VerdictReplaced  Verdict = "replaced"
	VerdictNotFound  Verdict = "not_found"
)

// Cancelled is a verdict with its task, which is nil if there is none.
type Cancelled struct {
	Verdict Verdict `json:"verdict"`
	Task    *Task   `json:"task"`
}

// Client is a client of one node, for any number of goroutines.
type Client struct {
	base      string
	token     string
	transport *http.Transport
	http      http.Client
	retryFor  time.Duration
}

// Option changes a new client.
type Option func(*Client) error

// Token is sent with each request.
func Token(token string) Option {
	return func(client *Client) error { client.token = token; return nil }
}

// TokenFile is a file with the token.
func TokenFile(path string) Option {
	return func(client *Client) error {
		text, err := os.ReadFile(path)
		client.token = strings.TrimSpace(string(text))
		return err
	}
}

// CAFile is a file with the authorities to trust, in PEM.
func CAFile(path string) Option {
	return func(client *Client) error {
		pem, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s has no certificate", path)
		}
		client.transport.TLSClientConfig = &tls.Config{RootCAs: pool}
		return nil
	}
}

// Timeout is the time of one attempt.
func Timeout(timeout time.Duration) Option {
	return func(client *Client) error { client.http.Timeout = timeout; return nil }
}

// RetryFor is the time for all attempts of a call.
func RetryFor(limit time.Duration) Option {
	return func(client *Client) error { client.retryFor = limit; return nil }
}

// New returns a client of the node at a URL such as http://127.0.0.1:7070.
func New(node string, options ...Option) (*Client, error) {
	parsed, err := url.Parse(node)
	if err != nil {
		return nil, err
	}
	transport, isPlain := http.DefaultTransport.(*http.Transport)
	if isPlain {
		transport = transport.Clone()
	} else { // the program has another one
		transport = &http.Transport{
			Proxy:             http.ProxyFromEnvironment,
			ForceAttemptHTTP2: true,
			MaxIdleConns:      100,
			IdleConnTimeout:   90 * time.Second,
		}
	}
	// By default, all but two connections to a node end with their request.
	transport.MaxIdleConnsPerHost = transport.MaxIdleConns
	client := &Client{
		base:      strings.TrimSuffix(node, "/"),
		transport: transport,
		http:      http.Client{Timeout: 35 * time.Second, Transport: transport},
		retryFor:  30 * time.Second,
	}
	for _, option := range options {
		if err := option(client); err != nil {
			return nil, err
		}
	}
	isWrong := func(char rune) bool { return char <= ' ' || char > '~' }
	if strings.ContainsFunc(client.token, isWrong) {
		return nil, errors.New("a token is one line of visible ASCII characters, without spaces")
	}
	host := parsed.Hostname()
	isLocal := host == "127.0.0.1" || host == "::1" || host == "localhost"
	if client.token != "" && parsed.Scheme != "https" && !isLocal {
		return nil, errors.New("a token is sent over https:// only, or to this machine")
	}
	return client, nil
}

// Submit submits a task and returns it. A known name returns its first task: look at its State. A
// task without a name gets a random one, so that its own repetitions make no second task.
func (client *Client) Submit(ctx context.Context, topic string, draft Draft) (Task, error) {
	body, err := draft.named(topic)
	if err != nil {
		return Task{}, err
	}
	return client.must(ctx, http.MethodPost, "/v1/tasks", body, forEver)
}

// Replace creates the task of a name, or replaces a pending one, and returns the new task. A task
// on its way is a *Problem with the Slug too-late.
func (client *Client) Replace(
	ctx context.Context, topic, name string, draft Draft, conditions ...Condition,
) (Task, error) {
	// Once the task may be due, a repetition would schedule another one.
	dueIn := draft.Delay
	if !draft.DueAt.IsZero() {
		dueIn = time.Until(draft.DueAt)
	}
	if err := draft.check(); err != nil {
		return Task{}, err
	}
	path := pathOf(topic, name)
	answer, err := client.call(ctx, http.MethodPut, path, draft.body(), dueIn, conditions...)
	return read[Task](answer, err)
}

// Get returns the task of a name. The bool is false if there is none.
func (client *Client) Get(ctx context.Context, topic, name string) (Task, bool, error) {
	return client.look(ctx, pathOf(topic, name))
}

// GetByID is as Get, by the id of the task.
func (client *Client) GetByID(ctx context.Context, id string) (Task, bool, error) {
	return client.look(ctx, idPath(id))
}

// Cancel cancels the task of a name. The verdict says whether its record will ever exist.
func (client *Client) Cancel(
	ctx context.Context, topic, name string, conditions ...Condition,
) (Cancelled, error) {
	return client.cancelAt(ctx, pathOf(topic, name), conditions)
}

// CancelByID is as Cancel, by the id of the task.
func (client *Client) CancelByID(
	ctx context.Context, id string, conditions ...Condition,
) (Cancelled, error) {
	return client.cancelAt(ctx, idPath(id), conditions)
}

func (client *Client) look(ctx context.Context, path string) (Task, bool, error) {
	return found(client.must(ctx, http.MethodGet, path, nil, forEver))
}

func (client *Client) cancelAt(
	ctx context.Context, path string, conditions []Condition,
) (Cancelled, error) {
	answer, err := client.call(ctx, http.MethodDelete, path, nil, forEver, conditions...)
	if err != nil {
		return Cancelled{}, err
	}
	var cancelled Cancelled
	if err := json.Unmarshal(answer.body, &cancelled); err != nil {
		return Cancelled{}, err
	}
	if cancelled.Verdict == "" {
		return Cancelled{}, problemOf(answer.body)
	}
	return cancelled, nil
}

func (client *Client) must(
	ctx context.Context, method, path string, body map[string]any, safeFor time.Duration,
) (Task, error) {
	answer, err := client.call(ctx, method, path, body, safeFor)
	return read[Task](answer, err)
}

// ask makes a call that is safe to repeat, unless it has conditions.
func ask[T any](
	ctx context.Context, client *Client, method, path string, body map[string]any,
	conditions ...Condition,
) (T, error) {
	answer, err := client.call(ctx, method, path, body, forEver, conditions...)
	return read[T](answer, err)
}

// read reads the answer of a call. A refusal is a *Problem.
func read[T any](answer answer, err error) (T, error) {
	var value T
	if err != nil {
		return value, err
	}
	if answer.status >= 300 {
		return value, problemOf(answer.body)
	}
	return value, json.Unmarshal(answer.body, &value)
}

// found turns the problem of something that is not there into false.
func found[T any](value T, err error) (T, bool, error) {
	var problem *Problem
	if errors.As(err, &problem) {
		switch problem.Slug {
		case "task-not-found", "topic-not-found", "schedule-not-found", "callback-not-found":
			return value, false, nil
		}
	}
	return value, err == nil, err
}

type answer struct {
	status     int
	retryAfter time.Duration
	body       []byte
	// wasLost: an attempt before this one may have been done.
	wasLost bool
}

// call repeats a request until it has an answer. It repeats what was not done (429, 503), and what
// may have been done (no answer, other 5xx) if a repetition starts within safeFor.
func (client *Client) call(
	ctx context.Context, method, path string, body map[string]any, safeFor time.Duration,
	conditions ...Condition,
) (answer, error) {
	condition := conditionOf(conditions)
	if condition.err != nil {
		return answer{}, condition.err
	}
	path, safeFor = condition.of(path), condition.safeFor(safeFor)
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return answer{}, err
		}
	}
	began, isUnknown := time.Now(), false
	for attempt := 0; ; attempt++ {
		got, failure := client.attempt(ctx, method, path, text, condition.header)
		if failure == nil {
			if !isRepeated(got.status) || problemOf(got.body).isFinal() {
				// A refusal of a proxy does not tell whether an earlier attempt was done.
				if isUnknown && got.status >= 400 && !problemOf(got.body).isOfNode() {
					call, problem := method+" "+path, problemOf(got.body)
					return answer{}, &NoAnswer{Call: call, IsUnknown: true, Err: problem}
				}
				got.wasLost = isUnknown
				return got, nil
			}
			problem := problemOf(got.body)
			isUnknown = isUnknown || got.status >= 500 && !problem.isNotDone()
			failure = problem
		} else {
			isUnknown = isUnknown || !isNotConnected(failure)
		}
		pause := max(min(pauseMin<<min(attempt, 16), pauseMax), min(got.retryAfter, retryAfterMax))
		pause += mathrand.N(pause/4 + 1)
		end := client.retryFor
		if isUnknown {
			end = min(end, safeFor)
		}
		noAnswer := &NoAnswer{Call: method + " " + path, IsUnknown: isUnknown, Err: failure}
		if isCertificate(failure) || time.Since(began)+pause > end {
			return answer{}, noAnswer
		}
		select {
		case <-ctx.Done():
			return answer{}, noAnswer
		case <-time.After(pause):
		}
	}
}

func (client *Client) attempt(
	ctx context.Context, method, path string, text []byte, header http.Header,
) (answer, error) {
	body := bytes.NewReader(text)
	request, err := http.NewRequestWithContext(ctx, method, client.base+path, body)
	if err != nil {
		return answer{}, err
	}
	request.Header = header.Clone()
	if text != nil {
		request.Header.Set("content-type", "application/json")
	}
	if client.token != "" {
		request.Header.Set("authorization", "Bearer "+client.token)
	}
	response, err := client.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	read, err := io.ReadAll(io.LimitReader(response.Body, answerMax))
	if err != nil {
		return answer{}, err
	}
	seconds, _ := strconv.Atoi(response.Header.Get("retry-after")) // none: 0
	retryAfter := time.Duration(seconds) * time.Second
	got := answer{status: response.StatusCode, retryAfter: retryAfter}
	got.body, err = checked(got.status, read)
	return got, err
}

// checked returns the body of an answer. A 4xx of a proxy becomes a problem without a type. Any
// other answer of a proxy does not say what was done, and is an error.
func checked(status int, body []byte) ([]byte, error) {
	isObject := json.Valid(body) && bytes.HasPrefix(bytes.TrimSpace(body), []byte("{"))
	if isObject && (status < 400 || problemOf(body).isOfNode()) {
		return body, nil
	}
	const reason = "the answer is not of Punctual"
	if status < 400 || status >= 500 {
		return nil, fmt.Errorf("status %d: %s", status, reason)
	}
	problem := Problem{Detail: reason}
	_ = json.Unmarshal(body, &problem) // what a proxy says, if it is JSON
	problem.Type, problem.Status = "", status
	return json.Marshal(problem)
}

// isRepeated tells of calls, and of parts of them, that were not done, or perhaps.
func isRepeated(status int) bool {
	return status == 408 || status == 429 || status == 500 || status == 503
}

func isNotConnected(err error) bool {
	var operation *net.OpError
	return isCertificate(err) || errors.As(err, &operation) && operation.Op == "dial"
}

// isCertificate tells of a certificate that is not trusted. Asking again does not make it right.
func isCertificate(err error) bool {
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &certificate)
}

func idPath(id string) string { return "/v1/tasks/" + url.PathEscape(id) }

func pathOf(topic, name string) string {
	return topicPath(topic) + "/tasks/" + url.PathEscape(name)
}

// query is that of parameters and their values, without those that are empty.
func query(parameters ...string) string {
	values := url.Values{}
	for ; len(parameters) > 1; parameters = parameters[2:] {
		if parameters[1] != "" {
			values.Set(parameters[0], parameters[1])
		}
	}
	if len(values) == 0 {
		return ""
	}
	return "?" + values.Encode()
}

// setTime sets a member to a time, unless that is zero.
func setTime(body map[string]any, member string, value time.Time) {
	if !value.IsZero() {
		body[member] = value.Format(time.RFC3339Nano)
	}
}

// named is the body of a submit.
func (draft Draft) named(topic string) (map[string]any, error) {
	if err := draft.check(); err != nil {
		return nil, err
	}
	body := draft.body()
	body["topic"], body["name"] = topic, draft.Name
	if draft.Name == "" {
		random := make([]byte, 16)
		if _, err := rand.Read(random); err != nil {
			return nil, err
		}
		body["name"] = fmt.Sprintf("client-%x", random)
	}
	return body, nil
}

func (draft Draft) body() map[string]any {
	body := draft.record()
	if draft.DueAt.IsZero() {
		body["delay"] = draft.Delay.Milliseconds()
	}
	setTime(body, "due_at", draft.DueAt)
	setTime(body, "expires_at", draft.ExpiresAt)
	return body
}

// record is the part of a body that says what is published.
func (draft Draft) record() map[string]any {
	body := map[string]any{}
	switch {
	case draft.Tombstone:
		body["tombstone"] = true
	case draft.PayloadBytes != nil:
		body["payload_base64"] = draft.PayloadBytes // encoding/json writes bytes as base64
	default:
		body["payload"] = draft.Payload
	}
	if draft.Key != nil {
		body["key"] = *draft.Key
	}
	if draft.KeyBytes != nil {
		body["key_base64"] = draft.KeyBytes
	}
	if draft.Headers != nil {
		body["headers"] = draft.Headers
	}
	if draft.TTR != 0 {
		body["ttr"] = draft.TTR.Milliseconds()
	}
	if draft.Retry != nil {
		body["retry"] = draft.Retry.body()
	}
	return body
}
