package punctual_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	punctual "punctual.example/client"
	"punctual.example/client/punctualtest"
)

var (
	ctx   = context.Background()
	topic = os.Getenv("PUNCTUAL_TOPIC")
)

// clients returns those of the story of every client: tests/integration/clients.rs starts a node.
func clients(t *testing.T) (client, losing *punctual.Client) {
	if topic == "" {
		t.Skip("needs a node")
	}
	return open(t, os.Getenv("PUNCTUAL_URL")), open(t, os.Getenv("PUNCTUAL_LOSING_URL"))
}

func open(t *testing.T, url string, options ...punctual.Option) *punctual.Client {
	t.Helper()
	client, err := punctual.New(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func equal[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%v, not %v", got, want)
	}
}

func later(name, key string, payload any) punctual.Draft {
	return punctual.Draft{Name: name, Key: &key, Payload: payload, Delay: time.Hour}
}

func TestASubmitWhoseAnswersAreLostMakesOneTask(t *testing.T) {
	client, losing := clients(t)
	task := must[punctual.Task](t)(losing.Submit(ctx, topic, later("a name/with ü", "named", map[string]int{"order": 1})))
	equal(t, task.State, "scheduled")
	again := must[punctual.Task](t)(client.Submit(ctx, topic, later("a name/with ü", "other", 2)))
	equal(t, again.ID, task.ID)
	key := "unnamed"
	draft := punctual.Draft{Key: &key, DueAt: time.Now().Add(time.Hour), Headers: map[string]any{"source": "tests"}}
	must[punctual.Task](t)(losing.Submit(ctx, topic, draft))
}

func TestAReplacementWhoseAnswersAreLostLeavesOneTask(t *testing.T) {
	client, losing := clients(t)
	first := must[punctual.Task](t)(client.Submit(ctx, topic, later("order-2", "first", 1)))
	task := must[punctual.Task](t)(losing.Replace(ctx, topic, "order-2", later("", "replaced", 2)))
	found, _, err := client.Get(ctx, topic, "order-2")
	equal(t, must[punctual.Task](t)(found, err).ID, task.ID)
	equal(t, must[punctual.Cancelled](t)(client.CancelByID(ctx, first.ID)).Verdict, punctual.VerdictReplaced)
}

func TestVerdictsAreValues(t *testing.T) {
	client, losing := clients(t)
	must[punctual.Task](t)(client.Submit(ctx, topic, later("order-3", "third", 3)))
	cancelled := must[punctual.Cancelled](t)(losing.Cancel(ctx, topic, "order-3"))
	equal(t, cancelled.Verdict, punctual.VerdictCancelled)
	equal(t, cancelled.Task.State, "cancelled")
	equal(t, must[punctual.Cancelled](t)(client.Cancel(ctx, topic, "nobody")).Verdict, punctual.VerdictNotFound)
	_, found, err := client.Get(ctx, topic, "nobody")
	equal(t, must[bool](t)(found, err), false)
	task := must[punctual.Task](t)(client.Submit(ctx, topic, punctual.Draft{Name: "order-4", PayloadBytes: []byte{0}}))
	for task.State != "published" {
		task, _, err = client.GetByID(ctx, task.ID)
		must[bool](t)(true, err)
	}
	equal(t, task.Receipt.Offset >= 0, true)
	equal(t, must[punctual.Cancelled](t)(client.CancelByID(ctx, task.ID)).Verdict, punctual.VerdictTooLate)
}

func TestAConsumerAnswersForItsAttempts(t *testing.T) {
	client, losing := clients(t)
	retry := &punctual.RetryPolicy{AttemptsMax: 3, BackoffMin: time.Second}
	tracked := punctual.Draft{Name: "order-6", Payload: 6, TTR: time.Hour, Retry: retry}
	wrong := punctual.Draft{Payload: 6, TTR: time.Millisecond}
	submitted := must[[]punctual.Result](t)(losing.SubmitMany(ctx, topic, []punctual.Draft{tracked, wrong}))
	equal(t, submitted[1].Problem.Field, "tasks[1].ttr")
	id := submitted[0].Task.ID
	for {
		task, _, err := client.GetByID(ctx, id)
		if must[punctual.Task](t)(task, err).State == "awaiting" {
			break
		}
	}
	in := time.Hour
	failure := punctual.Failure{Reason: "out of stock", RetryIn: &in}
	failed := must[punctual.Answered](t)(losing.Fail(ctx, id, 1, failure))
	equal(t, failed.Verdict, punctual.AnswerRetrying)
	equal(t, failed.TookEffect, true)
	late := must[punctual.Answered](t)(client.Extend(ctx, id, 1, time.Hour))
	equal(t, late.Verdict, punctual.AnswerAlreadyFailed)
	equal(t, late.TookEffect, false)
	answers := must[[]punctual.Result](t)(losing.Outcomes(ctx, []punctual.Outcome{
		{Call: "finish", Topic: topic, Name: "order-6"},
		{Call: "fail", ID: "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f", Attempt: 1, Failure: punctual.Failure{RetryAt: time.Now()}},
	}))
	equal(t, answers[0].Answered.Verdict, punctual.AnswerFinished)
	equal(t, answers[1].Answered.Verdict, punctual.AnswerNotFound)
	equal(t, must[punctual.Answered](t)(client.Finish(ctx, id, 1)).Task.State, "finished")
	var problem *punctual.Problem
	_, err := client.Fail(ctx, id, 0, punctual.Failure{})
	equal(t, errors.As(err, &problem) && problem.Field == "attempt", true)
}

func TestARefusedRequestIsAProblemWithAType(t *testing.T) {
	client, _ := clients(t)
	var problem *punctual.Problem
	_, err := client.Submit(ctx, "no-such-topic", later("", "none", 1))
	equal(t, errors.As(err, &problem) && problem.Slug == "unknown-topic" && problem.Status == 422, true)
	_, err = client.Submit(ctx, topic, punctual.Draft{Delay: -time.Hour})
	equal(t, errors.As(err, &problem) && problem.Field == "delay", true)
}

func TestAReplacementOfATaskThatMayBeDueIsNotRepeated(t *testing.T) {
	_, losing := clients(t)
	var failure *punctual.NoAnswer
	_, err := losing.Replace(ctx, topic, "order-5", punctual.Draft{Payload: 5})
	equal(t, errors.As(err, &failure) && failure.IsUnknown, true)
}

func TestATokenAndACAFileAreUsed(t *testing.T) {
	clients(t)
	url, ca := os.Getenv("PUNCTUAL_SECURE_URL"), punctual.CAFile(os.Getenv("PUNCTUAL_CA_FILE"))
	draft := later("", "secure", 6)
	must[punctual.Task](t)(open(t, url, ca, punctual.TokenFile(os.Getenv("PUNCTUAL_TOKEN_FILE"))).Submit(ctx, topic, draft))
	var problem *punctual.Problem
	_, err := open(t, url, ca).Submit(ctx, topic, draft)
	equal(t, errors.As(err, &problem) && problem.Slug == "unauthenticated", true)
	var failure *punctual.NoAnswer
	_, err = open(t, url).Submit(ctx, topic, draft)
	equal(t, errors.As(err, &failure) && !failure.IsUnknown, true)
}

func TestAMonthPassesInATest(t *testing.T) {
	clients(t)
	failing := &failing{TB: t}
	dev, month := punctualtest.Start(failing, "orders:2"), 30*24*time.Hour
	key := "order-7"
	draft := punctual.Draft{Key: &key, Payload: 7, Delay: month}
	task := must[punctual.Task](t)(dev.Client().Submit(ctx, "orders", draft))
	equal(t, len(dev.Published("orders")), 0)
	dev.Advance(month)
	records := dev.Published("orders")
	equal(t, len(records), 1)
	equal(t, string(records[0].Payload), "7")
	equal(t, records[0].Headers[punctual.HeaderTaskID], task.ID)
	failing.run(func() { dev.Published("ordres") })
	contains(t, failing.said, "no such topic")
	failing.run(func() { dev.Advance(30) })
	contains(t, failing.said, "below a millisecond")
}

func TestWithoutANodeNothingWasDone(t *testing.T) {
	var failure *punctual.NoAnswer
	_, err := open(t, "http://127.0.0.1:1", punctual.RetryFor(300*time.Millisecond)).Submit(ctx, "demo", later("", "none", 1))
	equal(t, errors.As(err, &failure) && !failure.IsUnknown, true)
}

func TestATokenIsNotSentInClearOverTheNetwork(t *testing.T) {
	_, err := punctual.New("http://punctual.example:7070", punctual.Token("pt_1"))
	equal(t, err != nil, true)
}

func TestANumberIsNoLengthOfTime(t *testing.T) {
	client, bare := open(t, "http://127.0.0.1:1", punctual.RetryFor(0)), time.Duration(5)
	extend := punctual.Outcome{ID: "1", Call: "extend", Attempt: 1, By: 5}
	drafts := []punctual.Draft{
		{Delay: 5}, {Delay: -5}, {TTR: 30}, {Retry: &punctual.RetryPolicy{BackoffMin: 1}},
		{Retry: &punctual.RetryPolicy{BackoffMax: 1}},
	}
	var errs []error
	for _, draft := range drafts {
		_, submitted := client.Submit(ctx, "demo", draft)
		_, together := client.SubmitMany(ctx, "demo", []punctual.Draft{draft})
		_, replaced := client.Replace(ctx, "demo", "order-1", draft)
		errs = append(errs, submitted, together, replaced)
	}
	_, failed := client.Fail(ctx, "1", 1, punctual.Failure{RetryIn: &bare})
	_, extended := client.Extend(ctx, "1", 1, bare)
	_, answered := client.Outcomes(ctx, []punctual.Outcome{extend})
	for _, err := range append(errs, failed, extended, answered) {
		contains(t, fmt.Sprint(err), "below a millisecond: give a unit")
	}
}

func TestBytesAreNoPayload(t *testing.T) {
	client := open(t, "http://127.0.0.1:1", punctual.RetryFor(0))
	_, err := client.Submit(ctx, "demo", punctual.Draft{Delay: time.Hour, Payload: []byte("1")})
	contains(t, fmt.Sprint(err), "set PayloadBytes")
}

func TestADevServerNeedsItsProgram(t *testing.T) {
	t.Setenv("PUNCTUAL_BIN", "no-punctual")
	failing := &failing{TB: t}
	failing.run(func() { punctualtest.Start(failing, "orders") })
	contains(t, failing.said, "no program `no-punctual` on the PATH; set PUNCTUAL_BIN")
}

// failing is a test that is expected to fail.
type failing struct {
	testing.TB
	said string
}

func (failing *failing) Fatalf(format string, values ...any) {
	failing.said = fmt.Sprintf(format, values...)
	runtime.Goexit()
}

// run ends with the work, or where it fails.
func (failing *failing) run(work func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		work()
	}()
	<-ended
}

func contains(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Fatalf("%q is not in %q", part, text)
	}
}

func TestTheWorkOfATaskSucceedsOnce(t *testing.T) {
	once, broken := punctual.NewOnce(2), errors.New("broken")
	_, err := once.Run("1", func() error { return broken })
	equal(t, err, broken)
	for _, ran := range []bool{true, false} {
		equal(t, must[bool](t)(once.Run("1", func() error { return nil })), ran)
	}
}
